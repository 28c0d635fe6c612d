"""`/w/{execution_id}/signal`: choose one of the declared signals or name another, fill in its form, send it."""

from __future__ import annotations

from typing import Any, Final

from litestar import Response, get, post
from litestar.response import Redirect

from harvest.errors import ExecutionClosedError, HarvestError, InputInvalidError
from harvest.history.ids import parse_execution_id
from harvest.operations import definitions, reading, signalling
from harvest.operations.actor import Actor
from harvest.operations.views import ExecutionDetail
from harvest.shards import Shards
from harvest_console.pages.composing import (
    MENDABLE,
    Declared,
    drawn_again,
    new_key,
    preview,
    preview_region,
    refused,
)
from harvest_console.pages.confirming import run_page
from harvest_console.pages.forms import PayloadForm, new_form, posted_form
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path, posted
from harvest_console.rendering import build_url

# How what a run waits for begins when it waits for signals (answers 13); their names follow.
_WAITS: Final = "signal "


@get("/w/{execution:str}/signal")
async def signal_page(
    request: AnyRequest, shards: Shards, execution: str, name: str = "", other: bool = False, tab: str = ""
) -> Page:
    """The form of a signal; of one that the run waits for, or of the first there is, when none is named."""
    run = await reading.get(shards, parse_execution_id(execution))
    declared = await _declared(shards, run.workflow_name)
    if not name:
        name = _offered(run, declared, other)
    payload = new_form(declared.get(name, {}), name, tab)
    return _form_page(request, run, declared, name, payload, key=new_key())


@post("/w/{execution:str}/signal")
async def send_signal(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Send the signal, or draw the form again with what was typed and what is wrong."""
    fields = await posted(request)
    run = await reading.get(shards, parse_execution_id(execution))
    declared = await _declared(shards, run.workflow_name)
    name, key = fields.get("name", "").strip(), fields.get("key", "")
    schema = declared.get(name, {})
    payload = posted_form(schema, name, fields)

    def again(status: int, form: PayloadForm, why: str = "") -> Page:
        return _form_page(request, run, declared, name, form, key=key, status=status, refused=why)

    if unsent := drawn_again(payload, schema, fields):
        return again(*unsent)
    try:
        sent = await signalling.signal(
            shards, actor, run.execution_id, name, payload.complete.encode(), idempotency_key=key or None
        )
    except InputInvalidError as error:
        return again(422, refused(payload, error))
    except MENDABLE as error:
        return again(error.status if isinstance(error, ExecutionClosedError) else 422, payload, error.message)
    did = "repeated" if sent.deduplicated else "signalled"
    reached = sent.routed_execution_id or sent.execution_id
    return Redirect(build_url(base_path(request), f"/w/{reached}", did=did), status_code=303)


@post(FRAGMENTS + "/w/{execution:str}/signal", status_code=200)
async def signal_preview(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What would be stored, for the form as it stands."""
    fields = await posted(request)
    run = await reading.get(shards, parse_execution_id(execution))
    declared = await _declared(shards, run.workflow_name)
    payload = posted_form(declared.get(fields.get("name", "").strip(), {}), "", fields)
    return preview_region(request, payload, _preview_url(request, run))


async def _declared(shards: Shards, workflow_name: str) -> Declared:
    """The signals that the type declares; none when nobody can tell, since any can be sent as JSON text."""
    try:
        return (await definitions.find(shards, workflow_name)).signals
    except HarvestError:
        return {}


def _offered(run: ExecutionDetail, declared: Declared, other: bool) -> str:
    """The signal to begin with: one that is waited for, declared before undeclared, unless an `other` is asked for."""
    text = run.waiting or ""
    waited = text.removeprefix(_WAITS).split(", ") if text.startswith(_WAITS) else []
    undeclared = next((name for name in waited if name not in declared), "")
    if other:
        return undeclared
    return next((name for name in waited if name in declared), "") or undeclared or next(iter(declared), "")


def _preview_url(request: AnyRequest, run: ExecutionDetail) -> str:
    return build_url(base_path(request), f"{FRAGMENTS}/w/{run.execution_id}/signal")


def _form_page(
    request: AnyRequest,
    run: ExecutionDetail,
    declared: Declared,
    name: str,
    payload: PayloadForm,
    *,
    key: str,
    status: int = 200,
    refused: str = "",
) -> Page:
    return run_page(
        request,
        "signal.html",
        run,
        status=status,
        declared=list(declared),
        name=name,
        key=key,
        payload=payload,
        refused=refused,
        preview_url=_preview_url(request, run),
        **preview(payload),
    )


handlers = [signal_page, send_signal, signal_preview]
