"""Deliveries between runs: each kind, within a shard and to another, in order, whatever the target is (design 4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
from msgspec import Raw, Struct

from harvest import clock
from harvest.history.data import RetryPolicy, Target, WorkflowStarted
from harvest.history.deliveries import (
    ANYWHERE,
    Cancel,
    ChildClosed,
    ChildStart,
    ClosePolicy,
    DeliveryKind,
    ExternalAwait,
    ExternalCancel,
    ExternalSignal,
)
from harvest.history.ids import business_key, mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import Shards
from harvest.store import starts
from harvest.store.store import Store
from tests.store.kin import (
    a_chain,
    a_deliverer,
    a_delivery,
    a_kinship,
    a_member,
    are_dense,
    by_name,
    deliver,
    emptied,
    rounds,
    rows_of,
    state_of,
    told,
)
from tests.store.rows import a_worker, one, task_of

K = DeliveryKind
COMPLETED = b'{"output":42}'


class Site(Struct, frozen=True):
    """Where sources live, and where targets do."""

    shards: Shards
    near: Store
    far: Store

    @property
    def stores(self) -> list[Store]:
        return list(self.shards.stores.values())

    async def deliver(self, until: int = 0) -> None:
        await deliver(a_deliverer(self.shards, self.near), until=until)
        await are_dense(self.stores)


@pytest.fixture(scope="module")
async def databases(new_database: Callable[[str], str]) -> AsyncIterator[Site]:
    shards = await Shards.open({n: new_database(f"deliveries_{n}") for n in range(2)})
    yield Site(shards, shards.stores[0], shards.stores[1])
    await shards.close()


@pytest.fixture
async def two(databases: Site) -> Site:
    for store in databases.stores:
        await emptied(store)
    return databases


@pytest.fixture(params=["one shard", "two shards"])
async def site(request: pytest.FixtureRequest, two: Site) -> AsyncIterator[Site]:
    if request.param == "two shards":
        yield two
        return
    shards = await Shards.open({0: two.near.url})
    yield Site(shards, shards.stores[0], shards.stores[0])
    await shards.close()


def a_start(parent: UUID, **changes: Any) -> ChildStart:
    settings: dict[str, Any] = {
        "workflow_name": "w", "workflow_id": uuid4().hex, "parent_id": str(parent), "root_id": str(parent),
    }  # fmt: skip
    return ChildStart(**settings | changes)


def a_closed(child: UUID, data: bytes = COMPLETED) -> ChildClosed:
    return ChildClosed(first_execution_id=str(child), kind=int(EventKind.CHILD_WORKFLOW_COMPLETED), data=Raw(data))


def a_signal(name: str = "s", payload: bytes = b"1", target: Target | None = None) -> ExternalSignal:
    return ExternalSignal(target=target or Target(execution_id="x"), name=name, payload=Raw(payload))


@asynccontextmanager
async def locked(store: Store, run: UUID, table: str = "harvest_executions") -> AsyncIterator[None]:
    other: Any = await asyncpg.connect(store.url)
    try:
        async with other.transaction():
            assert await other.fetch(f"select 1 from {table} where execution_id = $1 for update", run)
            yield
    finally:
        await other.close()


@asynccontextmanager
async def without_the_far_shard(site: Site) -> AsyncIterator[Shards]:
    """The same shards, but nobody answers for the second."""
    broken = await Shards.open({0: site.near.url, 1: f"{site.far.url.rpartition('/')[0]}/absent"})
    try:
        yield broken
    finally:
        await broken.close()


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


def do_to(kind: DeliveryKind) -> Struct:
    return {
        K.CHILD_CANCEL: Cancel(reason="r"),
        K.CLOSE_POLICY: ClosePolicy(action="request_cancel"),
        K.EXTERNAL_CANCEL: ExternalCancel(target=Target(execution_id="x"), reason="r"),
        K.EXTERNAL_SIGNAL: a_signal(),
        K.EXTERNAL_AWAIT: ExternalAwait(target=Target(execution_id="x")),
    }[kind]


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


# Other runs


ANSWERS = {
    K.EXTERNAL_SIGNAL: (EventKind.EXTERNAL_SIGNAL_DELIVERED, EventKind.EXTERNAL_SIGNAL_FAILED),
    K.EXTERNAL_CANCEL: (EventKind.EXTERNAL_CANCEL_DELIVERED, EventKind.EXTERNAL_CANCEL_FAILED),
}


@pytest.mark.parametrize("known_by", ["id", "name"])
@pytest.mark.parametrize("kind", ANSWERS)
async def test_another_run_is_reached_and_the_answer_says_which(site: Site, kind: DeliveryKind, known_by: str) -> None:
    source, chain = await a_member(site.near), await a_chain(site.far, 2)
    (row,) = await rows_of(site.far, f"harvest_executions where execution_id = '{chain[0]}'")
    if known_by == "id":
        await a_delivery(site.near, kind, source, chain[0], do_to(kind), seq=6)
    else:
        await a_delivery(site.near, kind, source, row["business_key"], do_to(kind), seq=6, shard=ANYWHERE)
    await site.deliver()
    ((answer, seq, data),) = await told(site.near, source)
    assert (answer, seq, data.execution_id) == (ANSWERS[kind][0], 6, str(chain[-1]))
    assert await task_of(site.near, source) == (0, None), "who asked is woken"
    assert len(await told(site.far, chain[-1])) == 1
    assert await task_of(site.far, chain[-1]) == (0, None)


async def test_a_signal_carries_its_payload_as_it_is(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    text = b'{"big": 12345678901234567890123, "text": "\\u0000\\ud83d\\ude00"}'
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal("hello", text))
    await site.deliver()
    ((kind, _, data),) = await told(site.far, target)
    assert (kind, data.name, bytes(data.payload)) == (EventKind.SIGNAL_RECEIVED, "hello", text)
    assert str(source) in data.actor


@pytest.mark.parametrize("known_by", ["id", "name"])
@pytest.mark.parametrize("case", ["unknown", "ended"])
@pytest.mark.parametrize("kind", ANSWERS)
async def test_the_answer_says_why_nothing_was_reached(
    site: Site, kind: DeliveryKind, case: str, known_by: str
) -> None:
    source, name = await a_member(site.near), uuid4().hex
    ended = await a_member(site.far, workflow_id=name, state=10) if case == "ended" else None
    if known_by == "id":
        await a_delivery(site.near, kind, source, ended or mint_execution_id(site.far.shard_id), do_to(kind))
    else:
        await a_delivery(site.near, kind, source, business_key("default", "w", name), do_to(kind), shard=ANYWHERE)
    await site.deliver()
    ((answer, _, data),) = await told(site.near, source)
    assert answer is ANSWERS[kind][1]
    assert data.reason_code == ("target_terminal" if case == "ended" else "target_unknown")


async def test_a_name_means_the_open_run_on_whatever_shard_it_is(two: Site) -> None:
    source, key = await a_member(two.near), business_key("default", "w", "name")
    await a_member(two.near, workflow_id="name", state=10)
    open_run = await a_member(two.far, workflow_id="name")
    await a_delivery(two.near, K.EXTERNAL_SIGNAL, source, key, a_signal(target=by_name("name")), shard=ANYWHERE)
    await two.deliver()
    assert len(await told(two.far, open_run)) == 1


async def test_a_signal_of_a_run_that_has_ended_arrives_all_the_same(site: Site) -> None:
    source, target = await a_member(site.near, state=10), await a_member(site.far)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal())
    await site.deliver()
    assert (len(await told(site.far, target)), await told(site.near, source)) == (1, [])


async def test_a_paused_run_takes_what_comes_and_is_not_woken(site: Site) -> None:
    source = await a_member(site.near, state=1, task_state=4)
    target = await a_member(site.far, state=1, task_state=4)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal())
    await site.deliver()
    assert (len(await told(site.far, target)), len(await told(site.near, source))) == (1, 1)
    assert [await task_of(site.near, source), await task_of(site.far, target)] == [(4, None), (4, None)]


# Who waits for an end


FAILURE = b'{"type":"Boom","message":"m"}'
ENDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "completed": ({"state": 10, "result": b'"ok"'}, "", ""),
    "failed": ({"state": 11, "failure": FAILURE}, "FAILED", "Boom"),
    "cancelled": ({"state": 12}, "CANCELLED", "WorkflowCancelled"),
    "timed out": ({"state": 14}, "TIMED_OUT", "WorkflowTimedOut"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_who_waits_for_a_run_that_has_ended_learns_how(site: Site, end: str) -> None:
    settings, state, failure = ENDS[end]
    source, target = await a_member(site.near), await a_member(site.far, **settings)
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, target, do_to(K.EXTERNAL_AWAIT), seq=3)
    await site.deliver()
    ((kind, seq, data),) = await told(site.near, source)
    assert seq == 3
    if end == "completed":
        assert (kind, bytes(data.output)) == (EventKind.EXTERNAL_AWAIT_RESOLVED, b'"ok"')
    else:
        assert (kind, data.state, data.failure.type) == (EventKind.EXTERNAL_AWAIT_FAILED, state, failure)


async def test_who_waits_for_a_run_that_is_unknown_learns_it(site: Site) -> None:
    source, target = await a_member(site.near), mint_execution_id(site.far.shard_id)
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, target, do_to(K.EXTERNAL_AWAIT))
    await site.deliver()
    ((kind, _, data),) = await told(site.near, source)
    assert (kind, data.state) == (EventKind.EXTERNAL_AWAIT_FAILED, "UNKNOWN")


async def test_an_open_run_is_looked_at_again_less_and_less_often(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, target, do_to(K.EXTERNAL_AWAIT))
    deliverer, waits = a_deliverer(site.shards, site.near), []
    for _ in range(12):
        await site.near.scan.write("update harvest_deliveries set due = clock_timestamp()")
        before = await one(site.near, "select clock_timestamp()")
        await rounds(deliverer)
        waits.append((await one(site.near, "select due from harvest_deliveries") - before).total_seconds())
    assert waits[0] >= 0.2
    assert waits[-1] >= 5, "it has grown to its most"


async def test_the_run_that_a_name_means_now_is_awaited_and_not_its_heir_in_name(site: Site) -> None:
    source, key = await a_member(site.near), business_key("default", "w", "name")
    target = await a_member(site.far, workflow_id="name")
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, key, ExternalAwait(by_name("name")), shard=ANYWHERE)
    await rounds(a_deliverer(site.shards, site.near))
    await site.far.scan.write(
        """update harvest_executions set state = 12, closed_at = clock_timestamp() where execution_id = $1""", target
    )
    await site.far.scan.write("delete from harvest_workflow_tasks where execution_id = $1", target)
    await a_member(site.far, workflow_id="name")
    await site.deliver()
    ((_, _, data),) = await told(site.near, source)
    assert data.state == "CANCELLED"


async def test_a_wait_of_a_run_that_has_ended_is_given_up(site: Site) -> None:
    source, target = await a_member(site.near, state=10), await a_member(site.far)
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, target, do_to(K.EXTERNAL_AWAIT))
    await site.deliver()
    assert not await told(site.near, source)


# Order


async def test_deliveries_of_a_pair_are_made_in_their_order(site: Site) -> None:
    source = await a_member(site.near)
    targets = [await a_member(site.far) for _ in range(2)]
    for seq in range(1, 251):
        await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, targets[seq % 2], a_signal(str(seq)), seq=seq)
    await site.deliver()
    for n, target in enumerate(targets):
        names = [int(data.name) for *_, data in await told(site.far, target)]
        assert names == [seq for seq in range(1, 251) if seq % 2 == n]


async def test_one_that_is_put_off_holds_up_those_behind_it_and_no_other(site: Site) -> None:
    source = await a_member(site.near)
    first, other = await a_member(site.far), await a_member(site.far)
    late = await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, first, a_signal("1"), seq=1)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, first, a_signal("2"), seq=2)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, other, a_signal("3"), seq=3)
    await site.near.scan.write(
        "update harvest_deliveries set due = clock_timestamp() + interval '1 hour' where delivery_id = $1", late
    )
    await site.deliver(until=2)
    assert (len(await told(site.far, first)), len(await told(site.far, other))) == (0, 1)
    await site.near.scan.write("update harvest_deliveries set due = clock_timestamp()")
    await site.deliver()
    assert [data.name for *_, data in await told(site.far, first)] == ["1", "2"]


async def test_who_waits_for_an_end_holds_up_nobody(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, target, do_to(K.EXTERNAL_AWAIT), seq=1)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=2)
    await site.deliver(until=1)
    assert len(await told(site.far, target)) == 1


async def test_a_child_is_signalled_and_cancelled_after_it_has_begun(site: Site) -> None:
    parent, child = await a_member(site.near), mint_execution_id(site.far.shard_id)
    await a_delivery(site.near, K.CHILD_START, parent, child, a_start(parent), seq=1)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, parent, child, a_signal(), seq=2)
    await a_delivery(site.near, K.CHILD_CANCEL, parent, child, Cancel(), seq=1)
    await site.deliver()
    assert [kind for kind, *_ in await told(site.far, child)] == [
        EventKind.SIGNAL_RECEIVED, EventKind.WORKFLOW_CANCEL_REQUESTED,
    ]  # fmt: skip


async def test_what_follows_a_child_that_could_not_begin_yet_waits_for_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had the child's id has ended between two statements: the child is tried again, before its signal."""
    parent, child = await a_member(site.near), mint_execution_id(site.far.shard_id)
    await a_delivery(site.near, K.CHILD_START, parent, child, a_start(parent), seq=1)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, parent, child, a_signal(), seq=2)
    real = starts.start_many_on

    async def not_yet(*_: Any) -> set[UUID]:
        monkeypatch.setattr(starts, "start_many_on", real)
        return set()

    monkeypatch.setattr(starts, "start_many_on", not_yet)
    await site.deliver()
    assert [kind for kind, *_ in await told(site.far, child)] == [EventKind.SIGNAL_RECEIVED]
    assert [kind for kind, *_ in await told(site.near, parent)] == [EventKind.EXTERNAL_SIGNAL_DELIVERED]


