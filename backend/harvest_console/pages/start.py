"""`/workflows/start`: choose a type, fill in its form, start a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Final

from litestar import Response, get, post
from litestar.response import Redirect
from msgspec import Struct

from harvest.errors import ExecutionExistsError, InputInvalidError, PlacementError, ShardUnavailableError
from harvest.operations import definitions, placing, starting
from harvest.operations.actor import Actor
from harvest.operations.definitions import Definition
from harvest.operations.placing import Target
from harvest.shards import AUTOMATIC, Placement, Shards
from harvest_console.pages.composing import MENDABLE, drawn_again, new_key, preview, preview_region, refused, title_of
from harvest_console.pages.forms import PayloadForm, new_form, posted_form
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path, posted
from harvest_console.rendering import build_url, render, render_region

REUSE: Final = (
    ("allow_duplicate", "start afresh"),
    ("reject_duplicate", "refuse"),
    ("allow_duplicate_failed_only", "start afresh only if it failed or was cancelled"),
)
# The button that draws the form again, to see where the run would live.
LOOK: Final = "look"
CONFLICT: Final = (
    ("unspecified", "as for an ended run"),
    ("fail", "refuse"),
    ("use_existing", "take the open run"),
    ("terminate_existing", "terminate the open run, start afresh"),
)


class StartForm(Struct, frozen=True, kw_only=True):
    """What stands in the form beside the input. `placement` is empty, `shard:1` or `residency:eu`."""

    workflow_id: str = ""
    placement: str = ""
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
    payload = new_form(definition.input_schema, _title(definition), tab)
    return _form_page(request, shards, definition, form, payload)


@post("/workflows/start")
async def start(request: AnyRequest, shards: Shards, actor: Actor) -> Response[Any]:
    """Start a run, or draw the form again with what was typed and what is wrong."""
    fields = await posted(request)
    definition = await definitions.find(shards, fields.get("type", ""))
    payload = posted_form(definition.input_schema, _title(definition), fields)
    form = _read(fields)

    def again(status: int, payload: PayloadForm, why: str = "") -> Page:
        return _form_page(request, shards, definition, form, payload, status=status, refused=why)

    if LOOK in fields:
        return again(200, payload.with_problems(()))
    if unsent := drawn_again(payload, definition.input_schema, fields):
        return again(*unsent)
    try:
        started = await starting.start(
            shards,
            actor,
            workflow_name=definition.name,
            workflow_id=_target(shards, definition.name, form).workflow_id,
            input=payload.complete.encode(),
            reuse_policy=form.reuse_policy,
            conflict_policy=form.conflict_policy,
            idempotency_key=form.key or None,
            placement=_placement(form.placement),
        )
    except InputInvalidError as error:
        return again(422, refused(payload, error))
    except (*MENDABLE, ExecutionExistsError) as error:
        return again(422, payload, error.message)
    except ShardUnavailableError as error:
        return again(error.status, payload, error.message)
    did = "repeated" if started.deduplicated else ("started" if started.created else "found")
    return Redirect(build_url(base_path(request), f"/w/{started.execution_id}", did=did), status_code=303)


@post(FRAGMENTS + "/workflows/start", status_code=200)
async def start_preview(request: AnyRequest, shards: Shards) -> Page:
    """What would be stored, for the form as it stands."""
    fields = await posted(request)
    definition = await definitions.find(shards, fields.get("type", ""))
    payload = posted_form(definition.input_schema, _title(definition), fields)
    return preview_region(request, payload, _preview_url(request))


@get(FRAGMENTS + "/workflows/start/placement")
async def target_region(
    request: AnyRequest, shards: Shards, type: str, workflow_id: str = "", placement: str = "", key: str = ""
) -> Page:
    """Where the run would live, for the form as it stands."""
    form = StartForm(workflow_id=workflow_id, placement=placement, key=key)
    return render_region(request, "regions/start_target.html", **_placing(request, shards, type, form))


def _preview_url(request: AnyRequest) -> str:
    return build_url(base_path(request), FRAGMENTS + "/workflows/start")


def _placing(request: AnyRequest, shards: Shards, workflow_name: str, form: StartForm) -> dict[str, Any]:
    """What the part of the form shows that says where the run lives."""
    path = FRAGMENTS + "/workflows/start/placement"
    return {
        "form": form,
        "target": _target(shards, workflow_name, form),
        "target_url": build_url(base_path(request), path, type=workflow_name, key=form.key),
    }


def _target(shards: Shards, workflow_name: str, form: StartForm) -> Target:
    chosen = form.workflow_id.strip()
    ids = iter([chosen]) if chosen else _made_ids(workflow_name, form)
    try:
        placement = _placement(form.placement)
    except PlacementError as error:
        return Target(workflow_id=next(ids), refusal=error)
    return placing.preview(shards, workflow_name, placement, ids)


def _placement(text: str) -> Placement:
    """The choice of the form; raises PlacementError for text that is none."""
    kind, _, value = text.partition(":")
    if not text:
        return AUTOMATIC
    if kind == "residency":
        return Placement(residency_key=value)
    if kind == "shard" and value.isascii() and value.isdecimal() and len(value) <= 5:
        return Placement(shard_id=int(value))
    raise PlacementError(
        f"placement is {text[:80]!r}; it must be shard:NUMBER, residency:KEY or empty",
        field="placement",
        reason="malformed",
    )


def _is_offered(shards: Shards, text: str) -> bool:
    """Whether the form has this choice, or none was made."""
    offered = {f"shard:{shard_id}" for shard_id in shards.router.readable}
    return text in offered | {f"residency:{key}" for key in shards.router.residency} | {""}


def _made_ids(workflow_name: str, form: StartForm) -> Iterator[str]:
    """Ids that people can read; the same for the same form, however often it is sent."""
    stem = f"{workflow_name}-{(form.key or new_key())[-8:]}"
    return (f"{stem}-{number}" if number else stem for number in count())


def _title(definition: Definition) -> str:
    return title_of(definition.input_schema, "input")


def _read(fields: Mapping[str, str]) -> StartForm:
    return StartForm(
        workflow_id=fields.get("workflow_id", ""),
        placement=fields.get("placement", ""),
        reuse_policy=fields.get("reuse_policy", "allow_duplicate"),
        conflict_policy=fields.get("conflict_policy", "unspecified"),
        key=fields.get("key", ""),
    )


def _form_page(
    request: AnyRequest,
    shards: Shards,
    definition: Definition,
    form: StartForm,
    payload: PayloadForm,
    *,
    status: int = 200,
    refused: str = "",
) -> Page:
    placeable = placing.placeable(shards)
    return render(
        request,
        "start.html",
        status=status,
        section="start",
        definition=definition,
        placeable=placeable,
        residency=placing.by_residency_key(placeable),
        unknown_placement=not _is_offered(shards, form.placement),
        payload=payload,
        refused=refused,
        reuse=REUSE,
        conflict=CONFLICT,
        preview_url=_preview_url(request),
        **preview(payload),
        **_placing(request, shards, definition.name, form),
    )


handlers = [start_page, start, start_preview, target_region]
