"""What is addressed to a run that went on as another reaches the live run of its chain; nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from harvest.errors import ExecutionClosedError, ExecutionNotFoundError
from harvest.history.data import Failure, WorkflowCompleted, WorkflowFailed
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.operations import closing, pausing, reading, routing, signalling, starting, updating
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest.store import chains
from tests.operations.population import register
from tests.operations.rotating import Worker, events_of, signals_of, worker_on
from tests.scale import scale
from tests.support import eventually

Act = Callable[[Shards, Actor, UUID], Awaitable[Any]]
ACTS: dict[str, Act] = {
    "signal": lambda shards, actor, run: signalling.signal(shards, actor, run, "go", b"1"),
    "cancel": lambda shards, actor, run: closing.cancel(shards, actor, run, reason="r"),
    "terminate": lambda shards, actor, run: closing.terminate(shards, actor, run, reason="r"),
    "pause": lambda shards, actor, run: pausing.pause(shards, actor, run),
    "resume": lambda shards, actor, run: pausing.resume(shards, actor, run),
    "update": lambda shards, actor, run: updating.update(shards, actor, run, "set", b"1", wait="admitted"),
}


async def begin(shards: Shards, actor: Actor, workflow_id: str = "chain") -> tuple[UUID, Worker]:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    started = await starting.start(shards, actor, workflow_name="any_flow", workflow_id=workflow_id)
    return started.execution_id, await worker_on(shards, started.shard_id)


@pytest.mark.parametrize("failed", [False, True], ids=["continued", "retried"])
@pytest.mark.parametrize("act", ACTS)
async def test_each_act_on_a_run_that_went_on_reaches_the_live_one(
    shards: Shards, actor: Actor, act: str, failed: bool
) -> None:
    first, worker = await begin(shards, actor)
    second = await worker.rotate(first)
    third = await worker.rotate(second, failed=failed)
    for asked in (first, second):
        done = await ACTS[act](shards, actor, asked)
        assert done.routed_execution_id == third
        if act == "terminate":
            return
    direct = await ACTS[act](shards, actor, third)
    assert (direct.execution_id, direct.routed_execution_id) == (third, None)


async def test_a_run_that_failed_for_good_and_a_chain_that_ended_are_closed(shards: Shards, actor: Actor) -> None:
    first, worker = await begin(shards, actor)
    second = await worker.rotate(first, failed=True)
    failure = WorkflowFailed(Failure(type="E", message="m"))
    await worker.decide(second, end=(EventKind.WORKFLOW_FAILED, failure))
    for asked in (first, second):
        with pytest.raises(ExecutionClosedError) as refused:
            await signalling.signal(shards, actor, asked, "go", b"1")
        assert refused.value.fields == {"execution_id": str(second), "state": "FAILED"}
    with pytest.raises(ExecutionNotFoundError):
        await signalling.signal(shards, actor, UUID(int=mint_execution_id(0).int), "go", b"1")


async def test_a_key_lets_a_signal_into_a_chain_once_whichever_run_it_is_sent_to(shards: Shards, actor: Actor) -> None:
    first, worker = await begin(shards, actor)
    await signalling.signal(shards, actor, first, "go", b"1", idempotency_key="k")
    second = await worker.rotate(first)
    for asked in (first, second):
        again = await signalling.signal(shards, actor, asked, "go", b"1", idempotency_key="k")
        assert (again.signal_delivered, again.deduplicated) == (False, True)
    other = await signalling.signal(shards, actor, second, "go", b"2", idempotency_key="k-2")
    assert other.signal_delivered
    assert await signals_of(shards, [first, second]) == [1, 2]


async def test_a_cancellation_is_asked_for_once_of_each_run(shards: Shards, actor: Actor) -> None:
    first, worker = await begin(shards, actor)
    assert (await closing.cancel(shards, actor, first, reason="")).newly_cancelled
    second = await worker.rotate(first)
    assert (await closing.cancel(shards, actor, first, reason="")).newly_cancelled
    again = await closing.cancel(shards, actor, first, reason="")
    assert (again.newly_cancelled, again.execution_id, again.state) == (False, second, "RUNNING")


async def test_under_a_stream_of_rotations_no_sender_is_refused_and_no_signal_lost_or_doubled(
    shards: Shards, actor: Actor
) -> None:
    first, worker = await begin(shards, actor)
    runs = [first]
    senders, each = 4, scale(25, 250)

    async def send(sender: int) -> None:
        for n in range(each):
            # Where all wait, the next rotation passes: the chain goes on whatever the pace of this machine.
            await eventually(enough(n // 10))
            text = b'"%d-%d"' % (sender, n)
            sent = await signalling.signal(shards, actor, first, "go", text, idempotency_key=text.decode())
            assert sent.signal_delivered
            if n % 5 == 0:
                again = await signalling.signal(shards, actor, runs[-1], "go", text, idempotency_key=text.decode())
                assert again.deduplicated

    def enough(rotations: int) -> Callable[[], Awaitable[bool]]:
        async def happened() -> bool:
            return len(runs) > rotations

        return happened

    async def rotate() -> None:
        while any(not task.done() for task in sending):
            new = await worker.try_to_rotate(runs[-1])
            if new is not None:
                runs.append(new)

    sending = [asyncio.create_task(send(sender)) for sender in range(senders)]
    await asyncio.gather(*sending, rotate())
    assert len(runs) > each // 10
    expected = sorted((f"{sender}-{n}" for sender in range(senders) for n in range(each)), key=str)
    assert await signals_of(shards, runs) == expected


async def test_the_result_is_that_of_the_last_run_of_the_chain(shards: Shards, actor: Actor) -> None:
    first, worker = await begin(shards, actor)
    second = await worker.rotate(first, failed=True)
    assert await reading.result(shards, first) is None
    third = await worker.rotate(second)
    await worker.decide(third, end=(EventKind.WORKFLOW_COMPLETED, WorkflowCompleted()))
    for asked in (first, second, third):
        outcome = await reading.result(shards, asked, wait=5)
        assert outcome is not None
        assert (outcome.execution_id, outcome.state) == (third, "COMPLETED")


async def test_a_result_that_is_waited_for_follows_a_retry(shards: Shards, actor: Actor) -> None:
    first, worker = await begin(shards, actor)
    waiting = asyncio.create_task(reading.result(shards, first, wait=20))
    second = await worker.rotate(first, failed=True)
    await worker.decide(second, end=(EventKind.WORKFLOW_FAILED, WorkflowFailed(Failure(type="E", message="m"))))
    outcome = await waiting
    assert outcome is not None
    assert (outcome.execution_id, outcome.state) == (second, "FAILED")


async def test_the_newest_of_a_chain_is_found_by_its_index(shards: Shards, actor: Actor) -> None:
    first, worker = await begin(shards, actor)
    assert await chains.newest(worker.store, first) is None
    assert await routing.live_run(shards, first) == first
    runs = [first]
    for _ in range(3):
        runs.append(await worker.rotate(runs[-1]))
    for run in runs:
        assert await chains.newest(worker.store, run) == runs[-1]
        assert await routing.live_run(shards, run) == runs[-1]
    rows = await worker.store.scan.fetch("explain " + chains._NEWEST.replace("$1", f"'{first}'"))
    assert "harvest_executions_chain" in "\n".join(row["QUERY PLAN"] for row in rows)


async def test_the_audit_log_names_the_run_that_was_reached(shards: Shards, actor: Actor) -> None:
    first, worker = await begin(shards, actor)
    second = await worker.rotate(first)
    await signalling.signal(shards, actor, first, "go", b"1")
    rows = await worker.store.read.fetch("select target_id from harvest_audit_log where operation = 'workflow.signal'")
    assert [row["target_id"] for row in rows] == [str(second)]
    assert (await events_of(shards, second))[-1][0] is EventKind.SIGNAL_RECEIVED
