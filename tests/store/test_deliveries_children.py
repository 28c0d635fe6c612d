"""What deliveries do to children and their parents, within a shard and to another (design 4)."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import msgspec
import pytest
from msgspec import Raw

from harvest import clock
from harvest.history.data import RetryPolicy, WorkflowStarted
from harvest.history.deliveries import (
    ClosePolicy,
    DeliveryKind,
)
from harvest.history.ids import business_key, mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import ShardRouter, Shards
from tests.store.kin import (
    a_chain,
    a_deliverer,
    a_delivery,
    a_kinship,
    a_member,
    deliver,
    rounds,
    rows_of,
    state_of,
    told,
)
from tests.store.rows import a_worker, task_of
from tests.store.sites import K, Site, a_closed, a_start, do_to

# Children that begin


async def test_a_child_begins_with_what_its_parent_says(site: Site) -> None:
    parent, child = await a_member(site.near), mint_execution_id(site.far.shard_id)
    root = uuid4()
    start = a_start(
        parent, root_id=str(root), version=4, queue="q", priority=7, tenant="t", input=Raw(b'{"n":1}'),
        memo=Raw(b'"m"'), execution_timeout=60.0, retry=RetryPolicy(max_attempts=5), close_policy="terminate",
    )  # fmt: skip
    await a_kinship(site.near, parent, child)
    await a_delivery(site.near, K.CHILD_START, parent, child, start)
    await site.deliver()
    (row,) = await rows_of(site.far, f"harvest_executions where execution_id = '{child}'")
    expected = {
        "business_key": business_key("t", "w", start.workflow_id), "parent_id": parent, "root_id": root, "version": 4,
        "first_execution_id": child, "previous_execution_id": None, "queue": "q", "tenant": "t", "awaited": True,
        "close_policy": 2, "state": 0, "next_event_id": 2,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert row["deadline_at"] is not None
    (event,) = await rows_of(site.far, f"harvest_events where execution_id = '{child}'")
    data = msgspec.json.decode(event["payload"], type=WorkflowStarted)
    assert (data.parent_id, data.root_id, data.reports, data.version) == (str(parent), str(root), True, 4)
    assert (data.retry, data.tenant, data.priority, bytes(data.input)) == (
        RetryPolicy(max_attempts=5),
        "t",
        7,
        b'{"n":1}',
    )
    (details,) = await rows_of(site.far, f"harvest_execution_details where execution_id = '{child}'")
    assert (details["input"], details["memo"]) == (b'{"n":1}', b'"m"')
    (task,) = await rows_of(site.far, f"harvest_workflow_tasks where execution_id = '{child}'")
    assert (task["state"], task["queue"], task["priority"]) == (0, "q", 7)
    assert task["sort_at"] <= row["started_at"] + (task["due"] - row["started_at"]), "a child is no fresh start"
    assert not await told(site.near, parent)
    assert await rows_of(site.near, "harvest_children")


async def test_what_the_parent_does_not_say_is_as_the_childs_code_declares_it(site: Site) -> None:
    worker = await a_worker(site.far)
    options = '{"queue":"slow","execution_timeout":9.0,"retry":{"max_attempts":2}}'
    for version, text in ((1, "{}"), (3, options), (2, "{}")):
        await site.far.scan.write(
            """insert into harvest_definitions (kind, name, version, worker, input_schema, output_schema, signals)
               values ('workflow', 'w', $1, $2, convert_to('{"x-options":' || $3 || '}', 'UTF8'), '{}', '{}')""",
            version, worker, text,
        )  # fmt: skip
    parent = await a_member(site.near)
    known, unknown = [mint_execution_id(site.far.shard_id) for _ in range(2)]
    await a_delivery(site.near, K.CHILD_START, parent, known, a_start(parent))
    await a_delivery(site.near, K.CHILD_START, parent, unknown, a_start(parent, workflow_name="v"))
    await site.deliver()
    rows = {r["execution_id"]: r for r in await rows_of(site.far, "harvest_executions")}
    assert (rows[known]["version"], rows[known]["queue"]) == (3, "slow")
    assert (rows[unknown]["version"], rows[unknown]["queue"], rows[unknown]["deadline_at"]) == (1, "default", None)
    (event,) = await rows_of(site.far, f"harvest_events where execution_id = '{known}'")
    data = msgspec.json.decode(event["payload"], type=WorkflowStarted)
    assert (data.execution_timeout_seconds, data.retry) == (9.0, RetryPolicy(max_attempts=2))


async def test_a_childs_chain_ends_by_the_clock_of_its_shards_database(two: Site) -> None:
    shards = await Shards.open({number: store.url for number, store in two.shards.stores.items()})
    worker = await a_worker(two.far)
    await two.far.scan.write(
        """insert into harvest_definitions (kind, name, version, worker, input_schema, output_schema, signals)
           values ('workflow', 'w', 1, $1, convert_to('{"x-options":{"chain_execution_timeout":60.0}}', 'UTF8'), '{}',
                   '{}')""",
        worker,
    )
    # As a worker's that does not work on that shard: nobody has told it the time there.
    shards.store(1).clock.observe(clock.now() + timedelta(days=1))
    try:
        parent, child = await a_member(two.near), mint_execution_id(1)
        await a_delivery(two.near, K.CHILD_START, parent, child, a_start(parent))
        await deliver(a_deliverer(shards, shards.store(0)))
    finally:
        await shards.close()
    (row,) = await rows_of(
        two.far, "harvest_executions", "extract(epoch from deadline_at - started_at)::float8 as seconds"
    )
    assert 55 < row["seconds"] < 65


async def test_a_delivery_to_a_shard_that_is_gone_is_made_where_its_runs_are_now(two: Site) -> None:
    router = ShardRouter(readable=(0, 1), writable=(0, 1), default=0, forwards={5: 1})
    shards = await Shards.open({number: store.url for number, store in two.shards.stores.items()}, router)
    try:
        parent, child = await a_member(two.near), mint_execution_id(5)
        await a_delivery(two.near, K.CHILD_START, parent, child, a_start(parent))
        await deliver(a_deliverer(shards, shards.store(0)))
        assert await state_of(two.far, child) == State.RUNNING
    finally:
        await shards.close()


async def test_a_refused_child_that_nobody_awaits_is_told_to_its_parent_if_that_is_open(site: Site) -> None:
    for state in (State.RUNNING, State.COMPLETED):
        parent, child = await a_member(site.near, state=state), mint_execution_id(site.near.shard_id)
        start = a_start(parent, awaited=False, reports=False, close_policy="abandon", refused="no such shard")
        await a_delivery(site.near, K.CHILD_START, parent, child, start, seq=4)
        await site.deliver()
        found = [(kind, seq, data.failure.type, data.state) for kind, seq, data in await told(site.near, parent)]
        expected = [(EventKind.CHILD_WORKFLOW_FAILED, 4, "PlacementRefused", "REJECTED")]
        assert found == (expected if state is State.RUNNING else [])
        assert await state_of(site.near, child) is None


@pytest.mark.parametrize("reports", [True, False])
async def test_a_child_says_whether_its_end_is_awaited(site: Site, reports: bool) -> None:
    parent, child = await a_member(site.near), mint_execution_id(site.far.shard_id)
    await a_delivery(site.near, K.CHILD_START, parent, child, a_start(parent, awaited=False, reports=reports))
    await site.deliver()
    (row,) = await rows_of(site.far, f"harvest_executions where execution_id = '{child}'")
    assert row["awaited"] is (False if reports else None)


async def test_a_taken_id_comes_back_as_a_failed_child_and_the_other_run_is_untouched(site: Site) -> None:
    parent, child = await a_member(site.near), mint_execution_id(site.far.shard_id)
    holder = await a_member(site.far, workflow_id="taken")
    await a_kinship(site.near, parent, child, seq=8)
    await a_delivery(site.near, K.CHILD_START, parent, child, a_start(parent, workflow_id="taken"), seq=8)
    await site.deliver()
    ((kind, seq, data),) = await told(site.near, parent)
    assert (kind, seq, data.state, data.failure.type) == (
        EventKind.CHILD_WORKFLOW_FAILED, 8, "REJECTED", "WorkflowAlreadyStarted",
    )  # fmt: skip
    assert str(holder) in data.failure.message
    assert await task_of(site.near, parent) == (0, None), "the parent is woken"
    assert not await rows_of(site.near, "harvest_children")
    assert await state_of(site.far, child) is None
    assert (await state_of(site.far, holder), await told(site.far, holder)) == (State.RUNNING, [])


async def test_of_two_children_with_one_id_one_begins(site: Site) -> None:
    parent = await a_member(site.near)
    children = [mint_execution_id(site.far.shard_id) for _ in range(2)]
    for seq, child in enumerate(children):
        await a_kinship(site.near, parent, child, seq=seq)
        await a_delivery(site.near, K.CHILD_START, parent, child, a_start(parent, workflow_id="same"), seq=seq)
    await site.deliver()
    assert [await state_of(site.far, child) for child in children].count(None) == 1
    assert len(await told(site.near, parent, EventKind.CHILD_WORKFLOW_FAILED)) == 1


# Children that end


async def test_the_end_of_a_child_reaches_its_parent_once(site: Site) -> None:
    parent, child = await a_member(site.far), await a_member(site.near, state=10)
    await a_kinship(site.far, parent, child, seq=5)
    await a_delivery(site.near, K.CHILD_CLOSED, child, parent, a_closed(child), seq=0)
    await a_delivery(site.near, K.CHILD_CLOSED, child, parent, a_closed(child), seq=0)
    await site.deliver()
    ((kind, seq, data),) = await told(site.far, parent)
    assert (kind, seq, bytes(data.output)) == (EventKind.CHILD_WORKFLOW_COMPLETED, 5, b"42")
    assert await task_of(site.far, parent) == (0, None)
    assert not await rows_of(site.far, "harvest_children")


async def test_the_ends_of_many_children_come_in_one_round(site: Site) -> None:
    parent = await a_member(site.far)
    for seq in range(1, 101):
        child = await a_member(site.near, state=10)
        await a_kinship(site.far, parent, child, seq=seq)
        await a_delivery(site.near, K.CHILD_CLOSED, child, parent, a_closed(child, b'{"output":%d}' % seq), seq=0)
    await rounds(a_deliverer(site.shards, site.near))
    assert [(seq, int(bytes(data.output))) for _, seq, data in await told(site.far, parent)] == [
        (seq, seq) for seq in range(1, 101)
    ]


@pytest.mark.parametrize("case", ["detached", "parent ended", "parent gone"])
async def test_an_end_that_nobody_waits_for_is_settled(site: Site, case: str) -> None:
    parent = await a_member(site.far, state=10 if case == "parent ended" else 0)
    child = await a_member(site.near, state=10)
    if case != "parent gone":
        await a_kinship(site.far, parent, child, awaited=case == "parent ended")
    await a_delivery(site.near, K.CHILD_CLOSED, child, parent, a_closed(child), seq=0)
    await site.deliver()
    assert not await told(site.far, parent)
    assert not await rows_of(site.far, "harvest_children")


async def test_the_end_of_a_child_finds_the_run_that_its_parent_has_become(site: Site) -> None:
    parents = await a_chain(site.far, 3)
    child = await a_member(site.near, state=10)
    await a_kinship(site.far, parents[-1], child, awaited=False)
    await a_delivery(site.near, K.CHILD_CLOSED, child, parents[0], a_closed(child), seq=0)
    await site.deliver()
    assert [await told(site.far, parent) for parent in parents] == [[], [], []]
    assert not await rows_of(site.far, "harvest_children")


# What is done to the current run of a chain


CANCELS = (K.CHILD_CANCEL, K.CLOSE_POLICY, K.EXTERNAL_CANCEL)


@pytest.mark.parametrize("before", [State.CONTINUED_AS_NEW, State.FAILED], ids=["continued", "tried again"])
@pytest.mark.parametrize("kind", CANCELS)
async def test_a_request_to_cancel_reaches_the_current_run_once(site: Site, kind: DeliveryKind, before: State) -> None:
    source, chain = await a_member(site.near), await a_chain(site.far, 3, before=int(before))
    for seq, target in enumerate((chain[0], chain[1], chain[0]), 1):
        await a_delivery(site.near, kind, source, target, do_to(kind), seq=seq)
    await site.deliver()
    ((event, _, data),) = await told(site.far, chain[-1])
    assert event is EventKind.WORKFLOW_CANCEL_REQUESTED
    assert data.reason == ("its parent has ended" if kind is K.CLOSE_POLICY else "r")
    assert await task_of(site.far, chain[-1]) == (0, None)
    assert [await told(site.far, run) for run in chain[:-1]] == [[], []]


async def test_terminate_ends_the_current_run_and_goes_on_to_its_own_children(site: Site) -> None:
    source, chain = await a_member(site.near), await a_chain(site.far, 3)
    grandchild = await a_member(site.far)
    await a_kinship(site.far, chain[-1], grandchild, close_policy=2)
    await a_delivery(site.near, K.CLOSE_POLICY, source, chain[0], ClosePolicy(action="terminate"))
    await deliver(*(a_deliverer(site.shards, store) for store in site.stores))
    assert [await state_of(site.far, run) for run in (*chain, grandchild)] == [15, 15, 13, 13]
    ((kind, _, data),) = await told(site.far, chain[-1])
    assert (kind, data.reason) == (EventKind.WORKFLOW_TERMINATED, "its parent has ended")
    assert await task_of(site.far, chain[-1]) == (-1, None)


@pytest.mark.parametrize("state", [None, State.COMPLETED], ids=["unknown", "ended"])
@pytest.mark.parametrize("kind", [K.CHILD_CANCEL, K.CLOSE_POLICY])
async def test_what_has_no_answer_is_settled_where_nothing_runs(
    site: Site, kind: DeliveryKind, state: State | None
) -> None:
    source = await a_member(site.near)
    target = mint_execution_id(site.far.shard_id) if state is None else await a_member(site.far, state=int(state))
    await a_delivery(site.near, kind, source, target, do_to(kind))
    await a_delivery(site.near, K.CLOSE_POLICY, source, target, ClosePolicy(action="terminate"), seq=2)
    await site.deliver()
    assert (await told(site.near, source), await told(site.far, target)) == ([], [])
