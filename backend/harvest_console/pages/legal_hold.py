"""`/w/{execution_id}/legal-hold`: who keeps a run from being erased and why, and the forms that set and release it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from litestar import Response, get, post
from msgspec.structs import replace

from harvest import clock
from harvest.errors import InvalidRequestError, RunBusyError
from harvest.history.ids import parse_execution_id
from harvest.operations import erasing, legal_holds, reading
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest_console.pages.confirming import REFUSALS, Confirmation, back, run_page, typed
from harvest_console.pages.queries import read_instant
from harvest_console.pages.types import AnyRequest, Page, posted


@get("/w/{execution:str}/legal-hold")
async def hold_page(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """The hold of this run, or the form that sets one."""
    return await _page(request, shards, execution, Confirmation())


@post("/w/{execution:str}/legal-hold")
async def set_hold(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Hold the run, or draw the page again with what is wrong. A run that is held already stays as it is."""
    form, fields = await typed(request), await posted(request)
    said = fields.get("until", "").strip()
    until, problem = _until(said, fields.get("tz", ""))
    if problem:
        form = replace(form, problems={**form.problems, "until": problem})
    if form.problems:
        return await _page(request, shards, execution, form, until=said, status=422)
    try:
        done = await legal_holds.hold(
            shards, actor, parse_execution_id(execution), reason=form.reason, hold_until=until
        )
    except (*REFUSALS, RunBusyError) as error:
        return await _page(request, shards, execution, form, until=said, status=error.status, refused=error.message)
    return back(request, done.hold.execution_id, "held" if done.newly_held else "unchanged")


@post("/w/{execution:str}/legal-hold/release")
async def release_hold(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Let the run be erased again, or draw the page again with what is wrong."""
    form, execution_id = await typed(request, reason_needed=False), parse_execution_id(execution)
    if form.problems:
        return await _page(request, shards, execution, form, status=422)
    try:
        released = await legal_holds.release(shards, actor, execution_id, reason=form.reason)
    except (*REFUSALS, RunBusyError) as error:
        return await _page(request, shards, execution, form, status=error.status, refused=error.message)
    return back(request, execution_id, "released" if released else "unchanged")


def _until(said: str, zone: str) -> tuple[datetime | None, str]:
    """When a hold ends, and what is wrong with it."""
    try:
        until = read_instant(said, zone, "until")
    except InvalidRequestError as error:
        return None, error.message
    if until is not None and until <= clock.now():
        return None, "This has passed. Leave it empty for a hold that lasts until somebody releases it."
    return until, ""


async def _page(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    form: Confirmation,
    *,
    until: str = "",
    status: int = 200,
    refused: str = "",
) -> Page:
    """The page, with what was typed and what is wrong with it. Raises as `reading.get` does."""
    run = await reading.get(shards, parse_execution_id(execution))
    hold, receipt = await asyncio.gather(
        legal_holds.hold_of(shards, run.execution_id), erasing.receipt_of(shards, run.execution_id)
    )
    return run_page(
        request,
        "legal_hold.html",
        run,
        status=status,
        hold=hold,
        receipt=receipt,
        typed=form,
        until_typed=until,
        refused=refused,
    )


handlers = [hold_page, set_hold, release_hold]
