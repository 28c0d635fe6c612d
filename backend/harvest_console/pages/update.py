"""`/w/{execution_id}/update`: choose an update, fill in its form, send it; its answer has a page of its own."""

from __future__ import annotations

from typing import Any, Final

from litestar import Response, get, post
from litestar.response import Redirect
from msgspec import Struct
from msgspec.structs import replace

from harvest.errors import (
    ExecutionClosedError,
    HarvestError,
    InputInvalidError,
    PayloadsErasedError,
    UpdateFailedError,
    UpdateRejectedError,
    UpdateTimeoutError,
)
from harvest.history.ids import parse_execution_id
from harvest.operations import definitions, reading, requesting, updating
from harvest.operations.actor import Actor
from harvest.operations.views import ExecutionDetail
from harvest.shards import Shards
from harvest_console.pages.composing import (
    MENDABLE,
    Declared,
    checked,
    drawn_again,
    new_key,
    preview,
    preview_region,
    refused,
    title_of,
)
from harvest_console.pages.confirming import run_page
from harvest_console.pages.forms import PayloadForm, new_form, posted_form
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path, posted
from harvest_console.pages.unanswered import UNANSWERED, Unanswered, unanswered
from harvest_console.rendering import build_url

# How long a page waits for the answer; after that it is the answer's own page that is looked at again.
WAIT: Final = 5.0


class Known(Struct, frozen=True, kw_only=True):
    """The updates of a run: those that its code has handlers for now, else those that its type declares.

    `silent` says why its code could not be asked; then any name may be sent, and is answered later.
    """

    names: Declared
    silent: Unanswered | None = None


class Draft(Struct, frozen=True, kw_only=True):
    """The form: which update, what was typed, the key that makes it act once, and what came of sending it."""

    name: str
    payload: PayloadForm
    key: str
    status: int = 200
    refused: str = ""
    rejected: str = ""
    rejected_url: str = ""


@get("/w/{execution:str}/update")
async def update_page(
    request: AnyRequest, shards: Shards, execution: str, name: str = "", other: bool = False, tab: str = ""
) -> Page:
    """The form of an update; of the first there is, when none is named."""
    run = await reading.get(shards, parse_execution_id(execution))
    known = await _known(shards, run)
    if not name and not other:
        name = next(iter(known.names), "")
    schema = known.names.get(name, {})
    payload = new_form(schema, title_of(schema, name), tab)
    return _page(request, run, known, Draft(name=name, payload=payload, key=new_key()))


@post("/w/{execution:str}/update")
async def send_update(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Send it and go to its answer, or draw the form again with what is wrong, also when the code rejected it."""
    fields = await posted(request)
    run = await reading.get(shards, parse_execution_id(execution))
    known = await _known(shards, run)
    name = fields.get("name", "").strip()
    schema = known.names.get(name, {})
    draft = Draft(name=name, payload=posted_form(schema, title_of(schema, name), fields), key=fields.get("key", ""))
    if unsent := drawn_again(draft.payload, schema, fields):
        status, payload = unsent
        return _page(request, run, known, replace(draft, status=status, payload=payload))
    draft = replace(draft, payload=checked(draft.payload, schema))
    if draft.payload.problems:
        return _page(request, run, known, replace(draft, status=422))
    try:
        sent = await updating.update(
            shards,
            actor,
            run.execution_id,
            name,
            draft.payload.complete.encode(),
            wait="admitted" if known.silent or run.state == "PAUSED" else "completed",
            timeout=WAIT,
            idempotency_key=draft.key or None,
        )
    except InputInvalidError as error:
        return _page(request, run, known, replace(draft, status=422, payload=refused(draft.payload, error)))
    except UpdateRejectedError as error:
        return _page(request, run, known, _rejected(request, draft, error))
    except (UpdateFailedError, UpdateTimeoutError, PayloadsErasedError) as error:
        return _to_answer(request, error.fields["execution_id"], error.fields["update_id"])
    except MENDABLE as error:
        status = error.status if isinstance(error, ExecutionClosedError) else 422
        return _page(request, run, known, replace(draft, status=status, refused=error.message))
    return _to_answer(request, sent.execution_id, sent.update_id, did="repeated" if sent.deduplicated else "")


@post(FRAGMENTS + "/w/{execution:str}/update", status_code=200)
async def update_preview(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What would be stored, for the form as it stands."""
    fields = await posted(request)
    run = await reading.get(shards, parse_execution_id(execution))
    schema = (await _known(shards, run)).names.get(fields.get("name", "").strip(), {})
    return preview_region(request, posted_form(schema, "", fields), _preview_url(request, run))


async def _known(shards: Shards, run: ExecutionDetail) -> Known:
    try:
        return Known(names=(await requesting.handlers(shards, run.execution_id)).updates)
    except UNANSWERED as error:
        return Known(names=await _declared(shards, run), silent=unanswered(error))


async def _declared(shards: Shards, run: ExecutionDetail) -> Declared:
    """The updates that the type declares; none when nobody can tell, since any can be sent as JSON text."""
    try:
        return (await definitions.find(shards, run.workflow_name, run.version)).updates
    except HarvestError:
        return {}


def _rejected(request: AnyRequest, draft: Draft, error: UpdateRejectedError) -> Draft:
    """The form as it was, to be mended and sent as another update: the rejected one keeps its answer."""
    failure = error.fields["failure"]
    return replace(
        draft,
        status=error.status,
        key=new_key(),
        rejected=f"{failure['type']}: {failure['message']}",
        rejected_url=_answer_url(request, error.fields["execution_id"], error.fields["update_id"]),
    )


def _answer_url(request: AnyRequest, execution_id: object, update_id: str, did: str = "") -> str:
    return build_url(base_path(request), f"/w/{execution_id}/updates/{update_id}", did=did)


def _to_answer(request: AnyRequest, execution_id: object, update_id: str, did: str = "") -> Redirect:
    return Redirect(_answer_url(request, execution_id, update_id, did), status_code=303)


def _preview_url(request: AnyRequest, run: ExecutionDetail) -> str:
    return build_url(base_path(request), f"{FRAGMENTS}/w/{run.execution_id}/update")


def _page(request: AnyRequest, run: ExecutionDetail, known: Known, draft: Draft) -> Page:
    return run_page(
        request,
        "update.html",
        run,
        status=draft.status,
        known=known,
        draft=draft,
        payload=draft.payload,
        preview_url=_preview_url(request, run),
        **preview(draft.payload),
    )


handlers = [update_page, send_update, update_preview]