async def test_a_signal_before_a_terminate_is_in_the_history(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=1)
    await a_delivery(site.near, K.CLOSE_POLICY, source, target, ClosePolicy(action="terminate"), seq=2)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=3)
    await site.deliver()
    assert [kind for kind, *_ in await told(site.far, target)] == [
        EventKind.SIGNAL_RECEIVED, EventKind.WORKFLOW_TERMINATED,
    ]  # fmt: skip
    assert [kind for kind, *_ in await told(site.near, source)] == [
        EventKind.EXTERNAL_SIGNAL_DELIVERED, EventKind.EXTERNAL_SIGNAL_FAILED,
    ]  # fmt: skip


# Locks


@pytest.mark.parametrize("whose", ["target", "target's task", "source", "source's task"])
async def test_a_lock_holds_up_one_delivery_and_no_other(site: Site, whose: str) -> None:
    sources = [await a_member(site.near) for _ in range(3)]
    targets = [await a_member(site.far) for _ in range(3)]
    for source, target in zip(sources, targets, strict=True):
        await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal())
    store, run = (site.far, targets[1]) if whose.startswith("target") else (site.near, sources[1])
    table = "harvest_workflow_tasks" if whose.endswith("task") else "harvest_executions"
    async with locked(store, run, table):
        async with asyncio.timeout(5):
            await site.deliver(until=1)
        assert [len(await told(site.near, source)) for source in sources] == [1, 0, 1]
    await site.deliver()
    assert [len(await told(site.near, source)) for source in sources] == [1, 1, 1]
    assert [len(await told(site.far, target)) for target in targets] == [1, 1, 1], "none is made twice"


