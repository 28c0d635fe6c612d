"""Hostile values on every way into history: stored exactly, or refused with a typed error; neighbours never suffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harvest import (
    ActivityContext,
    ActivityError,
    ApplicationError,
    Harvest,
    Retry,
    WorkflowContext,
    WorkflowFailedError,
)
from harvest.errors import HarvestError, PayloadError
from harvest.history.kinds import EventKind
from harvest.operations import reading, signalling, starting
from harvest.operations.actor import in_process
from harvest.shards import Shards
from harvest.worker.worker import Worker
from tests.support import at_work, check_invariants, history_of

app = Harvest()
SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]
ONCE = Retry(max_attempts=1)

EXACT: dict[str, Any] = {
    "nul": "a\x00b",
    "all controls": "".join(map(chr, range(32))),
    "emoji": "\U0001f600 é ü \u2028 \ufeff",
    "above 2^53": 2**53 + 1,
    "above 2^64": 2**70,
    "negative": -(2**63),
    "float": 0.1 + 0.2,
    "tiny": 5e-324,
    "nested": None,
    "empty key": {"": [], "\x00": {}},
    "quotes": '"\\"}]',
    "sql": "'; drop table harvest_events; --",
    "html": "<script>alert(1)</script>",
    "large": "x" * 1_000_000,
}
deep: Any = "end"
for _ in range(199):
    deep = [deep]
EXACT["nested"] = deep


def too_deep() -> Any:
    value: Any = 0
    for _ in range(201):
        value = [value]
    return value


def bottomless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: dict[str, Callable[[], Any]] = {
    "nan": lambda: float("nan"),
    "infinity": lambda: [{"a": float("-inf")}],
    "surrogate": lambda: "\ud800",
    "surrogate key": lambda: {"\udfff": 1},
    "too deep": too_deep,
    "bottomless": bottomless,
    "object": object,
    "function": lambda: print,
}


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("hostile")) as working:
        yield working
        assert working[0].counters.blocked == 0
        await check_invariants(working[1])


@app.activity(retry=ONCE, heartbeat_timeout=timedelta(seconds=30))
async def same(ctx: ActivityContext, value: Any) -> Any:
    ctx.heartbeat(value)
    return value


@app.workflow
async def through(ctx: WorkflowContext, value: Any) -> list[Any]:
    """The value as input, as an activity's input and result, as a signal, and back as a result."""
    back = await ctx.execute_activity(same, value)
    signal = await ctx.wait_for_signal("value")
    return [value, back, signal]


@pytest.mark.parametrize("name", EXACT)
async def test_48_a_strange_value_passes_every_way_exactly(work: Work, name: str) -> None:
    value = EXACT[name]
    if name == "nested":
        value = value[0][0]  # the result is a list around it
    handle = await app.start(through, value, memo=value)
    await handle.signal("value", value)
    assert await handle.result(SOON) == [value, value, value]
    text = msgspec.json.encode(value)
    for event in await history_of(work[1], handle.execution_id):
        data = event.data()
        if event.kind in (EventKind.WORKFLOW_STARTED, EventKind.ACTIVITY_SCHEDULED):
            assert bytes(data.input) == text
        if event.kind == EventKind.SIGNAL_RECEIVED:
            assert bytes(data.payload) == text
    assert await reading.detail_payload(work[1], handle.execution_id, "memo") == text


async def test_51_text_from_outside_is_kept_byte_for_byte(work: Work) -> None:
    text = b'{"n":1.10,"big":12345678901234567890123,"dup":1,"dup":2, "e":1e2,"u":"\\u0000\\u00e9"}'
    started = await starting.start(work[1], in_process("test"), workflow_name="through", input=text)
    await signalling.signal(work[1], in_process("test"), started.execution_id, "value", text)
    await (await app.handle(started.execution_id)).result(SOON)
    events = await history_of(work[1], started.execution_id)
    assert bytes(events[0].data().input) == text
    assert next(bytes(e.data().payload) for e in events if e.kind == EventKind.SIGNAL_RECEIVED) == text


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_stored_is_refused_to_the_caller(work: Work, name: str) -> None:
    value = REFUSED[name]()
    for call in (lambda: app.start(through, value), lambda: app.start(through, 1, memo=value)):
        with pytest.raises(PayloadError):
            await call()
    handle = await app.start(through, 1)
    with pytest.raises(PayloadError):
        await handle.signal("value", value)
    await handle.signal("value", 2)
    assert await handle.result(SOON) == [1, 1, 2]


