"""Whatever is written at once on the same runs, from however many sessions: no statement is ever part of a deadlock."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from msgspec import Raw

from harvest import clock
from harvest.history.data import Target
from harvest.history.deliveries import ChildClosed, ChildStart, DeliveryKind, ExternalSignal
from harvest.history.events import encode_data
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import Shards
from harvest.store import activity_claims, appends, claims, closings, fleet, results, timers, upkeep
from harvest.store.commit import HELD, PARKED, Batch, Successor, commit
from harvest.store.results import ActivityEnd, ActivityRetry
from harvest.store.store import Store
from harvest.worker.deliverer import Deliverer
from tests.scale import scale
from tests.store.kin import a_deliverer, rounds
from tests.store.rows import a_run, a_worker
from tests.store.rules import an_entry

RUNS = 12
_HELD = """
select t.execution_id, t.attempt, e.next_event_id,
       array(select a.seq from harvest_activity_tasks a
              where a.execution_id = t.execution_id and a.state = 1 order by a.seq) as running,
       array(select a.attempt from harvest_activity_tasks a
              where a.execution_id = t.execution_id and a.state = 1 order by a.seq) as tries,
       array(select m.seq from harvest_timers m where m.execution_id = t.execution_id) as timers
  from harvest_workflow_tasks t join harvest_executions e on e.execution_id = t.execution_id
 where t.worker = $1 and t.state in (1, 3)"""
_RUNNING = "select execution_id, seq, attempt, worker from harvest_activity_tasks where state = 1"


class Hunt:
    """Writers that hit the same few runs until time is up."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.workers: list[UUID] = []
        self.stores: list[Store] = []
        self.seen: list[UUID] = []
        self.deliverers: dict[int, Deliverer] = {}

    def store(self) -> Store:
        self.stores.append(Store(0, self.url))
        return self.stores[-1]

    async def an_open_run(self, store: Store) -> UUID:
        rows = await store.scan.fetch("select execution_id from harvest_executions where state < 10")
        while len(rows) < RUNS:
            await a_run(store, None, state=0, pending={1: 0, 2: 0}, timers={3: 0.01, 4: 60})
            rows = await store.scan.fetch("select execution_id from harvest_executions where state < 10")
        return UUID(bytes=self.chance.choice(rows)["execution_id"].bytes)

    async def signal(self, store: Store) -> None:
        await appends.append(
            store,
            await self.an_open_run(store),
            EventKind.SIGNAL_RECEIVED,
            b'{"name":"s"}',
            an_entry(),
            key=uuid4().hex,
        )

    async def terminate(self, store: Store) -> None:
        if self.chance.random() < 0.2:
            await closings.close(
                store, await self.an_open_run(store), EventKind.WORKFLOW_TERMINATED, b"{}", State.TERMINATED, an_entry()
            )

    async def claim(self, store: Store) -> None:
        worker = self.chance.choice(self.workers)
        await claims.claim(store, worker, ["default"], 5)
        await activity_claims.claim_activities(store, worker, "w", ["default"], ["a"], 5)

    async def commit(self, store: Store) -> None:
        worker = self.chance.choice(self.workers)
        batch = Batch()
        for row in await store.scan.fetch(_HELD, worker):
            self._decide(batch, row)
        if batch.decisions:
            async with store.commit.connection() as connection:
                await commit(store, connection, worker, batch)

    def _decide(self, batch: Batch, row: Any) -> None:
        run, event_id = row["execution_id"], row["next_event_id"]
        closes = self.chance.random() < 0.1
        merged = 0
        for seq, attempt in zip(row["running"], row["tries"], strict=True):
            if self.chance.random() < 0.5:
                batch.event(run, event_id + merged, EventKind.ACTIVITY_COMPLETED, seq, None, b'{"output":1}')
                batch.merge(run, seq, attempt)
                merged += 1
            elif self.chance.random() < 0.3:
                batch.cancel(run, seq)
        for seq in row["timers"]:
            if self.chance.random() < 0.3:
                batch.cancel(run, seq)
        event_id += merged
        batch.event(run, event_id, EventKind.MARKER_RECORDED, 0, None, b"{}")
        event_id += 1
        if closes:
            batch.event(run, event_id, EventKind.WORKFLOW_COMPLETED, 0, None, b"{}")
            batch.close(run, b"1", None)
            batch.cascade(run)
            event_id += 1
        self._relate(batch, run, closes)
        batch.decision(
            run, attempt=row["attempt"], expected=row["next_event_id"], next_event_id=event_id,
            state=10 if closes else 0, task_state=self.chance.choice((HELD, PARKED)), merged=merged, waiting=None,
        )  # fmt: skip

    def _relate(self, batch: Batch, run: UUID, closes: bool) -> None:
        """What the decision does to other runs: children, messages, perhaps a successor."""
        if self.chance.random() < 0.5:
            child, name = mint_execution_id(0), self.chance.choice(("a", "b", uuid4().hex))
            start = ChildStart(workflow_name="w", workflow_id=name, parent_id=str(run), root_id=str(run))
            batch.child(run, 90, child, self.chance.randrange(3), awaited=True)
            batch.delivery(run, 90, DeliveryKind.CHILD_START, child, 0, encode_data(start))
        for other in self.seen[-3:]:
            signal = ExternalSignal(Target(execution_id=str(other)), "s")
            batch.delivery(run, 91, DeliveryKind.EXTERNAL_SIGNAL, other, 0, encode_data(signal))
        self.seen = [*self.seen[-20:], run]
        self.chance.shuffle(self.seen)
        if closes and self.chance.random() < 0.5:
            new = Successor(
                execution_id=mint_execution_id(0), business_key=uuid4(), workflow_name="w", workflow_id="w", version=1,
                partition=0, queue="default", started=b"{}", input=b"null", repoint=self.chance.random() < 0.5,
            )  # fmt: skip
            batch.successor(run, new)
        elif closes:
            closed = ChildClosed(str(run), int(EventKind.CHILD_WORKFLOW_COMPLETED), Raw(b"{}"))
            for parent in self.seen[:1]:
                batch.delivery(run, 0, DeliveryKind.CHILD_CLOSED, parent, 0, encode_data(closed))

    async def deliver(self, store: Store) -> None:
        deliverer = self.deliverers.setdefault(id(store), a_deliverer(Shards({0: self.url}), store))
        await rounds(deliverer)

    async def end(self, store: Store) -> None:
        rows = await store.scan.fetch(_RUNNING)
        self.chance.shuffle(rows)
        await results.end_activities(
            store,
            [ActivityEnd(r["execution_id"], r["seq"], r["attempt"], r["worker"], 7, b'{"output":1}') for r in rows[:6]],
        )  # fmt: skip

    async def retry(self, store: Store) -> None:
        rows = await store.scan.fetch(_RUNNING)
        self.chance.shuffle(rows)
        await results.retry_activities(
            store,
            [
                ActivityRetry(row["execution_id"], row["seq"], row["attempt"], row["worker"], 0, None)
                for row in rows[:6]
            ],
        )

    async def fire(self, store: Store) -> None:
        await timers.fire_timers(store)
        await closings.close_overdue(store)

    async def lose_a_worker(self, store: Store) -> None:
        lost = self.workers.pop(0)
        self.workers.append(await a_worker(store))
        if self.chance.random() < 0.5:
            await store.scan.write("update harvest_workers set lease_until = '-infinity' where worker = $1", lost)
        else:
            await fleet.stop(store, lost)
        await fleet.free_lost(store)
        await fleet.retry_blocked(store, uuid4().hex, ["default"])

    async def give_back(self, store: Store) -> None:
        worker = self.chance.choice(self.workers)
        held = [(row["execution_id"], row["attempt"]) for row in await store.scan.fetch(_HELD, worker)]
        self.chance.shuffle(held)
        await claims.release(store, worker, held[:4])
        for run, attempt in held[4:6]:
            await upkeep.block(store, run, worker, attempt, code="step_too_long", message="m", count=1, delay=0)

    async def keep_doing(self, what: Callable[[Store], Awaitable[None]], until: float) -> None:
        """Until that time, and until each has done it a few times, however slow the machine is."""
        store = self.store()
        self.done[what.__name__] += 0
        while clock.monotonic() < until or min(self.done.values()) <= 5:
            await what(store)
            self.done[what.__name__] += 1


