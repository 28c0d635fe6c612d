"""`/`: shards, workers, what is open and what failed, the oldest open run and the last acts."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import get
from msgspec import Struct

from harvest.operations import overview
from harvest.operations.overview import WorkerView
from harvest.shards import Shards
from harvest_console.pages.acts import act_rows
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.rendering import render, render_region


class WorkerRow(Struct, frozen=True, kw_only=True):
    """A worker with its counters, as far as they are the ones that this page knows (answers 18)."""

    view: WorkerView
    warm: int | None
    cold: int | None
    fenced: int | None


@get("/")
async def overview_page(request: AnyRequest, shards: Shards) -> Page:
    """The whole page."""
    return render(
        request, "overview.html", section="overview", topics="list", **await _context(shards, base_path(request))
    )


@get(FRAGMENTS + "/overview")
async def overview_region(request: AnyRequest, shards: Shards) -> Page:
    """The figures, read again."""
    return render_region(request, "regions/overview_update.html", **await _context(shards, base_path(request)))


async def _context(shards: Shards, base: str) -> dict[str, Any]:
    found = await overview.overview(shards)
    return {
        "found": found,
        "alive": sum(worker.alive for worker in found.workers),
        "workers": [_worker_row(worker) for worker in found.workers],
        "acts": act_rows(found.acts.rows, base),
    }


def _worker_row(worker: WorkerView) -> WorkerRow:
    try:
        counters = msgspec.json.decode(worker.counters, type=dict[str, Any] | None) or {}
    except msgspec.MsgspecError:
        counters = {}
    flat = _flat(counters)
    return WorkerRow(
        view=worker,
        warm=flat.get("decisions_warm"),
        cold=flat.get("decisions_cold"),
        fenced=flat.get("fenced"),
    )


def _flat(counters: dict[str, Any]) -> dict[str, int]:
    """Counters by name, whether or not they are grouped by loop; a count by reason is summed."""
    flat: dict[str, int] = {}
    for name, value in counters.items():
        if isinstance(value, dict):
            inner = _flat(value)
            flat |= inner
            flat.setdefault(name, sum(inner.values()))
        elif isinstance(value, int):
            flat[name] = value
    return flat


handlers = [overview_page, overview_region]
