"""Every hot statement reaches big tables by an index alone, and reads no more beside a million rows than beside ten."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from harvest.history.kinds import EventKind
from harvest.store import (
    activity_claims,
    appends,
    audit,
    changes,
    claims,
    closings,
    deliveries,
    partitions,
    results,
    timers,
    upkeep,
    worker_sessions,
)
from harvest.store.commit import HELD, Batch, Successor, parameters
from harvest.store.commit_parts import Needs, statement
from harvest.store.marks import HANDICAP, Marks, Picked
from harvest.store.picking import columns
from harvest.store.pool import CLAIM, COMMIT, COMMON, DELIVER, SCAN, WRITE, Role
from harvest.store.store import Store
from tests.explaining import buffers, explained, nodes
from tests.scale import scale
from tests.store.rows import a_run, a_worker
from tests.store.rules import an_entry

FEW, MANY = 10, scale(20_000, 1_000_000)
BATCH = 5
OWNED = list(range(256))
BIG = {
    "harvest_executions", "harvest_execution_details", "harvest_events", "harvest_workflow_tasks",
    "harvest_activity_tasks", "harvest_timers", "harvest_dedupe", "harvest_heartbeats",
    "harvest_children", "harvest_deliveries",
}  # fmt: skip
pytestmark = pytest.mark.slow

_POPULATION = (
    """insert into harvest_executions (execution_id, business_key, next_event_id, version, partition, state, closed_at,
           deadline_at, workflow_name, workflow_id)
       select md5('e' || n)::uuid, md5('e' || n)::uuid, 3, 1, n % 512, (n % 2) * 10,
              case n % 2 when 1 then clock_timestamp() end, clock_timestamp() + interval '1 hour', 'w', 'w' || n
         from generate_series(1, $1::int) n""",
    """insert into harvest_execution_details (execution_id, input)
       select md5('e' || n)::uuid, 'null' from generate_series(1, $1::int) n""",
    """insert into harvest_events (execution_id, event_id, kind, payload)
       select md5('e' || n)::uuid, i, 1, '{}' from generate_series(1, $1::int) n, generate_series(1, 2) i""",
    """insert into harvest_workflow_tasks (execution_id, partition, queue, workflow_name, version, sort_at)
       select md5('e' || n)::uuid, n % 512, 'default', 'w', 1, clock_timestamp() + n * interval '1 microsecond'
         from generate_series(2, $1::int, 2) n""",
    """insert into harvest_activity_tasks (execution_id, seq, scheduled_event_id, queue, name, timeout_at)
       select md5('e' || n)::uuid, 1, 1, 'default', 'a', clock_timestamp() + interval '1 hour'
         from generate_series(2, $1::int, 2) n""",
    """insert into harvest_heartbeats (execution_id, seq, attempt)
       select md5('e' || n)::uuid, 9, 1 from generate_series(2, $1::int, 2) n""",
    """insert into harvest_timers (execution_id, seq, fires_at)
       select md5('e' || n)::uuid, 2, clock_timestamp() + interval '1 hour' from generate_series(2, $1::int, 2) n""",
    """insert into harvest_children (child_execution_id, parent_execution_id, seq, close_policy, awaited)
       select md5('c' || n)::uuid, md5('e' || n)::uuid, 1, 1, true from generate_series(2, $1::int, 2) n""",
    """insert into harvest_deliveries
           (kind, source_execution_id, source_seq, target_execution_id, target_shard, payload, due)
       select 1, md5('e' || n)::uuid, 1, md5('c' || n)::uuid, 0, '{}', clock_timestamp() + interval '1 hour'
         from generate_series(2, $1::int, 2) n""",
    """insert into harvest_dedupe (execution_id, kind, key)
       select md5('e' || n)::uuid, 2, 'k' from generate_series(2, $1::int, 2) n""",
)


class Site:
    """A database with so many rows, a worker, and runs that it holds."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.worker = UUID(int=0)
        self.runs: list[UUID] = []

    async def fill(self, rows: int) -> None:
        for sql in _POPULATION:
            await self.store.scan.write(f"{sql} on conflict do nothing", rows, limit=300)

    async def hold(self) -> None:
        self.worker = await a_worker(self.store, lease=3600)
        self.runs = [
            await a_run(self.store, self.worker, activities={1: 1}, pending={2: 0}, timers={3: -1})
            for _ in range(BATCH)
        ]

    async def plan(self, role: Role, sql: str, values: list[Any]) -> dict[str, Any]:
        """The plan that is kept for all values, executed and rolled back."""
        async with self.connected(role) as connection:
            return await explained(connection, "s", sql, values)

    @asynccontextmanager
    async def connected(self, role: Role) -> AsyncIterator[Any]:
        """A connection as those of a pool, which makes one plan for each statement and keeps it."""
        connection: Any = await asyncpg.connect(self.store.url, server_settings={**COMMON, **role.settings})
        try:
            await connection.execute("set plan_cache_mode = force_generic_plan")
            yield connection
        finally:
            await connection.close()


