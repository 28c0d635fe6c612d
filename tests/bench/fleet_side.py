"""What fleets of worker processes do on our engine, one case a process.

    python -m tests.bench.fleet_side warm   URL MODE EAGER COUNT
    python -m tests.bench.fleet_side timers URL MODE COUNT SECONDS
    python -m tests.bench.fleet_side long   URL MODE EAGER
    python -m tests.bench.fleet_side modes  URL WORKERS COUNT ROUNDS
    python -m tests.bench.fleet_side idle   URL MODE WORKERS COUNT

MODE is `owner` or `claim`; EAGER is 1, or 0 where every activity is queued for whoever claims it. Each makes the schema
and prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

import uvloop

from harvest.history.states import State
from harvest.operations import signalling, updating
from harvest.store.migrate import upgrade
from tests.bench.engine_bench import encode
from tests.bench.engine_tables import connected, reported, table_statistics, wrong_runs
from tests.bench.fleet import ACTOR, Fleet, fleet, postmaster_of, processor_seconds, server_seconds
from tests.bench.fleet_app import CHILDREN, RACES, UPDATES
from tests.bench.fleet_worker import Given
from tests.bench.payload import TEXT

FLEET: Final = 3
AT_ONCE: Final = 25
SIGNAL_PACE: Final = 0.3
"""Seconds between two signals to a run: about what it takes to come to the next race."""
END_PACE: Final = 0.5
TOLD_SECONDS: Final = 2.0
"""How long after a decision it is written down, at the most."""
IDLE_SECONDS: Final = 1.0
"""How long the workers are watched when there is nothing left to do."""
Driver = Callable[[Fleet, list[UUID]], Awaitable[None]]


async def _signalled(fleet: Fleet, runs: list[UUID]) -> None:
    for number in range(RACES):
        await asyncio.sleep(SIGNAL_PACE)
        await _each(runs, lambda run, n=number: signalling.signal(fleet.shards, ACTOR, run, "go", b"%d" % n))  # type: ignore[misc]


async def _updated(fleet: Fleet, runs: list[UUID]) -> None:
    async def update(run: UUID) -> None:
        for number in range(UPDATES):
            await updating.update(fleet.shards, ACTOR, run, "add", b"%d" % number, timeout=120.0)

    await _each(runs, update)


async def _each(runs: list[UUID], act: Callable[[UUID], Awaitable[object]]) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(run: UUID) -> None:
        async with limit:
            await act(run)

    await asyncio.gather(*map(one, runs))


SHAPES: Final[dict[str, tuple[int, Driver | None]]] = {
    "sequence": (1, None),
    "joins": (1, None),
    "races": (1, _signalled),
    "families": (1 + CHILDREN, None),
    "updated": (1, _updated),
}
"""How many runs there are for each that is started, and who sends what they wait for."""


async def warm(url: str, mode: str, eager: str, count: str) -> dict[str, Any]:
    """For each shape: how many decisions there were, and how many beyond the first of a run were cold."""
    result: dict[str, Any] = {}
    async with _at_work(url, mode, FLEET, eager=eager == "1") as fleet:
        before = _summed(await fleet.counters())
        for shape, (runs_each, drive) in SHAPES.items():
            ids = await fleet.enqueue(shape, int(count))
            if drive is not None:
                await drive(fleet, await fleet.execution_ids(ids))
            runs = int(count) * runs_each
            now = _summed([told["counters"] for told in await fleet.closed(runs, before["closed"])])
            grown = {name: now[name] - before[name] for name in now}
            cold = grown["decisions_cold"] - runs
            result[shape] = {
                "later": grown["decisions_warm"] + cold,
                "cold": cold,
                "overtaken": grown["declined_overtaken"],
                "evicted": grown["evicted"],
            }
            before = now
        await asyncio.sleep(TOLD_SECONDS)
    await _all_completed(url)
    return {shape: told | await _reasons(url, shape) for shape, told in result.items()}


async def _reasons(url: str, workflow: str) -> dict[str, int]:
    """Why decisions of runs of this workflow were not warm, by what is kept of each run; its first is left out."""
    async with connected(url) as connection:
        rows = await connection.fetch(
            """select d.outcome || '_' || d.reason as why, count(*) as n
                 from harvest_decisions d join harvest_executions e using (execution_id)
                where e.workflow_name = $1 and d.outcome <> 'hit' and d.reason <> 'first'
                group by 1 order by 1""",
            workflow,
        )
    return {row["why"]: row["n"] for row in rows}


async def timers(url: str, mode: str, count: str, seconds: str) -> dict[str, Any]:
    """One run of `count` timers: what of its history was read again."""

    async def nothing(fleet: Fleet, run: UUID) -> None:
        pass

    return await _suffix(url, mode, True, "timers", (int(count), float(seconds)), nothing)


async def long(url: str, mode: str, eager: str) -> dict[str, Any]:
    """One run of 1,001 events: what of its history was read again."""

    async def end(fleet: Fleet, run: UUID) -> None:
        waiting = "select waiting from harvest_executions where execution_id = $1 and waiting is not null"
        while not await fleet.shards.store(0).read.fetch(waiting, run):
            await asyncio.sleep(END_PACE)
        await signalling.signal(fleet.shards, ACTOR, run, "end", b'"over"')

    return await _suffix(url, mode, eager == "1", "long", (TEXT,), end)


async def _suffix(
    url: str,
    mode: str,
    eager: bool,
    workflow: str,
    arguments: tuple[object, ...],
    drive: Callable[[Fleet, UUID], Awaitable[None]],
) -> dict[str, Any]:
    """What deciders read of one run's history. Its first event comes with the claim, and is counted as read."""
    async with _at_work(url, mode, FLEET, eager=eager) as fleet:
        before = await table_statistics(url, "harvest_events")
        ids = await fleet.enqueue(workflow, 1, *arguments)
        (run,) = await fleet.execution_ids(ids)
        await drive(fleet, run)
        counters = _summed([told["counters"] for told in await fleet.closed(1, 0)])
    await _all_completed(url)
    async with connected(url) as connection:
        own = await connection.fetchrow(
            """select count(*) as events, sum(length(payload)) as bytes,
                      sum(length(payload)) filter (where event_id = 1) as first
                 from harvest_events where execution_id = $1""",
            run,
        )
    grown = await reported(url, "harvest_events", before, "n_tup_ins", own["events"])
    return {
        "events": own["events"],
        "bytes": own["bytes"],
        "read_events": counters["loaded_events"] + 1,
        "read_bytes": counters["loaded_bytes"] + own["first"],
        "decisions": counters["decisions_warm"] + counters["decisions_cold"],
        "cold": counters["decisions_cold"],
        "server_rows": grown["idx_tup_fetch"] + grown["seq_tup_read"],
    }


