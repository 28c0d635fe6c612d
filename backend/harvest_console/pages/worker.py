"""`/workers/{worker_id}`: one worker: how it does, its configuration, what it has the code for, what is kept for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import msgspec
from litestar import get
from msgspec import Raw, Struct

from harvest.errors import HarvestError, InvalidRequestError
from harvest.operations import workers
from harvest.operations.worker_views import ConfigOption, PinnedRun
from harvest.shards import Partial, Shards
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page
from harvest_console.pages.worker_words import COUNTERS
from harvest_console.pages.workers import decided_by_worker, worker_row
from harvest_console.rendering import render, render_region
from harvest_console.rendering.json_text import head_of

MOST_PINNED: Final = 50
REPORT_BYTES: Final = 8 * 1024
# What a page does once an act has brought its reader back.
DID: Final = {
    "draining": "It takes on nothing new, finishes what runs, hands over and ends.",
    "already_draining": "It was draining already; only its deadline can still be changed.",
    "requested": "It lets go of its parked runs. The next decision of each is a replay.",
}


class CounterRow(Struct, frozen=True, kw_only=True):
    """One counter: its name, a few words where there are any, and its total since the worker began."""

    name: str
    words: str
    count: int


class OptionRow(Struct, frozen=True, kw_only=True):
    """One option with its value as text, and where that comes from."""

    name: str
    value: str
    origin: str


def worker_id_of(text: str) -> UUID:
    """The id of a worker as an address carries it; raises InvalidRequestError."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequestError(f"{text[:60]!r} is no id of a worker") from None


@get("/workers/{worker:str}")
async def worker_page(request: AnyRequest, shards: Shards, worker: str, did: str = "") -> Page:
    """The whole page. Raises WorkerNotFoundError and ShardUnavailableError."""
    context = await _context(shards, worker_id_of(worker))
    return render(request, "worker.html", section="workers", topics="list", did=DID.get(did, ""), **context)


@get(FRAGMENTS + "/workers/{worker:str}")
async def worker_region(request: AnyRequest, shards: Shards, worker: str) -> Page:
    """What changes of it, read again."""
    return render_region(request, "regions/worker_update.html", **await _context(shards, worker_id_of(worker)))


async def _context(shards: Shards, worker_id: UUID) -> dict[str, Any]:
    found, pinned, decided = await asyncio.gather(
        workers.get(shards, worker_id), _pinned(shards, worker_id), decided_by_worker(shards)
    )
    runs = pinned.rows if pinned else []
    report = head_of(bytes(found.report), REPORT_BYTES) if bytes(found.report) != b"null" else None
    return {
        "worker": found,
        "row": worker_row(found, decided),
        "counters": counter_rows(found.counters),
        "retried": _count(found.counters, "activities_retried"),
        "unavailable": _count(found.counters, "definitions_unavailable"),
        "options": [option_row(one) for one in found.config],
        "owned": {shard_id: ranges_text(numbers) for shard_id, numbers in found.owned.items()},
        "pinned": runs[:MOST_PINNED],
        "pinned_more": len(runs) > MOST_PINNED,
        "pinned_known": pinned is not None,
        "report": report,
        "lacks": found.now.lacks,
        "told_types": bool(found.workflow_types or found.activity_types),
    }


async def _pinned(shards: Shards, worker_id: UUID) -> Partial[PinnedRun] | None:
    """Runs that wait for it; the page does without when they cannot be read."""
    try:
        return await workers.pinned(shards, worker_id, limit=MOST_PINNED + 1)
    except HarvestError:
        return None


def counter_rows(counters: Raw) -> list[CounterRow]:
    """Totals: those with words first, in their order; then the others that are not 0, by name."""
    totals = {name: value for name, value in _totals(counters).items() if isinstance(value, int)}
    known = [
        CounterRow(name=name, words=words, count=totals[name]) for name, words in COUNTERS.items() if name in totals
    ]
    others = [
        CounterRow(name=name, words=name.replace("_", " "), count=count)
        for name, count in sorted(totals.items())
        if name not in COUNTERS and count
    ]
    return [*known, *others]


def _count(counters: Raw, name: str) -> int:
    value = _totals(counters).get(name)
    return value if isinstance(value, int) else 0


def _totals(counters: Raw) -> dict[str, Any]:
    try:
        return msgspec.json.decode(counters, type=dict[str, Any] | None) or {}
    except msgspec.MsgspecError:
        return {}


def option_row(one: ConfigOption) -> OptionRow:
    """An option with its value as people write it; a secret is told by its presence alone."""
    value = one.value
    if isinstance(value, list):
        text = ", ".join(_text(each) for each in value) or "none"
    elif isinstance(value, bool):
        text = "on" if value else "off"
    elif isinstance(value, (int, float)):
        text = f"{value:,}"
    else:
        text = _text(value) or "none"
    return OptionRow(name=one.name, value=text, origin=one.origin)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()


def ranges_text(numbers: Iterable[int]) -> str:
    """`0 to 12, 40, 77 to 80`: numbers in order, neighbours together."""
    parts = []
    for _, neighbours in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in neighbours]
        parts.append(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]))
    return ", ".join(parts)


handlers = [worker_page, worker_region]
