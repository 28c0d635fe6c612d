"""Bench (d): what parked runs cost."""

from __future__ import annotations

import statistics
from typing import Final

from tests.bench.figures import Part, at_most, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import run_side

TITLE: Final = "parked runs: their weight, and starting others beside them"
MOST_BYTES: Final = 10_000.0
MOST_SLOWDOWN: Final = 2.0


def run(server: BenchServer, plan: Plan) -> Part:
    """Weigh parked runs, then start runs beside none and beside many."""
    weights: list[float] = []
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(plan.rounds):
        url = server.fresh("memory")
        arguments = (str(plan.memory_runs), str(plan.memory_events))
        weights.append(run_side("engine_side", "memory", url, *arguments, timeout=1200)["bytes"])
        server.drop(url)
        url = server.fresh("starts")
        rates = run_side("engine_side", "starts", url, str(plan.parked), str(plan.new), timeout=1200)
        alone.append(rates["alone"])
        beside.append(rates["beside"])
        server.drop(url)
    figures = [
        figure(f"a parked run of {plan.memory_events:,} events", "bytes", weights),
        figure("starts beside none parked", "runs/s", alone),
        figure(f"starts beside {plan.parked:,} parked", "runs/s", beside),
    ]
    slowdown = statistics.median(alone) / statistics.median(beside)
    return Part(
        "d",
        TITLE,
        figures,
        [
            at_most("bytes of a parked run", statistics.median(weights), MOST_BYTES),
            at_most("slowdown of starts", slowdown, MOST_SLOWDOWN),
        ],
    )
