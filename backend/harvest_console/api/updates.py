"""Updates: requests that a run's code answers, and how they were answered. By execution id and by business key."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import Request, Response, get, post
from msgspec import UNSET

from harvest.errors import (
    IdempotencyConflictError,
    InputInvalidError,
    InvalidRequestError,
    PayloadsErasedError,
    ShardUnavailableError,
    UpdateFailedError,
    UpdateNotFoundError,
    UpdateRejectedError,
    UpdateTimeoutError,
)
from harvest.history.ids import parse_execution_id
from harvest.history.payload import NULL
from harvest.operations import updating
from harvest.operations.actor import Actor
from harvest.operations.updating import Updated
from harvest.operations.views import API_ROOT, Payload, payload_view
from harvest.shards import Shards
from harvest_console.api.answers import answer, read_body, read_query
from harvest_console.api.asking import BY_KEY, NEEDS_IT, ONE, key_of, repeatable, run_of_key
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import UpdateAnswer, UpdateBody, UpdateQuery, UpdateResultQuery
from harvest_console.auth.caller import settings_of
from harvest_console.paths import part
from harvest_console.problems import EXECUTION_HEADER

AnyRequest = Request[Any, Any, Any]
_ANSWERED = (UpdateRejectedError, UpdateFailedError, PayloadsErasedError)
_UPDATE = Doc(
    "Send an update and wait for its answer, or until it is admitted.",
    query=UpdateQuery,
    body=UpdateBody,
    keyed=True,
    answers={200: UpdateAnswer, 202: UpdateAnswer},
    refusals=(*NEEDS_IT, *_ANSWERED, UpdateTimeoutError, InputInvalidError, IdempotencyConflictError),
)
_RESULT = Doc(
    "How an update was answered; 202 while it is not.",
    query=UpdateResultQuery,
    answers={200: UpdateAnswer, 202: UpdateAnswer},
    refusals=(UpdateNotFoundError, ShardUnavailableError, *_ANSWERED),
)


def output_of(request: AnyRequest, done: Updated) -> Payload | None:
    """The answer of an update, a large one as a reference to its event; None while there is none."""
    if done.output is None:
        return None
    root = settings_of(request).base_path + API_ROOT
    href = f"{root}/workflows/{done.execution_id}/history/{done.event_id}/payload"
    return payload_view(done.output, len(done.output), href)


def _answer(request: AnyRequest, done: Updated) -> Response[bytes]:
    content = UpdateAnswer(
        execution_id=done.execution_id,
        update_id=done.update_id,
        stage=done.stage,
        result=output_of(request, done),
        deduplicated=done.deduplicated,
        routed_execution_id=done.routed_execution_id or UNSET,
    )
    status = 200 if done.stage == "completed" else 202
    return answer(content, status, headers={EXECUTION_HEADER: str(done.execution_id)})


async def _update(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: UUID, name: str, body: bytes
) -> Response[bytes]:
    query = read_query(request, UpdateQuery)
    wanted = read_body(body, UpdateBody)
    key = key_of(request, query.idempotency_key)
    done = await repeatable(
        updating.update(
            shards,
            actor,
            execution_id,
            name,
            NULL if wanted.input is UNSET else bytes(wanted.input),
            wait=query.wait,
            timeout=query.timeout_secs,
            idempotency_key=key,
        ),
        key,
    )
    return _answer(request, done)


async def _result(request: AnyRequest, shards: Shards, execution_id: UUID, update_id: str) -> Response[bytes]:
    seconds = read_query(request, UpdateResultQuery).seconds
    return _answer(request, await updating.result(shards, execution_id, update_id, wait=seconds))


@post([f"{ONE}/update", f"{BY_KEY}/update"], include_in_schema=False)
async def update_without_a_name() -> Response[bytes]:
    """The name is a part of the path."""
    raise InvalidRequestError("the update's name is missing: it must follow /update/", field="update_name")


@post(f"{ONE}/update/{{update_name:str}}", status_code=200, opt={"doc": _UPDATE})
async def update_execution(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, update_name: str, body: bytes
) -> Response[bytes]:
    """The exact text of `input` is kept; without it, it is null."""
    return await _update(request, shards, actor, parse_execution_id(part(execution_id)), part(update_name), body)


@post(f"{BY_KEY}/update/{{update_name:str}}", status_code=200, opt={"doc": _UPDATE})
async def update_by_id(
    request: AnyRequest,
    shards: Shards,
    actor: Actor,
    workflow_name: str,
    workflow_id: str,
    update_name: str,
    body: bytes,
) -> Response[bytes]:
    """To the open run of a business key."""
    found = await run_of_key(request, shards, workflow_name, workflow_id)
    return await _update(request, shards, actor, found, part(update_name), body)


@get(f"{ONE}/update/{{update_id:str}}/result", opt={"doc": _RESULT})
async def get_update_result(request: AnyRequest, shards: Shards, execution_id: str, update_id: str) -> Response[bytes]:
    """An update that was refused, or whose handler raised, is answered as such."""
    return await _result(request, shards, parse_execution_id(part(execution_id)), part(update_id))


@get(f"{BY_KEY}/update/{{update_id:str}}/result", opt={"doc": _RESULT})
async def get_update_result_by_id(
    request: AnyRequest, shards: Shards, workflow_name: str, workflow_id: str, update_id: str
) -> Response[bytes]:
    """The same of the run of a business key."""
    found = await run_of_key(request, shards, workflow_name, workflow_id)
    return await _result(request, shards, found, part(update_id))


handlers = [
    update_without_a_name,
    update_execution,
    update_by_id,
    get_update_result,
    get_update_result_by_id,
]
