"""Parents and children whose decisions a test commits, and deliverers that die while they deliver."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from msgspec import Raw, Struct

from harvest.history.data import ChildWorkflowFailed, Failure
from harvest.history.deliveries import (
    CLOSE_POLICIES,
    ChildClosed,
    ChildStart,
    DeliveryKind,
)
from harvest.history.endings import child_failed
from harvest.history.events import encode_data
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import Shards
from harvest.store import closings
from harvest.store.commit import PARKED, Answer, Batch, Successor, commit
from harvest.store.store import Store
from harvest.worker.deliverer import Deliverer
from tests.store.kin import (
    a_deliverer,
    a_member,
    are_dense,
    deliver,
    rows_of,
    state_of,
    told,
)
from tests.store.rules import an_entry

K = DeliveryKind


class Killed(BaseException):
    """The process dies at this point: nothing after it happens, and nothing of it is remembered."""


def mortal(shards: Shards, store: Store, dies: Callable[[str], bool]) -> Deliverer:
    deliverer = a_deliverer(shards, store)

    def step(name: str) -> None:
        if dies(name):
            raise Killed(name)

    deliverer.courier.on_step = step
    return deliverer


async def one_life(deliverer: Deliverer) -> bool:
    """Two rounds of a process; tells whether it died."""
    try:
        for _ in range(2):
            deliverer.kick()
            await deliverer.tick()
            while deliverer._beyond:
                await asyncio.gather(*deliverer._beyond.values())
    except Killed:
        await asyncio.gather(*deliverer._beyond.values(), return_exceptions=True)
        return True
    return False


def a_start(parent: UUID, **changes: Any) -> ChildStart:
    settings: dict[str, Any] = {
        "workflow_name": "w", "workflow_id": uuid4().hex, "parent_id": str(parent), "root_id": str(parent),
    }  # fmt: skip
    return ChildStart(**settings | changes)


async def hold(store: Store, worker: UUID, run: UUID) -> int:
    """The worker has claimed the run; returns its next event id."""
    await store.scan.write(
        "update harvest_workflow_tasks set state = 1, worker = $2, attempt = 1 where execution_id = $1", run, worker
    )
    rows = await store.scan.fetch("select next_event_id from harvest_executions where execution_id = $1", run)
    return int(rows[0]["next_event_id"])


class Deciding(Struct):
    """A batch of decisions of one worker."""

    store: Store
    worker: UUID
    batch: Batch

    async def decide(
        self, run: UUID, kind: EventKind = EventKind.MARKER_RECORDED, state: State = State.RUNNING
    ) -> None:
        expected = await hold(self.store, self.worker, run)
        self.batch.event(run, expected, int(kind), 0, None, b"{}")
        self.batch.decision(
            run, attempt=1, expected=expected, next_event_id=expected + 1, state=int(state), task_state=PARKED,
            merged=0, waiting=None,
        )  # fmt: skip
        if not state.is_open:
            self.batch.close(run, b"1", None)
            self.batch.cascade(run)

    async def continues(self, run: UUID) -> UUID:
        (row,) = await rows_of(self.store, f"harvest_executions where execution_id = '{run}'")
        heir = mint_execution_id(self.store.shard_id)
        await self.decide(run, EventKind.WORKFLOW_CONTINUED_AS_NEW, State.CONTINUED_AS_NEW)
        self.batch.successor(
            run,
            Successor(
                execution_id=heir, business_key=row["business_key"], workflow_name="w", workflow_id=row["workflow_id"],
                version=1, partition=0, queue="default", started=b"{}", input=b"null",
            ),
        )  # fmt: skip
        return heir

    async def commit(self) -> None:
        if self.batch.decisions:
            async with self.store.commit.connection() as connection:
                answers = await commit(self.store, connection, self.worker, self.batch)
            assert set(answers.values()) == {Answer.PASSED}


async def going_on(store: Store, worker: UUID, run: UUID) -> UUID:
    deciding = Deciding(store, worker, Batch())
    heir = await deciding.continues(run)
    await deciding.commit()
    return heir


async def ending(store: Store, worker: UUID, run: UUID) -> None:
    deciding = Deciding(store, worker, Batch())
    await deciding.decide(run, EventKind.WORKFLOW_COMPLETED, State.COMPLETED)
    await deciding.commit()


class Child(Struct):
    """A child of a scenario: what it is, and what becomes of it."""

    seq: int
    first: UUID
    store: Store
    awaited: bool
    policy: int
    taken: bool
    fate: str
    current: UUID | None = None


FATES = ("stays", "completes", "fails", "terminated", "goes on", "goes on and completes")
ENDS = {
    "completes": (EventKind.CHILD_WORKFLOW_COMPLETED, None),
    "goes on and completes": (EventKind.CHILD_WORKFLOW_COMPLETED, None),
    "fails": (EventKind.CHILD_WORKFLOW_FAILED, "FAILED"),
    "terminated": (EventKind.CHILD_WORKFLOW_FAILED, "TERMINATED"),
}


class Scenario:
    """A parent and its children, whose decisions fall into one batch on each shard while deliverers die."""

    def __init__(self, shards: Shards, workers: dict[int, UUID], seed: int) -> None:
        self.chance = random.Random(seed)
        self.shards = shards
        self.workers = workers
        self.near = shards.stores[0]
        self.kills = 0
        self.children: list[Child] = []
        self.holders: dict[UUID, tuple[Store, UUID]] = {}
        self.fate = self.chance.choice(("stays", "ends", "goes on", "terminated"))
        self.parent = UUID(int=0)
        self.heir: UUID | None = None

    def dies(self, _: str) -> bool:
        died = self.chance.random() < 0.25
        self.kills += died
        return died

    async def delivered(self) -> None:
        """Some short lives, then one that lasts."""
        for _ in range(self.chance.randint(1, 4)):
            for store in self.shards.stores.values():
                await one_life(mortal(self.shards, store, self.dies))
        await deliver(*(a_deliverer(self.shards, store) for store in self.shards.stores.values()))

    async def begin(self) -> None:
        self.parent = await a_member(self.near)
        deciding = Deciding(self.near, self.workers[0], Batch())
        await deciding.decide(self.parent)
        for seq in range(1, self.chance.randint(2, 4)):
            await self._a_child(deciding.batch, seq)
        await deciding.commit()

    async def _a_child(self, batch: Batch, seq: int) -> None:
        store = self.chance.choice(list(self.shards.stores.values()))
        child = Child(
            seq, mint_execution_id(store.shard_id), store, awaited=self.chance.random() < 0.7,
            policy=self.chance.randrange(3), taken=self.chance.random() < 0.15, fate=self.chance.choice(FATES),
        )  # fmt: skip
        self.children.append(child)
        name = uuid4().hex
        if child.taken:
            self.holders[child.first] = store, await a_member(store, workflow_id=name)
        else:
            child.current = child.first
        reports = child.awaited or child.policy > 0
        if reports:
            batch.child(self.parent, seq, child.first, child.policy, child.awaited)
        start = a_start(
            self.parent, workflow_id=name, awaited=child.awaited, reports=reports,
            close_policy=CLOSE_POLICIES[child.policy],
        )  # fmt: skip
        batch.delivery(self.parent, seq, K.CHILD_START, child.first, store.shard_id, encode_data(start))

    async def turn(self) -> None:
        """What everybody decides, in one batch on each shard; what goes on, does so before."""
        batches = {n: Deciding(store, self.workers[n], Batch()) for n, store in self.shards.stores.items()}
        for child in self.children:
            if child.taken or child.current is None:
                continue
            deciding = batches[child.store.shard_id]
            if child.fate.startswith("goes on"):
                child.current = await going_on(child.store, deciding.worker, child.current)
            if child.fate == "goes on":
                child.current = await deciding.continues(child.current)
            elif child.fate.endswith("completes"):
                await deciding.decide(child.current, EventKind.WORKFLOW_COMPLETED, State.COMPLETED)
                closed = ChildClosed(str(child.first), int(EventKind.CHILD_WORKFLOW_COMPLETED), Raw(b'{"output":1}'))
                self._report(deciding.batch, child, encode_data(closed))
            elif child.fate == "fails":
                await deciding.decide(child.current, EventKind.WORKFLOW_FAILED, State.FAILED)
                self._report(deciding.batch, child, child_failed(str(child.first), State.FAILED, Failure("Boom", "m")))
        if self.fate == "goes on":
            self.heir = await batches[0].continues(self.parent)
        elif self.fate == "ends":
            await batches[0].decide(self.parent, EventKind.WORKFLOW_COMPLETED, State.COMPLETED)
        commits = [deciding.commit() for deciding in batches.values()]
        ends = [
            terminated(child.store, child.current)
            for child in self.children
            if child.fate == "terminated" and child.current is not None
        ]
        await asyncio.gather(*commits, *ends)
        if self.fate == "terminated":
            await terminated(self.near, self.parent)

    def _report(self, batch: Batch, child: Child, payload: bytes) -> None:
        if child.awaited or child.policy > 0:
            batch.delivery(child.current or child.first, 0, K.CHILD_CLOSED, self.parent, 0, payload)

    async def check(self) -> None:
        for store in self.shards.stores.values():
            assert not await rows_of(store, "harvest_deliveries")
        await are_dense(self.shards.stores.values())
        for store, holder in self.holders.values():
            assert (await state_of(store, holder), await told(store, holder)) == (State.RUNNING, [])
        for child in self.children:
            await self._check_parent_knows(child)
            if not child.taken:
                await self._check_child(child)
        await self._check_kinships()

    async def _check_parent_knows(self, child: Child) -> None:
        kinds = (EventKind.CHILD_WORKFLOW_COMPLETED, EventKind.CHILD_WORKFLOW_FAILED)
        events = [(kind, data) for kind, seq, data in await told(self.near, self.parent, *kinds) if seq == child.seq]
        if not child.awaited or (self.fate != "stays" and not child.taken):
            assert not events
            return
        if child.taken:
            expected: tuple[EventKind, str | None] | None = (EventKind.CHILD_WORKFLOW_FAILED, "REJECTED")
        else:
            expected = ENDS.get(child.fate)
        found = [(kind, data.state if isinstance(data, ChildWorkflowFailed) else None) for kind, data in events]
        assert found == ([expected] if expected else [])

    async def _check_child(self, child: Child) -> None:
        assert child.current is not None
        state = await state_of(child.store, child.current)
        asked = await told(child.store, child.current, EventKind.WORKFLOW_CANCEL_REQUESTED)
        if child.fate in ENDS:
            assert (state in (10, 11, 13), asked) == (True, [])
        elif self.fate in ("ends", "terminated"):
            assert state == (State.TERMINATED if child.policy == 2 else State.RUNNING)
            assert len(asked) == (1 if child.policy == 1 else 0)
        else:
            assert (state, asked) == (State.RUNNING, [])

    async def _check_kinships(self) -> None:
        """Of open children that report, the parent that they have now."""
        found = {
            (row["child_execution_id"], row["parent_execution_id"])
            for row in await rows_of(self.near, "harvest_children")
        }
        parent = self.parent if self.fate == "stays" else self.heir
        expected = {
            (child.first, parent)
            for child in self.children
            if parent and not child.taken and child.fate not in ENDS and (child.awaited or child.policy > 0)
        }
        assert found == expected


async def terminated(store: Store, run: UUID) -> None:
    await closings.close(store, run, EventKind.WORKFLOW_TERMINATED, b'{"reason":"r"}', State.TERMINATED, an_entry())
