"""Legal holds: a run that is held is not erased."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from litestar import Request, Response, get, post
from msgspec import Meta, Struct

from harvest.errors import (
    ExecutionNotFoundError,
    InvalidRequestError,
    LimitError,
    OutcomeUnknownError,
    RunBusyError,
    ShardUnavailableError,
)
from harvest.history.ids import parse_execution_id
from harvest.history.limits import REASON_CHARACTERS
from harvest.operations import legal_holds, reading
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest_console.api.answers import answer, read_body, read_query
from harvest_console.api.asking import ONE
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import Instant, NoQuery, ReasonBody
from harvest_console.paths import part
from harvest_console.problems import EXECUTION_HEADER

AnyRequest = Request[Any, Any, Any]
_REFUSALS = (
    InvalidRequestError,
    LimitError,
    ExecutionNotFoundError,
    RunBusyError,
    ShardUnavailableError,
    OutcomeUnknownError,
)


class LegalHoldBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why the run is held, and until when; until it is released if that is left out."""

    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARACTERS)]
    hold_until: Instant | None = None


class LegalHoldAnswer(Struct, frozen=True, kw_only=True):
    """The hold that is in force; `newly_held` is false where it was there before, and stays as it was."""

    ok: bool = True
    execution_id: UUID
    held: bool
    newly_held: bool
    legal_hold_set_at: datetime
    legal_hold_until: datetime | None
    legal_hold_reason: str
    legal_hold_actor: str


class HoldAnswer(Struct, frozen=True, kw_only=True):
    """The hold that is in force, or `held` false with the rest null."""

    execution_id: UUID
    held: bool
    legal_hold_set_at: datetime | None
    legal_hold_until: datetime | None
    legal_hold_reason: str | None
    legal_hold_actor: str | None


class ReleaseAnswer(Struct, frozen=True, kw_only=True):
    """The run is not held; `released` is false where it was not before."""

    ok: bool = True
    execution_id: UUID
    released: bool


@post(
    f"{ONE}/legal-hold",
    status_code=200,
    opt={
        "doc": Doc(
            "Hold a run: its payloads are not erased until the hold ends or is released.",
            query=NoQuery,
            body=LegalHoldBody,
            answers={200: LegalHoldAnswer},
            refusals=_REFUSALS,
        )
    },
)
async def set_legal_hold(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, body: bytes
) -> Response[bytes]:
    """Exactly this run, in whatever state it is."""
    read_query(request, NoQuery)
    wanted = read_body(body, LegalHoldBody)
    found = parse_execution_id(part(execution_id))
    done = await legal_holds.hold(shards, actor, found, reason=wanted.reason, hold_until=wanted.hold_until)
    content = LegalHoldAnswer(
        execution_id=found,
        held=done.held,
        newly_held=done.newly_held,
        legal_hold_set_at=done.hold.set_at,
        legal_hold_until=done.hold.hold_until,
        legal_hold_reason=done.hold.reason,
        legal_hold_actor=done.hold.actor,
    )
    return answer(content, headers={EXECUTION_HEADER: str(found)})


@get(
    f"{ONE}/legal-hold",
    opt={
        "doc": Doc(
            "The legal hold on a run, if one is in force.",
            query=NoQuery,
            answers={200: HoldAnswer},
            refusals=(ExecutionNotFoundError, ShardUnavailableError),
        )
    },
)
async def get_legal_hold(request: AnyRequest, shards: Shards, execution_id: str) -> Response[bytes]:
    """A hold whose time is over is none any more."""
    read_query(request, NoQuery)
    found = parse_execution_id(part(execution_id))
    hold = await legal_holds.hold_of(shards, found)
    if hold is None:
        # Raises where there is no such run.
        await reading.get(shards, found)
    content = HoldAnswer(
        execution_id=found,
        held=hold is not None,
        legal_hold_set_at=hold.set_at if hold else None,
        legal_hold_until=hold.hold_until if hold else None,
        legal_hold_reason=hold.reason if hold else None,
        legal_hold_actor=hold.actor if hold else None,
    )
    return answer(content, headers={EXECUTION_HEADER: str(found)})


@post(
    f"{ONE}/legal-hold/release",
    status_code=200,
    opt={
        "doc": Doc(
            "Release a run from its legal hold.",
            query=NoQuery,
            body=ReasonBody,
            answers={200: ReleaseAnswer},
            refusals=_REFUSALS,
        )
    },
)
async def release_legal_hold(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, body: bytes
) -> Response[bytes]:
    """Repeating it changes nothing."""
    read_query(request, NoQuery)
    wanted = read_body(body, ReasonBody)
    found = parse_execution_id(part(execution_id))
    released = await legal_holds.release(shards, actor, found, reason=wanted.reason)
    return answer(ReleaseAnswer(execution_id=found, released=released), headers={EXECUTION_HEADER: str(found)})


handlers = [set_legal_hold, get_legal_hold, release_legal_hold]
