"""Bench (a): queued runs of three sequential activities, drained by one process."""

from __future__ import annotations

import statistics
from typing import Any, Final

import msgspec

from tests.bench.figures import Part, at_least, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import dbos_python, run_side

TITLE: Final = "runs of three sequential activities a second, one worker process"
DBOS_CONTESTANTS: Final = tuple((api, concurrency) for api in ("async", "sync") for concurrency in (50, 200))
FLOOR_BATCH: Final = 50
SKETCH_BATCH: Final = 200
LEAST_OF_DBOS: Final = 15.0
LEAST_OF_FLOOR: Final = 0.25
LEAST_HOT: Final = 0.85


class Rates:
    """Runs a second of every contestant, round by round."""

    def __init__(self) -> None:
        self.empty: list[dict[str, Any]] = []
        self.beside: list[dict[str, Any]] = []
        self.floor: list[float] = []
        self.sketch: list[float] = []
        self.dbos: dict[tuple[str, int], list[float]] = {contestant: [] for contestant in DBOS_CONTESTANTS}


def run(server: BenchServer, plan: Plan) -> Part:
    """Every contestant once a round; the floor carries the rows and bytes that the engine has just left."""
    rates = Rates()
    crowded = server.fresh("crowded")
    run_side("engine_side", "ballast", crowded, str(plan.closed_runs), timeout=1200)
    for _ in range(plan.rounds):
        _round(server, plan, rates, crowded)
    server.drop(crowded)
    return _part(plan, rates)


def _round(server: BenchServer, plan: Plan, rates: Rates, crowded: str) -> None:
    workflows = str(plan.workflows)
    url = server.fresh("engine")
    rates.empty.append(run_side("engine_side", "queue", url, workflows))
    server.drop(url)
    server.settle()
    rates.beside.append(run_side("engine_side", "queue", crowded, workflows))
    url = server.fresh("floor")
    shape = msgspec.json.encode(rates.empty[-1]["shape"]).decode()
    rates.floor.append(run_side("floor_statement", url, workflows, str(FLOOR_BATCH), shape)["rate"])
    server.drop(url)
    url = server.fresh("sketch")
    rates.sketch.append(run_side("sketch_hot_path", url, workflows, str(SKETCH_BATCH))["rate"])
    server.drop(url)
    for api, concurrency in DBOS_CONTESTANTS:
        rates.dbos[api, concurrency].append(dbos_rate(server, plan.workflows, api, concurrency))


def dbos_rate(server: BenchServer, workflows: int, api: str, concurrency: int) -> float:
    """DBOS on the same work: queued by one process, drained by another, in a database of its own."""
    url = server.fresh("dbos")
    run_side("dbos_side", "enqueue", url, str(workflows), api, str(concurrency), python=dbos_python())
    drained = run_side("dbos_side", "drain", url, str(workflows), python=dbos_python())
    server.drop(url)
    return float(drained["rate"])


def _part(plan: Plan, rates: Rates) -> Part:
    empty = [result["rate"] for result in rates.empty]
    beside = [result["rate"] for result in rates.beside]
    best = max(rates.dbos.values(), key=statistics.median)
    floor = statistics.median(rates.floor)
    hot = [result["hot"] for result in (*rates.empty, *rates.beside)]
    figures = [
        figure("engine, empty tables", "runs/s", empty, **_counters(rates.empty)),
        figure(f"engine, beside {plan.closed_runs:,} closed", "runs/s", beside, **_counters(rates.beside)),
        figure(f"floor: the statement at batch {FLOOR_BATCH}", "runs/s", rates.floor),
        figure("sketch: no other duties", "runs/s", rates.sketch),
        *(figure(f"DBOS {api}, concurrency {of}", "runs/s", runs) for (api, of), runs in rates.dbos.items()),
        figure("updates that end no run: HOT", "share", hot),
    ]
    bounds = []
    for name, runs in (("empty", empty), ("beside closed runs", beside)):
        rate = statistics.median(runs)
        bounds.append(at_least(f"engine / DBOS, {name}", rate / statistics.median(best), LEAST_OF_DBOS))
        bounds.append(at_least(f"engine / floor, {name}", rate / floor, LEAST_OF_FLOOR))
    bounds.append(at_least("HOT updates", statistics.median(hot), LEAST_HOT))
    return Part("a", TITLE, figures, bounds)


def _counters(results: list[dict[str, Any]]) -> dict[str, float]:
    """What the worker counted, over all rounds: the answers of its commits, and the decisions in each."""
    total = {
        name: sum(result["counters"][name] for result in results)
        for name in ("passed", "moved", "busy", "fenced", "commits")
    }
    return {**total, "batch": total["passed"] / max(1, total["commits"])}
