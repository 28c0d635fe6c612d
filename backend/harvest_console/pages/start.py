"""`/workflows/start`: choose a type, fill in its form, start a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from litestar import Response, get, post
from litestar.response import Redirect
from msgspec import Struct

from harvest.errors import ExecutionExistsError, InputInvalidError
from harvest.operations import definitions, starting
from harvest.operations.actor import Actor
from harvest.operations.definitions import Definition
from harvest.shards import Shards
from harvest_console.pages.composing import MENDABLE, drawn_again, new_key, preview, preview_region, refused, title_of
from harvest_console.pages.forms import PayloadForm, new_form, posted_form
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path, posted
from harvest_console.rendering import build_url, render

REUSE: Final = (
    ("allow_duplicate", "start afresh"),
    ("reject_duplicate", "refuse"),
    ("allow_duplicate_failed_only", "start afresh only if it failed or was cancelled"),
)
CONFLICT: Final = (
    ("unspecified", "as for an ended run"),
    ("fail", "refuse"),
    ("use_existing", "take the open run"),
    ("terminate_existing", "terminate the open run, start afresh"),
)


class StartForm(Struct, frozen=True, kw_only=True):
    """What stands in the form beside the input."""

    workflow_id: str = ""
    reuse_policy: str = "allow_duplicate"
    conflict_policy: str = "unspecified"
    key: str = ""


@get("/workflows/start")
async def start_page(request: AnyRequest, shards: Shards, type: str = "", tab: str = "") -> Page:
    """The picker of types, or the empty form of one. Raises WorkflowNotRegisteredError."""
    if not type:
        found = await definitions.registered(shards)
        return render(
            request,
            "start_pick.html",
            section="start",
            found=found,
            types=[one for one in found.rows if one.kind == "workflow"],
        )
    definition = await definitions.find(shards, type)
    form = StartForm(key=new_key())
    return _form_page(request, definition, form, new_form(definition.input_schema, _title(definition), tab))


@post("/workflows/start")
async def start(request: AnyRequest, shards: Shards, actor: Actor) -> Response[Any]:
    """Start a run, or draw the form again with what was typed and what is wrong."""
    fields = await posted(request)
    definition = await definitions.find(shards, fields.get("type", ""))
    payload = posted_form(definition.input_schema, _title(definition), fields)
    form = _read(fields)

    def again(status: int, payload: PayloadForm, why: str = "") -> Page:
        return _form_page(request, definition, form, payload, status=status, refused=why)

    if unsent := drawn_again(payload, definition.input_schema, fields):
        return again(*unsent)
    try:
        started = await starting.start(
            shards,
            actor,
            workflow_name=definition.name,
            workflow_id=form.workflow_id.strip() or _made_id(definition, form),
            input=payload.complete.encode(),
            reuse_policy=form.reuse_policy,
            conflict_policy=form.conflict_policy,
            idempotency_key=form.key or None,
        )
    except InputInvalidError as error:
        return again(422, refused(payload, error))
    except (*MENDABLE, ExecutionExistsError) as error:
        return again(422, payload, error.message)
    did = "repeated" if started.deduplicated else ("started" if started.created else "found")
    return Redirect(build_url(base_path(request), f"/w/{started.execution_id}", did=did), status_code=303)


@post(FRAGMENTS + "/workflows/start", status_code=200)
async def start_preview(request: AnyRequest, shards: Shards) -> Page:
    """What would be stored, for the form as it stands."""
    fields = await posted(request)
    definition = await definitions.find(shards, fields.get("type", ""))
    payload = posted_form(definition.input_schema, _title(definition), fields)
    return preview_region(request, payload, _preview_url(request))


def _preview_url(request: AnyRequest) -> str:
    return build_url(base_path(request), FRAGMENTS + "/workflows/start")


def _made_id(definition: Definition, form: StartForm) -> str | None:
    """An id that people can read; the same for the same form, however often it is sent."""
    return f"{definition.name}-{form.key[-8:]}" if form.key else None


def _title(definition: Definition) -> str:
    return title_of(definition.input_schema, "input")


def _read(fields: Mapping[str, str]) -> StartForm:
    return StartForm(
        workflow_id=fields.get("workflow_id", ""),
        reuse_policy=fields.get("reuse_policy", "allow_duplicate"),
        conflict_policy=fields.get("conflict_policy", "unspecified"),
        key=fields.get("key", ""),
    )


def _form_page(
    request: AnyRequest,
    definition: Definition,
    form: StartForm,
    payload: PayloadForm,
    *,
    status: int = 200,
    refused: str = "",
) -> Page:
    return render(
        request,
        "start.html",
        status=status,
        section="start",
        definition=definition,
        form=form,
        payload=payload,
        refused=refused,
        reuse=REUSE,
        conflict=CONFLICT,
        preview_url=_preview_url(request),
        **preview(payload),
    )


handlers = [start_page, start, start_preview]
