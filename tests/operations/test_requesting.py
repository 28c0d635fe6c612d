"""Asking code that is in another process: who is asked, how long, and what the asker is told when nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from msgspec import Raw, json

from harvest.errors import (
    ExecutionClosedError,
    ExecutionNotFoundError,
    LimitError,
    NoWorkerError,
    PayloadError,
    QueryFailedError,
    QueryNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.operations import requesting, stacks
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest.store import requests, upkeep
from harvest.store.pool import COMMON, SCAN
from harvest.store.requests import Answer, Refusal, Taken
from harvest.store.store import Store
from tests.explaining import explained
from tests.operations.population import Run, add, add_events, add_many, register, started
from tests.support import eventually

TYPES = [("order_flow", 1)]


@pytest.fixture
async def worker(shards: Shards) -> UUID:
    """A worker of order_flow on shard 0, alive and without a loop: the test answers in its place."""
    return await register(shards, 0, "order_flow")


@pytest.fixture
async def run(shards: Shards) -> UUID:
    """An open run of order_flow on shard 0 that nobody holds."""
    return await add(shards, 0, Run())


async def taken(store: Store, worker: UUID) -> list[Taken]:
    """What a worker takes once something is there to be taken."""
    found: list[Taken] = []

    async def some() -> bool:
        found.extend(await requests.take(store, worker, TYPES, 10))
        return bool(found)

    await eventually(some)
    return found


async def held_by(shards: Shards, run: UUID, worker: UUID) -> None:
    await shards.store(0).write.write(
        "insert into harvest_workflow_tasks (execution_id, worker, state, partition, queue, workflow_name, version) "
        "values ($1, $2, 1, 0, 'default', 'order_flow', 1)",
        run,
        worker,
    )


async def waiting(store: Store) -> list[UUID | None]:
    """Whom the open questions are addressed to, which stay as young as they are."""
    rows = await store.write.write(
        "update harvest_requests set created_at = clock_timestamp() + interval '1 hour' returning worker"
    )
    return [row["worker"] for row in rows]


async def place(store: Store, run: UUID, seconds: float = 60) -> UUID:
    request_id = uuid4()
    await requests.place(store, request_id, run, requests.QUERY, "total", b"null", seconds)
    return request_id


async def test_an_answer_is_exact_and_leaves_nothing_behind(
    shards: Shards, actor: Actor, worker: UUID, run: UUID
) -> None:
    store = shards.store(0)
    asking = asyncio.create_task(requesting.query(shards, actor, run, "total", b'{"in": "EUR"}', seconds=60))
    (question,) = await taken(store, worker)
    assert (question.kind, question.name, question.payload) == ("query", "total", b'{"in": "EUR"}')
    await requests.answer(store, [(question.request_id, json.encode(Answer(result=Raw(b"[1.10, 1e2]"))))])
    assert await asking == b"[1.10, 1e2]"

    async def forgotten() -> bool:
        return not await store.read.fetch("select from harvest_requests")

    await eventually(forgotten)


async def test_the_error_of_the_worker_is_raised_with_its_fields(
    shards: Shards, actor: Actor, worker: UUID, run: UUID
) -> None:
    store = shards.store(0)
    for refusal, expected in (
        (Refusal("query_not_found", "no such query", {"known": ["a"]}), QueryNotFoundError),
        (Refusal("of_a_later_release", "what is this", {"known": ["a"]}), QueryFailedError),
    ):
        asking = asyncio.create_task(requesting.query(shards, actor, run, "total", seconds=60))
        (question,) = await taken(store, worker)
        await requests.answer(store, [(question.request_id, json.encode(Answer(refusal=refusal)))])
        with pytest.raises(expected) as raised:
            await asking
        assert (raised.value.message, raised.value.fields["known"]) == (refusal.message, ["a"])


async def test_without_a_living_worker_of_the_version_nobody_waits(shards: Shards, actor: Actor, run: UUID) -> None:
    await register(shards, 0, "order_flow", live=False)
    await register(shards, 0, "order_flow", version=2, build="b2")
    await register(shards, 0, "another_flow", build="b3")
    await register(shards, 1, "order_flow", build="b4")
    with pytest.raises(NoWorkerError) as raised:
        await requesting.query(shards, actor, run, "total")
    assert raised.value.fields == {"workflow_name": "order_flow", "version": 1}
    waiting = await stacks.awaitables(shards, run)
    assert (waiting.wait_set, waiting.wait_set_reason) == ("history_only", "no_worker")
    with pytest.raises(NoWorkerError):
        await stacks.stack(shards, run)


async def test_a_worker_that_does_not_answer_in_time_is_a_timeout(
    shards: Shards, actor: Actor, worker: UUID, run: UUID
) -> None:
    with pytest.raises(RequestTimeoutError) as raised:
        await requesting.query(shards, actor, run, "total", seconds=0.1)
    assert raised.value.retryable
    late = await place(shards.store(0), run, seconds=-1)
    assert late not in [each.request_id for each in await requests.take(shards.store(0), worker, TYPES, 10)]


async def test_a_closed_an_unknown_and_a_malformed_one_are_refused_at_once(
    shards: Shards, actor: Actor, worker: UUID, run: UUID
) -> None:
    closed = await add(shards, 0, Run(state=State.FAILED, workflow_id="o-2"))
    with pytest.raises(ExecutionClosedError) as raised:
        await requesting.query(shards, actor, closed, "total")
    assert raised.value.fields["state"] == "FAILED"
    assert (await stacks.stack(shards, closed)).is_terminal
    assert (await stacks.awaitables(shards, closed)).wait_set == "terminal"
    with pytest.raises(ExecutionNotFoundError):
        await requesting.query(shards, actor, mint_execution_id(0), "total")
    for name, args in (("", b"null"), ("x" * 300, b"null")):
        with pytest.raises(LimitError):
            await requesting.query(shards, actor, run, name, args)
    with pytest.raises(PayloadError):
        await requesting.query(shards, actor, run, "total", b"{")
    assert not await shards.store(0).read.fetch("select from harvest_requests")


async def test_a_question_goes_to_the_holder_and_to_others_only_when_it_is_late(
    shards: Shards, worker: UUID, run: UUID
) -> None:
    store = shards.store(0)
    await held_by(shards, run, worker)
    other = await register(shards, 0, "order_flow", build="b2")
    await place(store, run)
    assert await waiting(store) == [worker]
    assert await requests.take(store, other, TYPES, 10) == []
    assert len(await requests.take(store, worker, TYPES, 10)) == 1
    await place(store, run)
    await store.write.write("update harvest_requests set created_at = clock_timestamp() - interval '1 minute'")
    assert len(await requests.take(store, other, TYPES, 10)) == 1


async def test_a_question_for_a_holder_that_is_gone_is_anybodys(shards: Shards, worker: UUID, run: UUID) -> None:
    store = shards.store(0)
    gone = await register(shards, 0, "another_flow", live=False)
    await held_by(shards, run, gone)
    await place(store, run)
    assert await waiting(store) == [None]
    assert await requests.take(store, worker, [("order_flow", 2), ("another_flow", 1)], 10) == []
    assert len(await requests.take(store, worker, TYPES, 10)) == 1


async def test_what_is_taken_is_taken_once_unless_its_taker_stops(shards: Shards, worker: UUID, run: UUID) -> None:
    store = shards.store(0)
    other = await register(shards, 0, "order_flow", build="b2")
    request_id = await place(store, run)
    assert len(await requests.take(store, worker, TYPES, 10)) == 1
    assert await requests.take(store, worker, TYPES, 10) == []
    assert await requests.take(store, other, TYPES, 10) == []
    await store.write.write("update harvest_workers set status = 'stopped' where worker = $1", worker)
    assert [each.request_id for each in await requests.take(store, other, TYPES, 10)] == [request_id]


async def test_the_first_answer_counts(shards: Shards, worker: UUID, run: UUID) -> None:
    store = shards.store(0)
    request_id = await place(store, run)
    await requests.answer(store, [(request_id, b"first")])
    await requests.answer(store, [(request_id, b"second")])
    assert await requests.answers(store, [request_id]) == {request_id: b"first"}


async def test_all_workers_are_told_when_the_first_is_late(
    shards: Shards, actor: Actor, worker: UUID, run: UUID
) -> None:
    store = shards.store(0)
    await held_by(shards, run, worker)
    told: list[str] = []

    def hear(target: str) -> bool:
        told.append(target)
        return True

    store.waker.local = hear
    asking = asyncio.create_task(requesting.query(shards, actor, run, "total", seconds=60))

    async def twice() -> bool:
        return len(told) == 2

    await eventually(twice)
    assert told == [f"?{worker.hex}", "?*"]
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_key_is_asked_where_its_current_run_is(shards: Shards) -> None:
    first = await add(shards, 0, Run(age=9))
    asked: list[UUID] = []

    async def rotates(execution_id: UUID) -> str:
        asked.append(execution_id)
        if execution_id == first:
            await shards.store(0).write.write(
                "update harvest_executions set state = 15, closed_at = clock_timestamp() where execution_id = $1", first
            )
            await add(shards, 1, Run(age=1))
            raise ExecutionClosedError("it has gone on")
        return "told"

    found, answer = await requesting.of_key(shards, "order_flow", "o-1", rotates)
    assert (answer, asked) == ("told", [first, found])


async def test_a_key_whose_newest_run_has_ended_is_asked_once_more_and_refused(shards: Shards) -> None:
    ended = await add(shards, 0, Run(state=State.COMPLETED))
    asked: list[UUID] = []

    async def refuses(execution_id: UUID) -> None:
        asked.append(execution_id)
        raise ExecutionClosedError("it has ended")

    with pytest.raises(ExecutionClosedError):
        await requesting.of_key(shards, "order_flow", "o-1", refuses)
    assert asked == [ended, ended]


async def test_a_shard_that_is_down_is_named(actor: Actor, new_database: Callable[[str], str]) -> None:
    half = await Shards.open({0: new_database("half"), 1: "postgresql://postgres@/x?host=/nonexistent"})
    try:
        with pytest.raises(ShardUnavailableError) as raised:
            await requesting.query(half, actor, mint_execution_id(1), "total")
        assert raised.value.fields["shard_id"] == 1
    finally:
        await half.close()


async def test_questions_whose_askers_are_gone_are_swept(shards: Shards, worker: UUID, run: UUID) -> None:
    store = shards.store(0)
    await place(store, run, seconds=-60)
    kept = await place(store, run)
    await upkeep.sweep(store)
    rows = await store.read.fetch("select request_id from harvest_requests")
    assert [row["request_id"] for row in rows] == [kept]


def rows_read(plan: dict[str, Any], table: str) -> float:
    """Rows that a plan took from a table, those that a filter threw away too."""
    mine = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    own = mine if plan.get("Relation Name") == table else 0
    return float(own + sum(rows_read(child, table) for child in plan.get("Plans", [])))


@pytest.mark.slow
async def test_workers_look_for_questions_by_keys_alone(shards: Shards) -> None:
    """Under the plans that were made while all tables were known to be empty, and are kept."""
    store, nobody = shards.store(0), uuid4()
    connection = await asyncpg.connect(store.url, server_settings={**COMMON, **SCAN.settings})

    async def plans(worker: UUID, run: UUID) -> dict[str, dict[str, Any]]:
        statements: dict[str, tuple[str, list[Any]]] = {
            "harvest_executions": (requests._TAKE, [worker, ["order_flow"], [1], 10]),
            "harvest_events": (requests._HISTORY, [run, 100]),
            "harvest_workflow_tasks": (requests._LOOK, [[run], [1, 14]]),
        }
        return {table: await explained(connection, f"of_{table}", *each) for table, each in statements.items()}

    try:
        await connection.execute("vacuum analyze")
        await plans(nobody, nobody)
        await add_many(shards, 0, 10_000, analyze=False)
        await store.write.write(
            "insert into harvest_workflow_tasks (execution_id, partition, queue, workflow_name, version) "
            "select execution_id, partition, queue, workflow_name, version from harvest_executions"
        )
        run = await add(shards, 0, Run())
        await add_events(shards, run, [started()])
        worker = await register(shards, 0, "order_flow")
        request_id = await place(store, run)
        asked = await store.read.fetch("select request_id from harvest_requests")
        assert [row["request_id"] for row in asked] == [request_id]
        for table, plan in (await plans(worker, run)).items():
            assert rows_read(plan, table) <= 2, plan
            assert rows_read(plan, "harvest_executions") <= 2, plan
    finally:
        await connection.close()
