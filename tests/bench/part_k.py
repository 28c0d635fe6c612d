"""Bench (k): what owner mode costs beside claim mode, and a second worker process beside one."""

from __future__ import annotations

import statistics
from typing import Any, Final

from tests.bench.figures import Bound, Figure, Part, at_least, at_most, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import run_side

TITLE: Final = "runs of three sequential activities, by mode and by number of worker processes"
MODES: Final = ("owner", "claim")
SIZES: Final = (1, 2)
LEAST_OF_CLAIM: Final = 1.0
MOST_PROCESSOR: Final = 1.25
LEAST_OF_ONE: Final = 1.0
LEAST_SHARE: Final = 0.4
MOST_IDLE: Final = 5.0
Runs = dict[tuple[str, int], list[dict[str, Any]]]


def run(server: BenchServer, plan: Plan) -> Part:
    """Every mode and size once a round, in turn; then each once more on loops that tell when they idled."""
    runs: Runs = {(mode, size): [] for size in SIZES for mode in MODES}
    for number in range(plan.step_rounds):
        # Whoever comes first in one round comes last in the next: neither always meets a server that has rested.
        for mode, size in list(runs)[:: 1 if number % 2 == 0 else -1]:
            runs[mode, size].append(_side(server, "drain", mode, size, plan.workflows))
    idle = {each: _side(server, "idle", *each, plan.workflows) for each in runs}
    figures = [each for of in runs for each in _figures(of, runs[of], idle[of])]
    return Part("k", TITLE, figures, [*_mode_bounds(runs), *_size_bounds(runs), *_idle_bounds(idle)])


def _figures(of: tuple[str, int], told: list[dict[str, Any]], idle: dict[str, Any]) -> list[Figure]:
    name = _name(of)
    counted = {key: sum(each["counters"][key] for each in told) for key in ("passed", "moved", "busy", "commits")}
    counted["cold"] = sum(each["counters"]["decisions_cold"] for each in told)
    seconds = figure(f"{name}: processor", "ms/run", _processor(told))
    seconds.detail.update(
        workers=round(statistics.median(each["workers_ms"] for each in told), 3),
        server=round(statistics.median(each["server_ms"] for each in told), 3),
    )
    return [
        figure(f"{name}: rate", "runs/s", [each["rate"] for each in told], **counted),
        seconds,
        figure(
            f"{name}: longest idle", "ms", [idle["longest"] * 1e3], share=idle["idle_share"], over=idle["over_5_ms"]
        ),
    ]


def _mode_bounds(runs: Runs) -> list[Bound]:
    """The median of the ratios of each round, whose runs were made one after the other."""
    return [
        at_least(
            f"{_workers(size)}: owner mode's rate / claim mode's",
            statistics.median(
                owner["rate"] / claim["rate"]
                for owner, claim in zip(runs["owner", size], runs["claim", size], strict=True)
            ),
            LEAST_OF_CLAIM,
        )
        for size in SIZES
    ]


def _size_bounds(runs: Runs) -> list[Bound]:
    bounds = []
    for mode in MODES:
        one, two = runs[mode, 1], runs[mode, 2]
        processor = statistics.median(_processor(two)) / statistics.median(_processor(one))
        rate = statistics.median(each["rate"] for each in two) / statistics.median(each["rate"] for each in one)
        share = min(each["least_share"] for each in two)
        bounds.append(at_most(f"{mode} mode, two processes: processor time / one's", processor, MOST_PROCESSOR))
        bounds.append(at_least(f"{mode} mode, two processes: rate / one's", rate, LEAST_OF_ONE))
        bounds.append(at_least(f"{mode} mode, two processes: share of who decided less", share, LEAST_SHARE))
    return bounds


def _idle_bounds(idle: dict[tuple[str, int], dict[str, Any]]) -> list[Bound]:
    return [
        at_most(f"{_name(of)}: longest idle with a backlog, ms", told["longest"] * 1e3, MOST_IDLE)
        for of, told in idle.items()
    ]


def _processor(told: list[dict[str, Any]]) -> list[float]:
    return [each["workers_ms"] + each["server_ms"] for each in told]


def _name(of: tuple[str, int]) -> str:
    return f"{of[0]} mode, {_workers(of[1])}"


def _workers(size: int) -> str:
    return "one process" if size == 1 else "two processes"


def _side(server: BenchServer, case: str, mode: str, size: int, count: int) -> dict[str, Any]:
    url = server.fresh(f"{case}_{mode}")
    told = run_side("fleet_side", case, url, mode, str(size), str(count), timeout=1200)
    server.drop(url)
    return told
