"""The exported history: everything that replay reads, to the byte, and nothing of the payloads where that is asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args
from uuid import UUID

import msgspec
import pytest

from harvest.errors import (
    ExecutionNotFoundError,
    ExportTooLargeError,
    HistoryDocumentError,
    InvalidRequestError,
)
from harvest.history.data import (
    ActivityFailed,
    ActivityScheduled,
    ChildWorkflowStarted,
    Failure,
    RetryPolicy,
    SignalReceived,
    Target,
    WorkflowCancelRequested,
    WorkflowStarted,
)
from harvest.history.document import FORM, HistoryDocument, decode_document, encode_document, events_of
from harvest.history.events import DATA_OF, Event, encode_data
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.redaction import REDACTED_TEXTS, redact
from harvest.history.states import State
from harvest.operations import exporting
from harvest.operations.exporting import export_history
from harvest.shards import Shards
from harvest.store import exports
from tests.operations.population import EPOCH, Happened, Run, add, add_events, add_history, started
from tests.support import history_of

SECRET = "4111-1111"
AWKWARD = (
    b'{"name": "go",  "payload": [1.10, 123456789012345678901234567890, '
    b'"\\u0000\\ud83d\\ude00", "\xc3\xa9 \xe2\x80\xa8"]}'
)
NAMING = frozenset(
    (
        "worker_name",
        "workflow_name",
        "workflow_id",
        "queue",
        "build",
        "parent_id",
        "root_id",
        "first_execution_id",
        "previous_execution_id",
        "retry_execution_id",
        "new_execution_id",
        "child_id",
        "execution_id",
        "actor",
        "name",
        "worker",
        "timeout_type",
        "close_policy",
        "state",
        "update_id",
        "reason_code",
        "tenant",
    )
)


async def test_every_byte_of_every_event_comes_back(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run(state=State.COMPLETED))
    kinds = [int(EventKind.SIGNAL_RECEIVED), int(EventKind.SIGNAL_RECEIVED), 999, int(EventKind.WORKFLOW_COMPLETED)]
    payloads = [AWKWARD, b"\xff\x00\xfe no text", b"{broken", b"{}"]
    await add_events(shards, execution_id, [started(b'{"card": 1.0}'), *zip(kinds, payloads, strict=True)])
    content = await export_history(shards, execution_id)
    document = decode_document(content)
    assert events_of(document) == await history_of(shards, execution_id)
    assert encode_document(document) == content
    assert [event.type for event in document.events][:4] == [
        "WorkflowStarted", "SignalReceived", "SignalReceived", "Unknown999",
    ]  # fmt: skip
    # Formatting tools leave it as it was.
    assert events_of(decode_document(msgspec.json.format(content, indent=4))) == events_of(document)


async def test_the_head_has_what_replay_and_people_need(shards: Shards) -> None:
    parent, previous = mint_execution_id(0), mint_execution_id(1)
    run = Run(workflow_id="o-9", state=State.FAILED, parent_id=parent, previous_execution_id=previous)
    execution_id = await add(shards, 1, run)
    await add_history(
        shards,
        execution_id,
        [Happened(EventKind.WORKFLOW_STARTED, 0.123456, 0, WorkflowStarted("order_flow", "o-9", 1, 7))],
    )
    await shards.store(1).write.write(
        "update harvest_executions set decided_through = 1, build = 'b-1' where execution_id = $1", execution_id
    )
    document = decode_document(await export_history(shards, execution_id))
    assert (document.harvest_history, document.payload_policy) == (FORM, "full")
    assert (document.execution_id, document.workflow_name, document.workflow_id) == (execution_id, "order_flow", "o-9")
    assert (document.version, document.state, document.build, document.decided_through) == (1, "FAILED", "b-1", 1)
    assert (document.parent_id, document.previous_execution_id) == (parent, previous)
    assert (document.started_at, document.closed_at is not None) == (EPOCH, True)
    [event] = document.events
    assert (event.at, event.at.tzinfo) == (EPOCH + timedelta(seconds=0.123456), UTC)
    assert (event.seq, event.kind, event.format, event.codec) == (0, 1, 1, 1)


async def test_a_long_history_is_read_in_pages(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    execution_id = await add(shards, 0, Run())
    await add_events(shards, execution_id, [started(), *[(14, b"{}")] * 1_100])
    document = decode_document(await export_history(shards, execution_id))
    assert len(document.events) == 1_101
    assert exports.PAGE * 2 < 1_101


async def user_data(shards: Shards) -> UUID:
    """A history with the secret in every place that a user's data or words can be."""
    raw = msgspec.Raw(msgspec.json.encode({"card": SECRET}))
    failure = Failure("Declined", f"card {SECRET}", f"Traceback {SECRET}", cause=Failure("E", SECRET))
    execution_id = await add(shards, 0, Run())
    await add_history(
        shards,
        execution_id,
        [
            Happened(
                EventKind.WORKFLOW_STARTED, data=WorkflowStarted("order_flow", "o-1", 1, 7, raw, last_failure=failure)
            ),
            Happened(EventKind.ACTIVITY_SCHEDULED, 1, 1, ActivityScheduled("charge", SECRET, raw)),
            Happened(EventKind.ACTIVITY_FAILED, 2, 1, ActivityFailed(failure)),
            Happened(EventKind.SIGNAL_RECEIVED, 3, 0, SignalReceived("approved", raw)),
            Happened(
                EventKind.CHILD_WORKFLOW_STARTED, 4, 2, ChildWorkflowStarted("x", "ship", "s", SECRET, raw, memo=raw)
            ),
            Happened(EventKind.WORKFLOW_CANCEL_REQUESTED, 5, 0, WorkflowCancelRequested(SECRET)),
        ],
    )
    await shards.store(0).write.write(
        "update harvest_events set kind = 999 where execution_id = $1 and event_id = 6", execution_id
    )
    return execution_id


