"""Bench (j): history crosses the wire to a decider once at most, in a fleet of three processes."""

from __future__ import annotations

from typing import Any, Final

from tests.bench.figures import Bound, Figure, Part, at_most, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import run_side

TITLE: Final = "three worker processes: what deciders read of one run's history"
MODES: Final = ("owner", "claim")
TIMERS: Final = 25
EVENTS: Final = 1_001
MOST_BYTES: Final = 1.05
MOST_EVENTS: Final = 1.0
SEED_BYTES, SEED_BYTES_COLD = 41_441, 573_224
"""What the seed's system moved for the 25 timers with suffixes and without, whole events as JSON. Ours are payloads."""


def run(server: BenchServer, plan: Plan) -> Part:
    """The seed's 25 timers, and its run of 1,001 events with the activities of the same process and of any."""
    figures: list[Figure] = []
    bounds: list[Bound] = []
    for mode in MODES:
        told = _side(server, "timers", mode, str(TIMERS), str(plan.timer_seconds))
        name = f"{mode} mode, {TIMERS} timers of {plan.timer_seconds:g} s"
        figures.append(_figure(name, told))
        bounds.append(at_most(f"{name}: bytes read / own size", told["read_bytes"] / told["bytes"], MOST_BYTES))
        for eager, whose in (("1", "its own"), ("0", "queued")):
            told = _side(server, "long", mode, eager)
            if told["events"] != EVENTS:
                raise RuntimeError(f"the long run has {told['events']} events, not {EVENTS}")
            name = f"{mode} mode, {EVENTS:,} events, activities {whose}"
            figures.append(_figure(name, told))
            bounds.append(at_most(f"{name}: events read / written", told["read_events"] / told["events"], MOST_EVENTS))
    figures.append(figure("the seed's 25 timers, with suffixes", "bytes read", [SEED_BYTES], cold=SEED_BYTES_COLD))
    return Part("j", TITLE, figures, bounds)


def _figure(name: str, told: dict[str, Any]) -> Figure:
    return figure(name, "bytes read", [told["read_bytes"]], **told)


def _side(server: BenchServer, case: str, mode: str, *arguments: str) -> dict[str, Any]:
    url = server.fresh(f"{case}_{mode}")
    told = run_side("fleet_side", case, url, mode, *arguments)
    server.drop(url)
    return told
