"""`/w/{execution_id}/triage`: who looks after a run, how bad it is, and a note; of a run in any state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar import Response, get, post
from msgspec import UNSET, Struct, UnsetType

from harvest.errors import HarvestError
from harvest.history.ids import parse_execution_id
from harvest.history.limits import NAME_BYTES
from harvest.operations import reading
from harvest.operations.actor import Actor
from harvest.operations.triage import NOTE_BYTES, TriageChange, change_triage
from harvest.shards import Shards
from harvest.store.filters import SEVERITIES
from harvest_console.pages.confirming import REFUSALS, back, run_page
from harvest_console.pages.types import AnyRequest, Page, posted


class Draft(Struct, frozen=True, kw_only=True):
    """The three fields as a form has them: empty where nothing is said."""

    owner: str = ""
    severity: str = ""
    note: str = ""


@get("/w/{execution:str}/triage")
async def triage_page(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """The form with what is said of the run now. Raises as `reading.get` does."""
    run = await reading.get(shards, parse_execution_id(execution))
    draft = Draft(owner=run.owner or "", severity=run.severity or "", note=run.note or "")
    return await _form_page(request, shards, execution, typed=draft, was=draft)


@post("/w/{execution:str}/triage")
async def change(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Change what was changed in the form, or draw it again with what is wrong."""
    fields = await posted(request)
    typed, was = _draft(fields), _draft(fields, "was_")
    if typed == was:
        return back(request, parse_execution_id(execution), "same")
    wanted = TriageChange(
        owner=_changed(typed.owner, was.owner),
        severity=_changed(typed.severity, was.severity),
        note=_changed(typed.note, was.note),
    )
    try:
        done = await change_triage(shards, actor, parse_execution_id(execution), wanted)
    except REFUSALS as error:
        return await _form_page(request, shards, execution, typed=typed, was=was, error=error)
    return back(request, done.execution_id, "triaged" if done.changed_fields else "same")


def _draft(fields: Mapping[str, str], prefix: str = "") -> Draft:
    """The fields of a form, without the blanks around them that nobody sees."""
    owner, severity, note = (fields.get(prefix + name, "") for name in Draft.__struct_fields__)
    return Draft(owner=owner.strip(), severity=severity, note=note.replace("\r\n", "\n").strip())


def _changed(typed: str, was: str) -> str | UnsetType:
    return UNSET if typed == was else typed


async def _form_page(
    request: AnyRequest, shards: Shards, execution: str, *, typed: Draft, was: Draft, error: HarvestError | None = None
) -> Page:
    run = await reading.get(shards, parse_execution_id(execution))
    return run_page(
        request,
        "triage.html",
        run,
        status=200 if error is None else error.status,
        typed=typed,
        was={name: getattr(was, name) for name in Draft.__struct_fields__},
        problems={} if error is None else {str(error.fields.get("field", "owner")): error.message},
        severities=SEVERITIES,
        owner_bytes=NAME_BYTES,
        note_bytes=NOTE_BYTES,
    )


handlers = [triage_page, change]
