"""The overview: figures of every shard that answers, and the name of every one that does not."""

from __future__ import annotations

from uuid import UUID

from harvest.history.states import State
from harvest.operations import auditing
from harvest.operations.actor import Actor
from harvest.operations.overview import overview
from harvest.shards import Shards
from tests.operations.population import Run, add

DEAD = "postgresql://postgres@/x?host=/nonexistent"


async def test_figures_of_all_shards_are_added_up(shards: Shards, actor: Actor) -> None:
    for n in range(5):
        state = State.PAUSED if n == 4 else State.RUNNING
        blocked = "step_too_long" if n == 3 else None
        await add(shards, n % 2, Run(workflow_id=f"open-{n}", age=n, state=state, blocked=blocked))
    for n, state in enumerate((State.FAILED, State.TIMED_OUT, State.COMPLETED, State.FAILED)):
        await add(shards, n % 2, Run(workflow_id=f"closed-{n}", state=state))
    for store in shards.stores.values():
        await store.write.write(
            "update harvest_executions set closed_at = clock_timestamp() "
            "where workflow_id <> 'closed-3' and state >= 10"
        )
        await store.write.write(
            "insert into harvest_workers (worker, name, host, pid, queues, lease_until, slots, counters) values "
            "($1, 'alive', 'h', 1, '{default}', clock_timestamp() + interval '1 hour', 10, '{\"passed\":7}'),"
            "($2, 'gone', 'h', 2, '{default}', clock_timestamp() - interval '9 s', 10, null)",
            UUID(int=1),
            UUID(int=2),
        )
    await auditing.record(shards, actor, "workflow.start", "execution", "e-1", "succeeded")
    seen = await overview(shards)
    assert (seen.status, seen.open, seen.paused, seen.blocked, seen.failed) == ("complete", 5, 1, 1, 2)
    assert seen.oldest is not None
    assert seen.oldest.workflow_name == "order_flow"
    assert [(shard.shard_id, shard.available, shard.open) for shard in seen.shards] == [(0, True, 3), (1, True, 2)]
    assert [(worker.name, worker.alive) for worker in seen.workers] == [("alive", True), ("gone", False)]
    assert bytes(seen.workers[0].counters) == b'{"passed":7}'
    assert [act.operation for act in seen.acts.rows] == ["workflow.start"]


async def test_empty_shards_have_an_overview_too(shards: Shards) -> None:
    seen = await overview(shards)
    assert (seen.open, seen.failed, seen.oldest, seen.workers, seen.acts.rows) == (0, 0, None, [], [])


async def test_a_shard_that_is_down_is_named_beside_the_others_figures(shards: Shards) -> None:
    await add(shards, 0, Run())
    half = await Shards.open({0: shards.store(0).url, 1: DEAD})
    try:
        seen = await overview(half)
        assert (seen.status, seen.open) == ("partial", 1)
        down = seen.shards[1]
        assert (down.shard_id, down.available, down.reason) == (1, False, "connection refused")
        assert down.since is not None
    finally:
        await half.close()
