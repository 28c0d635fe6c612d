"""A process dies between any two steps of a delivery: one outcome, and policies hit the right run (faults 42-45)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest
from msgspec import Raw

from harvest.history.data import Target
from harvest.history.deliveries import (
    CLOSE_POLICIES,
    Cancel,
    ChildClosed,
    ClosePolicy,
    DeliveryKind,
    ExternalAwait,
    ExternalCancel,
    ExternalSignal,
)
from harvest.history.events import encode_data
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import Shards
from harvest.store.commit import Batch
from harvest.store.store import Store
from tests.faults.kinship import Deciding, K, Scenario, a_start, ending, going_on, mortal, one_life
from tests.scale import scale
from tests.store.kin import (
    a_chain,
    a_deliverer,
    a_delivery,
    a_kinship,
    a_member,
    are_dense,
    deliver,
    emptied,
    rows_of,
    state_of,
    told,
)
from tests.store.rows import a_worker

STEPS = ("picked", "begun", "applied", "settled", "ended")


@pytest.fixture(scope="module")
async def databases(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    shards = await Shards.open({n: new_database(f"kin_{n}") for n in range(2)})
    yield shards
    await shards.close()


@pytest.fixture
async def two(databases: Shards) -> Shards:
    for store in databases.stores.values():
        await emptied(store)
    return databases


@pytest.fixture(params=["one shard", "two shards"])
async def shards(request: pytest.FixtureRequest, two: Shards) -> AsyncIterator[Shards]:
    if request.param == "two shards":
        yield two
        return
    alone = await Shards.open({0: two.stores[0].url})
    yield alone
    await alone.close()


SOMEBODY = Target(execution_id="x")
MADE: dict[str, tuple[DeliveryKind, Any]] = {
    "child start": (K.CHILD_START, None),
    "taken child": (K.CHILD_START, "taken"),
    "child closed": (K.CHILD_CLOSED, None),
    "child cancel": (K.CHILD_CANCEL, Cancel()),
    "request cancel": (K.CLOSE_POLICY, ClosePolicy(action="request_cancel")),
    "terminate": (K.CLOSE_POLICY, ClosePolicy(action="terminate")),
    "signal": (K.EXTERNAL_SIGNAL, ExternalSignal(SOMEBODY, "s")),
    "cancel": (K.EXTERNAL_CANCEL, ExternalCancel(SOMEBODY)),
    "await": (K.EXTERNAL_AWAIT, ExternalAwait(SOMEBODY)),
}
OUTCOMES: dict[str, tuple[list[EventKind], list[EventKind]]] = {
    "child start": ([], []),
    "taken child": ([EventKind.CHILD_WORKFLOW_FAILED], []),
    "child closed": ([], [EventKind.CHILD_WORKFLOW_COMPLETED]),
    "child cancel": ([], [EventKind.WORKFLOW_CANCEL_REQUESTED]),
    "request cancel": ([], [EventKind.WORKFLOW_CANCEL_REQUESTED]),
    "terminate": ([], [EventKind.WORKFLOW_TERMINATED]),
    "signal": ([EventKind.EXTERNAL_SIGNAL_DELIVERED], [EventKind.SIGNAL_RECEIVED]),
    "cancel": ([EventKind.EXTERNAL_CANCEL_DELIVERED], [EventKind.WORKFLOW_CANCEL_REQUESTED]),
    "await": ([EventKind.EXTERNAL_AWAIT_RESOLVED], []),
}


async def arranged(near: Store, far: Store, what: str) -> tuple[UUID, UUID]:
    """Source and target of one delivery."""
    kind, data = MADE[what]
    source = await a_member(near)
    if kind is K.CHILD_START:
        target = mint_execution_id(far.shard_id)
        if data == "taken":
            await a_member(far, workflow_id="taken")
        await a_kinship(near, source, target)
        data = a_start(source, workflow_id=data or "free")
    elif kind is K.CHILD_CLOSED:
        target = await a_member(far)
        await a_kinship(far, target, source)
        data = ChildClosed(str(source), int(EventKind.CHILD_WORKFLOW_COMPLETED), Raw(b"{}"))
    else:
        target = await a_member(far, state=10 if kind is K.EXTERNAL_AWAIT else 0, result=b"1")
    await a_delivery(near, kind, source, target, data)
    return source, target


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", MADE)
async def test_45_a_death_between_two_steps_of_a_delivery_leaves_one_outcome(
    shards: Shards, what: str, step: str
) -> None:
    near, far = shards.stores[0], shards.stores[len(shards.stores) - 1]
    source, target = await arranged(near, far, what)
    died = await one_life(mortal(shards, near, lambda name: name == step))
    assert died or (step == "applied" and near is far)
    await deliver(a_deliverer(shards, near))
    await are_dense(shards.stores.values())
    at_source, at_target = OUTCOMES[what]
    assert [kind for kind, *_ in await told(near, source)] == at_source
    assert [kind for kind, *_ in await told(far, target)] == at_target
    assert (await state_of(far, target) is None) == (what == "taken child")


async def test_45_a_signal_is_not_made_twice_where_its_target_goes_on_meanwhile(two: Shards) -> None:
    near, far = two.stores.values()
    source, chain = await a_member(near), await a_chain(far, 1)
    await a_delivery(near, K.EXTERNAL_SIGNAL, source, chain[0], ExternalSignal(SOMEBODY, "s"))
    assert await one_life(mortal(two, near, lambda name: name == "applied"))
    worker = await a_worker(far)
    heir = await going_on(far, worker, chain[0])
    await deliver(a_deliverer(two, near))
    assert [kind for kind, *_ in await told(far, heir)] == []
    ((kind, _, data),) = await told(near, source)
    assert (kind, data.execution_id) == (EventKind.EXTERNAL_SIGNAL_DELIVERED, str(chain[0]))


@pytest.mark.parametrize("policy", ["request_cancel", "terminate"])
async def test_42_a_close_policy_hits_the_run_that_the_child_has_become(shards: Shards, policy: str) -> None:
    near, far = shards.stores[0], shards.stores[len(shards.stores) - 1]
    parent, child = await a_member(near), await a_member(far)
    await a_kinship(near, parent, child, close_policy=CLOSE_POLICIES.index(policy))
    worker = await a_worker(far)
    second = await going_on(far, worker, child)
    third = await going_on(far, worker, second)
    await ending(near, await a_worker(near), parent)
    await deliver(a_deliverer(shards, near))
    expected = EventKind.WORKFLOW_TERMINATED if policy == "terminate" else EventKind.WORKFLOW_CANCEL_REQUESTED
    assert [kind for kind, *_ in await told(far, third)] == [expected]
    assert [await state_of(far, run) for run in (child, second)] == [15, 15]


async def test_43_a_close_policy_never_hits_another_run_with_the_childs_id(shards: Shards) -> None:
    near, far = shards.stores[0], shards.stores[len(shards.stores) - 1]
    other = await a_member(far, workflow_id="order-1")
    parent, child = await a_member(near), mint_execution_id(far.shard_id)
    worker = await a_worker(near)
    deciding = Deciding(near, worker, Batch())
    await deciding.decide(parent)
    deciding.batch.child(parent, 1, child, CLOSE_POLICIES.index("terminate"), True)
    start = encode_data(a_start(parent, workflow_id="order-1", close_policy="terminate"))
    deciding.batch.delivery(parent, 1, K.CHILD_START, child, far.shard_id, start)
    await deciding.commit()
    await ending(near, worker, parent)
    assert [row["kind"] for row in await rows_of(near, "harvest_deliveries")] == [K.CHILD_START, K.CLOSE_POLICY]
    await deliver(a_deliverer(shards, near))
    assert (await state_of(far, other), await told(far, other)) == (State.RUNNING, [])
    assert await state_of(far, child) is None


async def test_44_a_parent_that_continues_as_new_leaves_its_children_alone(shards: Shards) -> None:
    near, far = shards.stores[0], shards.stores[len(shards.stores) - 1]
    parent, child = await a_member(near), await a_member(far)
    await a_kinship(near, parent, child, close_policy=CLOSE_POLICIES.index("terminate"))
    worker = await a_worker(near)
    heir = await going_on(near, worker, parent)
    await deliver(a_deliverer(shards, near))
    assert (await state_of(far, child), await told(far, child)) == (State.RUNNING, [])
    await ending(near, worker, heir)
    await deliver(a_deliverer(shards, near))
    assert await state_of(far, child) == State.TERMINATED, "the heir is its parent now"


@pytest.mark.slow
@pytest.mark.prove_whole_core
@pytest.mark.timeout(scale(120, 900))
async def test_parent_and_children_decide_in_one_batch_while_deliverers_die(
    shards: Shards, proof: Callable[..., None]
) -> None:
    seed, count, kills = 20261203, scale(40, 2_000), 0
    print(f"seed {seed}")
    for n in range(count):
        for store in shards.stores.values():
            await emptied(store)
        workers = {shard_id: await a_worker(store) for shard_id, store in shards.stores.items()}
        scenario = Scenario(shards, workers, seed + n)
        try:
            await scenario.begin()
            await scenario.delivered()
            await scenario.turn()
            await scenario.delivered()
            await scenario.check()
        except BaseException:
            print(f"scenario {seed + n}")
            raise
        kills += scenario.kills
    assert kills > count, "deliverers died"
    proof("deliveries", seed=seed, scenarios=count, deaths=kills, shards=len(shards.stores))
