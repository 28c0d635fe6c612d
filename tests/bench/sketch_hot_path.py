"""The sketch: the whole hot path with none of an engine's other duties, as a yardstick for ours.

It claims in batches, decides on a small deterministic loop, commits a batch of fenced decisions in one statement,
starts activities already claimed, and commits an activity's result together with the decision that it leads to. It
knows no retries, timeouts, heartbeats, ending leases, foreign appends, limits, errors or metrics.

Tables are reached by `key = any(array)`, never by a join with a CTE or unnest, and the commit connection has nested
loops off: the planner takes every CTE for 10 rows, and nested loops over them grow with the square of the batch.

    python -m tests.bench.sketch_hot_path URL WORKFLOWS BATCH
"""

from __future__ import annotations

import asyncio
import collections
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg
import msgspec
import uvloop

from tests.bench.payload import TEXT
from tests.bench.sketch_loop import SketchLoop, SketchTask

STARTED, SCHEDULED, ACTIVITY_STARTED, COMPLETED, DONE = range(5)
OPEN, CLOSED = 0, 2
WORKER: Final = "w1"
encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder().decode

SCHEMA: Final = """
drop table if exists ev; drop table if exists ex; drop table if exists wt; drop table if exists ac;
create table ex (id uuid primary key, part smallint, name text, wid text, state smallint, next int,
  created timestamptz default now(), result bytea) with (fillfactor = 70);
create unique index on ex (name, wid) where state < 2;
create index on ex (created desc, id desc);
create table ev (exec uuid, id int, type smallint, at timestamptz, data bytea, primary key (exec, id));
create table wt (exec uuid primary key, part smallint, queue text, state smallint, due timestamptz, worker text,
  attempt int) with (fillfactor = 70);
create index on wt (queue, due) where state = 0;
create table ac (exec uuid, seq int, queue text, state smallint, worker text, attempt int, due timestamptz,
  lease timestamptz, data bytea, primary key (exec, seq));
create index on ac (queue, due) where state = 0;
"""

START: Final = """
with x as (select * from unnest($1::uuid[], $2::smallint[]) x (id, part)),
a as (insert into ex select id, part, 'flow', id::text, 0, 2 from x),
b as (insert into ev select id, 1, 0, now(), $3 from x)
insert into wt select id, part, 'default', 0, now(), null, 0 from x
"""

TAKE: Final = """
with t as (
  select exec from wt where queue = 'default' and state = 0 and due <= clock_timestamp()
  order by due limit $1 for update skip locked),
u as (update wt set state = 1, worker = $2, attempt = attempt + 1 from t where wt.exec = t.exec
  returning wt.exec, wt.part, wt.attempt)
select u.exec, u.attempt, ex.next, ev.data from u join ex on ex.id = u.exec join ev on ev.exec = u.exec and ev.id = 1
"""

COMMIT: Final = """
with d as materialized (
  select * from unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::smallint[], $6::bytea[], $16::int[])
    as d (id, attempt, expected, next, state, result, merged)),
fence0 as materialized (
  select wt.exec, wt.attempt from wt where wt.exec = any($1) and wt.worker = $7 and wt.state = 1
  for share of wt skip locked),
fence as materialized (select f.exec from fence0 f join d on d.id = f.exec and d.attempt = f.attempt),
ready0 as materialized (
  select ex.id, ex.next from ex where ex.id = any(array(select exec from fence)) and ex.state = 0
  for no key update of ex skip locked),
ready as materialized (select r.id from ready0 r join d on d.id = r.id where r.next = d.expected),
mine0 as materialized (
  select ac.ctid, ac.exec, ac.seq from ac
  where ac.exec = any(array(select id from ready)) and ac.worker = $7 and ac.attempt = 1 and ac.state = 1
  for update of ac skip locked),
mine as materialized (
  select m.ctid as t, m.exec, m.seq from mine0 m
  join unnest($12::uuid[], $13::int[]) as x (exec, seq) on m.exec = x.exec and m.seq = x.seq),
pass as materialized (
  select d.* from d join ready on ready.id = d.id
  left join (select exec, count(*) n from mine group by exec) m on m.exec = d.id where d.merged = coalesce(m.n, 0)),
cur as (
  update ex set next = pass.next, state = pass.state, result = pass.result from pass
  where ex.id = pass.id and ex.id = any(array(select id from pass)) returning ex.id, ex.state),
e as (
  insert into ev select x.exec, x.id, x.type, clock_timestamp(), x.data
  from unnest($8::uuid[], $9::int[], $10::smallint[], $11::bytea[]) as x (exec, id, type, data)
  join cur on cur.id = x.exec),
gone as (delete from ac where ac.ctid = any(array(select t from mine join cur on cur.id = mine.exec))),
new as (
  insert into ac select x.exec, x.seq, 'default', 1, $7, 1, clock_timestamp(),
    clock_timestamp() + interval '30s', x.data
  from unnest($14::uuid[], $15::int[], $17::bytea[]) as x (exec, seq, data) join cur on cur.id = x.exec),
fin as (delete from wt where wt.exec = any(array(select id from cur where state = 2)))
select id from cur
"""