async def test_two_that_deliver_at_once_make_each_delivery_once(site: Site) -> None:
    sources = [await a_member(site.near) for _ in range(10)]
    target = await a_member(site.far)
    for seq in range(200):
        await a_delivery(site.near, K.EXTERNAL_SIGNAL, sources[seq % 10], target, a_signal(str(seq)), seq=seq)
    deliverers = [a_deliverer(site.shards, site.near) for _ in range(3)]
    await asyncio.gather(*(deliver(deliverer) for deliverer in deliverers))
    names = [int(data.name) for *_, data in await told(site.far, target)]
    assert sorted(names) == list(range(200))
    for source in sources:
        assert len(await told(site.near, source)) == 20
    await are_dense(site.stores)


# What cannot be made


async def test_one_that_cannot_be_read_is_put_off_with_its_error_and_the_others_are_made(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    bad = await a_delivery(
        site.near, K.EXTERNAL_SIGNAL, source, mint_execution_id(site.far.shard_id), a_signal(), seq=1
    )
    await site.near.scan.write("update harvest_deliveries set payload = 'no json' where delivery_id = $1", bad)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=2)
    await site.deliver(until=1)
    (row,) = await rows_of(
        site.near, "harvest_deliveries", "delivery_id, last_error, attempts, due > clock_timestamp()"
    )
    assert (row["delivery_id"], row["attempts"], row["?column?"]) == (bad, 1, True)
    assert "JSON" in row["last_error"]


