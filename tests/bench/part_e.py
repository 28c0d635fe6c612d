"""Bench (e): replaying a history, beside temporalio's Replayer on the same program."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.bench.figures import Part, at_least, at_most, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import bench_python, run_side

TITLE: Final = "activities replayed a second, and a long history loaded and replayed"
WORKFLOW: Final = "many_steps"
RUNNERS: Final = ("plain", "sandboxed")
"""temporalio's workflow runners: without its sandbox and, as it is by default, with it."""
TEMPORAL_ROUNDS: Final = 3
LEAST_OF_TEMPORAL: Final = 5.0
LONG_EVENTS: Final = 10_000
MOST_MILLISECONDS: Final = 150.0


def run(server: BenchServer, plan: Plan) -> Part:
    """Ours and both runners of temporalio, interleaved; the better runner counts."""
    ours: dict[int, list[float]] = {size: [] for size in plan.replayed}
    theirs: dict[tuple[int, str], list[float]] = {(size, of): [] for size in plan.replayed for of in RUNNERS}
    whole: dict[str, list[float]] = {"load_ms": [], "whole_ms": []}
    with tempfile.TemporaryDirectory(prefix="hvb-histories-") as folder:
        files = {size: str(Path(folder) / f"{WORKFLOW}-{size}.json") for size in plan.replayed}
        for size, file in files.items():
            run_side("temporal_history", str(size), file)
        for _ in range(plan.rounds):
            told = _ours(server, plan)
            for size in plan.replayed:
                ours[size].append(statistics.median(told[str(size)]["rates"]))
                for runner in RUNNERS:
                    theirs[size, runner].append(_theirs(files[size], size, runner))
            for name, runs in whole.items():
                runs.append(statistics.median(told[str(_long(plan))][name]))
    return _part(plan, ours, theirs, whole)


def _long(plan: Plan) -> int:
    """Activities of a history of LONG_EVENTS, three events each."""
    return LONG_EVENTS // 3


def _ours(server: BenchServer, plan: Plan) -> dict[str, Any]:
    url = server.fresh("replays")
    sizes = sorted({*plan.replayed, _long(plan)})
    told = run_side("engine_side", "replays", url, str(plan.replays), *map(str, sizes), timeout=1200)
    server.drop(url)
    return told


def _theirs(file: str, size: int, runner: str) -> float:
    arguments = (file, str(size), str(TEMPORAL_ROUNDS), runner)
    told = run_side("temporal_side", *arguments, python=bench_python("temporalio"), timeout=1200)
    return float(statistics.median(told["rates"]))


def _part(
    plan: Plan,
    ours: dict[int, list[float]],
    theirs: dict[tuple[int, str], list[float]],
    whole: dict[str, list[float]],
) -> Part:
    figures, bounds = [], []
    for size in plan.replayed:
        figures.append(figure(f"engine, {size:,} activities in a run", "act/s", ours[size]))
        for runner in RUNNERS:
            figures.append(figure(f"temporalio {runner}, {size:,}", "act/s", theirs[size, runner]))
        best = max(statistics.median(theirs[size, runner]) for runner in RUNNERS)
        name = f"engine / temporalio, the better runner, {size:,}"
        bounds.append(at_least(name, statistics.median(ours[size]) / best, LEAST_OF_TEMPORAL))
    load = statistics.median(whole["load_ms"])
    figures.append(figure(f"{LONG_EVENTS:,} events loaded and replayed", "ms", whole["whole_ms"], load_ms=load))
    bounds.append(at_most("milliseconds for them", figures[-1].median, MOST_MILLISECONDS))
    return Part("e", TITLE, figures, bounds)