@pytest.fixture(scope="module")
async def sites(new_database: Callable[[str], str]) -> AsyncIterator[dict[int, Site]]:
    found = {}
    for rows in (FEW, MANY):
        found[rows] = Site(Store(0, new_database(f"plans_{rows}")))
        await found[rows].fill(rows)
        await found[rows].hold()
    yield found
    for site in found.values():
        await site.store.close()


def a_batch(site: Site, needs: Needs) -> Batch:
    """One decision for each held run, with what `needs` says."""
    batch = Batch()
    for run in site.runs:
        batch.event(run, 2, EventKind.MARKER_RECORDED, 0, None, b"{}")
        if needs.merges:
            batch.merge(run, 1, 1)
        if needs.activities:
            batch.activity(
                run, 7, eager=True, scheduled_event_id=2, queue="default", name="a", priority=0, start_to_close=None,
                heartbeat=None, schedule_to_close=None, timeout_after=None,
            )  # fmt: skip
        if needs.pins:
            batch.pin(run, 7, UUID(int=7), site.worker)
        if needs.sessions:
            batch.session(uuid4(), run, 9, "default", 60.0, None)
        if needs.session_ends:
            batch.session_end(UUID(int=7))
        if needs.timers:
            batch.timer(run, 8, datetime.now(UTC))
        if needs.cancels:
            batch.cancel(run, 2)
            batch.cancel(run, 3)
        if needs.closes:
            batch.close(run, b"1", None)
        _relate(batch, run, needs)
        batch.decision(
            run, attempt=1, expected=2, next_event_id=3, state=10 if needs.closes else 0, task_state=HELD,
            merged=int(needs.merges), waiting=None,
        )  # fmt: skip
    return batch


def _relate(batch: Batch, run: UUID, needs: Needs) -> None:
    """What the run has to do with others."""
    if needs.children:
        batch.child(run, 9, uuid4(), 1, True)
    if needs.deliveries:
        batch.delivery(run, 9, 1, uuid4(), 0, b"{}")
    if needs.details:
        batch.detail(run, "{}", b"1")
    if needs.cascades:
        batch.cascade(run)
    if needs.successors:
        new = Successor(
            execution_id=uuid4(), business_key=uuid4(), workflow_name="w", workflow_id="w", version=1, partition=0,
            queue="default", started=b"{}", input=b"null", events=[(10, b"{}")],
        )  # fmt: skip
        batch.successor(run, new)


Statement = Callable[[Site], tuple[Role, str, list[Any]]]


def a_commit(needs: Needs) -> Statement:
    return lambda site: (COMMIT, statement(needs), parameters(site.worker, a_batch(site, needs)))


def an_append(site: Site) -> tuple[Role, str, list[Any]]:
    return WRITE, appends._APPEND, [
        site.runs[0], 10, b"{}", "key", appends.SIGNAL_KEY, *audit.audit_values(an_entry()),
    ]  # fmt: skip


def ends(site: Site) -> tuple[Role, str, list[Any]]:
    n = len(site.runs)
    return SCAN, results._END, [site.runs, [1] * n, [1] * n, [site.worker] * n, [7] * n, [b"{}"] * n]


