"""What engine tests share: an application with a worker at work on a fresh database, and waiting on conditions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from harvest import Harvest, clock
from harvest.history.events import Event
from harvest.shards import Shards
from harvest.store import claims
from harvest.worker.options import WorkerOptions
from harvest.worker.worker import Worker

FAST = WorkerOptions(poll_interval=0.2, scan_interval=0.1, drain_timeout=0.5)


@asynccontextmanager
async def at_work(
    app: Harvest, urls: str | Mapping[int, str], options: WorkerOptions = FAST
) -> AsyncIterator[tuple[Worker, Shards]]:
    """A worker of `app` at work; `app` is connected as a client meanwhile."""
    found = {0: urls} if isinstance(urls, str) else dict(urls)
    await app.connect(found)
    shards = await Shards.open(found)
    worker = Worker(app.registry, shards, options)
    await worker.start()
    try:
        yield worker, shards
    finally:
        await worker.stop()
        await shards.close()
        await app.close()


async def eventually(condition: Callable[[], Awaitable[Any]], *, within: float = 30.0) -> None:
    """Wait until `condition()` is true, or fail."""

    async def holds() -> bool:
        return bool(await condition())

    assert await clock.until(holds, within=within), f"{condition} did not come true within {within:g} s"


async def history_of(shards: Shards, execution_id: UUID) -> list[Event]:
    """A run's whole history."""
    events = await claims.load_events(shards.store_of(execution_id), {execution_id: 1})
    return events[execution_id]


async def check_invariants(shards: Shards) -> None:
    """What must hold over the tables after any run of anything (peers.md, section b)."""
    for store in shards.stores.values():
        for name, query in INVARIANTS.items():
            rows = await store.read.fetch(query, limit=10)
            assert not rows, f"shard {store.shard_id}: {name}: {[dict(row) for row in rows[:5]]}"


INVARIANTS = {
    "event ids are dense and end at next_event_id": """
        select e.execution_id, e.next_event_id, count(v.event_id), max(v.event_id)
          from harvest_executions e left join harvest_events v on v.execution_id = e.execution_id
         group by e.execution_id, e.next_event_id
        having count(v.event_id) <> e.next_event_id - 1 or max(v.event_id) <> e.next_event_id - 1""",
    "at most one terminal event, and it is last": """
        select v.execution_id, v.event_id from harvest_events v
          join harvest_executions e on e.execution_id = v.execution_id
         where v.kind in (2, 3, 4, 19, 38, 63) and v.event_id <> e.next_event_id - 1""",
    "the state is that of the last event": """
        select e.execution_id, e.state, v.kind from harvest_executions e
          join harvest_events v on v.execution_id = e.execution_id and v.event_id = e.next_event_id - 1
         where (e.state >= 10) <> (v.kind in (2, 3, 4, 19, 38, 63))
            or e.state <> case v.kind when 2 then 10 when 3 then 11 when 4 then 12 when 63 then 13 when 38 then 14
                                      when 19 then 15 else e.state end""",
    "each activity and timer has at most one result": """
        select execution_id, seq, count(*) from harvest_events where kind in (7, 8, 9) group by 1, 2 having count(*) > 1
         union all
        select execution_id, seq, count(*) from harvest_events where kind = 12 group by 1, 2 having count(*) > 1""",
    "each child has at most one end, and only where it was started": """
        select v.execution_id, v.seq from harvest_events v
         where v.kind in (16, 17)
         group by 1, 2
        having count(*) > 1 or not exists (
            select from harvest_events c
             where c.execution_id = v.execution_id and c.seq = v.seq and c.kind in (15, 36))""",
    "only open runs have children that report": """
        select c.child_execution_id from harvest_children c
          join harvest_executions e on e.execution_id = c.parent_execution_id and e.state >= 10""",
    "a result follows its command": """
        select v.execution_id, v.event_id from harvest_events v
         where v.kind in (7, 8, 9, 12) and not exists (
           select from harvest_events c where c.execution_id = v.execution_id and c.seq = v.seq
              and c.kind = case when v.kind = 12 then 11 else 5 end and c.event_id < v.event_id)""",
    "a closed run has no tasks and no timers": """
        select e.execution_id from harvest_executions e where e.state >= 10 and (
            exists (select from harvest_workflow_tasks t where t.execution_id = e.execution_id)
         or exists (select from harvest_activity_tasks a where a.execution_id = e.execution_id)
         or exists (select from harvest_timers m where m.execution_id = e.execution_id))""",
    "an open run has its workflow task": """
        select e.execution_id from harvest_executions e where e.state < 10 and not exists (
            select from harvest_workflow_tasks t where t.execution_id = e.execution_id)""",
    "an activity that waits for a result has a task": """
        select v.execution_id, v.seq from harvest_events v
          join harvest_executions e on e.execution_id = v.execution_id and e.state < 10
         where v.kind = 5
           and not exists (select from harvest_events r where r.execution_id = v.execution_id and r.seq = v.seq
                              and r.kind in (7, 8, 9, 61))
           and not exists (
               select from harvest_activity_tasks a where a.execution_id = v.execution_id and a.seq = v.seq)""",
}
