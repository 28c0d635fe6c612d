"""Who looks after an execution, how bad it is, and a note."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, patch
from msgspec import UNSET, Meta, Struct, UnsetType

from harvest.errors import (
    ExecutionNotFoundError,
    LimitError,
    OutcomeUnknownError,
    ShardUnavailableError,
)
from harvest.history.ids import parse_execution_id
from harvest.history.limits import NAME_BYTES
from harvest.operations.actor import Actor
from harvest.operations.triage import NOTE_BYTES, TriageChange, change_triage
from harvest.shards import Shards
from harvest_console.api.answers import answer, read_body, read_query
from harvest_console.api.asking import ONE
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import NoQuery, Severity, TriageAnswer
from harvest_console.paths import part
from harvest_console.problems import EXECUTION_HEADER

AnyRequest = Request[Any, Any, Any]


class TriageBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A field that is left out stays as it is; null clears it."""

    owner: Annotated[str, Meta(max_length=NAME_BYTES)] | UnsetType | None = UNSET
    severity: Severity | UnsetType | None = UNSET
    note: Annotated[str, Meta(max_length=NOTE_BYTES)] | UnsetType | None = UNSET


@patch(
    f"{ONE}/triage",
    opt={
        "doc": Doc(
            "Say who looks after a run, how bad it is, and what of it.",
            query=NoQuery,
            body=TriageBody,
            answers={200: TriageAnswer},
            refusals=(ExecutionNotFoundError, LimitError, ShardUnavailableError, OutcomeUnknownError),
        )
    },
)
async def triage_execution(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, body: bytes
) -> Response[bytes]:
    """Exactly this run, in whatever state it is."""
    read_query(request, NoQuery)
    given = read_body(body, TriageBody)
    change = TriageChange(owner=given.owner, severity=given.severity, note=given.note)
    done = await change_triage(shards, actor, parse_execution_id(part(execution_id)), change)
    content = TriageAnswer(
        execution_id=done.execution_id,
        changed_fields=done.changed_fields,
        owner=done.owner,
        severity=done.severity,
        note=done.note,
    )
    return answer(content, headers={EXECUTION_HEADER: str(done.execution_id)})


handlers = [triage_execution]
