"""What changes executions: start, signal, cancel, terminate. Each is one operation, audited in its statement."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar
from uuid import UUID

from litestar import Request, Response, post
from msgspec import UNSET

from harvest import clock
from harvest.errors import (
    ExecutionClosedError,
    ExecutionExistsError,
    ExecutionNotFoundError,
    IdempotencyConflictError,
    InputInvalidError,
    InvalidRequestError,
    OutcomeUnknownError,
    ShardUnavailableError,
    WorkflowNotRegisteredError,
)
from harvest.history.ids import parse_execution_id
from harvest.history.limits import check_text
from harvest.operations.actor import Actor
from harvest.operations.closing import cancel, terminate
from harvest.operations.resolving import resolve
from harvest.operations.signalling import signal
from harvest.operations.starting import start
from harvest.shards import Shards
from harvest_console.api.answers import answer, read_body, read_query
from harvest_console.api.doc import Doc
from harvest_console.api.executions import EXECUTION_HEADER
from harvest_console.api.shapes import (
    CancelAnswer,
    NoQuery,
    ReasonBody,
    SignalAnswer,
    SignalQuery,
    StartAnswer,
    StartBody,
    TerminateAnswer,
)
from harvest_console.paths import part

AnyRequest = Request[Any, Any, Any]
T = TypeVar("T")
_NEEDS_IT = (ExecutionNotFoundError, ExecutionClosedError, ShardUnavailableError, OutcomeUnknownError)


def _key(request: AnyRequest, given: str | None) -> str:
    """The caller's idempotency key, the header's before the other; else one of ours, to repeat a lost request with."""
    header = request.headers.get("idempotency-key")
    key = header if header is not None else given
    return check_text(key, what="idempotency_key") if key is not None else clock.random_bytes(12).hex()


async def _repeatable(change: Awaitable[T], key: str) -> T:
    """Await a keyed change; when its answer is lost, the refusal names the key to repeat it with."""
    try:
        return await change
    except OutcomeUnknownError as error:
        error.fields.setdefault("idempotency_key", key)
        raise


@post(
    "/workflows/{workflow_name:str}/start",
    opt={
        "doc": Doc(
            "Start a workflow, or attach to the run that its policies lead to.",
            query=NoQuery,
            body=StartBody,
            keyed=True,
            answers={201: StartAnswer, 200: StartAnswer},
            refusals=(
                InputInvalidError,
                WorkflowNotRegisteredError,
                ExecutionExistsError,
                IdempotencyConflictError,
                OutcomeUnknownError,
            ),
        )
    },
)
async def start_workflow(
    request: AnyRequest, shards: Shards, actor: Actor, workflow_name: str, body: bytes
) -> Response[bytes]:
    """The exact text of `input` and `memo` is kept."""
    read_query(request, NoQuery)
    wanted = read_body(body, StartBody)
    key = _key(request, wanted.idempotency_key)
    started = await _repeatable(
        start(
            shards,
            actor,
            workflow_name=part(workflow_name),
            workflow_id=wanted.workflow_id,
            input=b"null" if wanted.input is UNSET else bytes(wanted.input),
            queue=wanted.queue,
            priority=wanted.priority,
            memo=None if wanted.memo is UNSET else bytes(wanted.memo),
            search_attrs=wanted.search_attrs,
            execution_timeout_secs=wanted.execution_timeout_secs,
            reuse_policy=wanted.reuse_policy,
            conflict_policy=wanted.conflict_policy,
            idempotency_key=key,
        ),
        key,
    )
    content = StartAnswer(*(getattr(started, name) for name in StartAnswer.__struct_fields__))
    return answer(content, 201 if started.created else 200, headers={EXECUTION_HEADER: str(started.execution_id)})


async def _signal(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: UUID, name: str, body: bytes
) -> Response[bytes]:
    key = _key(request, read_query(request, SignalQuery).idempotency_key)
    done = await _repeatable(signal(shards, actor, execution_id, name, body or b"null", idempotency_key=key), key)
    content = SignalAnswer(
        execution_id=done.execution_id, signal_delivered=done.signal_delivered, deduplicated=done.deduplicated
    )
    return answer(content, 202, headers={EXECUTION_HEADER: str(done.execution_id)})


_SIGNAL = Doc(
    "Send a signal; the body is its payload.",
    query=SignalQuery,
    any_body=True,
    keyed=True,
    answers={202: SignalAnswer},
    refusals=(*_NEEDS_IT, InputInvalidError, IdempotencyConflictError),
)


@post(
    ["/workflows/{execution_id:str}/signal", "/workflows/by-id/{workflow_name:str}/{workflow_id:str}/signal"],
    include_in_schema=False,
)
async def signal_without_a_name() -> Response[bytes]:
    """The name is a part of the path."""
    raise InvalidRequestError("the signal's name is missing: it must follow /signal/", field="signal_name")


@post("/workflows/{execution_id:str}/signal/{signal_name:str}", status_code=202, opt={"doc": _SIGNAL})
async def signal_execution(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, signal_name: str, body: bytes
) -> Response[bytes]:
    """The exact text of the payload is kept; an empty body is null."""
    return await _signal(request, shards, actor, parse_execution_id(part(execution_id)), part(signal_name), body)


@post(
    "/workflows/by-id/{workflow_name:str}/{workflow_id:str}/signal/{signal_name:str}",
    status_code=202,
    opt={"doc": _SIGNAL},
)
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
    found = await resolve(shards, part(workflow_name), part(workflow_id))
    return await _signal(request, shards, actor, found, part(signal_name), body)


@post(
    "/workflows/{execution_id:str}/cancel",
    status_code=200,
    opt={
        "doc": Doc(
            "Ask a run to end in its own time.",
            query=NoQuery,
            body=ReasonBody,
            answers={200: CancelAnswer},
            refusals=_NEEDS_IT,
        )
    },
)
async def cancel_execution(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, body: bytes
) -> Response[bytes]:
    """Repeating it changes nothing."""
    read_query(request, NoQuery)
    reason = read_body(body, ReasonBody).reason
    done = await cancel(shards, actor, parse_execution_id(part(execution_id)), reason=reason)
    return answer(
        CancelAnswer(
            execution_id=done.execution_id,
            state=done.state,
            newly_cancelled=done.newly_cancelled,
            reason=done.reason,
        )
    )


@post(
    "/workflows/{execution_id:str}/terminate",
    status_code=202,
    opt={
        "doc": Doc(
            "End a run at once; its code does not run again.",
            query=NoQuery,
            body=ReasonBody,
            answers={202: TerminateAnswer},
            refusals=_NEEDS_IT,
        )
    },
)
async def terminate_execution(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, body: bytes
) -> Response[bytes]:
    """Repeating it changes nothing."""
    read_query(request, NoQuery)
    reason = read_body(body, ReasonBody).reason
    done = await terminate(shards, actor, parse_execution_id(part(execution_id)), reason=reason)
    return answer(
        TerminateAnswer(execution_id=done.execution_id, state=done.state, newly_terminated=done.newly_terminated),
        202,
    )


handlers = [
    start_workflow,
    signal_without_a_name,
    signal_execution,
    signal_by_id,
    cancel_execution,
    terminate_execution,
]
