"""Bench (g): joins, races, children and updates stay warm after their first decision."""

from __future__ import annotations

import statistics
from typing import Final

from tests.bench.figures import Bound, Figure, Part, at_least, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import run_side

TITLE: Final = "shapes of waiting in one worker: decisions a second, and how many after a run's first are warm"
SHAPES: Final = ("joins", "races", "families", "updated")
LEAST_WARM: Final = 0.99


def run(server: BenchServer, plan: Plan) -> Part:
    """Run each shape on a fresh database."""
    figures: list[Figure] = []
    bounds: list[Bound] = []
    for shape in SHAPES:
        rates: list[float] = []
        warm: list[float] = []
        for _ in range(plan.rounds):
            url = server.fresh(shape)
            told = run_side("engine_side", shape, url, str(plan.shaped), timeout=1200)
            rates.append(told["rate"])
            warm.append(told["warm"])
            server.drop(url)
        figures.append(figure(f"{shape}: decisions", "decisions/s", rates))
        bounds.append(at_least(f"{shape}: warm after the first", statistics.median(warm), LEAST_WARM))
    return Part("g", TITLE, figures, bounds)