async def test_56_no_deadlock_whoever_writes_at_once(
    new_database: Callable[[str], str], proof: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    seed, seconds = 20261129, scale(4, 60)
    print(f"seed {seed}")
    hunt = Hunt(new_database("deadlocks"), seed)
    setup: Any = await asyncpg.connect(hunt.url)
    await setup.execute(
        f'alter database "{await setup.fetchval("select current_database()")}" set deadlock_timeout = 20'
    )
    await setup.close()
    first = hunt.store()
    try:
        hunt.workers = [await a_worker(first) for _ in range(2)]
        until = clock.monotonic() + seconds
        jobs = (
            hunt.signal, hunt.signal, hunt.terminate, hunt.claim, hunt.claim, hunt.commit, hunt.commit, hunt.end,
            hunt.retry, hunt.fire, hunt.deliver, hunt.deliver, hunt.lose_a_worker, hunt.give_back,
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(hunt.keep_doing(job, until))
        assert all(hunt.done[job.__name__] > 5 for job in jobs), hunt.done
        assert "deadlock" not in caplog.text
        hunt.done["made"] = sum(deliverer._counters.delivered for deliverer in hunt.deliverers.values())
        wrong = await first.scan.fetch(
            """select e.execution_id from harvest_executions e
                where e.next_event_id - 1 <> (
                    select count(*) from harvest_events v where v.execution_id = e.execution_id)"""
        )
        assert not wrong, "histories are dense"
        proof("deadlock hunt", seed=seed, seconds=seconds, **hunt.done)
    finally:
        for deliverer in hunt.deliverers.values():
            await deliverer._shards.close()
        for store in hunt.stores:
            await store.close()
