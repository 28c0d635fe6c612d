"""`/w/{execution_id}/cancel` and `/terminate`: pages with the facts, a reason, and for the latter a typed phrase."""

from __future__ import annotations

from typing import Any, Final

from litestar import Response, get, post
from litestar.response import Redirect
from msgspec import Struct

from harvest.errors import ExecutionClosedError, InvalidRequestError, LimitError
from harvest.history.ids import parse_execution_id
from harvest.history.limits import REASON_CHARACTERS
from harvest.operations import closing, reading
from harvest.operations.actor import Actor
from harvest.operations.views import is_open
from harvest.shards import Shards
from harvest_console.pages.types import AnyRequest, Page, base_path, posted
from harvest_console.rendering import build_url, render
from harvest_console.rendering.states import shown_state

PHRASE: Final = "terminate"
NEEDED: Final = "Needed: it is kept in the audit log with your name."


class Confirmation(Struct, frozen=True, kw_only=True):
    """What was typed so far, and what is wrong with it by field name."""

    reason: str = ""
    phrase: str = ""
    problems: dict[str, str] = {}


@get("/w/{execution:str}/cancel")
async def cancel_page(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What a cancel would do to this run."""
    return await _page(request, shards, execution, "cancel.html", Confirmation())


@post("/w/{execution:str}/cancel")
async def cancel(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Ask the run to cancel, or draw the page again with what is missing."""
    typed = await _typed(request)
    if typed.problems:
        return await _page(request, shards, execution, "cancel.html", typed, status=422)
    execution_id = parse_execution_id(execution)
    try:
        done = await closing.cancel(shards, actor, execution_id, reason=typed.reason)
    except (ExecutionClosedError, InvalidRequestError, LimitError) as error:
        return await _page(request, shards, execution, "cancel.html", typed, status=error.status, refused=error.message)
    return _back(request, execution_id, "cancelled" if done.newly_cancelled else "unchanged")


@get("/w/{execution:str}/terminate")
async def terminate_page(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What a terminate would do to this run."""
    return await _page(request, shards, execution, "terminate.html", Confirmation())


@post("/w/{execution:str}/terminate")
async def terminate(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """End the run at once, or draw the page again with what is missing."""
    typed = await _typed(request, phrase=PHRASE)
    if typed.problems:
        return await _page(request, shards, execution, "terminate.html", typed, status=422)
    execution_id = parse_execution_id(execution)
    try:
        done = await closing.terminate(shards, actor, execution_id, reason=typed.reason)
    except (ExecutionClosedError, InvalidRequestError, LimitError) as error:
        return await _page(
            request, shards, execution, "terminate.html", typed, status=error.status, refused=error.message
        )
    return _back(request, execution_id, "terminated" if done.newly_terminated else "unchanged")


async def _typed(request: AnyRequest, *, phrase: str = "") -> Confirmation:
    """The posted form with what is missing in it."""
    fields = await posted(request)
    reason, said = fields.get("reason", "").strip(), fields.get("phrase", "").strip()
    problems = {}
    if not reason:
        problems["reason"] = NEEDED
    elif len(reason) > REASON_CHARACTERS:
        problems["reason"] = f"At most {REASON_CHARACTERS} characters, this has {len(reason)}."
    if phrase and said != phrase:
        problems["phrase"] = f"Type the word {phrase} to confirm."
    return Confirmation(reason=reason, phrase=said, problems=problems)


async def _page(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    template: str,
    typed: Confirmation,
    *,
    status: int = 200,
    refused: str = "",
) -> Page:
    run = await reading.get(shards, parse_execution_id(execution))
    return render(
        request,
        template,
        status=status,
        section="workflows",
        run=run,
        is_open=is_open(run.state),
        shown=shown_state(run.state, run.blocked.code if run.blocked else None),
        typed=typed,
        refused=refused,
        phrase=PHRASE,
    )


def _back(request: AnyRequest, execution_id: object, did: str) -> Redirect:
    return Redirect(build_url(base_path(request), f"/w/{execution_id}", did=did), status_code=303)


handlers = [cancel_page, cancel, terminate_page, terminate]
