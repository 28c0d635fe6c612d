"""The floor: one statement commits a batch of fenced decisions and answers which passed, and nothing else is done.

What a decision writes is given from outside (`Shape`): the floor carries the rows and bytes that the engine left.

    python -m tests.bench.floor_statement URL WORKFLOWS BATCH SHAPE
"""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any, Final

import asyncpg
import msgspec
import uvloop

PARTITIONS: Final = 512

SCHEMA: Final = f"""
drop table if exists floor_events; drop table if exists floor_executions;
drop table if exists floor_activities; drop table if exists floor_owners;
create table floor_owners (part smallint primary key, owner text, epoch bigint, until timestamptz);
insert into floor_owners select g, 'me', 7, now() + interval '1 hour' from generate_series(0, {PARTITIONS - 1}) g;
create table floor_events (exec uuid, id int, type smallint, at timestamptz, data bytea, primary key (exec, id));
create table floor_executions (id uuid primary key, part smallint, name text, state smallint, next int,
  created timestamptz default now()) with (fillfactor = 70);
create table floor_activities (exec uuid, seq int, state smallint, worker text, data bytea, primary key (exec, seq));
"""

COMMIT: Final = """
with fence as (
  select part from floor_owners
  where owner = 'me' and (part, epoch) in (select * from unnest($1::smallint[], $2::bigint[]))
    and until > clock_timestamp() for share),
decision as (
  select * from unnest($3::uuid[], $4::smallint[], $5::int[], $6::int[], $7::smallint[])
    as d (id, part, expected, next, state)),
passed as (
  update floor_executions x set next = d.next, state = d.state
  from decision d join fence f on f.part = d.part
  where x.id = d.id and x.next = d.expected and x.state = 0 returning x.id),
events as (
  insert into floor_events (exec, id, type, at, data)
  select e.exec, e.id, e.type, now(), e.data
  from unnest($8::uuid[], $9::int[], $10::smallint[], $11::bytea[]) as e (exec, id, type, data)
  join passed on passed.id = e.exec),
merged as (
  delete from floor_activities a
  using (select * from unnest($12::uuid[], $13::int[]) as m (exec, seq)) m join passed on passed.id = m.exec
  where a.exec = m.exec and a.seq = m.seq),
scheduled as (
  insert into floor_activities (exec, seq, state, worker, data)
  select s.exec, s.seq, 1, 'me', s.data from unnest($14::uuid[], $15::int[], $16::bytea[]) as s (exec, seq, data)
  join passed on passed.id = s.exec)
select id from passed
"""


class Decision(msgspec.Struct, frozen=True):
    """What one decision of a workflow writes: the sizes of its events and of its activity tasks in bytes."""

    events: list[int]
    tasks: list[int] = []
    merged: int = 0


class Shape(msgspec.Struct, frozen=True):
    """The decisions of one workflow, in order."""

    decisions: list[Decision]


DEFAULT_SHAPE: Final = Shape(
    [
        Decision([400, 40], [400]),
        Decision([280, 400, 40], [400], merged=1),
        Decision([280, 400, 40], [400], merged=1),
        Decision([280, 270], merged=1),
    ]
)
"""Three sequential activities with payloads of 250 bytes, when no engine has left rows to measure."""


def arguments(shape: Shape, index: int, ids: list[uuid.UUID], first_part: int) -> list[list[Any]]:
    """The statement's parameters for decision `index` of the workflows `ids`."""
    decision = shape.decisions[index]
    expected = 1 + sum(len(earlier.events) for earlier in shape.decisions[:index])
    first_seq = 1 + sum(len(earlier.tasks) for earlier in shape.decisions[:index])
    first_merged = 1 + sum(earlier.merged for earlier in shape.decisions[:index])
    count, events = len(ids), decision.events
    parts = [(first_part + offset) % PARTITIONS for offset in range(count)]
    fences = sorted(set(parts))
    closes = index == len(shape.decisions) - 1
    numbers = [expected + offset for offset in range(len(events))]
    return [
        [*fences],
        [7] * len(fences),
        [*ids],
        [*parts],
        [expected] * count,
        [expected + len(events)] * count,
        [int(closes)] * count,
        [item for item in ids for _ in events],
        [*numbers] * count,
        [*range(len(events))] * count,
        [b"x" * size for size in events] * count,
        [item for item in ids for _ in range(decision.merged)],
        [first_merged + offset for offset in range(decision.merged)] * count,
        [item for item in ids for _ in decision.tasks],
        [first_seq + offset for offset in range(len(decision.tasks))] * count,
        [b"x" * size for size in decision.tasks] * count,
    ]


async def measure(url: str, workflows: int, batch: int, shape: Shape) -> dict[str, float]:
    """Commit every decision of `workflows` runs in batches; workflows, decisions and events a second."""
    connection = await asyncpg.connect(url)
    await connection.execute(SCHEMA)
    ids = [uuid.uuid4() for _ in range(workflows)]
    await connection.executemany(
        "insert into floor_executions (id, part, name, state, next) values ($1, $2, 'wf', 0, 1)",
        [(item, index % PARTITIONS) for index, item in enumerate(ids)],
    )
    commit = await connection.prepare(COMMIT)
    started = time.perf_counter()
    for index in range(len(shape.decisions)):
        for first in range(0, workflows, batch):
            chosen = ids[first : first + batch]
            passed = await commit.fetch(*arguments(shape, index, chosen, first))
            if len(passed) != len(chosen):
                raise RuntimeError(f"{len(passed)} of {len(chosen)} decisions passed")
    seconds = time.perf_counter() - started
    events = await connection.fetchval("select count(*) from floor_events")
    left = await connection.fetchval("select count(*) from floor_activities")
    await connection.close()
    if left:
        raise RuntimeError(f"{left} activity rows are left: the shape merges fewer than it schedules")
    return {
        "rate": workflows / seconds,
        "decisions": workflows * len(shape.decisions) / seconds,
        "events": events / seconds,
    }


def main() -> None:
    """Measure what the command line says and print one line of JSON."""
    url, workflows, batch, shape = sys.argv[1:5]
    decoded = msgspec.json.decode(shape, type=Shape)
    result = uvloop.run(measure(url, int(workflows), int(batch), decoded))
    print(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main()
