"""`/w/{execution_id}/query`: choose one of the queries that the run answers, fill in its form, see what it says.

An answer is kept nowhere: it is drawn by the request that asked, and a download asks once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from litestar import Response, get, post
from msgspec import Struct
from msgspec.structs import replace

from harvest import clock
from harvest.errors import (
    HarvestError,
    InputInvalidError,
    LimitError,
    PayloadError,
    QueryFailedError,
    QueryNotFoundError,
)
from harvest.history.ids import parse_execution_id
from harvest.operations import reading, requesting
from harvest.operations.actor import Actor
from harvest.operations.views import ExecutionDetail
from harvest.shards import Shards
from harvest_console.pages.composing import Declared, checked, drawn_again, refused, title_of
from harvest_console.pages.confirming import run_page
from harvest_console.pages.forms import PayloadForm, new_form, posted_form
from harvest_console.pages.payload_pages import attachment
from harvest_console.pages.types import AnyRequest, Page, posted
from harvest_console.pages.unanswered import UNANSWERED, Unanswered, is_silent, unanswered
from harvest_console.rendering.json_text import Head, head_of

# Enough to read; the whole of it is in the download.
ANSWER_BYTES: Final = 16 * 1024


class Told(Struct, frozen=True, kw_only=True):
    """What the handler said, or how it failed. `args` is the JSON text that it was asked with."""

    args: str
    at: datetime
    answer: Head | None = None
    failed: str = ""


class Asked(Struct, frozen=True, kw_only=True):
    """The page: the names there are, the one that is meant, its form, and what came of asking."""

    names: Declared
    name: str
    payload: PayloadForm
    told: Told | None = None
    status: int = 200
    refused: str = ""
    unanswered: Unanswered | None = None


@get("/w/{execution:str}/query")
async def query_page(request: AnyRequest, shards: Shards, execution: str, name: str = "", tab: str = "") -> Page:
    """The form of a query; of the first there is, when none is named."""
    run = await reading.get(shards, parse_execution_id(execution))
    try:
        names = (await requesting.handlers(shards, run.execution_id)).queries
    except UNANSWERED as error:
        return _page(request, run, _nobody(name, error))
    if name and name not in names:
        return _page(request, run, _gone(names, name))
    name = name or next(iter(names), "")
    schema = names.get(name, {})
    return _page(request, run, Asked(names=names, name=name, payload=new_form(schema, title_of(schema, name), tab)))


@post("/w/{execution:str}/query", status_code=200)
async def ask_query(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Ask, and draw the page with the answer, or with what is wrong."""
    fields = await posted(request)
    run = await reading.get(shards, parse_execution_id(execution))
    name = fields.get("name", "")
    try:
        names = (await requesting.handlers(shards, run.execution_id)).queries
    except UNANSWERED as error:
        return _page(request, run, _nobody(name, error))
    if name not in names:
        return _page(request, run, _gone(names, name))
    asked = Asked(names=names, name=name, payload=posted_form(names[name], title_of(names[name], name), fields))
    if unsent := drawn_again(asked.payload, names[name], fields):
        status, form = unsent
        return _page(request, run, replace(asked, status=status, payload=form))
    asked = replace(asked, payload=checked(asked.payload, names[name]))
    if asked.payload.problems:
        return _page(request, run, replace(asked, status=422))
    return _page(request, run, await _told(shards, actor, run, asked))


@post("/w/{execution:str}/query/download", status_code=200)
async def download_answer(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[bytes]:
    """Ask once more, and save the whole answer. Raises as the operation does."""
    fields = await posted(request)
    answer = await requesting.query(
        shards, actor, parse_execution_id(execution), fields.get("name", ""), fields.get("args", "").encode()
    )
    return attachment(answer, "answer.json")


async def _told(shards: Shards, actor: Actor, run: ExecutionDetail, asked: Asked) -> Asked:
    args = asked.payload.complete
    try:
        answer = await requesting.query(shards, actor, run.execution_id, asked.name, args.encode())
    except InputInvalidError as error:
        return replace(asked, status=422, payload=refused(asked.payload, error))
    except (QueryNotFoundError, LimitError, PayloadError) as error:
        return replace(asked, status=error.status, refused=error.message)
    except UNANSWERED as error:
        if isinstance(error, QueryFailedError) and not is_silent(error):
            return replace(asked, status=error.status, told=Told(args=args, at=clock.now(), failed=failure_text(error)))
        return replace(asked, status=error.status, unanswered=unanswered(error))
    return replace(asked, told=Told(args=args, at=clock.now(), answer=head_of(answer, ANSWER_BYTES)))


def failure_text(error: HarvestError) -> str:
    """Type and message of what the handler raised; else what the engine says of it."""
    failure = error.fields.get("failure")
    if not isinstance(failure, Mapping):
        return error.message
    return f"{failure.get('type', '')}: {failure.get('message', '')}"


def _nobody(name: str, error: HarvestError) -> Asked:
    """Nobody could say which queries there are."""
    why = unanswered(error)
    return Asked(names={}, name=name, payload=new_form({}, name), status=why.status, unanswered=why)


def _gone(names: Declared, name: str) -> Asked:
    refused = f"this run has no query {name[:80]!r} now"
    return Asked(names=names, name="", payload=new_form({}, ""), status=404, refused=refused)


def _page(request: AnyRequest, run: ExecutionDetail, asked: Asked) -> Page:
    return run_page(
        request,
        "query.html",
        run,
        status=asked.status,
        asked=asked,
    )


handlers = [query_page, ask_query, download_answer]
