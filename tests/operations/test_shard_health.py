"""Whether shards are ready for work: reason codes, candidates, stranded work, and shards that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from uuid import uuid4

import asyncpg
import pytest

from harvest.errors import InvalidRequestError
from harvest.history.built_in import CANARY
from harvest.operations import shard_health
from harvest.operations.shard_health import ReasonCode, ShardReadiness
from harvest.shards import ShardRouter, Shards
from harvest.store import shard_health as rows
from harvest.store.migrate import SCHEMA_LEVEL, name_shard
from harvest_console.embedded import EmbeddedPostgres

DEAD = "postgresql://postgres@/x?host=/nonexistent"
_WORKER = """insert into harvest_workers (worker, name, host, pid, queues, status, lease_until, slots, workflow_slots)
values ($1, $2, 'h', 1, $3, $4, clock_timestamp() + $5::float8 * interval '1 second', 10, $6)"""
_TASK = """insert into harvest_workflow_tasks (execution_id, partition, queue, workflow_name, version, due, sort_at)
values ($1, 0, $2, $3, 1, clock_timestamp() + $4::float8 * interval '1 second', clock_timestamp())"""
_ACTIVITY = """insert into harvest_activity_tasks (execution_id, seq, scheduled_event_id, queue, name)
values ($1, 1, 1, $2, 'charge')"""


@pytest.fixture
async def shards(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """Two shards, both writable."""
    opened = await Shards.open({0: new_database("health_a"), 1: new_database("health_b")})
    yield opened
    await opened.close()


async def worker(
    shards: Shards,
    shard_id: int,
    queues: Sequence[str] = ("default",),
    *,
    status: str = "active",
    lease: float = 3_600.0,
    slots: int | None = 100,
) -> None:
    """Write a worker of these queues."""
    write = shards.store(shard_id).write.write
    await write(_WORKER, uuid4(), f"w{shard_id}", list(queues), status, lease, slots)


async def task(
    shards: Shards, shard_id: int, queue: str = "default", *, name: str = "order_flow", due: float = -5.0
) -> None:
    """Write a workflow task that is due in so many seconds."""
    await shards.store(shard_id).write.write(_TASK, uuid4(), queue, name, due)


async def activity(shards: Shards, shard_id: int, queue: str = "default") -> None:
    """Write an activity that waits."""
    await shards.store(shard_id).write.write(_ACTIVITY, uuid4(), queue)


async def of(shards: Shards, shard_id: int) -> ShardReadiness:
    """How one shard does."""
    return next(each for each in (await shard_health.health(shards)).shards if each.shard_id == shard_id)


def rerouted(shards: Shards, router: ShardRouter) -> Shards:
    """The same stores under another router."""
    shards.router = router
    return shards


async def test_a_shard_with_a_living_worker_for_its_queues_is_ready(shards: Shards) -> None:
    for shard_id in (0, 1):
        await worker(shards, shard_id)
    await task(shards, 0)
    await activity(shards, 0)
    found = await shard_health.health(shards)
    assert (found.overall_readiness, [each.readiness for each in found.shards]) == ("ready", ["ready", "ready"])
    first = found.shards[0]
    assert (first.role, first.is_default, first.live_workers, first.worker_names) == ("writable", True, 1, ["w0"])
    assert (first.pending_workflow_tasks, first.pending_activity_tasks, first.stranded_pending) == (1, 1, 0)
    assert first.oldest_pending_age_secs is not None
    assert first.oldest_pending_age_secs >= 5
    assert first.schema_level == SCHEMA_LEVEL


@pytest.mark.parametrize(("status", "lease"), [("draining", 60.0), ("active", -1.0), ("stopped", 60.0)])
async def test_a_worker_that_drains_or_is_lost_covers_nothing(shards: Shards, status: str, lease: float) -> None:
    await worker(shards, 0, status=status, lease=lease)
    await task(shards, 0)
    found = await of(shards, 0)
    assert (found.readiness, found.reason_codes) == ("degraded", [ReasonCode.NO_LIVE_WORKER])
    assert (found.live_workers, found.stranded_pending) == (0, 1)


async def test_a_worker_that_was_asked_to_drain_covers_nothing(shards: Shards) -> None:
    await worker(shards, 0)
    await shards.store(0).write.write("update harvest_workers set drain_requested_at = clock_timestamp()")
    assert (await of(shards, 0)).reason_codes == [ReasonCode.NO_LIVE_WORKER]


async def test_a_look_that_comes_to_no_end_takes_no_list_down(shards: Shards) -> None:
    store = shards.store(0)
    assert await store.read.fetch("select 1")
    async with store.write.connection() as connection, connection.transaction():
        await connection.execute("lock table harvest_activity_tasks in access exclusive mode")
        found = await shard_health.health(shards)
    assert found.shards[0].reason_codes == [ReasonCode.UNREACHABLE]
    assert await store.read.fetch("select 1")
    assert store.read.outage is None
    assert (await of(shards, 0)).reason_codes == [ReasonCode.NO_LIVE_WORKER]


async def test_work_that_somebody_takes_is_not_counted_to_find_what_is_stranded(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = "insert into harvest_counted"
    await worker(shards, 0, ("default", "mail"))
    await worker(shards, 0, ("print",), slots=0)
    for queue in ("default", "mail"):
        await task(shards, 0, queue)
    for queue in ("default", "print"):
        await activity(shards, 0, queue)
    with monkeypatch.context() as patch:
        patch.setattr(rows, "WAITING_WORKFLOWS", counted)
        patch.setattr(rows, "WAITING_ACTIVITIES", counted)
        assert (await rows.sample(shards.store(0).scan)).stranded == 0
    await task(shards, 0, "print")
    await activity(shards, 0, "else")
    assert (await rows.sample(shards.store(0).scan)).stranded == 2


async def test_a_sample_of_stranded_work_gives_its_connection_back_soon(shards: Shards) -> None:
    store = shards.store(0)
    async with store.write.connection() as connection, connection.transaction():
        await connection.execute("lock table harvest_activity_tasks in access exclusive mode")
        with pytest.raises(asyncpg.QueryCanceledError):
            await asyncio.wait_for(rows.sample(store.scan), 4)
    assert await store.scan.fetch("select 1")
    (row,) = await store.scan.fetch("select current_setting('statement_timeout') as limit")
    assert row["limit"] == "0"


async def test_a_queue_with_work_and_no_worker_is_uncovered_and_its_work_stranded(shards: Shards) -> None:
    await worker(shards, 0)
    await worker(shards, 1)
    await task(shards, 0, "mail")
    await activity(shards, 0, "mail")
    found = await of(shards, 0)
    assert (found.readiness, found.reason_codes) == ("degraded", [ReasonCode.WORKER_QUEUE_UNCOVERED])
    assert found.stranded_pending == 2
    assert "mail" in found.message
    queue = next(each for each in found.queues if each.queue == "mail")
    assert (queue.is_required, queue.is_covered, queue.live_workers) == (True, False, 0)


async def test_a_worker_without_workflow_slots_covers_activities_alone(shards: Shards) -> None:
    await worker(shards, 0)
    await worker(shards, 0, ["mail"], slots=0)
    await activity(shards, 0, "mail")
    assert (await of(shards, 0)).readiness == "ready"
    await task(shards, 0, "mail")
    found = await of(shards, 0)
    assert (found.reason_codes, found.stranded_pending) == ([ReasonCode.WORKER_QUEUE_UNCOVERED], 1)


async def test_a_queue_that_other_shards_have_workers_for_is_required(shards: Shards) -> None:
    await worker(shards, 0, ["default", "mail"])
    await worker(shards, 1, ["default"])
    found = await of(shards, 1)
    assert found.reason_codes == [ReasonCode.WORKER_QUEUE_UNCOVERED]
    rerouted(shards, ShardRouter(readable=(0, 1), writable=(0, 1), default=0, reserved=(1,)))
    cell = await of(shards, 1)
    assert (cell.is_reserved, cell.readiness) == (True, "ready")


async def test_tasks_that_are_not_due_and_probes_are_not_waiting(shards: Shards) -> None:
    await task(shards, 0, due=600.0)
    await task(shards, 0, name=CANARY)
    found = await of(shards, 0)
    assert (found.pending_workflow_tasks, found.stranded_pending) == (0, 0)


async def test_a_shard_that_takes_nothing_new_needs_no_worker_once_its_runs_have_ended(shards: Shards) -> None:
    await worker(shards, 0)
    rerouted(shards, ShardRouter(readable=(0, 1), writable=(0,), default=0))
    found = await of(shards, 1)
    assert (found.role, found.readiness) == ("readable", "ready")
    await task(shards, 1, due=600.0)
    assert (await of(shards, 1)).reason_codes == [ReasonCode.NO_LIVE_WORKER]


async def test_a_candidate_is_ready_only_once_a_living_worker_covers_it(shards: Shards) -> None:
    await worker(shards, 0)
    rerouted(shards, ShardRouter.of((0,)))
    before = await shard_health.health(shards, 1)
    assert (before.overall_readiness, [each.shard_id for each in before.shards]) == ("ready", [0, 1])
    assert before.candidate_shard is not None
    assert (before.candidate_shard.role, before.candidate_shard.readiness) == ("candidate", "degraded")
    assert before.candidate_shard.reason_codes == [ReasonCode.NO_LIVE_WORKER]
    await worker(shards, 1)
    after = (await shard_health.health(shards, 1)).candidate_shard
    assert after is not None
    assert (after.readiness, after.reason_codes) == ("ready", [])


async def test_a_readable_candidate_needs_a_worker_before_anything_begins_there(shards: Shards) -> None:
    await worker(shards, 0)
    rerouted(shards, ShardRouter(readable=(0, 1), writable=(0,), default=0))
    found = await shard_health.health(shards, 1)
    assert [each.readiness for each in found.shards] == ["ready", "ready"]
    assert found.candidate_shard is not None
    assert found.candidate_shard.reason_codes == [ReasonCode.NO_LIVE_WORKER]


async def test_a_candidate_without_a_database_here_says_so(shards: Shards) -> None:
    found = (await shard_health.health(shards, 7)).candidate_shard
    assert found is not None
    assert (found.readiness, found.reason_codes) == ("unavailable", [ReasonCode.NO_POOL])


@pytest.mark.parametrize("number", [-1, 65_535, 70_000])
async def test_a_candidate_that_can_be_no_shard_is_refused(shards: Shards, number: int) -> None:
    with pytest.raises(InvalidRequestError):
        await shard_health.health(shards, number)


async def test_a_shard_that_does_not_answer_is_named_and_hides_no_other(new_database: Callable[[str], str]) -> None:
    shards = await Shards.open({0: new_database("health_half"), 1: DEAD})
    await worker(shards, 0)
    found = await shard_health.health(shards)
    assert (found.overall_readiness, found.partial.status) == ("unavailable", "partial")
    assert [each.readiness for each in found.shards] == ["ready", "unavailable"]
    assert found.shards[1].reason_codes == [ReasonCode.UNREACHABLE]
    assert found.shards[1].stranded_pending is None
    await shards.close()


async def test_a_database_without_this_releases_schema_is_degraded(
    postgres_server: EmbeddedPostgres, new_database: Callable[[str], str]
) -> None:
    old = new_database("health_old")
    shards = await Shards.open({0: old, 1: postgres_server.ensure_database("health_empty")})
    await shards.store(0).write.write("update harvest_meta set schema_level = 3")
    found = (await shard_health.health(shards)).shards
    assert [each.reason_codes for each in found] == [[ReasonCode.SCHEMA_MIGRATION_MISSING]] * 2
    assert [(each.readiness, each.schema_level) for each in found] == [("degraded", 3), ("degraded", 0)]
    await shards.close()


async def test_another_shards_database_is_unavailable(new_database: Callable[[str], str]) -> None:
    url = new_database("health_other")
    await name_shard(url, 4)
    shards = await Shards.open({0: url})
    found = (await shard_health.health(shards)).shards[0]
    assert (found.readiness, found.reason_codes) == ("unavailable", [ReasonCode.WRONG_SHARD])
    await shards.close()


async def test_the_gauges_of_shards_and_queues_are_what_health_says(shards: Shards) -> None:
    await worker(shards, 0, ["default", "mail"])
    for _ in range(3):
        await task(shards, 1, "mail")
    found = await shard_health.gauges(shards)
    assert (found[("shard.ready", "0")], found[("shard.ready", "1")]) == (1.0, 0.0)
    assert (found[("shard.stranded_pending", "0")], found[("shard.stranded_pending", "1")]) == (0, 3)
    assert (found[("shard.live_workers", "0")], found[("shard.live_workers", "1")]) == (1, 0)
    assert (found[("queue.depth", "mail")], found[("worker.pollers", "mail")]) == (3, 1)
    assert found[("queue.oldest_pending_age", "mail")] >= 5


async def test_a_shard_that_does_not_answer_has_no_gauge_but_that_it_is_not_ready(
    new_database: Callable[[str], str],
) -> None:
    shards = await Shards.open({0: new_database("health_gauges"), 1: DEAD})
    found = await shard_health.gauges(shards)
    assert found[("shard.ready", "1")] == 0.0
    assert ("shard.stranded_pending", "1") not in found
    await shards.close()
