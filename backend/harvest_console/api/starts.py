"""What starts executions: one, one with a signal or an update, many. Each is one operation."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, post
from msgspec import UNSET, Raw, UnsetType

from harvest.errors import (
    BatchRefusedError,
    BatchTooLargeError,
    ExecutionExistsError,
    ExecutionPausedError,
    IdempotencyConflictError,
    InputInvalidError,
    NoWritableShardError,
    OutcomeUnknownError,
    PayloadsErasedError,
    PlacementError,
    ShardUnavailableError,
    UpdateFailedError,
    UpdateRejectedError,
    UpdateTimeoutError,
    WorkflowNotRegisteredError,
)
from harvest.history.payload import NULL
from harvest.operations.actor import Actor
from harvest.operations.batch_starting import BatchItem, start_batch
from harvest.operations.preparing import StartRequest
from harvest.operations.starting import start_one
from harvest.operations.with_start import signal_with_start, update_with_start
from harvest.shards import Placement, Shards
from harvest_console.api.answers import answer, read_body, read_query
from harvest_console.api.asking import key_of, repeatable
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import NoQuery
from harvest_console.api.start_shapes import (
    BatchAnswer,
    BatchBody,
    BatchItemAnswer,
    BatchItemBody,
    ItemProblem,
    RunBody,
    SignalWithStartAnswer,
    SignalWithStartBody,
    StartAnswer,
    StartBody,
    UpdateWithStartAnswer,
    UpdateWithStartBody,
)
from harvest_console.api.updates import output_of
from harvest_console.paths import part
from harvest_console.problems import EXECUTION_HEADER

AnyRequest = Request[Any, Any, Any]
_REFUSALS = (
    InputInvalidError,
    WorkflowNotRegisteredError,
    ExecutionExistsError,
    IdempotencyConflictError,
    OutcomeUnknownError,
    ShardUnavailableError,
)


def _text(given: Raw | UnsetType) -> bytes:
    """The exact text of a payload that may be left out."""
    return NULL if given is UNSET else bytes(given)


def _request(
    workflow_name: str, workflow_id: str | None, input: Raw | UnsetType, of: RunBody, key: str
) -> StartRequest:
    return StartRequest(
        workflow_name=workflow_name,
        workflow_id=workflow_id,
        version=of.version or 0,
        input=_text(input),
        queue=of.queue,
        priority=of.priority,
        memo=None if of.memo is UNSET else bytes(of.memo),
        search_attrs=of.search_attrs,
        execution_timeout_secs=of.execution_timeout_secs,
        chain_execution_timeout_secs=of.chain_execution_timeout_secs,
        retry=None if of.retry is None else of.retry.policy(),
        idempotency_key=key,
    )


@post(
    "/workflows/{workflow_name:str}/start",
    opt={
        "doc": Doc(
            "Start a workflow, or attach to the run that its policies lead to.",
            query=NoQuery,
            body=StartBody,
            keyed=True,
            answers={201: StartAnswer, 200: StartAnswer},
            refusals=(*_REFUSALS, PlacementError, NoWritableShardError),
        )
    },
)
async def start_workflow(
    request: AnyRequest, shards: Shards, actor: Actor, workflow_name: str, body: bytes
) -> Response[bytes]:
    """The exact text of `input` and `memo` is kept."""
    read_query(request, NoQuery)
    wanted = read_body(body, StartBody)
    key = key_of(request, wanted.idempotency_key)
    asked = msgspec.structs.replace(
        _request(part(workflow_name), wanted.workflow_id, wanted.input, wanted, key),
        placement=Placement(wanted.shard_id, wanted.residency_key),
    )
    started = await repeatable(
        start_one(
            shards,
            actor,
            asked,
            reuse_policy=wanted.reuse_policy,
            conflict_policy=wanted.conflict_policy,
        ),
        key,
    )
    content = StartAnswer(
        execution_id=started.execution_id,
        workflow_name=started.workflow_name,
        workflow_id=started.workflow_id,
        state=started.state,
        started_fresh=started.started_fresh,
        deduplicated=started.deduplicated,
        shard_id=UNSET if asked.placement.is_automatic else started.shard_id,
    )
    return answer(content, 201 if started.created else 200, headers={EXECUTION_HEADER: str(started.execution_id)})


@post(
    "/workflows/{workflow_name:str}/signal-with-start",
    opt={
        "doc": Doc(
            "Signal the open run of a workflow id, or start it with the signal: one transaction.",
            query=NoQuery,
            body=SignalWithStartBody,
            keyed=True,
            answers={201: SignalWithStartAnswer, 200: SignalWithStartAnswer},
            refusals=_REFUSALS,
        )
    },
)
async def signal_with_start_workflow(
    request: AnyRequest, shards: Shards, actor: Actor, workflow_name: str, body: bytes
) -> Response[bytes]:
    """A run that begins has the signal before its code runs."""
    read_query(request, NoQuery)
    wanted = read_body(body, SignalWithStartBody)
    key = key_of(request, wanted.idempotency_key)
    done = await repeatable(
        signal_with_start(
            shards,
            actor,
            _request(part(workflow_name), wanted.workflow_id, wanted.start_input, wanted, key),
            wanted.signal_name,
            _text(wanted.signal_payload),
            reuse_policy=wanted.id_reuse_policy,
        ),
        key,
    )
    content = SignalWithStartAnswer(
        execution_id=done.execution_id,
        workflow_name=done.workflow_name,
        workflow_id=done.workflow_id,
        state=done.state,
        started_fresh=done.started_fresh,
        signal_delivered=done.delivered,
        deduplicated=done.deduplicated,
    )
    return answer(content, 201 if done.started_fresh else 200, headers={EXECUTION_HEADER: str(done.execution_id)})


@post(
    "/workflows/{workflow_name:str}/update-with-start",
    opt={
        "doc": Doc(
            "Send an update to the open run of a workflow id, or start it with the update; then wait for its answer.",
            query=NoQuery,
            body=UpdateWithStartBody,
            keyed=True,
            answers={201: UpdateWithStartAnswer, 200: UpdateWithStartAnswer},
            refusals=(
                *_REFUSALS,
                ExecutionPausedError,
                UpdateRejectedError,
                UpdateFailedError,
                UpdateTimeoutError,
                PayloadsErasedError,
            ),
        )
    },
)
async def update_with_start_workflow(
    request: AnyRequest, shards: Shards, actor: Actor, workflow_name: str, body: bytes
) -> Response[bytes]:
    """Where the answer does not come in time, the update is admitted all the same: its result can be asked for."""
    read_query(request, NoQuery)
    wanted = read_body(body, UpdateWithStartBody)
    key = key_of(request, wanted.idempotency_key)
    done = await repeatable(
        update_with_start(
            shards,
            actor,
            _request(part(workflow_name), wanted.workflow_id, wanted.start_input, wanted, key),
            wanted.update_name,
            _text(wanted.update_args),
            reuse_policy=wanted.id_reuse_policy,
            wait=wanted.wait_for_stage,
            timeout=wanted.timeout_secs,
        ),
        key,
    )
    started = done.started
    content = UpdateWithStartAnswer(
        execution_id=started.execution_id,
        workflow_name=started.workflow_name,
        workflow_id=started.workflow_id,
        state=started.state,
        started_fresh=started.started_fresh,
        deduplicated=started.deduplicated,
        update_id=done.updated.update_id,
        stage=done.updated.stage,
        result=output_of(request, done.updated),
    )
    status = 201 if started.started_fresh else 200
    return answer(content, status, headers={EXECUTION_HEADER: str(started.execution_id)})


@post(
    "/workflows/batch_start",
    status_code=200,
    opt={
        "doc": Doc(
            "Start many workflows: each by itself, or all or none of them.",
            query=NoQuery,
            body=BatchBody,
            answers={200: BatchAnswer},
            refusals=(BatchRefusedError, BatchTooLargeError, OutcomeUnknownError, ShardUnavailableError),
        )
    },
)
async def start_batch_of_workflows(request: AnyRequest, shards: Shards, actor: Actor, body: bytes) -> Response[bytes]:
    """An atomic batch must lie on one shard. Without keys of its own, a repeated item may begin a second run."""
    read_query(request, NoQuery)
    wanted = read_body(body, BatchBody)
    requests = [_item_request(item) for item in wanted.items]
    done = await start_batch(shards, actor, requests, atomic=wanted.atomic)
    items = [_item_answer(index, one, request) for index, (one, request) in enumerate(zip(done, requests, strict=True))]
    return answer(
        BatchAnswer(
            items=items,
            started=sum(item.started_fresh for item in items),
            found=sum(item.error is None and not item.started_fresh for item in items),
            failed=sum(item.error is not None for item in items),
        )
    )


def _item_request(item: BatchItemBody) -> StartRequest:
    return StartRequest(
        workflow_name=item.workflow_name,
        workflow_id=item.workflow_id,
        version=item.version or 0,
        input=_text(item.input),
        queue=item.queue,
        priority=item.priority,
        memo=None if item.memo is UNSET else bytes(item.memo),
        search_attrs=item.search_attributes,
        idempotency_key=item.idempotency_key,
    )


def _item_answer(index: int, one: BatchItem, request: StartRequest) -> BatchItemAnswer:
    if one.started is None:
        assert one.error is not None
        problem = ItemProblem(
            code=one.error.code,
            slug=one.error.slug,
            detail=one.error.message,
            retryable=one.error.retryable,
            problems=one.error.fields.get("problems", []),
        )
        return BatchItemAnswer(
            index=index, workflow_name=request.workflow_name, workflow_id=request.workflow_id, error=problem
        )
    return BatchItemAnswer(
        index=index,
        workflow_name=one.started.workflow_name,
        workflow_id=one.started.workflow_id,
        execution_id=one.started.execution_id,
        state=one.started.state,
        shard_id=one.started.shard_id,
        started_fresh=one.started.started_fresh,
        deduplicated=one.started.deduplicated,
    )


handlers = [start_workflow, signal_with_start_workflow, update_with_start_workflow, start_batch_of_workflows]
