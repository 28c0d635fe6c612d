"""Bench (h): (a) for ten minutes; what it did in the second it still does in the last."""

from __future__ import annotations

from typing import Final

from tests.bench.figures import Part, at_least, figure
from tests.bench.plan import Plan
from tests.bench.server import BenchServer
from tests.bench.side import run_side

LEAST_LEFT: Final = 0.9
SPARE_SECONDS: Final = 900


def run(server: BenchServer, plan: Plan) -> Part:
    """One worker that is kept busy all the time."""
    url = server.fresh("soak")
    arguments = (str(plan.soak_seconds), str(plan.soak_slices))
    told = run_side("engine_side", "soak", url, *arguments, timeout=plan.soak_seconds + SPARE_SECONDS)
    server.drop(url)
    rates, sizes = told["rates"], told["megabytes"]
    each = plan.soak_seconds / plan.soak_slices
    detail = {"all_runs": told["runs"], "mb_after_second": sizes[1], "mb_at_end": sizes[-1]}
    kept = figure(f"runs of three activities, each {each:g} s", "runs/s", rates, **detail)
    title = f"{plan.soak_seconds:,} seconds of (a), one worker process"
    return Part("h", title, [kept], [at_least("the last / the second", rates[-1] / rates[1], LEAST_LEFT)])
