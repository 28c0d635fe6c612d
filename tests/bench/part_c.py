"""Bench (c): a decision does not cost more because the history behind it is longer."""

from __future__ import annotations

import statistics
from typing import Any, Final

from tests.bench.figures import Bound, Figure, Part, at_most, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import run_side

TITLE: Final = "one decision beside the length of its history, milliseconds"
MOST_SPREAD: Final = 1.25
EQUAL: Final = ("rows", "bytes", "statements")
"""For a warm decision each of these is the same at every length, as our counters say."""
MOST_SERVER_ROWS: Final = 0.5
"""Rows of history that PostgreSQL says it read for a warm decision: none, but for what runs in its background."""


def run(server: BenchServer, plan: Plan) -> Part:
    """Decisions at all lengths interleaved in one worker, several workers one after the other."""
    results: list[dict[str, Any]] = []
    for _ in range(plan.rounds):
        url = server.fresh("decisions")
        arguments = (str(plan.decisions), str(plan.cold_decisions), *map(str, plan.histories))
        results.append(run_side("engine_side", "decisions", url, *arguments, timeout=1200))
        server.drop(url)
    figures = [_figure(results, str(size), kind) for kind in ("warm", "cold") for size in plan.histories]
    warm = figures[: len(plan.histories)]
    medians = [item.median for item in warm]
    bounds = [at_most("warm p50, longest of all / shortest", max(medians) / min(medians), MOST_SPREAD)]
    bounds += [_equal(warm, name) for name in EQUAL]
    server_rows = max(item.detail["server_rows"] for item in warm)
    bounds.append(at_most("warm server_rows: most of any length", server_rows, MOST_SERVER_ROWS))
    return Part("c", TITLE, figures, bounds)


def _figure(results: list[dict[str, Any]], size: str, kind: str) -> Figure:
    cases = [result[size][kind] for result in results]
    detail = {name: statistics.median(case[name] for case in cases) for name in cases[0] if name != "p50_ms"}
    return figure(f"{kind}, {int(size):,} events", "ms p50", [case["p50_ms"] for case in cases], **detail)


def _equal(figures: list[Figure], name: str) -> Bound:
    values = [item.detail[name] for item in figures]
    return at_most(f"warm {name}: largest difference", max(values) - min(values), 0.0)
