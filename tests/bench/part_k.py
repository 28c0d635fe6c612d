"""Bench (k): what owner mode costs beside claim mode, and a second worker process beside one."""

from __future__ import annotations

import math
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
LEAST_MEDIAN: Final = {1: 0.97, 2: 0.95}
MOST_PROCESSOR: Final = 1.25
LEAST_OF_ONE: Final = 1.0
LEAST_SHARE: Final = 0.4
MOST_IDLE: Final = 5.0
Runs = dict[tuple[str, int], list[dict[str, Any]]]


def run(server: BenchServer, plan: Plan) -> Part:
    """Each size in turn, some times; each time both modes in turn, some rounds, in the same processes.

    Then each mode and size once more on loops that tell when they idled.
    """
    runs: Runs = {(mode, size): [] for size in SIZES for mode in MODES}
    for _ in range(plan.step_rounds):
        for size in SIZES:
            told = _side(server, "modes", str(size), str(plan.workflows), str(plan.mode_rounds))
            for mode in MODES:
                runs[mode, size] += told[mode]
    idle = {(mode, size): _side(server, "idle", mode, str(size), str(plan.workflows)) for mode, size in runs}
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
    """Owner mode's rate over claim mode's, of drains that the same processes made one after the other.

    With one process the interval of its median must reach 1: more cannot be told on a machine that is not alone. Two
    that own half the partitions each have about 51 and 49 of 100 runs, and one ends before the other; each also walks
    over the other's tasks.
    """
    bounds = []
    for size in SIZES:
        pairs = zip(runs["owner", size], runs["claim", size], strict=True)
        ratios = sorted(owner["rate"] / claim["rate"] for owner, claim in pairs)
        name = f"{_workers(size)}: owner mode's rate / claim mode's, median of {len(ratios)}"
        bounds.append(at_least(name, statistics.median(ratios), LEAST_MEDIAN[size]))
        if size == 1:
            bounds.append(at_least(f"{name}, upper end of its 95 % interval", _upper_end(ratios), LEAST_OF_CLAIM))
    return bounds


def _upper_end(ordered: list[float]) -> float:
    """The upper end of the 95 % interval of a median, by the order of the samples alone (the sign test)."""
    beyond = math.ceil(len(ordered) / 2 + 0.98 * math.sqrt(len(ordered)))
    return ordered[min(beyond, len(ordered) - 1)]


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


def _side(server: BenchServer, case: str, *arguments: str) -> Any:
    url = server.fresh(case)
    told = run_side("fleet_side", case, url, *arguments, timeout=1200)
    server.drop(url)
    return told