@pytest.mark.parametrize("policy", ["redacted", "omit"])
async def test_no_user_data_leaves_where_it_must_not(shards: Shards, policy: exporting.PayloadPolicy) -> None:
    execution_id = await user_data(shards)
    assert SECRET.encode() in await export_history(shards, execution_id)
    content = await export_history(shards, execution_id, payload_policy=policy)
    assert SECRET.encode() not in content
    document = decode_document(content)
    assert document.payload_policy == policy
    held = [event.data() for event in events_of(document) if event.kind in list(EventKind)]
    # Names, numbers and types stay, and every event decodes as before.
    assert (held[0].workflow_name, held[0].seed, held[1].name, held[3].name) == ("order_flow", 7, "charge", "approved")
    assert (held[2].failure.type, held[2].failure.cause.type) == ("Declined", "E")
    expected = b'{"redacted_bytes":20}' if policy == "redacted" else b"null"
    assert bytes(held[1].input) == bytes(held[4].memo) == expected


@pytest.mark.parametrize("kind", list(EventKind), ids=lambda kind: kind.word)
def test_data_of_every_kind_can_be_redacted(kind: EventKind) -> None:
    assert redact(int(kind), b"not json", "redacted") == b"{}"
    for field in msgspec.structs.fields(DATA_OF[kind]):
        types = set(get_args(field.type)) or {field.type}
        if str in types:
            # Add a field here when it names something; let it be redacted when it can hold what a user wrote.
            assert field.name in NAMING | REDACTED_TEXTS
        assert types <= {str, int, float, bool, datetime, type(None), Target, RetryPolicy, Failure, msgspec.Raw}