def retries(site: Site) -> tuple[Role, str, list[Any]]:
    n = len(site.runs)
    return SCAN, results._RETRY, [site.runs, [1] * n, [1] * n, [site.worker] * n, [0.5] * n, [b"{}"] * n, [0] * n]


def everything() -> list[list[object]]:
    """What a full look seeks."""
    return columns(Marks(HANDICAP).seeks(["default"]))


def from_marks() -> list[list[object]]:
    """What a claim seeks that comes a minute after one of three priorities: all rows here lie beyond the marks."""
    marks, then = Marks(HANDICAP), datetime.now(UTC) - timedelta(minutes=1)
    marks.seeks(["default"])
    marks.note(["default"], 10, then, [Picked("default", priority, then) for priority in (5, 0, -5)])
    return columns(marks.seeks(["default"]))


def a_change(text: str) -> Statement:
    """Each run is told of a child's end, and another is answered."""

    def make(site: Site) -> tuple[Role, str, list[Any]]:
        n = len(site.runs)
        ids, numbers, kinds = list(range(n)), list(range(n)), [14] * n
        made = [ids, numbers, site.runs, ["k"] * n, site.runs]
        events = [ids, site.runs, kinds, numbers, [b"{}"] * n, [False] * n, numbers]
        return DELIVER, text, [*made, *events, ids, site.runs, kinds, [b"{}"] * n, numbers]

    return make


HOT: dict[str, Statement] = {
    "deliver here": a_change(changes._HERE),
    "deliver there": a_change(changes._THERE),
    "deliveries of runs": lambda s: (DELIVER, deliveries._OF_SOURCES, [s.runs, 200]),
    "deliveries that are due": lambda s: (DELIVER, deliveries._DUE, [0.0, 1e9, 200]),
    "targets": lambda s: (DELIVER, deliveries._RUNS, [s.runs]),
    "targets by name": lambda s: (DELIVER, deliveries._BY_KEYS, [s.runs]),
    "what deliveries have left": lambda s: (DELIVER, deliveries._LEFT_BY, [s.runs, "delivery:6/"]),
    "those that wait for shards": lambda s: (DELIVER, deliveries._UNLOCATED, [[5, 6]]),
    "put off": lambda s: (DELIVER, deliveries._PUT_OFF, [[1], [1.0], [None], [None], [None]]),
    "claim": lambda s: (CLAIM, claims.CLAIM, [["default"], s.worker, BATCH, *everything(), ["w/9"]]),
    "claim from marks": lambda s: (CLAIM, claims.CLAIM, [["default"], s.worker, BATCH, *from_marks(), ["w/9"]]),
    "claim a suspect": lambda s: (CLAIM, claims.CLAIM_SUSPECT, [["default"], s.worker, 1, []]),
    "claim as an owner": lambda s: (
        CLAIM,
        claims.CLAIM_OWNED,
        [["default"], s.worker, BATCH, *everything(), [], 0, claims.Owner.of(0, dict.fromkeys(OWNED, 1)).epochs],
    ),
    "hand over": lambda s: (SCAN, partitions._TRANSFER, [s.worker, OWNED, s.runs]),
    "runs to warm": lambda s: (CLAIM, partitions._WARMABLE, [s.runs]),
    "claim a suspect activity": lambda s: (
        CLAIM,
        activity_claims.CLAIM_SUSPECT_ACTIVITY,
        [["default"], s.worker, 1, ["a"], 6, "w"],
    ),
    "claim activities": lambda s: (
        CLAIM,
        activity_claims.CLAIM_ACTIVITIES,
        [["default"], s.worker, BATCH, *everything(), ["a"], 6, "w"],
    ),
    "claim activities from marks": lambda s: (
        CLAIM,
        activity_claims.CLAIM_ACTIVITIES,
        [["default"], s.worker, BATCH, *from_marks(), ["a"], 6, "w"],
    ),
    "claim what was here": lambda s: (CLAIM, claims.CLAIM_MATCHING, [["default"], s.worker, 32, []]),
    "claim activities of sessions": lambda s: (
        CLAIM,
        activity_claims.CLAIM_OF_SESSIONS,
        [["default"], s.worker, BATCH, ["a"], 6, "w"],
    ),
    "open sessions": lambda s: (SCAN, worker_sessions._TAKE, [s.worker, ["default"], 10, s.worker.hex, "w"]),
    "break sessions": lambda s: (SCAN, worker_sessions._BREAK, []),
    "sweep sessions": lambda s: (SCAN, worker_sessions._SWEEP, []),
    "news": lambda s: (CLAIM, claims._NEWS, [s.worker]),
    "load": lambda s: (CLAIM, claims._EVENTS, [s.runs, [1] * len(s.runs)]),
    "release": lambda s: (SCAN, claims._RELEASE, [s.runs, [1] * len(s.runs), s.worker]),
    "append": an_append,
    "end activities": ends,
    "retry activities": retries,
    "fire timers": lambda s: (SCAN, timers._TIMERS, [12]),
    "overdue activities": lambda s: (SCAN, upkeep._OVERDUE, []),
    "late runs": lambda s: (SCAN, closings._LATE, []),
    "end runs": lambda s: (SCAN, closings._END_MANY, [s.runs, [b"{}"] * len(s.runs), [None] * len(s.runs), 63, 13]),
    "next timer": lambda s: (SCAN, timers._NEXT_TIMER, []),
}
_OWN = [Needs(*own) for own in product((False, True), repeat=5)]
_RELATED = [
    Needs(closes=closes, children=True, deliveries=True, details=details, successors=successors, cascades=closes)
    for closes, details, successors in ((False, False, False), (False, True, False), (True, False, False), (True,) * 3)
]
_HOSTED = [Needs(activities=True, pins=True), Needs(sessions=True), Needs(session_ends=True, closes=True)]
for _needs in (*_OWN, *_RELATED, *_HOSTED, Needs(closes=True, deliveries=True), Needs(closes=True, successors=True)):
    HOT[" ".join(["commit", *(part for part, needed in _needs._asdict().items() if needed)])] = a_commit(_needs)


