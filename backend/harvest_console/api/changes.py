"""What changes executions: signal, cancel, terminate, pause, resume. Each is one operation, audited with the change."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import Request, Response, post
from msgspec import UNSET

from harvest.errors import IdempotencyConflictError, InputInvalidError, InvalidRequestError
from harvest.history.ids import parse_execution_id
from harvest.operations import closing, pausing
from harvest.operations.actor import Actor
from harvest.operations.signalling import signal
from harvest.shards import Shards
from harvest_console.api.answers import answer, read_body, read_query
from harvest_console.api.asking import BY_KEY, NEEDS_IT, ONE, key_of, repeatable, run_of_key
from harvest_console.api.doc import Doc
from harvest_console.api.pairs import change_pair
from harvest_console.api.shapes import (
    CancelAnswer,
    EmptyBody,
    NoQuery,
    PauseAnswer,
    ReasonBody,
    ResumeAnswer,
    SignalAnswer,
    SignalQuery,
    TerminateAnswer,
)
from harvest_console.paths import part
from harvest_console.problems import EXECUTION_HEADER

AnyRequest = Request[Any, Any, Any]
_SIGNAL = Doc(
    "Send a signal; the body is its payload.",
    query=SignalQuery,
    any_body=True,
    keyed=True,
    answers={202: SignalAnswer},
    refusals=(*NEEDS_IT, InputInvalidError, IdempotencyConflictError),
)
_CANCEL = Doc(
    "Ask a run to end in its own time.",
    query=NoQuery,
    body=ReasonBody,
    answers={200: CancelAnswer},
    refusals=NEEDS_IT,
)
_TERMINATE = Doc(
    "End a run at once; its code does not run again.",
    query=NoQuery,
    body=ReasonBody,
    answers={202: TerminateAnswer},
    refusals=NEEDS_IT,
)
_PAUSE = Doc(
    "Hold a run: nothing of it goes on until it is resumed.",
    query=NoQuery,
    body=ReasonBody,
    answers={200: PauseAnswer},
    refusals=NEEDS_IT,
)
_RESUME = Doc(
    "Let a paused run go on; its deadline moves by the length of the pause.",
    query=NoQuery,
    body=EmptyBody,
    answers={200: ResumeAnswer},
    refusals=NEEDS_IT,
)


def _answer(content: Any, execution_id: UUID, status: int = 200) -> Response[bytes]:
    return answer(content, status, headers={EXECUTION_HEADER: str(execution_id)})


async def _signal(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: UUID, name: str, body: bytes
) -> Response[bytes]:
    key = key_of(request, read_query(request, SignalQuery).idempotency_key)
    done = await repeatable(signal(shards, actor, execution_id, name, body or b"null", idempotency_key=key), key)
    reached = done.routed_execution_id or done.execution_id
    content = SignalAnswer(
        execution_id=reached,
        signal_delivered=done.signal_delivered,
        deduplicated=done.deduplicated,
        routed_execution_id=done.routed_execution_id or UNSET,
    )
    return _answer(content, reached, 202)


async def _cancel(request: AnyRequest, shards: Shards, actor: Actor, found: UUID, body: bytes) -> Response[bytes]:
    """Repeating it changes nothing."""
    read_query(request, NoQuery)
    done = await closing.cancel(shards, actor, found, reason=read_body(body, ReasonBody).reason)
    content = CancelAnswer(
        execution_id=done.execution_id,
        state=done.state,
        newly_cancelled=done.newly_cancelled,
        reason=done.reason,
        routed_execution_id=done.routed_execution_id or UNSET,
    )
    return _answer(content, done.execution_id)


async def _terminate(request: AnyRequest, shards: Shards, actor: Actor, found: UUID, body: bytes) -> Response[bytes]:
    """Repeating it changes nothing."""
    read_query(request, NoQuery)
    done = await closing.terminate(shards, actor, found, reason=read_body(body, ReasonBody).reason)
    content = TerminateAnswer(
        execution_id=done.execution_id,
        state=done.state,
        newly_terminated=done.newly_terminated,
        routed_execution_id=done.routed_execution_id or UNSET,
    )
    return _answer(content, done.execution_id, 202)


async def _pause(request: AnyRequest, shards: Shards, actor: Actor, found: UUID, body: bytes) -> Response[bytes]:
    """Activities that run now go on, and what comes meanwhile is kept. Repeating it changes nothing."""
    read_query(request, NoQuery)
    done = await pausing.pause(shards, actor, found, reason=read_body(body, ReasonBody).reason)
    content = PauseAnswer(
        execution_id=done.execution_id,
        state=done.state,
        newly_paused=done.newly_paused,
        paused_at=done.paused_at,
        reason=done.reason,
        actor=done.actor,
        routed_execution_id=done.routed_execution_id or UNSET,
    )
    return _answer(content, done.execution_id)


async def _resume(request: AnyRequest, shards: Shards, actor: Actor, found: UUID, body: bytes) -> Response[bytes]:
    """A run that is not paused stays as it is."""
    read_query(request, NoQuery)
    read_body(body, EmptyBody)
    done = await pausing.resume(shards, actor, found)
    content = ResumeAnswer(
        execution_id=done.execution_id,
        state=done.state,
        newly_resumed=done.newly_resumed,
        pause_duration_secs=done.pause_duration_secs,
        routed_execution_id=done.routed_execution_id or UNSET,
    )
    return _answer(content, done.execution_id)


@post([f"{ONE}/signal", f"{BY_KEY}/signal"], include_in_schema=False)
async def signal_without_a_name() -> Response[bytes]:
    """The name is a part of the path."""
    raise InvalidRequestError("the signal's name is missing: it must follow /signal/", field="signal_name")


@post(f"{ONE}/signal/{{signal_name:str}}", status_code=202, opt={"doc": _SIGNAL})
async def signal_execution(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, signal_name: str, body: bytes
) -> Response[bytes]:
    """The exact text of the payload is kept; an empty body is null."""
    return await _signal(request, shards, actor, parse_execution_id(part(execution_id)), part(signal_name), body)


@post(f"{BY_KEY}/signal/{{signal_name:str}}", status_code=202, opt={"doc": _SIGNAL})
async def signal_by_id(
    request: AnyRequest,
    shards: Shards,
    actor: Actor,
    workflow_name: str,
    workflow_id: str,
    signal_name: str,
    body: bytes,
) -> Response[bytes]:
    """To the open run of a business key."""
    found = await run_of_key(request, shards, workflow_name, workflow_id)
    return await _signal(request, shards, actor, found, part(signal_name), body)


handlers = [
    signal_without_a_name,
    signal_execution,
    signal_by_id,
    *change_pair("cancel", 200, _CANCEL, _cancel),
    *change_pair("terminate", 202, _TERMINATE, _terminate),
    *change_pair("pause", 200, _PAUSE, _pause),
    *change_pair("resume", 200, _RESUME, _resume),
]
