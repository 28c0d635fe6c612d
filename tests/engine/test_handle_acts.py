"""What an application does with its runs from outside: updates, queries, pauses, starts of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from harvest import (
    ApplicationError,
    Harvest,
    Retry,
    StartItem,
    UpdateFailedError,
    UpdateRejectedError,
    UpdateTimeoutError,
    WorkflowContext,
    WorkflowFailedError,
    WorkflowHandle,
)
from harvest.definitions.options import workflow_options
from harvest.errors import (
    DefinitionError,
    ExecutionClosedError,
    ExecutionPausedError,
    InputInvalidError,
    QueryNotFoundError,
    WorkflowNotRegisteredError,
)
from harvest.history.data import RetryPolicy, WorkflowStarted
from harvest.history.kinds import EventKind
from harvest.operations import definitions, reading
from harvest.shards import Shards
from harvest.worker.worker import Worker, definition_rows
from tests.scale import scale
from tests.support import at_work, check_invariants, eventually, history_of

app = Harvest()


class Sum(Struct):
    total: int
    by: str


def refuse_negative(value: int, by: str = "") -> None:
    if value < 0:
        raise ApplicationError("only what is positive", type="Negative")


@app.workflow(updates={"slow": int})
async def account(ctx: WorkflowContext, start: int = 0) -> int:
    total, closed = start, False

    async def add(value: int, by: str = "") -> Sum:
        nonlocal total
        if value == 13:
            raise ApplicationError("unlucky", type="Unlucky")
        total += value
        return Sum(total, by)

    async def slow(value: int) -> int:
        await ctx.wait_for_signal("go")
        return value

    def finish() -> int:
        nonlocal closed
        closed = True
        return total

    ctx.register_update_handler("add", add, validator=refuse_negative)
    ctx.register_update_handler("slow", slow)
    ctx.register_update_handler("finish", finish)
    ctx.register_query_handler("total", lambda: total)
    await ctx.wait_condition(lambda: closed)
    return total


@app.workflow(name="versioned", version=1)
async def versioned_1(ctx: WorkflowContext) -> str:
    return "one"


@app.workflow(name="versioned", version=2)
async def versioned_2(ctx: WorkflowContext) -> str:
    return "two"


@app.workflow
async def collects(ctx: WorkflowContext, seen: list[int], most: int) -> list[int]:
    """Takes numbers by signal and by update, and goes on as new after so many of them."""
    mine: list[int] = []
    ctx.register_update_handler("add", mine.append)
    ctx.register_signal_handler("add", mine.append)
    await ctx.wait_condition(lambda: len(mine) >= most or 0 in mine)
    await ctx.wait_condition(ctx.all_handlers_finished)
    if 0 not in mine:
        ctx.continue_as_new(seen + mine, most)
    return sorted(seen + mine)


@app.workflow(retry=Retry(max_attempts=3, initial_interval=timedelta(seconds=0)), execution_timeout=timedelta(hours=1))
async def fails(ctx: WorkflowContext) -> str:
    signal = await ctx.wait_for_signal("how", str)
    if signal == "fail":
        raise ApplicationError("as told", type="Told")
    return signal


begun, gate = asyncio.Event(), asyncio.Event()


@app.activity
async def waits_at_the_gate() -> str:
    begun.set()
    await gate.wait()
    return "done"


@app.workflow
async def works(ctx: WorkflowContext) -> str:
    return await ctx.execute_activity(waits_at_the_gate)


@pytest.fixture
async def work(new_database: Callable[[str], str]) -> AsyncIterator[tuple[Worker, Shards]]:
    async with at_work(app, new_database("messages")) as working:
        yield working
        await check_invariants(working[1])


async def test_an_update_is_answered_with_its_type(work: tuple[Worker, Shards]) -> None:
    handle = await app.start(account, 5, workflow_id="a-1")
    assert await handle.update("add", 2, "mira", result_type=Sum) == Sum(7, "mira")
    assert await handle.update("add", 3) == {"total": 10, "by": ""}
    assert await handle.query("total", result_type=int) == 10
    assert await handle.update("finish") == 10
    assert await handle.result(timeout=20) == 10
    with pytest.raises(ExecutionClosedError):
        await handle.update("add", 1)


async def test_what_a_validator_refuses_and_what_a_handler_raises_reach_the_sender(
    work: tuple[Worker, Shards],
) -> None:
    handle = await app.start(account)
    with pytest.raises(UpdateRejectedError, match="only what is positive") as refused:
        await handle.update("add", -1)
    assert refused.value.fields["failure_type"] == "Negative"
    with pytest.raises(UpdateFailedError, match="unlucky"):
        await handle.update("add", 13)
    with pytest.raises(UpdateRejectedError, match="no handler for update 'unknown'"):
        await handle.update("unknown")
    with pytest.raises(QueryNotFoundError):
        await handle.query("unknown")
    with pytest.raises(InputInvalidError):
        await handle.update("slow", "text")
    assert await handle.query("total") == 0


async def test_an_update_that_takes_its_time_is_waited_for_later(work: tuple[Worker, Shards]) -> None:
    handle = await app.start(account)
    with pytest.raises(UpdateTimeoutError):
        await handle.update("slow", 7, timeout=0.05, idempotency_key="k")
    begun = await handle.start_update("slow", 8, result_type=int)
    await handle.signal("go")
    assert await handle.update("slow", 7, idempotency_key="k") == 7
    await handle.signal("go")
    assert await begun.result(timeout=20) == 8


async def test_a_paused_run_goes_on_where_it_was(work: tuple[Worker, Shards]) -> None:
    handle = await app.start(account)
    await handle.update("add", 1)
    assert await handle.pause("a look")
    assert not await handle.pause()
    sent = await handle.start_update("add", 2, result_type=Sum)
    with pytest.raises(UpdateTimeoutError):
        await sent.result(timeout=0.2)
    assert await handle.resume()
    assert not await handle.resume()
    assert (await sent.result(timeout=20)).total == 3
    assert await handle.cancel()
    with pytest.raises(WorkflowFailedError, match="CANCELLED"):
        await handle.result(timeout=20)


async def test_an_activity_under_way_ends_while_its_run_is_paused_and_is_seen_at_the_resume(
    work: tuple[Worker, Shards],
) -> None:
    gate.clear()
    handle = await app.start(works)
    await asyncio.wait_for(begun.wait(), 20)
    await handle.pause()
    gate.set()

    async def has_ended() -> bool:
        return EventKind.ACTIVITY_COMPLETED in [each.kind for each in await history_of(work[1], handle.execution_id)]

    await eventually(has_ended)
    assert (await reading.get(work[1], handle.execution_id)).state == "PAUSED"
    assert await handle.resume()
    assert await handle.result(timeout=20) == "done"
    kinds = [each.kind for each in await history_of(work[1], handle.execution_id)]
    assert kinds[-4:] == [
        EventKind.WORKFLOW_EXECUTION_PAUSED,
        EventKind.ACTIVITY_COMPLETED,
        EventKind.WORKFLOW_EXECUTION_RESUMED,
        EventKind.WORKFLOW_COMPLETED,
    ]


async def test_a_run_is_started_with_a_signal_or_an_update_or_reached_by_them(work: tuple[Worker, Shards]) -> None:
    handle, answer = await app.update_with_start(
        account, 10, workflow_id="w-1", update="add", update_args=(5,), result_type=Sum, timeout=20
    )
    assert answer == Sum(15, "")
    same, answer = await app.update_with_start(account, 99, workflow_id="w-1", update="add", update_args=(1, "x"))
    assert (same.execution_id, answer) == (handle.execution_id, {"total": 16, "by": "x"})
    first = await app.signal_with_start(fails, workflow_id="s-1", signal="how", payload="well")
    assert await first.result(timeout=20) == "well"
    again = await app.signal_with_start(fails, workflow_id="s-1", signal="how", payload="anew")
    assert again.execution_id != first.execution_id
    assert await again.result(timeout=20) == "anew"
    await handle.pause()
    with pytest.raises(ExecutionPausedError):
        await app.update_with_start(account, workflow_id="w-1", update="add", update_args=(1,))


async def test_a_version_is_started_exactly(work: tuple[Worker, Shards]) -> None:
    for version, result in ((None, "two"), (1, "one"), (2, "two")):
        handle = await app.start(versioned_2, version=version)
        assert await handle.result(timeout=20) == result
    with pytest.raises(WorkflowNotRegisteredError, match=r"version 3 is registered; there is version 1, 2"):
        await app.start(versioned_2, version=3)


async def test_a_batch_tells_of_each_item(work: tuple[Worker, Shards]) -> None:
    good, bad = await app.start_batch(
        [
            StartItem(workflow=versioned_1, workflow_id="b-1", version=1),
            StartItem(workflow=account, args=(1,), workflow_id="b-2", version=9),
        ]
    )
    assert good.handle is not None
    assert await good.handle.result(timeout=20) == "one"
    assert isinstance(bad.error, WorkflowNotRegisteredError)
    items = [StartItem(workflow=account, args=(n,), workflow_id=f"at-{n}") for n in range(3)]
    begun = await app.start_batch(items, atomic=True)
    assert [each.started_fresh for each in begun] == [True, True, True]
    assert begun[2].handle is not None
    assert await begun[2].handle.query("total") == 2


async def test_a_run_that_fails_is_tried_again_and_its_handle_follows(work: tuple[Worker, Shards]) -> None:
    handle = await app.start(fails)
    first = await _started_of(work[1], handle)
    assert (first.retry is not None, first.attempt, first.execution_timeout_seconds) == (True, 1, 3600)
    await handle.signal("how", "fail")
    await handle.signal("how", "well", idempotency_key="k")
    assert await handle.result(timeout=20) == "well"
    outcome = await reading.result(work[1], handle.execution_id)
    assert outcome is not None
    assert outcome.execution_id != handle.execution_id
    alone = await app.start(fails, retry=Retry(max_attempts=1))
    assert (await _started_of(work[1], alone)).retry is None
    await alone.signal("how", "fail")
    with pytest.raises(WorkflowFailedError, match="as told"):
        await alone.result(timeout=20)


async def _started_of(shards: Shards, handle: WorkflowHandle[Any]) -> WorkflowStarted:
    started: WorkflowStarted = (await history_of(shards, handle.execution_id))[0].data()
    return started


async def test_the_deadline_of_a_chain_is_in_its_first_event_and_the_earlier_one_holds(
    work: tuple[Worker, Shards],
) -> None:
    hour, day = timedelta(hours=1), timedelta(days=1)
    for run, chain in ((hour, day), (day, hour), (None, hour)):
        handle = await app.start(account, execution_timeout=run, chain_execution_timeout=chain)
        started, shown = await _started_of(work[1], handle), await reading.get(work[1], handle.execution_id)
        assert started.chain_deadline is not None
        assert abs(started.chain_deadline - shown.started_at - chain) < timedelta(seconds=30)
        assert shown.deadline_at is not None
        assert abs(shown.deadline_at - shown.started_at - hour) < timedelta(seconds=30)
        await handle.terminate()


async def test_what_the_code_declares_travels_with_its_schema(work: tuple[Worker, Shards]) -> None:
    known = {each.name: each for each in (await definitions.registered(work[1])).rows}
    assert known["account"].updates == {"slow": {"type": "integer"}}
    assert "x-updates" not in known["account"].input_schema
    options = known["fails"].input_schema["x-options"]
    assert msgspec.convert(options["retry"], RetryPolicy) == RetryPolicy(initial_interval=0)
    assert options["execution_timeout"] == 3600.0


def test_exceptions_that_block_are_an_option_and_are_not_published() -> None:
    of_it = Harvest()

    @of_it.workflow(block_on=(KeyError, ValueError), chain_execution_timeout=timedelta(days=2))
    async def blocks(ctx: WorkflowContext) -> None: ...

    assert of_it.registry.workflows["blocks", 1].options.block_on == (KeyError, ValueError)
    (row,) = definition_rows(of_it.registry, "")
    published = msgspec.json.decode(row.input_schema)["x-options"]
    assert published == {
        "queue": "default",
        "execution_timeout": None,
        "chain_execution_timeout": 172_800.0,
        "retry": None,
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"block_on": (BaseException,)}, "cancelled"),
        ({"block_on": (asyncio.CancelledError,)}, "cancelled"),
        ({"block_on": ("ValueError",)}, "types of exceptions"),
        ({"execution_timeout": timedelta(days=2), "chain_execution_timeout": timedelta(days=1)}, "longer than chain"),
        ({"chain_execution_timeout": timedelta(0)}, "positive"),
    ],
)
def test_workflow_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        workflow_options(**{"queue": "default", "execution_timeout": None, **options})


async def test_no_message_to_a_run_that_rotates_is_lost_doubled_or_refused(
    work: tuple[Worker, Shards], proof: Callable[..., None]
) -> None:
    """Signals and updates from several senders, each with a key and some of them sent twice."""
    senders, each, most = 4, scale(60, 1500), 50
    handle = await app.start(collects, [], most, workflow_id="rotates")
    numbers = iter(range(1, senders * each + 1))

    async def send() -> None:
        for _ in range(each):
            number = next(numbers)
            if number % 2:
                await handle.signal("add", number, idempotency_key=f"s-{number}")
                if number % 7 == 0:
                    await handle.signal("add", number, idempotency_key=f"s-{number}")
            else:
                await handle.update("add", number, idempotency_key=f"u-{number}", timeout=60)

    await asyncio.gather(*(send() for _ in range(senders)))
    await handle.signal("add", 0)
    assert await handle.result(timeout=60) == list(range(senders * each + 1))
    rows = await work[1].store(0).read.fetch("select state from harvest_executions where workflow_id = 'rotates'")
    assert len(rows) > senders * each // most // 2
    proof("rotations", runs=len(rows), messages=senders * each)


async def test_a_query_of_a_run_that_went_on_asks_the_one_that_lives(work: tuple[Worker, Shards]) -> None:
    handle = await app.start(collects, [], 1, workflow_id="asked")
    await handle.signal("add", 3)

    async def went_on() -> bool:
        events = await history_of(work[1], handle.execution_id)
        return events[-1].kind == EventKind.WORKFLOW_CONTINUED_AS_NEW

    await eventually(went_on)
    with pytest.raises(QueryNotFoundError):
        await handle.query("total")