async def test_a_sealed_payload_is_carried_as_it_is_and_not_replayed(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    await add_events(shards, execution_id, [started(), (14, b'{"sealed": true}')])
    await shards.store(0).write.write("update harvest_events set codec = 2 where event_id = 2")
    document = decode_document(await export_history(shards, execution_id))
    assert (document.events[1].codec, document.events[1].data) == (2, None)
    with pytest.raises(HistoryDocumentError, match="event 2 is sealed"):
        events_of(document)
    redacted = decode_document(await export_history(shards, execution_id, payload_policy="redacted"))
    assert (redacted.events[1].data, redacted.events[1].data_base64) == ("{}", None)


async def test_more_bytes_than_allowed_are_refused(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    await add_events(shards, execution_id, [started(), (14, b'{"name":"' + b"x" * 5_000 + b'"}')])
    size = len(await export_history(shards, execution_id))
    with pytest.raises(ExportTooLargeError, match="max_bytes"):
        await export_history(shards, execution_id, max_bytes=4_000)
    with pytest.raises(ExportTooLargeError):
        await export_history(shards, execution_id, max_bytes=size - 1)
    await export_history(shards, execution_id, max_bytes=size)
    for most in (0, exporting.MOST_BYTES + 1):
        with pytest.raises(InvalidRequestError, match="max_bytes"):
            await export_history(shards, execution_id, max_bytes=most)


async def test_an_unknown_run_or_policy_is_refused(shards: Shards) -> None:
    with pytest.raises(ExecutionNotFoundError):
        await export_history(shards, mint_execution_id(0))
    with pytest.raises(InvalidRequestError, match="payload_policy"):
        await export_history(shards, mint_execution_id(0), payload_policy="some")  # type: ignore[arg-type]


FIRST = {"event_id": 1, "type": "WorkflowStarted", "kind": 1, "at": "2026-05-01T12:00:00Z", "data": "{}"}


def document(**changed: object) -> dict[str, object]:
    whole = {
        "harvest_history": 1,
        "workflow_name": "order_flow",
        "workflow_id": "o-1",
        "version": 1,
        "execution_id": str(mint_execution_id(0)),
        "state": "COMPLETED",
        "started_at": "2026-05-01T12:00:00Z",
        "decided_through": 1,
        "events": [FIRST],
    }
    return {**whole, **changed}


def test_the_form_of_release_0_2_is_read_for_ever() -> None:
    # Written out, so that a renamed field fails here and not in somebody's archive.
    found = decode_document(msgspec.json.encode(document()))
    assert events_of(found) == [Event(1, 1, 0, EPOCH, b"{}")]
    assert isinstance(found, HistoryDocument)
    later = document(added_later=1, events=[{**FIRST, "color": "red"}])
    assert events_of(decode_document(msgspec.json.encode(later))) == events_of(found)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no exported history"),
        (b"\xff", "no exported history"),
        (b"[]", "no exported history"),
        (b"[" * 100_000, "no exported history"),
        (msgspec.json.encode({"workflow_name": "x"}), "no exported history"),
        (msgspec.json.encode(document(harvest_history=2)), "form 2"),
        (msgspec.json.encode(document(version="one")), "damaged"),
        (msgspec.json.encode(document(events=[{**FIRST, "event_id": 2}])), "event 1 is missing"),
    ],
)
def test_what_is_no_document_is_refused_with_the_reason(content: bytes, said: str) -> None:
    with pytest.raises(HistoryDocumentError, match=said):
        decode_document(content)


def test_damaged_base64_is_told() -> None:
    event = {name: value for name, value in FIRST.items() if name != "data"} | {"data_base64": "!"}
    with pytest.raises(HistoryDocumentError, match="event 1"):
        events_of(decode_document(msgspec.json.encode(document(events=[event]))))


def test_encoded_data_is_untouched_by_the_document() -> None:
    data = encode_data(SignalReceived("go", msgspec.Raw(b"[ 1.0 ]")))
    event = {**FIRST, "data": data.decode()}
    assert events_of(decode_document(msgspec.json.encode(document(events=[event]))))[0].payload == data
