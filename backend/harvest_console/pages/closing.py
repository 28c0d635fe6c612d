"""`/w/{execution_id}/cancel` and `/terminate`: pages with the facts, a reason, and for the latter a typed phrase."""

from __future__ import annotations

from typing import Any, Final

from litestar import Response, get, post

from harvest.history.ids import parse_execution_id
from harvest.operations import closing
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest_console.pages.confirming import REFUSALS, Confirmation, back, confirm_page, typed
from harvest_console.pages.types import AnyRequest, Page

PHRASE: Final = "terminate"


@get("/w/{execution:str}/cancel")
async def cancel_page(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What a cancel would do to this run."""
    return await confirm_page(request, shards, execution, "cancel.html", Confirmation())


@post("/w/{execution:str}/cancel")
async def cancel(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Ask the run to cancel, or draw the page again with what is missing."""
    form = await typed(request)
    if form.problems:
        return await confirm_page(request, shards, execution, "cancel.html", form, status=422)
    try:
        done = await closing.cancel(shards, actor, parse_execution_id(execution), reason=form.reason)
    except REFUSALS as error:
        return await confirm_page(
            request, shards, execution, "cancel.html", form, status=error.status, refused=error.message
        )
    return back(request, done.execution_id, "cancelled" if done.newly_cancelled else "unchanged")


@get("/w/{execution:str}/terminate")
async def terminate_page(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What a terminate would do to this run."""
    return await confirm_page(request, shards, execution, "terminate.html", Confirmation(), phrase=PHRASE)


@post("/w/{execution:str}/terminate")
async def terminate(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """End the run at once, or draw the page again with what is missing."""
    form = await typed(request, phrase=PHRASE)
    if form.problems:
        return await confirm_page(request, shards, execution, "terminate.html", form, phrase=PHRASE, status=422)
    try:
        done = await closing.terminate(shards, actor, parse_execution_id(execution), reason=form.reason)
    except REFUSALS as error:
        return await confirm_page(
            request,
            shards,
            execution,
            "terminate.html",
            form,
            phrase=PHRASE,
            status=error.status,
            refused=error.message,
        )
    return back(request, done.execution_id, "terminated" if done.newly_terminated else "unchanged")


handlers = [cancel_page, cancel, terminate_page, terminate]