Activity = Callable[[str], Awaitable[str]]


class Run:
    """One parked execution: its loop, what it waits for, and where its history ends. No history in memory."""

    __slots__ = ("attempt", "commands", "id", "loop", "main", "next", "seq", "waiting")

    def __init__(self, row: Any) -> None:
        self.id: uuid.UUID = row["exec"]
        self.attempt: int = row["attempt"]
        self.next: int = row["next"]
        self.loop = SketchLoop(self.id.int & (2**61 - 1))
        self.waiting: dict[int, asyncio.Future[str]] = {}
        self.seq = 0
        self.commands: list[tuple[int, Activity, str]] = []
        self.main: SketchTask = self.loop.create_task(flow(self, *decode(row["data"])))
        self.loop.rest()

    def execute_activity(self, activity: Activity, text: str) -> asyncio.Future[str]:
        """Ask for an activity; the future resolves when its result is delivered."""
        self.seq += 1
        future = self.waiting[self.seq] = self.loop.create_future()
        self.commands.append((self.seq, activity, text))
        return future

    def deliver(self, seq: int, payload: bytes) -> None:
        """Resolve one activity and run to rest."""
        self.waiting.pop(seq).set_result(decode(payload))
        self.loop.rest()


async def echo(text: str) -> str:
    return text


async def flow(run: Run, text: str) -> str:
    for _ in range(3):
        text = await run.execute_activity(echo, text)
    return text


class Batch:
    """The decisions of one commit, as the columns that the statement takes."""

    def __init__(self) -> None:
        self.decisions: tuple[list[Any], ...] = ([], [], [], [], [], [], [])
        self.events: tuple[list[Any], ...] = ([], [], [], [])
        self.merged: tuple[list[Any], ...] = ([], [])
        self.scheduled: tuple[list[Any], ...] = ([], [], [])
        self.starts: list[tuple[Run, int, Activity, str]] = []
        self.runs: list[tuple[Run, int, bool]] = []

    def add(self, run: Run, seq: int | None, payload: bytes | None) -> None:
        """Add what the run asked for, after the result (if any) that it was given."""
        next_event = run.next
        if seq is not None:
            next_event = self._event(run.id, next_event, COMPLETED, payload)
            _append(self.merged, run.id, seq)
        for number, activity, text in run.commands:
            data = encode({"seq": number, "name": activity.__name__, "input": [text]})
            next_event = self._event(run.id, next_event, SCHEDULED, data)
            next_event = self._event(run.id, next_event, ACTIVITY_STARTED, b"{}")
            _append(self.scheduled, run.id, number, data)
            self.starts.append((run, number, activity, text))
        run.commands.clear()
        closes = run.main.done()
        result = encode(run.main.result()) if closes else None
        if closes:
            next_event = self._event(run.id, next_event, DONE, result)
        state = CLOSED if closes else OPEN
        merged = 0 if seq is None else 1
        _append(self.decisions, run.id, run.attempt, run.next, next_event, state, result, merged)
        self.runs.append((run, next_event, closes))

    def _event(self, run_id: uuid.UUID, event_id: int, kind: int, data: bytes | None) -> int:
        _append(self.events, run_id, event_id, kind, data)
        return event_id + 1

    def arguments(self) -> list[Any]:
        """The statement's parameters in its order."""
        ids, seqs, data = self.scheduled
        return [*self.decisions[:6], WORKER, *self.events, *self.merged, ids, seqs, self.decisions[6], data]


