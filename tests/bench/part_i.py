"""Bench (i): in a fleet of three processes, every decision after a run's first is warm, whatever it waits for."""

from __future__ import annotations

from typing import Any, Final

from tests.bench.figures import Bound, Figure, Part, at_least, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import run_side

TITLE: Final = "three worker processes: share of the decisions after a run's first that were warm"
LEAST: Final = {"owner": 0.99, "claim": 0.95}
STARTED: Final = {"1": "begun at once", "0": "queued"}
"""How activities start: in the decision that asks for them, or all of them by whichever process claims them."""


def run(server: BenchServer, plan: Plan) -> Part:
    """Every shape in both modes, with activities begun in their decision and with none."""
    figures: list[Figure] = []
    bounds: list[Bound] = []
    for mode, least in LEAST.items():
        results = {eager: _fleet(server, mode, eager, plan.fleet_runs) for eager in STARTED}
        for shape in results["1"]:
            shares = []
            for eager, started in STARTED.items():
                told = results[eager][shape]
                shares.append(1 - max(0, told["cold"]) / told["later"])
                figures.append(figure(f"{mode} mode, {shape}, activities {started}", "warm", shares[-1:], **told))
            bounds.append(at_least(f"{mode} mode, {shape}: warm after the first", min(shares), least))
    return Part("i", TITLE, figures, bounds)


def _fleet(server: BenchServer, mode: str, eager: str, count: int) -> dict[str, Any]:
    url = server.fresh(f"warm_{mode}")
    told = run_side("fleet_side", "warm", url, mode, eager, str(count), timeout=1200)
    server.drop(url)
    return told
