"""`/shards/{shard_id}/partitions`: the map of owners, the same as a table, and the journal of one partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from litestar import get
from litestar.response import Redirect
from msgspec import Struct

from harvest.errors import ShardUnavailableError
from harvest.history.ids import PARTITIONS
from harvest.operations import partitions
from harvest.operations.partitions import OwnerView, Pace, PartitionMap, PartitionView
from harvest.shards import Shards
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render, render_region

ACROSS: Final = 32
ROWS: Final = 128
BRIEF_ROWS: Final = 8
ENTRIES: Final = 8
PATTERNS: Final = 8
VIEWS: Final = ("map", "table")
SORTS: Final = ("trouble", "partition", "owner")
_LAST: Final = 2**63 - 1


class Place(Struct, frozen=True, kw_only=True):
    """What an address asks for: how the partitions are shown, and the window of the journal of one of them."""

    view: str = "map"
    sort: str = "trouble"
    owner: UUID | None = None
    first: int = 0
    partition: int | None = None
    before: int | None = None

    def parameters(self, **changed: Any) -> dict[str, Any]:
        """The parameters of an address."""
        values: dict[str, Any] = {
            "view": self.view if self.view != "map" else None,
            "sort": self.sort if self.sort != "trouble" else None,
            "owner": self.owner,
            "from": self.first or None,
            "p": self.partition,
            "before": self.before,
        }
        return values | changed


class Mark(Struct, frozen=True):
    """What stands for a worker: a letter, the number of its colour and pattern, its name."""

    letter: str
    pattern: int
    name: str


class Cell(Struct, frozen=True, kw_only=True):
    """A partition as it is drawn. `mark` is its owner's, None without one; `heir` is of whom it moves to."""

    view: PartitionView
    mark: Mark | None
    heir: Mark | None

    @property
    def text(self) -> str:
        """What stands in its place on the map."""
        if self.mark is None:
            return "–"
        return f"{self.mark.letter}›{self.heir.letter}" if self.heir else self.mark.letter

    @property
    def label(self) -> str:
        """The same in words."""
        if self.mark is None:
            return f"{self.view.partition}, no owner, epoch {self.view.epoch}"
        moving = f", moving to {self.heir.letter}" if self.heir else ""
        return f"{self.view.partition}, owner {self.mark.letter}{moving}, epoch {self.view.epoch}"

    @property
    def pattern(self) -> int | None:
        """The number of its colour and pattern: the heir's while it moves."""
        mark = self.heir or self.mark
        return mark.pattern if mark and self.mark else None


class OwnerRow(Struct, frozen=True, kw_only=True):
    """A worker of the map; `pace` is None where it has not told."""

    view: OwnerView
    mark: Mark
    pace: Pace | None


@get("/partitions")
async def first_partitions(request: AnyRequest, shards: Shards) -> Redirect:
    """To the partitions of the default shard."""
    return Redirect(build_url(base_path(request), f"/shards/{shards.router.default}/partitions"), status_code=303)


@get("/shards/{shard_id:int}/partitions")
async def partitions_page(request: AnyRequest, shards: Shards, shard_id: int) -> Page:
    """The whole page. Raises ShardUnavailableError."""
    return render(
        request,
        "partitions.html",
        section="partitions",
        topics="list",
        shard_ids=shards.router.readable,
        did=request.query_params.get("did", ""),
        **await _context(request, shards, shard_id),
    )


@get(FRAGMENTS + "/shards/{shard_id:int}/partitions")
async def partitions_region(request: AnyRequest, shards: Shards, shard_id: int) -> Page:
    """What changes of it, read again."""
    return render_region(request, "regions/partitions_update.html", **await _context(request, shards, shard_id))