def _append(columns: tuple[list[Any], ...], *values: Any) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


class Sketch:
    """One worker process: a taker, a committer and the activities in flight."""

    def __init__(self, take: Any, commit: Any, batch: int) -> None:
        self._take, self._commit, self._limit = take, commit, batch
        self._ready: collections.deque[tuple[Run, int, bytes]] = collections.deque()
        self._taken: list[Any] = []
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._commits = 0

    async def drain(self, count: int) -> int:
        """Run `count` queued workflows to their end; returns how many commits that took."""
        taker = asyncio.create_task(self._take_all())
        done = 0
        while done < count:
            if not self._ready and not self._taken:
                self._wake.clear()
                await self._wake.wait()
                continue
            batch = self._decide()
            passed = await self._commit.fetch(*batch.arguments())
            self._commits += 1
            if len(passed) != len(batch.runs):
                raise RuntimeError(f"{len(passed)} of {len(batch.runs)} decisions passed")
            for run, next_event, closes in batch.runs:
                run.next = next_event
                done += closes
            for start in batch.starts:
                task = asyncio.create_task(self._run_activity(*start))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        await taker
        return self._commits

    async def _take_all(self) -> None:
        while True:
            if len(self._ready) + len(self._taken) > self._limit:
                await asyncio.sleep(0.001)
                continue
            rows = await self._take.fetch(self._limit, WORKER)
            self._taken.extend(rows)
            self._wake.set()
            if not rows:
                return

    def _decide(self) -> Batch:
        batch = Batch()
        rows, self._taken[:] = self._taken[: self._limit], self._taken[self._limit :]
        for row in rows:
            batch.add(Run(row), None, None)
        for _ in range(min(self._limit, len(self._ready))):
            run, seq, payload = self._ready.popleft()
            run.deliver(seq, payload)
            batch.add(run, seq, payload)
        return batch

    async def _run_activity(self, run: Run, seq: int, activity: Activity, text: str) -> None:
        result = await activity(text)
        self._ready.append((run, seq, encode(result)))
        self._wake.set()


async def measure(url: str, workflows: int, batch: int) -> dict[str, float]:
    """Queue `workflows` runs of three activities, then drain them; workflows a second."""
    taking = await asyncpg.connect(url, server_settings={"jit": "off"})
    # Nested loops are off on the commit connection only: on the claim connection that would scan whole tables.
    committing = await asyncpg.connect(url, server_settings={"jit": "off", "enable_nestloop": "off"})
    await taking.execute(SCHEMA)
    ids = [uuid.uuid4() for _ in range(workflows)]
    for first in range(0, workflows, 500):
        chosen = ids[first : first + 500]
        await taking.execute(START, chosen, [item.int % 512 for item in chosen], encode([TEXT]))
    sketch = Sketch(await taking.prepare(TAKE), await committing.prepare(COMMIT), batch)
    started = time.perf_counter()
    commits = await sketch.drain(workflows)
    seconds = time.perf_counter() - started
    wrong = await taking.fetchval("select count(*) from ex where state <> 2 or result <> $1", encode(TEXT))
    events = await taking.fetchval("select count(*) from ev")
    await taking.close()
    await committing.close()
    if wrong or events != 11 * workflows:
        raise RuntimeError(f"{wrong} runs ended wrong, {events} events of {11 * workflows}")
    return {"rate": workflows / seconds, "commits": commits}


def main() -> None:
    """Measure what the command line says and print one line of JSON."""
    url, workflows, batch = sys.argv[1:4]
    print(encode(uvloop.run(measure(url, int(workflows), int(batch)))).decode())


if __name__ == "__main__":
    main()
