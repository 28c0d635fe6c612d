"""`/shards/relay`: children on other shards by where they come from and live, and deliveries that make no progress."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from litestar import get
from msgspec import Struct

from harvest.operations import relay
from harvest.operations.relay import InFlight
from harvest.shards import Shards
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page
from harvest_console.rendering import render, render_region

KIND_WORDS: Final = {
    "child_start": "start a child",
    "child_closed": "tell a parent of the end",
    "child_cancel": "ask a child to end",
    "close_policy": "close a child",
    "external_signal": "signal a run",
    "external_cancel": "ask a run to end",
    "external_await": "wait for a run's end",
}


class Way(Struct, frozen=True, kw_only=True):
    """Children on one shard of runs on another, by what is still to come for them; with `capped` at least so many."""

    source_shard: int
    target_shard: int
    pending: int
    started: int
    closing: int
    cancelling: int
    failing: int
    oldest_at: datetime
    capped: bool


@get("/shards/relay")
async def relay_page(request: AnyRequest, shards: Shards) -> Page:
    """The whole page."""
    return render(request, "relay.html", section="shards", topics="list", **await _context(shards))


@get(FRAGMENTS + "/shards/relay")
async def relay_region(request: AnyRequest, shards: Shards) -> Page:
    """The same, read again."""
    return render_region(request, "regions/relay_update.html", **await _context(shards))


async def _context(shards: Shards) -> dict[str, Any]:
    found = await relay.relay(shards)
    return {"found": found, "ways": ways(found.in_flight), "kind_words": KIND_WORDS}


def ways(rows: Sequence[InFlight]) -> list[Way]:
    """One row for each source and target, from rows in that order."""
    return [
        _way(source, target, list(group))
        for (source, target), group in groupby(rows, key=lambda row: (row.source_shard, row.target_shard))
    ]


def _way(source: int, target: int, rows: Sequence[InFlight]) -> Way:
    def count(status: str) -> int:
        return sum(row.in_flight for row in rows if row.status == status)

    return Way(
        source_shard=source,
        target_shard=target,
        pending=count("PENDING_START"),
        started=count("STARTED"),
        closing=count("CLOSING"),
        cancelling=sum(row.in_flight for row in rows if row.cancel_requested),
        failing=sum(row.failing for row in rows),
        oldest_at=min(row.oldest_at for row in rows),
        capped=any(row.capped for row in rows),
    )


handlers = [relay_page, relay_region]
