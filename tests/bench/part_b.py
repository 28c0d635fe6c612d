"""Bench (b): sequential activities in one run."""

from __future__ import annotations

import statistics
from typing import Any, Final

from tests.bench.figures import Figure, Part, at_least, figure, percentile
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import dbos_python, run_side

TITLE: Final = "sequential activities a second in one run"
LEAST_OF_DBOS: Final = 2.5
APIS: Final = ("async", "sync")


def run(server: BenchServer, plan: Plan) -> Part:
    """Ours and both APIs of DBOS, interleaved."""
    ours: list[dict[str, Any]] = []
    dbos: dict[str, list[dict[str, Any]]] = {api: [] for api in APIS}
    for _ in range(plan.step_rounds):
        url = server.fresh("steps")
        ours.append(run_side("engine_side", "steps", url, str(plan.steps)))
        server.drop(url)
        for api in APIS:
            url = server.fresh("dbos")
            dbos[api].append(run_side("dbos_side", "steps", url, str(plan.steps), api, python=dbos_python()))
            server.drop(url)
    figures = [_figure("engine", ours), *(_figure(f"DBOS, {api} steps", runs) for api, runs in dbos.items())]
    best = max(item.median for item in figures[1:])
    ahead = at_least("engine / DBOS, the better API", figures[0].median / best, LEAST_OF_DBOS)
    return Part("b", TITLE, figures, [ahead])


def _figure(name: str, results: list[dict[str, Any]]) -> Figure:
    def middle(share: float) -> float:
        return statistics.median(percentile(result["gaps"], share) for result in results) * 1e3

    runs = [result["rate"] for result in results]
    return figure(name, "steps/s", runs, p50_ms=middle(0.5), p99_ms=middle(0.99))
