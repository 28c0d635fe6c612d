"""`/w/{execution_id}/pause` and `/resume`: pages that say what stops, what goes on, and who holds the run."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post

from harvest.history.ids import parse_execution_id
from harvest.operations import pausing
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest_console.pages.confirming import REFUSALS, Confirmation, back, confirm_page, typed
from harvest_console.pages.types import AnyRequest, Page


@get("/w/{execution:str}/pause")
async def pause_page(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What a pause would do to this run."""
    return await _pause_page(request, shards, execution, Confirmation())


@post("/w/{execution:str}/pause")
async def pause(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Hold the run, or draw the page again with what is wrong. A run that is held already stays as it is."""
    form = await typed(request, reason_needed=False)
    if form.problems:
        return await _pause_page(request, shards, execution, form, status=422)
    try:
        done = await pausing.pause(shards, actor, parse_execution_id(execution), reason=form.reason)
    except REFUSALS as error:
        return await _pause_page(request, shards, execution, form, status=error.status, refused=error.message)
    return back(request, done.execution_id, "paused" if done.newly_paused else "unchanged")


async def _pause_page(
    request: AnyRequest, shards: Shards, execution: str, form: Confirmation, *, status: int = 200, refused: str = ""
) -> Page:
    return await confirm_page(
        request, shards, execution, "pause.html", form, reason_needed=False, status=status, refused=refused
    )


@get("/w/{execution:str}/resume")
async def resume_page(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """Who holds this run, and what a resume would do."""
    return await confirm_page(request, shards, execution, "resume.html", Confirmation())


@post("/w/{execution:str}/resume")
async def resume(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Let the run go on. One that is not held stays as it is."""
    try:
        done = await pausing.resume(shards, actor, parse_execution_id(execution))
    except REFUSALS as error:
        return await confirm_page(
            request, shards, execution, "resume.html", Confirmation(), status=error.status, refused=error.message
        )
    return back(request, done.execution_id, "resumed" if done.newly_resumed else "unchanged")


handlers = [pause_page, pause, resume_page, resume]
