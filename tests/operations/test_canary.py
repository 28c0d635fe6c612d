"""Liveness probes: real runs that are started, decided, counted and removed, one at a time for each queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from harvest import Harvest, WorkerOptions
from harvest.errors import DefinitionError, WorkflowNotRegisteredError
from harvest.history.built_in import CANARY
from harvest.history.states import State
from harvest.operations import canary, definitions, owner_mode, starting
from harvest.operations.actor import in_process
from harvest.operations.canary import Canary, Probe
from harvest.shards import ShardRouter, Shards
from harvest.store.store import Store
from tests.support import FAST, at_work, check_invariants, eventually

app = Harvest()
# Every table that a run leaves rows in.
TABLES = (
    "harvest_executions",
    "harvest_execution_details",
    "harvest_events",
    "harvest_workflow_tasks",
    "harvest_activity_tasks",
    "harvest_decisions",
    "harvest_dedupe",
    "harvest_deliveries",
    "harvest_audit_log",
)


@app.workflow
async def ordinary(ctx: object, n: int) -> int:
    return n


@pytest.fixture
async def shards(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """A shard without a worker."""
    opened = await Shards.open({0: new_database("canary")})
    yield opened
    await opened.close()


async def of(shards: Shards, queue: str = "default") -> Probe:
    """The probes of one queue."""
    return next(each for each in (await canary.probes(shards)).rows if each.queue == queue)


async def rows(store: Store) -> dict[str, int]:
    """How many rows each table has."""
    found = {}
    for table in TABLES:
        (row,) = await store.read.fetch(f"select count(*)::int as count from {table}")
        found[table] = row["count"]
    return found


async def aged(store: Store, seconds: float) -> None:
    """Move what is known of the probes into the past."""
    await store.write.write(
        "update harvest_canary set asked_at = asked_at - $1::float8 * interval '1 second', "
        "last_success_at = last_success_at - $1::float8 * interval '1 second'",
        seconds,
    )


async def completed(store: Store) -> bool:
    """Whether every run has ended."""
    return not await store.read.fetch(f"select from harvest_executions where state <> {State.COMPLETED:d}")


async def settled(prober: Canary, shards: Shards) -> None:
    """Look until no probe is open."""

    async def closed() -> bool:
        await prober.tick()
        return not [each for each in (await canary.probes(shards)).rows if each.open_since]

    await eventually(closed)


async def test_a_probe_completes_is_told_with_its_round_trip_and_leaves_nothing(
    new_database: Callable[[str], str],
) -> None:
    async with at_work(app, new_database("canary_alive")) as (worker, shards):
        store, prober = shards.store(0), Canary(shards)
        before = await rows(store)
        await prober.tick()
        await eventually(lambda: completed(store))
        await settled(prober, shards)
        for part in worker._parts.values():
            await part.rollups.write_ring()
        probe = await of(shards)
        assert (probe.success_count, probe.failure_count, probe.stale, probe.last_error) == (1, 0, False, None)
        assert probe.last_roundtrip_ms is not None
        assert 0 < probe.last_roundtrip_ms < 30_000
        assert probe.age_of_last_success_secs is not None
        assert await rows(store) == before
        await check_invariants(shards)


async def test_the_next_probe_begins_after_an_interval(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("canary_again")) as (_, shards):
        store, prober = shards.store(0), Canary(shards)
        await prober.tick()
        await settled(prober, shards)
        await prober.tick()
        assert (await of(shards)).open_since is None
        await aged(store, 31)
        await prober.tick()
        await eventually(lambda: completed(store))
        await settled(prober, shards)
        assert (await of(shards)).success_count == 2


async def test_many_probers_begin_one_probe(shards: Shards) -> None:
    await asyncio.gather(*(Canary(shards).tick() for _ in range(8)))
    assert (await rows(shards.store(0)))["harvest_executions"] == 1


async def test_a_probe_that_nobody_takes_is_one_failure_and_stays_open_until_a_worker_comes(
    new_database: Callable[[str], str],
) -> None:
    url = new_database("canary_stuck")
    shards = await Shards.open({0: url})
    store, prober = shards.store(0), Canary(shards)
    await prober.tick()
    await aged(store, 31)
    for _ in range(3):
        await prober.tick()
    stuck = await of(shards)
    assert (stuck.failure_count, stuck.success_count, stuck.last_error) == (1, 0, "not completed within 30 s")
    assert stuck.open_since is not None
    assert stuck.stale is False
    await aged(store, 120)
    assert (await of(shards)).stale is True
    assert (await rows(store))["harvest_executions"] == 1
    async with at_work(app, url) as (_, _):
        await eventually(lambda: completed(store))
        await settled(prober, shards)
    late = await of(shards)
    assert (late.success_count, late.failure_count, late.last_error, late.stale) == (1, 1, None, False)
    assert late.last_roundtrip_ms is not None
    assert late.last_roundtrip_ms > 150_000
    await shards.close()


async def test_a_success_of_long_ago_is_stale(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("canary_stale")) as (_, shards):
        prober = Canary(shards)
        await prober.tick()
        await settled(prober, shards)
        await aged(shards.store(0), 60)
        assert (await of(shards)).stale is False
        await aged(shards.store(0), 35)
        assert (await of(shards)).stale is True


async def test_every_queue_with_a_worker_is_probed_and_default_only_where_there_is_none(
    new_database: Callable[[str], str],
) -> None:
    options = WorkerOptions(queues=("mail", "print"), poll_interval=0.2, scan_interval=0.1, drain_timeout=0.5)
    async with at_work(app, new_database("canary_queues"), options) as (_, shards):
        prober = Canary(shards)
        await prober.tick()
        probed = {each.queue: each for each in (await canary.probes(shards)).rows}
        assert set(probed) == {"mail", "print"}

        async def both_done() -> bool:
            await prober.tick()
            return all([(await of(shards, queue)).success_count == 1 for queue in ("mail", "print")])

        await eventually(both_done)


async def test_default_is_probed_where_workers_decide_nothing(shards: Shards) -> None:
    await shards.store(0).write.write(
        """insert into harvest_workers (worker, name, host, pid, queues, status, lease_until, slots, workflow_slots)
           values (gen_random_uuid(), 'w', 'h', 1, '{mail}', 'active', clock_timestamp() + interval '1 h', 10, 0)"""
    )
    await Canary(shards).tick()
    assert [each.queue for each in (await canary.probes(shards)).rows] == ["default"]


async def test_a_probe_is_settled_on_a_shard_that_is_not_writable_by_then(new_database: Callable[[str], str]) -> None:
    urls = {number: new_database(f"canary_drains_{number}") for number in range(2)}
    shards = await Shards.open(urls)
    store, prober = shards.store(1), Canary(shards)
    await prober.tick()
    shards.router = ShardRouter(readable=(0, 1), writable=(0,), default=0)
    await aged(store, 31)
    await prober.tick()
    (late,) = await store.read.fetch("select failure_count, execution_id from harvest_canary")
    assert late["failure_count"] == 1
    await store.write.write(f"update harvest_executions set state = {State.COMPLETED:d}, closed_at = clock_timestamp()")
    await store.write.write("delete from harvest_workflow_tasks")
    await prober.tick()
    assert (await rows(store))["harvest_executions"] == 0
    await aged(store, 31)
    await prober.tick()
    assert (await rows(store))["harvest_executions"] == 0, "nothing begins there any more"
    await shards.close()


async def test_cells_are_probed_and_shards_that_take_nothing_new_are_not(new_database: Callable[[str], str]) -> None:
    urls = {number: new_database(f"canary_cells_{number}") for number in range(3)}
    router = ShardRouter(readable=(0, 1, 2), writable=(0, 1), default=0, reserved=(1,))
    shards = await Shards.open(urls, router)
    await Canary(shards).tick()
    assert [(await rows(shards.store(number)))["harvest_executions"] for number in range(3)] == [1, 1, 0]
    assert [each.shard_id for each in (await canary.probes(shards)).rows] == [0, 1]
    await shards.close()


async def test_a_probe_that_somebody_ends_is_a_failure(shards: Shards) -> None:
    store, prober = shards.store(0), Canary(shards)
    await prober.tick()
    await store.write.write(
        f"update harvest_executions set state = {State.TERMINATED:d}, "
        "closed_at = clock_timestamp() - interval '1 minute'"
    )
    await store.write.write("delete from harvest_workflow_tasks")
    await prober.tick()
    probe = await of(shards)
    assert (probe.success_count, probe.failure_count, probe.last_error) == (0, 1, "its run did not complete")
    assert (await rows(store))["harvest_executions"] == 0


async def test_a_queue_that_nobody_serves_any_more_is_forgotten_after_a_day(shards: Shards) -> None:
    store = shards.store(0)
    await store.write.write(
        "insert into harvest_canary (queue, asked_at, success_count) "
        "values ('old', clock_timestamp() - interval '25 hours', 7), ('lately', clock_timestamp(), 7)"
    )
    await Canary(shards).tick()
    assert [each.queue for each in (await canary.probes(shards)).rows] == ["default", "lately"]


async def test_a_shard_that_does_not_answer_holds_up_no_other(new_database: Callable[[str], str]) -> None:
    shards = await Shards.open({0: new_database("canary_half"), 1: "postgresql://postgres@/x?host=/nonexistent"})
    await Canary(shards).tick()
    found = await canary.probes(shards)
    assert ([each.shard_id for each in found.rows], found.status) == ([0], "partial")
    await shards.close()


async def test_a_loop_that_is_stopped_takes_away_what_has_ended(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("canary_stop")) as (_, shards):
        store, prober = shards.store(0), Canary(shards)
        prober.start()

        async def probed() -> bool:
            return bool((await rows(store))["harvest_executions"]) and await completed(store)

        await eventually(probed)
        await prober.stop()
        assert (await rows(store))["harvest_executions"] == 0
        assert (await of(shards)).success_count == 1


async def test_the_type_is_in_no_list_and_nobody_starts_it_by_hand(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("canary_hidden")) as (worker, shards):
        assert [each.name for each in (await definitions.registered(shards)).rows] == ["ordinary"]
        with pytest.raises(WorkflowNotRegisteredError):
            await starting.start(shards, in_process("test"), workflow_name=CANARY)
        prober = Canary(shards)
        await prober.tick()
        await settled(prober, shards)
        for part in worker._parts.values():
            await part.rollups.write_rollup()
            measured = part.committer.tracer.measures.whole
            assert not [key for key in (*measured.shares, *measured.spreads) if CANARY in key]


def test_its_name_is_the_engines_own() -> None:
    with pytest.raises(DefinitionError, match="part of the engine"):

        @Harvest().workflow(name=CANARY)
        async def mine(ctx: object) -> None:
            pass


async def test_owners_decide_probes_too(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("canary_owned"), FAST) as (_, shards):

        async def ready() -> bool:
            return (await owner_mode.status(shards)).rows[0].is_ready

        await eventually(ready)
        await owner_mode.enable(shards, in_process("test"), 0, reason="a test")
        prober = Canary(shards)
        await prober.tick()
        await eventually(lambda: completed(shards.store(0)))
        await settled(prober, shards)
        assert (await of(shards)).success_count == 1