async def modes(url: str, workers: str, count: str, rounds: str) -> dict[str, list[dict[str, Any]]]:
    """The queue of (a), drained by the same processes in one mode and in the other, again and again."""
    drains: dict[str, list[dict[str, Any]]] = {"owner": [], "claim": []}
    async with _prepared(url, "claim", int(workers), watched=False) as fleet:
        postmaster = await postmaster_of(url)
        ids: list[str] = []
        for number in range(int(rounds)):
            # Whoever comes first in one round comes last in the next: neither always meets a server that has rested.
            for mode in list(drains)[:: 1 if number % 2 == 0 else -1]:
                await (fleet.own() if mode == "owner" else fleet.disown())
                ids += await fleet.enqueue("three_steps", int(count), TEXT, first=len(ids))
                drains[mode].append(await _drained(fleet, int(count), postmaster))
                await fleet.hold()
    wrong = await wrong_runs(url, ids, encode(TEXT))
    if wrong:
        raise SystemExit(f"{wrong} of {len(ids)} runs did not complete with their result")
    return drains


async def _drained(fleet: Fleet, count: int, postmaster: int) -> dict[str, Any]:
    """What draining the queue took: runs a second, processor time of each run, who decided."""
    pids = [member.process.pid for member in fleet.members]

    def used() -> tuple[float, float]:
        return sum(map(processor_seconds, pids)), server_seconds(postmaster)

    counted = await fleet.counters()
    workers_before, server_before = used()
    since = await _database_time(fleet.url)
    await fleet.go()
    told = await fleet.closed(count, sum(each["closed"] for each in counted))
    workers_after, server_after = used()
    seconds = await _last_end(fleet.url, since)
    done = [_since(each["counters"], before) for each, before in zip(told, counted, strict=True)]
    decided = [each["passed"] for each in done]
    return {
        "rate": count / seconds,
        "workers_ms": (workers_after - workers_before) / count * 1e3,
        "server_ms": (server_after - server_before) / count * 1e3,
        "least_share": min(decided) / sum(decided),
        "counters": _summed(done),
    }


