"""`/shards/topology` and `/shards/residency`: how each process routes, and where each residency key leads."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from litestar import get
from msgspec import Struct

from harvest import clock
from harvest.operations import topology
from harvest.operations.topology import MOST_PROCESSES, ProcessView, ResidencyView, Topology
from harvest.shards import Shards
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render, render_region

HEADINGS: Final = {
    "default_shard": "Default",
    "readable_shards": "Readable",
    "reserved_shards": "Reserved",
    "residency_map": "Residency",
    "shard_forwards": "Forwards",
    "writable_shards": "Writable",
}
BRIEF_STALE: Final = 10
MOST_PAIRS: Final = 6
MOST_DISSENT: Final = 6


class Cell(Struct, frozen=True):
    """What one process has in one field; `heading` is that of its column."""

    heading: str
    text: str
    whole: str
    differs: bool


class ProcessRow(Struct, frozen=True):
    """A process with its cells, in the order of the columns. `heard_at` is by this console's clock."""

    view: ProcessView
    heard_at: datetime
    cells: list[Cell]


class ResidencyRow(Struct, frozen=True):
    """A residency key with the words for its target, each with its look, and the processes that lead it elsewhere."""

    view: ResidencyView
    states: list[tuple[str, str]]
    dissent: list[str]
    left_out: int


@get("/shards/topology")
async def topology_page(request: AnyRequest, shards: Shards, stale: str = "") -> Page:
    """Processes by the fields of their routers."""
    context = await _matrix(request, shards, stale)
    return render(request, "topology.html", section="shards", topics="list", **context)


@get(FRAGMENTS + "/shards/topology")
async def topology_region(request: AnyRequest, shards: Shards, stale: str = "") -> Page:
    """The matrix, read again."""
    return render_region(request, "regions/topology_update.html", **await _matrix(request, shards, stale))


@get("/shards/residency")
async def residency_page(request: AnyRequest, shards: Shards) -> Page:
    """Residency keys with their shards."""
    return render(request, "residency.html", section="shards", topics="list", **await _map(request, shards))


@get(FRAGMENTS + "/shards/residency")
async def residency_region(request: AnyRequest, shards: Shards) -> Page:
    """The map, read again."""
    return render_region(request, "regions/residency_update.html", **await _map(request, shards))


async def _matrix(request: AnyRequest, shards: Shards, stale: str) -> dict[str, Any]:
    found = await topology.topology(shards)
    (known,) = found.rows
    shown, hidden = _shown(known, whole=stale == "all")
    parameters = {"stale": "all" if stale == "all" else None}
    base, now = base_path(request), clock.now()
    return {
        "found": found,
        "columns": [(heading(field.name), field.differs) for field in known.fields],
        "rows": [ProcessRow(one, now - timedelta(seconds=one.age_seconds), _cells(known, one)) for one in shown],
        "living": len(known.living),
        "apart": sum(bool(one.differing_fields) for one in known.living),
        "differing": [heading(name) for name in known.differing],
        "digests": len({one.digest for one in known.living}),
        "hidden": hidden,
        "all_url": build_url(base, "/shards/topology", stale="all"),
        "here_url": build_url(base, "/shards/topology", **parameters),
        "region_url": build_url(base, FRAGMENTS + "/shards/topology", **parameters),
        "stale_seconds": round(topology.STALE_SECONDS),
        "full": len(known.processes) >= MOST_PROCESSES,
    }


async def _map(request: AnyRequest, shards: Shards) -> dict[str, Any]:
    found = await topology.topology(shards)
    (known,) = found.rows
    entries = topology.residency(shards, known.processes)
    entries.sort(key=lambda one: (not one.dissent, one.key))
    base = base_path(request)
    return {
        "found": found,
        "rows": [_residency_row(one) for one in entries],
        "living": len(known.living),
        "disputed": sum(bool(one.dissent) for one in entries),
        "here_url": build_url(base, "/shards/residency"),
        "region_url": build_url(base, FRAGMENTS + "/shards/residency"),
    }


def _shown(known: Topology, *, whole: bool) -> tuple[list[ProcessView], int]:
    """The processes to list and how many stale ones are left out; those heard of last come first among them."""
    stale = sorted((one for one in known.processes if one.stale), key=lambda one: one.age_seconds)
    kept = stale if whole else stale[:BRIEF_STALE]
    return [*known.living, *kept], len(stale) - len(kept)


def heading(name: str) -> str:
    """A field as its column is headed; one that this release does not know has its own name."""
    return HEADINGS.get(name, name)


def _cells(known: Topology, process: ProcessView) -> list[Cell]:
    return [
        Cell(
            heading=heading(field.name),
            text=_told(process.topology, field.name, field.agreed if field.name in process.differing_fields else None),
            whole=_value(process.topology.get(field.name)),
            differs=field.name in process.differing_fields,
        )
        for field in known.fields
    ]


def _told(told: dict[str, Any], name: str, agreed: Any) -> str:
    """A value in short: of a map that differs, what is not as in most; of a long one, how much it has."""
    if name not in told:
        return "not told"
    value = told[name]
    if not isinstance(value, dict):
        return _value(value)
    if isinstance(agreed, dict):
        parts = [f"{key} → {value[key]}" for key in value if agreed.get(key) != value[key]]
        parts += [f"no {key}" for key in agreed if key not in value]
        return "; ".join(parts[:MOST_PAIRS]) + (f"; {len(parts) - MOST_PAIRS} more" if len(parts) > MOST_PAIRS else "")
    return _value(value) if len(value) <= MOST_PAIRS else f"{len(value)} keys"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} → {shard}" for key, shard in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _residency_row(view: ResidencyView) -> ResidencyRow:
    dissent = [
        f"{one.name[:40]}: {'not declared' if one.shard_id is None else f'shard {one.shard_id}'}"
        for one in view.dissent[:MOST_DISSENT]
    ]
    return ResidencyRow(view, _states(view), dissent, len(view.dissent) - len(dissent))


def _states(view: ResidencyView) -> list[tuple[str, str]]:
    if view.shard_id is None:
        return [("Not declared here", "blocked")]
    states = []
    if not view.has_database:
        states.append(("No database here", "failed"))
    word, shape = ("Writable", "running") if view.writable else ("Readable only", "paused")
    states.append((f"{word}, reserved" if view.reserved else word, shape))
    return states


handlers = [topology_page, topology_region, residency_page, residency_region]