@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "analyzed"])
async def test_60_no_hot_statement_reads_a_big_table_from_end_to_end(sites: dict[int, Site], analyzed: bool) -> None:
    if analyzed:
        for site in sites.values():
            await site.store.scan.write("analyze", limit=120)
    wrong, figures = [], {}
    for name, make in HOT.items():
        read = {}
        for rows, site in sites.items():
            plan = await site.plan(*make(site))
            read[rows] = buffers(plan)
            if rows == MANY:
                wrong += [
                    f"{name}: {node['Node Type']} of {node['Relation Name']}"
                    for node in nodes(plan)
                    if node["Node Type"] == "Seq Scan" and node["Relation Name"] in BIG
                ]
        figures[name] = read
    grown = {name: read for name, read in figures.items() if read[MANY] > 2 * read[FEW] + 30}
    assert not wrong
    assert not grown, "buffers grow with the table"


@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "known to be empty"])
async def test_plans_made_while_tables_were_small_read_no_more_when_they_are_big(
    new_database: Callable[[str], str], analyzed: bool
) -> None:
    site = Site(Store(0, new_database("kept_plans")))
    if analyzed:
        await site.store.scan.write("vacuum analyze")
    await site.hold()
    statements = {name: make(site) for name, make in HOT.items()}
    names = {name: f"s{number}" for number, name in enumerate(statements)}
    async with AsyncExitStack() as stack:
        connections = {
            role.name: await stack.enter_async_context(site.connected(role)) for role, _, _ in statements.values()
        }
        read: dict[str, list[int]] = {name: [] for name in statements}
        for rows in (FEW, MANY):
            await site.fill(rows)
            for name, (role, sql, values) in statements.items():
                read[name].append(buffers(await explained(connections[role.name], names[name], sql, values)))
    await site.store.close()
    grown = {name: figures for name, figures in read.items() if figures[1] > 2 * figures[0] + 30}
    assert not grown, "buffers grow with the table under a plan that was made before"