async def idle(url: str, mode: str, workers: str, count: str) -> dict[str, Any]:
    """The same on loops that are watched: the stretches, in seconds, in which a worker with a backlog did nothing."""
    async with _prepared(url, mode, int(workers), watched=True) as fleet:
        await fleet.enqueue("three_steps", int(count), TEXT)
        since = await _database_time(url)
        await fleet.go()
        await fleet.closed(int(count), 0)
        seconds = await _last_end(url, since)
        await asyncio.sleep(IDLE_SECONDS)
        told = await fleet.told()
    if not all(each["idle_after"] for each in told):
        raise SystemExit("a worker with nothing to do is not seen to idle: the watch does not work")
    stretches = [each["idle"] for each in told]
    return {
        "longest": max((each for found in stretches for each in found), default=0.0),
        "over_5_ms": sum(each > 0.005 for found in stretches for each in found),
        "idle_share": sum(map(sum, stretches)) / seconds / len(stretches),
    }


@asynccontextmanager
async def _prepared(url: str, mode: str, size: int, *, watched: bool, eager: bool = True) -> AsyncIterator[Fleet]:
    async with fleet(url, size, Given("w", eager=eager, watched=watched)) as prepared:
        if mode == "owner":
            await prepared.own()
        yield prepared


@asynccontextmanager
async def _at_work(url: str, mode: str, size: int, *, eager: bool) -> AsyncIterator[Fleet]:
    async with _prepared(url, mode, size, watched=False, eager=eager) as working:
        await working.go()
        yield working


def _summed(counters: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(each[name] for each in counters) for name in counters[0]}


def _since(counters: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: counters[name] - before[name] for name in counters}


async def _database_time(url: str) -> Any:
    async with connected(url) as connection:
        return await connection.fetchval("select clock_timestamp()")


async def _last_end(url: str, since: Any) -> float:
    """Seconds from a moment to the end of the run that ended last, both by the database's clock."""
    async with connected(url) as connection:
        seconds: float = await connection.fetchval(
            "select extract(epoch from max(closed_at) - $1)::float8 from harvest_executions", since
        )
    return seconds


async def _all_completed(url: str) -> None:
    async with connected(url) as connection:
        others = await connection.fetchval(
            "select count(*) from harvest_executions where state <> $1", int(State.COMPLETED)
        )
    if others:
        raise SystemExit(f"{others} runs did not complete")


CASES: Final[dict[str, Callable[..., Awaitable[Any]]]] = {
    "warm": warm,
    "timers": timers,
    "long": long,
    "modes": modes,
    "idle": idle,
}


async def run(case: str, url: str, arguments: list[str]) -> dict[str, Any]:
    """Make the schema and run one case."""
    await upgrade(url, shard_id=0)
    return await CASES[case](url, *arguments)


def main() -> None:
    """Run the case that the command line names."""
    case, url, *arguments = sys.argv[1:]
    result = uvloop.run(run(case, url, arguments))
    print(encode(result).decode())


if __name__ == "__main__":
    main()
