"""Bench (f): a claim costs the same whatever waits, and whatever was claimed and finished before."""

from __future__ import annotations

from typing import Any, Final

from tests.bench.figures import Bound, Figure, Part, at_most, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import run_side

KINDS: Final = ("workflow", "activity")
SITES: Final = ("fresh", "used")
MOST_PAGES: Final = 2.0
MOST_TIME: Final = 1.5


def run(server: BenchServer, plan: Plan) -> Part:
    """Claims of both kinds of task, alternating between a fresh table and a used one."""
    figures: list[Figure] = []
    bounds: list[Bound] = []
    for kind in KINDS:
        urls = {site: server.fresh(f"claims_{site}") for site in SITES}
        numbers = (plan.claimed, plan.claim_samples, *plan.pending)
        costs = run_side("claims_side", kind, *urls.values(), *map(str, numbers), timeout=1800)
        for url in urls.values():
            server.drop(url)
        figures += [
            _figure(f"{kind} tasks, {int(pending):,} pending, {site}", {claim: of[site] for claim, of in cost.items()})
            for pending, cost in costs.items()
            for site in SITES
        ]
        bounds += _bounds(kind, costs)
    title = f"a claim of 200, disk apart; `used`: behind {plan.claimed:,} claimed and finished, without a vacuum"
    return Part("f", title, figures, bounds)


def _figure(name: str, cost: dict[str, Any]) -> Figure:
    detail = {"pages": cost["200"]["pages"], "one_ms": cost["1"]["ms"], "one_pages": cost["1"]["pages"]}
    look = {"look_ms": cost["look"]["ms"], "look_pages": cost["look"]["pages"]}
    return figure(name, "ms p50", [cost["200"]["ms"]], **detail, **look)


def _bounds(kind: str, costs: dict[str, Any]) -> list[Bound]:
    """The worst ratio over all numbers of pending tasks."""

    def worst(claim: str, unit: str) -> float:
        ratios: list[float] = [cost[claim]["used"][unit] / cost[claim]["fresh"][unit] for cost in costs.values()]
        return max(ratios)

    bounds = []
    for claim, name in (("200", "200"), ("1", "one")):
        bounds.append(at_most(f"{kind} tasks, {name}: pages, used / fresh", worst(claim, "pages"), MOST_PAGES))
        bounds.append(at_most(f"{kind} tasks, {name}: p50, used / fresh", worst(claim, "ms"), MOST_TIME))
    return bounds
