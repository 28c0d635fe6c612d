"""Bench (l): how long one tenant waits while another one floods, with a cell for the flood and on one shared shard."""

from __future__ import annotations

from typing import Any, Final

from tests.bench.figures import Part, at_least, at_most, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import run_side

TITLE: Final = "a flood of tenant A, and how long runs of tenant B wait for their first activity"
CASES: Final = {"cell": "A in a cell", "shared": "one shared shard"}
MOST_WITH_CELL: Final = 3.0
CALLS: Final = 50


def run(server: BenchServer, plan: Plan) -> Part:
    """Both cases once a round, in turn."""
    told: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    for _ in range(plan.rounds):
        for case, runs in told.items():
            runs.append(_side(server, case, plan))
    figures = [
        figure(f"{CASES[case]}: {what} wait of B", "s", [each[what] for each in runs])
        for case, runs in told.items()
        for what in ("worst", "median")
    ]
    with_cell = max(each["worst"] for each in told["cell"])
    without = min(each["worst"] for each in told["shared"])
    bounds = [
        at_most("A in a cell: B's worst wait, s", with_cell, MOST_WITH_CELL),
        at_least("one shared shard: B's worst wait, s", without, MOST_WITH_CELL),
        at_least("one shared shard: B's worst wait / with the cell", without / with_cell, 1.0),
    ]
    return Part("l", TITLE, figures, bounds)


def _side(server: BenchServer, case: str, plan: Plan) -> dict[str, Any]:
    urls = [server.fresh(f"{case}_{shard}") for shard in (0, 1)]
    told = run_side("cells_side", case, *urls, str(plan.imports), str(CALLS), str(plan.orders), timeout=900)
    for url in urls:
        server.drop(url)
    return told
