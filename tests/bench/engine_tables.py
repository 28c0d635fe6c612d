"""What the engine left in its tables, and closed runs copied in beside the ones that are measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from harvest.history.kinds import TERMINAL, EventKind
from harvest.history.states import FIRST_CLOSED, State
from tests.bench.floor_statement import Decision, Shape

COPIED: Final = ("harvest_executions", "harvest_execution_details", "harvest_events")
CHUNK: Final = 20_000
STATISTICS_SECONDS: Final = 30.0


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """A connection of the bench's own, apart from the engine's."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def shape_of(url: str, workflow_id: str) -> Shape:
    """The decisions of one closed run, as rows and bytes. A decision begins with the result that it merged."""
    async with connected(url) as connection:
        events = await connection.fetch(
            """select kind, length(payload) size from harvest_events join harvest_executions using (execution_id)
               where workflow_id = $1 and kind <> $2 order by event_id""",
            workflow_id,
            int(EventKind.WORKFLOW_STARTED),
        )
    groups: list[list[Any]] = []
    for event in events:
        if not groups or event["kind"] == EventKind.ACTIVITY_COMPLETED:
            groups.append([])
        groups[-1].append(event)
    if not events or events[-1]["kind"] not in TERMINAL:
        raise RuntimeError(f"{workflow_id} has {len(events)} events and no end: no shape to take")
    return Shape([_decision(group) for group in groups])


def _decision(events: list[Any]) -> Decision:
    kinds = [event["kind"] for event in events]
    # A task row of ours holds no payload (it is in its event), so the floor's carries none either.
    tasks = [0] * kinds.count(EventKind.ACTIVITY_SCHEDULED)
    return Decision([event["size"] for event in events], tasks, merged=kinds.count(EventKind.ACTIVITY_COMPLETED))


async def wrong_runs(url: str, ids: list[str], result: bytes) -> int:
    """How many of the runs have not completed with exactly this result."""
    async with connected(url) as connection:
        right: int = await connection.fetchval(
            """select count(*) from harvest_executions join harvest_execution_details using (execution_id)
               where workflow_id = any($1) and state = $2 and result = $3""",
            ids,
            int(State.COMPLETED),
            result,
        )
    return len(ids) - right


async def table_statistics(url: str, table: str) -> dict[str, int]:
    """The server's own counts for a table. Backends report theirs late: see `reported`."""
    async with connected(url) as connection:
        row = await connection.fetchrow("select * from pg_stat_user_tables where relname = $1", table)
    wanted = ("n_tup_ins", "n_tup_upd", "n_tup_hot_upd", "idx_tup_fetch", "seq_tup_read")
    return {name: row[name] or 0 for name in wanted}


async def reported(url: str, table: str, before: dict[str, int], column: str, expected: int) -> dict[str, int]:
    """What a table's counts grew by since `before`, once `column` has grown by `expected`; raises TimeoutError."""
    deadline = time.perf_counter() + STATISTICS_SECONDS
    while True:
        now = await table_statistics(url, table)
        grown = {name: now[name] - before[name] for name in now}
        if grown[column] >= expected:
            return grown
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{table}.{column} grew by {grown[column]}, not by {expected}")
        await asyncio.sleep(0.1)


async def add_closed_runs(url: str, workflow_id: str, count: int) -> None:
    """Copy a closed run `count` times, whole: row, details, every event; each with ids and times of its own."""
    async with connected(url) as connection:
        source = await connection.fetchval(
            "select execution_id from harvest_executions where workflow_id = $1 and state >= $2",
            workflow_id,
            FIRST_CLOSED,
        )
        if source is None:
            raise RuntimeError(f"{workflow_id} is not closed: there is nothing to copy")
        for table in COPIED:
            statement = await _copy_statement(connection, table)
            for first in range(1, count + 1, CHUNK):
                last = min(first + CHUNK - 1, count)
                await connection.execute(statement, source, first, last, count, timeout=300)
        for table in COPIED:
            await connection.execute(f"vacuum (analyze) {table}", timeout=300)


async def _copy_statement(connection: Any, table: str) -> str:
    columns = await connection.fetch(
        """select column_name as name, data_type as type from information_schema.columns
           where table_name = $1 and is_generated = 'NEVER' and is_identity = 'NO' order by ordinal_position""",
        table,
    )
    names = ", ".join(column["name"] for column in columns)
    values = ", ".join(_copied(column["name"], column["type"]) for column in columns)
    return f"""
        insert into {table} ({names})
        select {values}
        from generate_series($2::int, $3::int) g cross join lateral (select * from {table} where execution_id = $1) s
        cross join lateral (select md5('run' || g) as hex) h
        where $4::int > 0
        order by g
    """


def _copied(name: str, kind: str) -> str:
    """The expression for one column of a copy: ids anew (version 8, in order of time), times one second apart."""
    if name == "business_key":
        return "h.hex::uuid"
    if name == "workflow_id":
        return "'closed-' || g"
    if kind == "uuid":
        fresh = (
            "(left(s.execution_id::text, 4) || lpad(to_hex(g), 8, '0')"
            " || '8' || substr(h.hex, 1, 3) || '8' || substr(h.hex, 4, 15))::uuid"
        )
        return f"case when s.{name} = $1 then {fresh} else s.{name} end"
    if kind == "timestamp with time zone":
        return f"s.{name} - ($4::int - g) * interval '1 second'"
    return f"s.{name}"
