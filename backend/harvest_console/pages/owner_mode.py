"""`/owner-mode`: what each shard's workers allow; `/shards/{shard_id}/owner-mode`: turning it on and off."""

from __future__ import annotations

from typing import Any, Final

from litestar import Response, get, post
from litestar.response import Redirect

from harvest.errors import (
    InvalidRequestError,
    LimitError,
    NotTableOwnerError,
    OwnerModeBusyError,
    OwnerModeRefusedError,
    ShardUnavailableError,
)
from harvest.operations import owner_mode
from harvest.operations.actor import Actor
from harvest.operations.owner_mode import OwnerModeStatus
from harvest.shards import Shards
from harvest_console.pages.confirming import Confirmation, typed
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path, posted
from harvest_console.rendering import build_url, render, render_region

# What is told on the page itself; anything else is an error page.
REFUSALS: Final = (OwnerModeRefusedError, OwnerModeBusyError, NotTableOwnerError, InvalidRequestError, LimitError)
PHRASES: Final = {True: "owner mode on", False: "owner mode off"}


@get("/owner-mode")
async def owner_mode_page(request: AnyRequest, shards: Shards) -> Page:
    """Every shard with its preconditions."""
    return render(
        request, "owner_mode.html", section="owner_mode", topics="list", found=await owner_mode.status(shards)
    )


@get(FRAGMENTS + "/owner-mode")
async def owner_mode_region(request: AnyRequest, shards: Shards) -> Page:
    """The same, read again."""
    return render_region(request, "regions/owner_mode_update.html", found=await owner_mode.status(shards))


@get("/shards/{shard_id:int}/owner-mode")
async def change_page(request: AnyRequest, shards: Shards, shard_id: int) -> Page:
    """What turning it on, or off, would do now. Raises ShardUnavailableError."""
    found = await _status(shards, shard_id)
    return _change_page(request, found, not found.enabled, Confirmation())


@post("/shards/{shard_id:int}/owner-mode")
async def change(request: AnyRequest, shards: Shards, actor: Actor, shard_id: int) -> Response[Any]:
    """Turn it on or off, or draw the page again with what is missing or refused."""
    enabled = (await posted(request)).get("enabled") == "true"
    form = await typed(request, phrase=PHRASES[enabled])
    if form.problems:
        return _change_page(request, await _status(shards, shard_id), enabled, form, status=422)
    try:
        act = owner_mode.enable if enabled else owner_mode.disable
        done = await act(shards, actor, shard_id, reason=form.reason)
    except REFUSALS as error:
        found = await _status(shards, shard_id)
        return _change_page(request, found, enabled, form, status=error.status, refused=error.message)
    did = ("on" if done.enabled else "off") if done.changed else "unchanged"
    page = f"/shards/{shard_id}/partitions"
    return Redirect(build_url(base_path(request), page, did=did), status_code=303)


def _change_page(
    request: AnyRequest,
    found: OwnerModeStatus,
    enabled: bool,
    form: Confirmation,
    *,
    status: int = 200,
    refused: str = "",
) -> Page:
    return render(
        request,
        "owner_mode_change.html",
        status=status,
        section="owner_mode",
        shard=found,
        enabled=enabled,
        typed=form,
        refused=refused,
        phrase=PHRASES[enabled],
    )


async def _status(shards: Shards, shard_id: int) -> OwnerModeStatus:
    found = await owner_mode.status(shards)
    for missing in found.missing:
        if missing.shard_id == shard_id:
            raise ShardUnavailableError(
                f"shard {shard_id} does not answer: {missing.reason}", shard_id=shard_id, reason=missing.reason
            )
    for shard in found.rows:
        if shard.shard_id == shard_id:
            return shard
    raise ShardUnavailableError(
        f"shard {shard_id} has no database configured here", shard_id=shard_id, reason="not configured"
    )


handlers = [owner_mode_page, owner_mode_region, change_page, change]
