"""Workers count what they take from each shard, and see work that nobody takes on shards that they do not work on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from harvest import Harvest, WorkflowContext
from harvest.operations import starting
from harvest.operations.actor import in_process
from harvest.shards import Placement, Shards
from harvest.store import rollups
from harvest.worker.worker import Worker
from tests.support import FAST, at_work, eventually

app = Harvest()
SOON = timedelta(seconds=60)


@app.activity(queue="elsewhere")
async def counted(n: int) -> int:
    return n


@app.workflow
async def waits(ctx: WorkflowContext, n: int) -> int:
    return await ctx.execute_activity(counted, n)


def told(worker: Worker) -> dict[tuple[str, ...], float]:
    """The gauges of shards that a worker tells."""
    found: dict[tuple[str, ...], float] = {}
    for part in worker._parts.values():
        gauges = part.committer.tracer.measures.whole.gauges
        found |= {key: value for key, value in gauges.items() if key[0] == "shard.stranded_pending"}
    return found


async def test_work_on_a_shard_that_nobody_covers_is_seen_by_the_workers_of_others(
    new_database: Callable[[str], str],
) -> None:
    urls = {0: new_database("stranded_a"), 1: new_database("stranded_b")}
    options = msgspec.structs.replace(FAST, shard_assignments=(0,))
    async with at_work(app, urls, options) as (worker, shards):
        for number in range(3):
            await starting.start(
                shards, in_process("test"), workflow_name="waits", input=b"%d" % number, placement=Placement(shard_id=1)
            )
        await worker._stranded.tick()
        await worker._parts[0].rollups.write_rollup()
        assert told(worker) == {("shard.stranded_pending", "0"): 0, ("shard.stranded_pending", "1"): 3}
        store = shards.store(0)
        until = await rollups.now(store)
        (written,) = (await rollups.read(store, until - timedelta(minutes=1), until))[-1:]
        assert written.totals.gauges[("shard.stranded_pending", "1")] == 3


async def test_work_that_is_taken_is_not_stranded(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("stranded_none"), msgspec.structs.replace(FAST, queues=("default",))) as (
        worker,
        shards,
    ):
        run = await app.start(waits, 1, workflow_id="s-1")

        async def asked() -> bool:
            return bool(await shards.store(0).read.fetch("select from harvest_activity_tasks"))

        await eventually(asked)
        await worker._stranded.tick()
        assert worker._stranded.gauges == {("shard.stranded_pending", "0"): 1}
        await run.terminate("a test")
        await worker._stranded.tick()
        assert worker._stranded.gauges == {("shard.stranded_pending", "0"): 0}


@pytest.mark.parametrize("runs", [1, 4])
async def test_every_task_that_is_taken_counts_once_for_its_shard(
    new_database: Callable[[str], str], runs: int
) -> None:
    urls = {0: new_database("dispatched_a"), 1: new_database("dispatched_b")}
    other = msgspec.structs.replace(FAST, queues=("elsewhere",), workflow_slots=0)
    async with at_work(app, urls) as (decider, shards):
        helper = Worker(app.registry, shards, other)
        await helper.start()
        for number in range(runs):
            handle = await app.start(waits, number, workflow_id=f"d-{number}", shard_id=1)
            assert await handle.result(SOON) == number
        for worker in (decider, helper):
            for part in worker._parts.values():
                await part.rollups.write_rollup()
        taken = {
            (name, shard): int(
                worker._parts[shard].committer.tracer.measures.whole.counters[("shard.dispatched", str(shard))]
            )
            for name, worker in (("decider", decider), ("helper", helper))
            for shard in (0, 1)
        }
        await helper.stop()
    # Each run is taken once for its start and once for the result that comes from elsewhere.
    assert taken == {
        ("decider", 0): 0,
        ("decider", 1): 2 * runs,
        ("helper", 0): 0,
        ("helper", 1): runs,
    }


async def test_a_shard_that_does_not_answer_does_not_hide_the_others(new_database: Callable[[str], str]) -> None:
    url = new_database("stranded_half")
    shards = await Shards.open({0: url, 1: "postgresql://postgres@/x?host=/nonexistent"})
    worker = Worker(app.registry, shards, msgspec.structs.replace(FAST, shard_assignments=(0,)))
    await worker.start()
    await worker._stranded.tick()
    assert worker._stranded.gauges == {("shard.stranded_pending", "0"): 0}
    await worker.stop()
    await shards.close()