async def test_a_shard_that_does_not_answer_holds_up_what_is_meant_for_it_alone(two: Site) -> None:
    source, near, far = await a_member(two.near), await a_member(two.near), await a_member(two.far)
    nowhere = mint_execution_id(7)
    for seq, target in enumerate((far, nowhere, near)):
        await a_delivery(two.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=seq)
    broken = await Shards.open({0: two.near.url, 1: two.far.url.replace(str(two.far.url.rpartition("/")[2]), "absent")})
    try:
        await deliver(a_deliverer(broken, broken.stores[0]), until=2)
    finally:
        await broken.close()
    assert len(await told(two.near, near)) == 1
    rows = await rows_of(
        two.near, "harvest_deliveries", "*, extract(epoch from due - clock_timestamp())::float8 as wait"
    )
    assert all(0 < row["wait"] <= 5 and row["attempts"] == 1 and row["last_error"] for row in rows)


async def test_a_name_is_not_unknown_while_a_shard_is_missing(two: Site) -> None:
    source = await a_member(two.near)
    await a_member(two.near, workflow_id="here")
    for seq, name in enumerate(("here", "elsewhere")):
        key = business_key("default", "w", name)
        await a_delivery(
            two.near, K.EXTERNAL_SIGNAL, source, key, a_signal(target=by_name(name)), seq=seq, shard=ANYWHERE
        )
    broken = await Shards.open({0: two.near.url, 1: two.far.url.replace(str(two.far.url.rpartition("/")[2]), "absent")})
    try:
        await deliver(a_deliverer(broken, broken.stores[0]), until=1)
    finally:
        await broken.close()
    assert [seq for _, seq, _ in await told(two.near, source)] == [0], "an open run was found without the other shard"
    assert "shard 1" in (await rows_of(two.near, "harvest_deliveries"))[0]["last_error"]


# The loop


async def test_what_nobody_has_told_of_is_found_by_looking(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    deliverer = a_deliverer(site.shards, site.near)
    running = asyncio.create_task(deliverer.run())
    try:
        await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal())

        async def is_there() -> bool:
            return bool(await told(site.near, source))

        assert await clock.until(is_there, within=10)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
