"""What is left of an event when its run is erased: its shape, and nothing that anybody has put into it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from harvest import Harvest, WorkflowContext
from harvest.history.data import Failure, RetryPolicy, SessionBroken, SignalReceived, Target
from harvest.history.document import decode_document, encode_document
from harvest.history.erasing import ERASED, ERASED_TEXT, Digest, erased_event, erased_failure, erased_value
from harvest.history.events import DATA_OF, encode_data
from harvest.history.kinds import EventKind
from harvest.testing import WorkflowEnvironment, verify

PLANTED = "4111-1111 Ada"
MARKER = PLANTED.encode()
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
FAILURE = Failure(
    "Declined", PLANTED, f"Traceback {PLANTED}", non_retryable=True, cause=Failure("E", PLANTED, cause=Failure("F", ""))
)
# Texts that name something, or say one of a few words that the engine has. Every other text must be erased.
NAMING = frozenset(
    {
        "actor", "build", "child_id", "close_policy", "execution_id", "first_execution_id", "name", "new_execution_id",
        "parent_id", "previous_execution_id", "queue", "reason_code", "retry_execution_id", "root_id", "state",
        "tenant", "timeout_type", "update_id", "worker", "worker_name", "workflow_id", "workflow_name",
    }
)  # fmt: skip
STAYING: dict[type, Any] = {
    int: 7,
    float: 2.5,
    bool: True,
    datetime: AT,
    RetryPolicy: RetryPolicy(max_attempts=9, non_retryable=("Declined",)),
    Target: Target("0000", "order_flow", "o-1"),
}


def full(kind: EventKind) -> tuple[Struct, set[str]]:
    """The data of a kind with every field set, what was planted where users' words can be, and these fields."""
    values: dict[str, Any] = {}
    planted = set()
    for field in msgspec.structs.fields(DATA_OF[kind]):
        types = set(get_args(field.type)) or {field.type}
        if Raw in types:
            values[field.name] = Raw(msgspec.json.encode({"card": [PLANTED, None]}))
        elif Failure in types:
            values[field.name] = FAILURE
        elif str in types:
            stays = field.name in NAMING or DATA_OF[kind] is SessionBroken
            values[field.name] = f"the {field.name}" if stays else PLANTED
        else:
            (staying,) = types & STAYING.keys()
            values[field.name] = STAYING[staying]
            continue
        if values[field.name] != f"the {field.name}":
            planted.add(field.name)
    return DATA_OF[kind](**values), planted


@pytest.mark.parametrize("kind", list(EventKind), ids=lambda kind: kind.word)
def test_nothing_that_was_planted_is_left_and_all_else_is_as_it_was(kind: EventKind) -> None:
    data, planted = full(kind)
    payload = encode_data(data)
    assert (MARKER in payload) == bool(planted)
    erased, gone = erased_event(int(kind), payload)
    assert MARKER not in erased
    assert gone >= len(planted)
    left = msgspec.json.decode(erased, type=DATA_OF[kind])
    for field in msgspec.structs.fields(DATA_OF[kind]):
        if field.name not in planted:
            assert getattr(left, field.name) == getattr(data, field.name), field.name


@pytest.mark.parametrize("kind", list(EventKind), ids=lambda kind: kind.word)
def test_what_is_erased_stays_as_it_is(kind: EventKind) -> None:
    erased, _ = erased_event(int(kind), encode_data(full(kind)[0]))
    assert erased_event(int(kind), erased) == (erased, 0)


@pytest.mark.parametrize("kind", list(EventKind), ids=lambda kind: kind.word)
def test_a_failure_keeps_its_types_alone(kind: EventKind) -> None:
    data, planted = full(kind)
    left = msgspec.json.decode(erased_event(int(kind), encode_data(data))[0], type=DATA_OF[kind])
    for name in planted:
        value = getattr(left, name)
        if isinstance(value, Failure):
            innermost = Failure("F", ERASED_TEXT)
            assert value == Failure(
                "Declined", ERASED_TEXT, non_retryable=True, cause=Failure("E", ERASED_TEXT, cause=innermost)
            )
        else:
            assert value in ("", ERASED_TEXT) or bytes(value) == ERASED


def test_values_that_are_null_or_absent_stay_so() -> None:
    payload = encode_data(SignalReceived("go"))
    assert erased_event(EventKind.SIGNAL_RECEIVED, payload) == (payload, 0)
    assert erased_value(None) == (None, 0)
    assert erased_value(b"null") == (b"null", 0)
    assert erased_failure(None) == (None, 0)


def test_a_field_of_a_later_release_goes() -> None:
    erased, _ = erased_event(EventKind.SIGNAL_RECEIVED, b'{"name":"go","added_later":"%b"}' % MARKER)
    assert erased == b'{"name":"go"}'


@pytest.mark.parametrize(
    ("kind", "payload", "codec"),
    [
        (999, b'{"card":"%b"}' % MARKER, 1),
        (EventKind.SIGNAL_RECEIVED, MARKER, 1),
        (EventKind.SIGNAL_RECEIVED, b'{"name":"go","payload":"%b"}' % MARKER, 2),
    ],
)
def test_what_cannot_be_read_goes_as_a_whole(kind: int, payload: bytes, codec: int) -> None:
    assert erased_event(kind, payload, codec) == (ERASED, 1)
    assert erased_event(kind, ERASED) == (ERASED, 0)


@given(st.sampled_from([*map(int, EventKind), 999]), st.binary(max_size=60))
def test_any_bytes_can_be_erased_and_stay_erased(kind: int, payload: bytes) -> None:
    erased, _ = erased_event(kind, payload)
    assert erased_event(kind, erased) == (erased, 0)


def test_a_failure_that_cannot_be_read_is_replaced() -> None:
    erased, gone = erased_failure(MARKER)
    assert erased is not None
    assert (MARKER in erased, gone) == (False, 1)
    assert erased_failure(erased) == (erased, 0)


def test_a_digest_tells_every_part_of_an_event_and_of_the_details_apart() -> None:
    def of(event: tuple[int, int, bytes], name: str, value: bytes | None) -> str:
        digest = Digest()
        digest.event(*event)
        digest.detail(name, value)
        return digest.hex()

    digests = [
        of((1, 1, b"{}"), "memo", b"1"),
        of((2, 1, b"{}"), "memo", b"1"),
        of((1, 2, b"{}"), "memo", b"1"),
        of((1, 1, b"{}}"), "memo", b"1"),
        of((1, 1, b"{}"), "input", b"1"),
        of((1, 1, b"{}"), "memo", b"2"),
        of((1, 1, b"{}"), "memo", b""),
        of((1, 1, b"{}"), "memo", None),
    ]
    assert len(set(digests)) == len(digests)


async def test_a_replay_says_that_the_payloads_were_erased() -> None:
    app = Harvest()

    @app.workflow
    async def echoes(ctx: WorkflowContext, value: int) -> int:
        return value

    async with WorkflowEnvironment(app) as env:
        handle = await env.start(echoes, 1)
        await handle.result()
        document = env.history(handle)
    assert verify(document, app.registry).is_clean
    erased = decode_document(encode_document(msgspec.structs.replace(document, erased_at=AT)))
    verdict = verify(erased, app.registry)
    assert (verdict.verdict, verdict.is_clean, verdict.divergence) == ("erased", False, None)
    assert "were erased at 2026-05-01T12:00:00+00:00" in verdict.message
