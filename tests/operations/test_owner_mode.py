"""Owner mode goes on only where every living worker can own; then nobody takes a task but its partition's owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from harvest import Harvest, WorkflowContext
from harvest.errors import InvalidRequestError, NotTableOwnerError, OwnerModeBusyError, OwnerModeRefusedError
from harvest.operations import auditing, owner_mode
from harvest.operations.actor import Actor
from harvest.operations.owner_mode import OwnerModeStatus
from harvest.shards import Shards
from harvest.store import activity_claims, partitions
from harvest.store import owner_mode as rows
from harvest.store.store import Store
from tests.operations.owning import an_owner, claimed, commits, end_lease, own
from tests.store.rows import a_run, a_worker, one, task_of
from tests.support import at_work, check_invariants, eventually

PENDING, HELD = 0, 1
app = Harvest()


@app.activity
async def plus_one(number: int) -> int:
    return number + 1


@app.workflow
async def counts_words(ctx: WorkflowContext) -> int:
    words = 0
    for _ in range(3):
        await ctx.wait_for_signal("word")
        words = await ctx.execute_activity(plus_one, words)
    return words


@pytest.fixture
def store(shards: Shards) -> Store:
    """The shard that these tests turn owner mode on for."""
    return shards.store(0)


async def refused(shards: Shards, actor: Actor) -> dict[str, list[str]]:
    """The names of the offenders by the code of what they offend against."""
    with pytest.raises(OwnerModeRefusedError) as caught:
        await owner_mode.enable(shards, actor, 0, reason="try")
    blockers: list[dict[str, Any]] = caught.value.fields["blockers"]
    return {each["code"]: sorted(worker["name"] for worker in each["workers"]) for each in blockers}


async def status_of(shards: Shards, shard_id: int = 0) -> OwnerModeStatus:
    (found,) = [each for each in (await owner_mode.status(shards)).rows if each.shard_id == shard_id]
    return found


async def guarded(shards: Shards, actor: Actor) -> UUID:
    """Owner mode is on; the worker is a live owner that owns nothing yet."""
    worker = await an_owner(shards.store(0), "only")
    await owner_mode.enable(shards, actor, 0, reason="a test")
    return worker


async def test_a_fleet_that_is_alike_turns_it_on_once(shards: Shards, actor: Actor, store: Store) -> None:
    for name in ("a", "b"):
        await an_owner(store, name)
    assert (await status_of(shards)).is_ready
    done = await owner_mode.enable(shards, actor, 0, reason="warmth")
    again = await owner_mode.enable(shards, actor, 0, reason="warmth")
    assert (done.enabled, done.changed, again.enabled, again.changed) == (True, True, True, False)
    assert done.since == again.since is not None
    on, other = await status_of(shards, 0), await status_of(shards, 1)
    assert (on.enabled, on.since, on.live_owners, other.enabled) == (True, done.since, 2, False)
    acts = (await auditing.list_audit(shards)).rows.rows
    assert [(act.operation, act.target_type, act.target_id, act.status) for act in acts] == [
        ("owner_mode.enable", "shard", "0", "succeeded")
    ] * 2
    assert acts[-1].reason == "warmth"


async def test_a_worker_that_knows_no_owners_is_named(shards: Shards, actor: Actor, store: Store) -> None:
    await an_owner(store, "new")
    await an_owner(store, "old", scanned=None, workflow_slots=None)
    assert await refused(shards, actor) == {"worker_cannot_own": ["old"]}


async def test_other_queues_and_builds_are_named_where_they_differ_from_most(
    shards: Shards, actor: Actor, store: Store
) -> None:
    for name in ("a", "b"):
        await an_owner(store, name, queues=("default", "mail"))
    await an_owner(store, "c", queues=("default",))
    await an_owner(store, "d", build="b2", queues=("mail", "default"))
    assert await refused(shards, actor) == {"queues_differ": ["c"], "builds_differ": ["d"]}


async def test_two_that_differ_are_both_named(shards: Shards, actor: Actor, store: Store) -> None:
    await an_owner(store, "a", build="b1")
    await an_owner(store, "b", build="b2")
    assert await refused(shards, actor) == {"builds_differ": ["a", "b"]}


@pytest.mark.parametrize("types", [{"workflow_types": ("w/1", "v/1")}, {"activity_types": ()}])
async def test_types_are_compared_among_live_owners_alone(
    shards: Shards, actor: Actor, store: Store, types: dict[str, Any]
) -> None:
    for name in ("a", "b"):
        await an_owner(store, name)
    await an_owner(store, "activities alone", workflow_slots=0, workflow_types=("else/1",))
    await an_owner(store, "other", **types)
    assert await refused(shards, actor) == {"types_differ": ["other"]}


async def test_without_a_live_owner_each_worker_says_why_it_is_none(shards: Shards, actor: Actor, store: Store) -> None:
    assert await refused(shards, actor) == {"no_live_owner": []}
    await an_owner(store, "no slots", workflow_slots=0)
    await an_owner(store, "no types", workflow_types=())
    await an_owner(store, "stuck", scanned=60.0)
    assert await refused(shards, actor) == {"no_live_owner": ["no slots", "no types", "stuck"]}
    (last,) = [each for each in (await status_of(shards)).preconditions if not each.ok]
    assert "has not run for 60 s" in last.workers[-1].detail


async def test_who_is_dead_or_drains_is_not_asked(shards: Shards, actor: Actor, store: Store) -> None:
    await an_owner(store, "a")
    await end_lease(store, await an_owner(store, "dead", build="b0", scanned=None))
    draining = await an_owner(store, "draining", build="b0")
    await store.scan.write("update harvest_workers set status = 'draining' where worker = $1", draining)
    assert (await owner_mode.enable(shards, actor, 0, reason="go")).changed


async def test_a_refusal_changes_nothing_and_is_audited(shards: Shards, actor: Actor, store: Store) -> None:
    await refused(shards, actor)
    assert not (await status_of(shards)).enabled
    worker, run = await a_worker(store), await a_run(store, None, state=PENDING)
    assert await claimed(store, worker) == [run]
    (act,) = (await auditing.list_audit(shards)).rows.rows
    assert (act.operation, act.status, act.error_summary is not None) == ("owner_mode.enable", "failed", True)


@pytest.mark.parametrize("reason", ["", "  "])
async def test_a_reason_is_needed(shards: Shards, actor: Actor, reason: str) -> None:
    for change in (owner_mode.enable, owner_mode.disable):
        with pytest.raises(InvalidRequestError):
            await change(shards, actor, 0, reason=reason)


async def test_the_guard_lets_the_owner_alone_take_a_task(shards: Shards, actor: Actor, store: Store) -> None:
    worker = await guarded(shards, actor)
    run = await a_run(store, None, state=PENDING)
    assert await claimed(store, worker) == [], "a claim without a token"
    other = await an_owner(store, "other")
    await own(store, other, 0)
    assert await claimed(store, worker, {0: 1}) == [], "a claim of one who does not own it"
    assert await task_of(store, run) == (PENDING, None)
    assert await claimed(store, other, {0: 1}) == [run]


TAKE = """
update harvest_workflow_tasks set state = 1, worker = $1, owner_epoch = $2, attempt = 1 where execution_id = $3
returning execution_id"""


async def test_a_statement_of_a_release_that_knows_no_owners_takes_no_task(
    shards: Shards, actor: Actor, store: Store
) -> None:
    worker = await guarded(shards, actor)
    assert await own(store, worker, 0) == 1
    run = await a_run(store, None, state=PENDING)
    assert (await store.claim.write(TAKE, worker, None, run), await task_of(store, run)) == ([], (PENDING, None))


@pytest.mark.parametrize("epoch", [0, 1, 2])
async def test_who_took_a_task_under_an_epoch_that_is_not_the_present_one_commits_nothing(
    shards: Shards, actor: Actor, store: Store, epoch: int
) -> None:
    worker = await guarded(shards, actor)
    assert await own(store, worker, 0) == 1
    run = await a_run(store, None, state=PENDING)
    await store.claim.write(TAKE, worker, epoch, run)
    assert await commits(store, worker, run) == (epoch == 1)


async def test_activities_are_claimed_as_before(shards: Shards, actor: Actor, store: Store) -> None:
    worker = await guarded(shards, actor)
    run = await a_run(store, None, state=PENDING, pending={1: 0})
    found = await activity_claims.claim_activities(store, worker, "w", ["default"], ["a"], 10)
    assert [each.execution_id for each in found] == [run]


async def test_a_living_worker_finishes_what_it_took_before_and_a_dead_ones_tasks_are_free(
    shards: Shards, actor: Actor, store: Store
) -> None:
    living, dead = await an_owner(store, "living"), await a_worker(store)
    kept, freed = await a_run(store, living), await a_run(store, dead)
    await end_lease(store, dead)
    await owner_mode.enable(shards, actor, 0, reason="go")
    assert await task_of(store, kept) == (HELD, living)
    assert await task_of(store, freed) == (PENDING, None)
    assert await commits(store, living, kept)


async def test_turning_it_off_leaves_no_owner_and_no_guard(shards: Shards, actor: Actor, store: Store) -> None:
    worker = await guarded(shards, actor)
    epochs = await partitions.acquire(store, worker, 512)
    done = await owner_mode.disable(shards, actor, 0, reason="deploy")
    again = await owner_mode.disable(shards, actor, 0, reason="deploy")
    assert (done.enabled, done.changed, again.changed) == (False, True, False)
    assert (await status_of(shards)).since is None
    owned = await store.scan.fetch("select partition, epoch from harvest_partitions where owner is null")
    assert {row["partition"]: row["epoch"] for row in owned} == {each: epochs[each] + 1 for each in epochs}
    told = await store.scan.fetch(
        "select event, worker_name, detail, count(*) from harvest_partition_journal where event = 'released' group by "
        "1, 2, 3"
    )
    assert [tuple(row.values()) for row in told] == [("released", "only", "owner mode was turned off", 512)]
    run = await a_run(store, None, state=PENDING)
    assert await claimed(store, worker) == [run]
    assert await partitions.acquire(store, worker, 10) == {}


async def test_what_an_owner_holds_when_it_is_turned_off_it_may_still_commit(
    shards: Shards, actor: Actor, store: Store
) -> None:
    worker = await guarded(shards, actor)
    await own(store, worker, 0)
    kept = await a_run(store, None, state=PENDING)
    assert await claimed(store, worker, {0: 1}) == [kept]
    late = await a_run(store, worker)
    await store.scan.write("update harvest_workflow_tasks set owner_epoch = 0 where execution_id = $1", late)
    await owner_mode.disable(shards, actor, 0, reason="off")
    assert await task_of(store, kept) == (HELD, worker)
    assert await task_of(store, late) == (PENDING, None), "it was taken under an epoch that had passed"
    assert await commits(store, worker, kept, attempt=2)


async def test_it_can_be_turned_on_again(shards: Shards, actor: Actor, store: Store) -> None:
    worker = await guarded(shards, actor)
    await owner_mode.disable(shards, actor, 0, reason="off")
    assert (await owner_mode.enable(shards, actor, 0, reason="on")).changed
    await a_run(store, None, state=PENDING)
    assert await claimed(store, worker) == []


async def test_busy_tasks_are_waited_for_no_longer_than_the_limit(
    shards: Shards, actor: Actor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await an_owner(store, "a")
    monkeypatch.setattr(rows, "LOCK_SECONDS", 0.05)
    async with store.scan.connection() as connection, connection.transaction():
        await connection.execute("lock table harvest_workflow_tasks in row exclusive mode")
        with pytest.raises(OwnerModeBusyError):
            await owner_mode.enable(shards, actor, 0, reason="on")
    assert not (await status_of(shards)).enabled
    assert (await owner_mode.enable(shards, actor, 0, reason="on")).changed


async def test_a_user_who_does_not_own_the_tables_is_told_so(shards: Shards, actor: Actor, store: Store) -> None:
    await an_owner(store, "a")
    connection: Any = await asyncpg.connect(store.url)
    role = "guest_of_owner_mode"
    await connection.execute(f"create role {role} login in role pg_read_all_data, pg_write_all_data")
    address = store.url.replace("//postgres@", f"//{role}@")
    assert address != store.url
    guest = await Shards.open({0: address})
    try:
        with pytest.raises(NotTableOwnerError):
            await owner_mode.enable(guest, actor, 0, reason="on")
    finally:
        await guest.close()
        await connection.execute(f"drop role {role}")
        await connection.close()
    assert not (await status_of(shards)).enabled


async def test_runs_go_on_through_both_turns(new_database: Callable[[str], str], actor: Actor) -> None:
    async with at_work(app, new_database("both_turns")) as (_, shards):
        runs = [await app.start(counts_words) for _ in range(20)]

        async def all_owned() -> bool:
            return bool(await one(shards.store(0), "select count(owner) = 512 from harvest_partitions"))

        async def can_own() -> bool:
            return (await status_of(shards)).is_ready

        async def say() -> None:
            for run in runs:
                await run.signal("word")

        await say()
        await eventually(can_own)
        assert (await owner_mode.enable(shards, actor, 0, reason="warmth")).changed
        await say()
        await eventually(all_owned)
        assert (await owner_mode.disable(shards, actor, 0, reason="deploy")).changed
        await say()
        assert [await run.result() for run in runs] == [3] * 20
        await check_invariants(shards)