@app.activity(retry=ONCE)
async def makes(ctx: ActivityContext, name: str, how: str) -> Any:
    value = REFUSED[name]()
    if how == "heartbeat":
        ctx.heartbeat(value)
    return value


@app.workflow
async def meets(ctx: WorkflowContext, name: str, how: str) -> Any:
    if how == "input":
        try:
            await ctx.execute_activity(same, REFUSED[name]())
        except PayloadError as error:
            return type(error).__name__
    if how == "output":
        return REFUSED[name]()
    try:
        await ctx.execute_activity(makes, name, how)
    except ActivityError as error:
        return getattr(error.__cause__, "type", None)
    return None


@pytest.mark.parametrize("how", ["input", "result", "heartbeat", "output"])
async def test_49_50_what_cannot_be_stored_fails_its_maker_and_no_neighbour(work: Work, how: str) -> None:
    """Good runs and bad ones are decided in the same batches."""
    bad = {name: await app.start(meets, name, how) for name in REFUSED}
    good = [await app.start(through, n) for n in range(8)]
    for handle in good:
        await handle.signal("value", 0)
    assert [await handle.result(SOON) for handle in good] == [[n, n, 0] for n in range(8)]
    for name, other in bad.items():
        if how == "output":
            with pytest.raises(WorkflowFailedError, match="PayloadError"):
                await other.result(SOON)
        else:
            assert await other.result(SOON) == "PayloadError", name


MESSAGES = ["\ud800 lone", "nul \x00 inside", "x" * 100_000, "\U0001f600", ""]


@app.activity(retry=Retry(max_attempts=2, initial_interval=timedelta(0)))
async def complains(message: int) -> None:
    raise ApplicationError(MESSAGES[message], type=MESSAGES[message][:300] or "Empty")


@app.workflow
async def hears(ctx: WorkflowContext, message: int) -> None:
    try:
        await ctx.execute_activity(complains, message)
    except ActivityError as error:
        raise ApplicationError(MESSAGES[message], type="\ud800") from error


async def test_any_failure_message_is_kept_as_text(work: Work) -> None:
    handles = [await app.start(hears, n) for n in range(len(MESSAGES))]
    for message, handle in zip(MESSAGES, handles, strict=True):
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        view = await reading.get(work[1], handle.execution_id)
        assert view.failure is not None
        kept = message.replace("\ud800", "?")[:8_000]
        assert view.failure.message == kept
        assert view.failure.cause is not None


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


@app.workflow
async def mute(ctx: WorkflowContext) -> None:
    raise Mute


async def test_an_exception_without_words_fails_the_run(work: Work) -> None:
    with pytest.raises(WorkflowFailedError, match="Mute"):
        await (await app.start(mute)).result(SOON)


async def test_a_flood_of_hostile_requests_leaves_only_typed_errors(work: Work) -> None:
    handle = await app.start(through, 0)
    texts = [b"", b"{", b"\x00", b"\xff\xfe", b'"\xed\xa0\x80"', b"nul", b"[1,]", b"01", b'{"a":1', b"NaN", b"-"]
    texts.append(b"1" * 5_000)
    sends = (
        signalling.signal(work[1], in_process("test"), handle.execution_id, "value", text, idempotency_key=str(n))
        for n, text in enumerate(texts)
    )
    answers = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(answer, HarvestError) for answer in answers), answers
    await handle.signal("value", 1)
    assert await handle.result(SOON) == [0, 0, 1]
