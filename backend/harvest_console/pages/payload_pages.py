"""Payloads on demand: 64 kB on a page of their own or unfolded in place, and the whole as a download."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from litestar import Response, get
from litestar.exceptions import NotFoundException

from harvest.history.ids import parse_execution_id
from harvest.operations import reading
from harvest.shards import Shards
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page
from harvest_console.rendering import render, render_region
from harvest_console.rendering.json_text import PAGE_BYTES, head_of

PARTS: Final = {"input": "Input", "result": "Result", "memo": "Memo", "current_details": "Current details"}
Render = Callable[..., Page]


@get("/w/{execution:str}/events/{event_id:int}")
async def event_page(request: AnyRequest, shards: Shards, execution: str, event_id: int) -> Page:
    """One event's data on a page of its own."""
    return await _event(render, request, shards, execution, event_id)


@get(FRAGMENTS + "/w/{execution:str}/events/{event_id:int}")
async def event_region(request: AnyRequest, shards: Shards, execution: str, event_id: int) -> Page:
    """One event's data, to unfold in the history."""
    return await _event(render_region, request, shards, execution, event_id)


@get("/w/{execution:str}/events/{event_id:int}/download")
async def event_download(shards: Shards, execution: str, event_id: int) -> Response[bytes]:
    """The whole data of an event as it is stored."""
    data = await reading.event_payload(shards, parse_execution_id(execution), event_id)
    return attachment(data, f"event-{event_id}.json")


@get("/w/{execution:str}/payload/{name:str}")
async def part_page(request: AnyRequest, shards: Shards, execution: str, name: str) -> Page:
    """Input, result or memo on a page of its own."""
    return await _part(render, request, shards, execution, name)


@get(FRAGMENTS + "/w/{execution:str}/payload/{name:str}")
async def part_region(request: AnyRequest, shards: Shards, execution: str, name: str) -> Page:
    """Input, result or memo, to unfold in its card."""
    return await _part(render_region, request, shards, execution, name)


@get("/w/{execution:str}/payload/{name:str}/download")
async def part_download(shards: Shards, execution: str, name: str) -> Response[bytes]:
    """The whole of input, result or memo as it is stored."""
    data = await reading.detail_payload(shards, parse_execution_id(execution), _known(name))
    return attachment(data, f"{name}.json")


async def _event(how: Render, request: AnyRequest, shards: Shards, execution: str, event_id: int) -> Page:
    execution_id = parse_execution_id(execution)
    read = reading.event_payload(shards, execution_id, event_id)
    return await _show(how, request, execution_id, f"Event {event_id}", f"events/{event_id}", read)


async def _part(how: Render, request: AnyRequest, shards: Shards, execution: str, name: str) -> Page:
    execution_id = parse_execution_id(execution)
    read = reading.detail_payload(shards, execution_id, _known(name))
    return await _show(how, request, execution_id, PARTS[name], f"payload/{name}", read)


def _known(name: str) -> str:
    if name not in PARTS:
        raise NotFoundException(f"a run has no payload {name[:40]!r}")
    return name


async def _show(
    how: Render, request: AnyRequest, execution_id: UUID, what: str, place: str, read: Awaitable[bytes]
) -> Page:
    """As a page or as a region, by the same read and the same template parts."""
    template = "payload.html" if how is render else "regions/payload.html"
    return how(
        request,
        template,
        execution_id=execution_id,
        what=what,
        head=head_of(await read, PAGE_BYTES),
        place=f"/w/{execution_id}/{place}",
        section="workflows",
    )


def attachment(data: bytes, name: str) -> Response[bytes]:
    """An attachment that no browser interprets (console 5.7)."""
    return Response(
        data,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"},
    )


handlers = [event_page, event_region, event_download, part_page, part_region, part_download]