async def _context(request: AnyRequest, shards: Shards, shard_id: int) -> dict[str, Any]:
    place = _place(request)
    found = await partitions.partition_map(shards, shard_id)
    journal = None
    if place.partition is not None:
        journal = await partitions.journal(shards, shard_id, place.partition, before=place.before, limit=ENTRIES)
    paces = await _paces(shards, shard_id)
    marks = _marks(found.owners)
    cells = _cells(found, marks)
    base, page = base_path(request), f"/shards/{shard_id}/partitions"
    query = request.url.query

    def link(**changed: Any) -> str:
        return build_url(base, page, **place.parameters(**changed))

    chosen = _chosen(cells, place)
    size = ROWS if place.view == "table" else BRIEF_ROWS
    first = place.first if place.first < len(chosen) else 0
    return {
        "shard_id": shard_id,
        "found": found,
        "place": place,
        "link": link,
        # As it was sent: the script that opens a partition in place compares addresses.
        "region_url": base + FRAGMENTS + page + (f"?{query}" if query else ""),
        "rows": [cells[at : at + ACROSS] for at in range(0, PARTITIONS, ACROSS)],
        "reachable": place.partition or 0,
        "owners": [
            OwnerRow(view=owner, mark=marks[owner.worker], pace=paces.get(owner.worker) if owner.is_live else None)
            for owner in found.owners
            if owner.held or owner.is_live
        ],
        "moving": [cell for cell in cells if cell.heir],
        "pace": paces.get(None),
        "filtered": marks.get(place.owner) if place.owner else None,
        "listed": chosen[first : first + size],
        "first": first,
        "total": len(chosen),
        "earlier_url": link(**{"from": max(0, first - size) or None}) if first else None,
        "later_url": link(**{"from": first + size}) if first + size < len(chosen) else None,
        "journal": journal,
        "selected": cells[place.partition] if place.partition is not None else None,
        "marks": marks,
    }


async def _paces(shards: Shards, shard_id: int) -> dict[UUID | None, Pace]:
    """Figures beside the map: it is drawn without them where they cannot be read."""
    try:
        return await partitions.paces(shards, shard_id)
    except ShardUnavailableError:
        return {}


def _place(request: AnyRequest) -> Place:
    """What an address asks for, without what means nothing."""
    given = request.query_params
    view, sort = given.get("view", ""), given.get("sort", "")
    return Place(
        view=view if view in VIEWS else VIEWS[0],
        sort=sort if sort in SORTS else SORTS[0],
        owner=_uuid(given.get("owner", "")),
        first=_number(given.get("from", ""), PARTITIONS - 1) or 0,
        partition=_number(given.get("p", ""), PARTITIONS - 1),
        before=_number(given.get("before", ""), _LAST),
    )


def _number(text: str, most: int) -> int | None:
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most:
        return int(text)
    return None


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _marks(owners: Sequence[OwnerView]) -> dict[UUID, Mark]:
    """A letter for each worker by its place in the list; after eight, colours and patterns begin again."""
    return {
        owner.worker: Mark(_letter(place), place % PATTERNS, owner.name or str(owner.worker)[:8])
        for place, owner in enumerate(owners)
    }


def _letter(place: int) -> str:
    letter = chr(ord("a") + place % 26)
    return letter if place < 26 else _letter(place // 26 - 1) + letter


def _cells(found: PartitionMap, marks: dict[UUID, Mark]) -> list[Cell]:
    return [
        Cell(
            view=each,
            mark=marks.get(each.owner) if each.owner and found.is_owned(each) else None,
            heir=marks.get(each.heir) if each.heir and found.is_owned(each) else None,
        )
        for each in found.partitions
    ]


def _chosen(cells: Sequence[Cell], place: Place) -> list[Cell]:
    """The rows of the table in its order: without an owner first, then those that move; by number within."""
    found = [cell for cell in cells if place.owner is None or (cell.mark and cell.view.owner == place.owner)]
    if place.sort == "owner":
        return sorted(found, key=lambda cell: (cell.mark is not None, cell.mark.letter if cell.mark else ""))
    if place.sort == "trouble":
        return sorted(found, key=lambda cell: (cell.mark is not None, cell.heir is None))
    return found


handlers = [first_partitions, partitions_page, partitions_region]
