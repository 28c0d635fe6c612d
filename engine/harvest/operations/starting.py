"""Starting workflows: schema check, placement, the policies of reference 2.8, idempotency keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from msgspec import Raw, Struct

from harvest import clock
from harvest.errors import (
    ExecutionExistsError,
    HarvestError,
    IdempotencyConflictError,
    InvalidRequestError,
)
from harvest.history import payload
from harvest.history.data import WorkflowStarted, WorkflowTerminated
from harvest.history.events import encode_data
from harvest.history.ids import business_key, mint_execution_id, partition_of
from harvest.history.kinds import EventKind
from harvest.history.large import warn_if_large
from harvest.history.limits import WORKFLOW_ID_BYTES, check_text
from harvest.history.states import State
from harvest.operations import definitions
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.auditing import record
from harvest.operations.inputs import check_input, search_attributes, with_defaults
from harvest.shards import Shards
from harvest.store import appends
from harvest.store.appends import NewExecution
from harvest.store.pool import Connection, Record
from harvest.store.store import Store

REUSE_POLICIES: Final = ("allow_duplicate", "reject_duplicate", "allow_duplicate_failed_only", "terminate_if_running")
CONFLICT_POLICIES: Final = ("unspecified", "fail", "use_existing", "terminate_existing")
RACES: Final = 5
_FAILED: Final = frozenset({State.FAILED, State.CANCELLED, State.TIMED_OUT})
# Which ends of a prior run let another begin; a terminated one always does.
_MAKES_WAY: Final = {
    "allow_duplicate": frozenset(State),
    "reject_duplicate": frozenset[State](),
    "allow_duplicate_failed_only": _FAILED,
    "terminate_if_running": frozenset(State),
}


class Started(Struct, frozen=True):
    """The run that a start led to. `created` tells whether this request began it."""

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    state: str
    shard_id: int
    created: bool
    started_fresh: bool
    deduplicated: bool = False


class _Wanted(Struct, frozen=True):
    """What a start asks for beside the run itself."""

    reuse: str
    conflict: str
    key: str | None
    names_id: bool


class _Taken(Exception):
    """Another start of the same business key came between. Never leaves this module."""


async def start(
    shards: Shards,
    actor: Actor,
    *,
    workflow_name: str,
    workflow_id: str | None = None,
    input: bytes = payload.NULL,
    queue: str | None = None,
    priority: int = 0,
    memo: bytes | None = None,
    search_attrs: Mapping[str, Any] | None = None,
    execution_timeout_secs: float | None = None,
    reuse_policy: str = "allow_duplicate",
    conflict_policy: str = "unspecified",
    idempotency_key: str | None = None,
) -> Started:
    """Start a workflow, or find the run that the policies say stands for it.

    Raises WorkflowNotRegisteredError, InputInvalidError (`fields["problems"]` with JSON pointers), LimitError,
    ExecutionExistsError, IdempotencyConflictError, and the errors of an unreachable shard.
    """
    check_text(workflow_name, what="workflow_name")
    _check_choice("reuse_policy", reuse_policy, REUSE_POLICIES)
    _check_choice("conflict_policy", conflict_policy, CONFLICT_POLICIES)
    if idempotency_key is not None:
        check_text(idempotency_key, what="idempotency_key")
    if workflow_id and not workflow_id.strip():
        raise InvalidRequestError(
            "workflow_id holds nothing but white space: name the run, or leave it out", field="workflow_id"
        )
    # Without an id the key stands in for it: a repeated request is placed on the same shard (answers 2).
    chosen = workflow_id or (f"key-{idempotency_key}" if idempotency_key else None) or str(mint_execution_id(0))
    check_text(chosen, what="workflow_id", most=WORKFLOW_ID_BYTES)
    if execution_timeout_secs is not None and not 0 < execution_timeout_secs <= 10 * 365 * 86_400:
        raise InvalidRequestError("execution_timeout_secs must be above 0 and at most ten years")
    if not -32_768 <= priority <= 32_767:
        raise InvalidRequestError(f"priority is {priority}; it must be -32768 to 32767", field="priority")
    target = f"{workflow_name}/{chosen}"[:500]
    try:
        definition = await definitions.find(shards, workflow_name)
        input = with_defaults(input, definition.input_schema)
        check_input(input, definition.input_schema, what=f"the input of workflow {workflow_name!r}")
        warn_if_large(input, f"the input of workflow {workflow_name!r}")
        declared = definition.input_schema.get("x-options", {})
        store = shards.store(shards.router.place(workflow_name, chosen))
        new = new_execution(
            store.shard_id,
            workflow_name=workflow_name,
            workflow_id=chosen,
            version=definition.version,
            input=input,
            queue=check_text(queue or declared.get("queue", "default"), what="queue"),
            tenant=actor.tenant,
            priority=priority,
            memo=None if memo is None else payload.check_text(memo, what="memo"),
            search_attributes=None if search_attrs is None else search_attributes(search_attrs),
            execution_timeout=execution_timeout_secs or declared.get("execution_timeout"),
        )
        wanted = _Wanted(reuse_policy, conflict_policy, idempotency_key, bool(workflow_id))
        started = await _start(store, actor, new, wanted)
    except HarvestError as error:
        if not error.retryable:
            await record(shards, actor, "workflow.start", "workflow", target, "failed", error.message)
        raise
    if not started.created:
        found = str(started.execution_id)
        await record(shards, actor, "workflow.start", "execution", found, "succeeded", "an existing run was found")
    return started


async def _start(store: Store, actor: Actor, new: NewExecution, wanted: _Wanted) -> Started:
    for _ in range(RACES):
        try:
            async with store.write.connection(writes=True) as connection, connection.transaction():
                started = await _start_once(store, connection, actor, new, wanted)
        except _Taken:
            continue
        if started.created:
            # After the commit: a wake that comes before it finds nothing.
            store.waker.wake(None)
            store.hints.touch(new.partition)
        return started
    raise ExecutionExistsError(
        f"workflow id {new.workflow_id!r} is being started by others at this moment; try again",
        workflow_id=new.workflow_id,
    )


async def _start_once(
    store: Store,
    connection: Connection,
    actor: Actor,
    new: NewExecution,
    wanted: _Wanted,
) -> Started:
    key = wanted.key
    scoped = f"{new.workflow_name}/{key}"
    if key is not None:
        holder = await appends.take_start_key(connection, new.execution_id, scoped)
        if holder != new.execution_id:
            return await _keyed_replay(store, connection, holder, new, wanted)
    prior = await appends.latest(connection, new.business_key)
    if prior is not None:
        existing = await _apply_policies(store, connection, actor, new, prior, wanted)
        if existing is not None:
            if key is not None:
                await appends.point_start_key(connection, existing.execution_id, scoped)
            return existing
    audit = audit_entry(
        actor, "workflow.start", shard_id=store.shard_id, target_id=str(new.execution_id), idempotency_key=key
    )
    if not await appends.start(connection, new, audit):
        raise _Taken
    return _started(store, new.execution_id, new, State.RUNNING, created=True)


async def _apply_policies(
    store: Store,
    connection: Connection,
    actor: Actor,
    new: NewExecution,
    prior: Record,
    wanted: _Wanted,
) -> Started | None:
    """What the policies say of a prior run: stand for it (a result), refuse (an error), or begin anew (None)."""
    state, reuse, conflict = State(prior["state"]), wanted.reuse, wanted.conflict
    if state.is_open:
        verdict = {"fail": "refuse", "use_existing": "attach", "terminate_existing": "end"}.get(conflict) or {
            "reject_duplicate": "refuse",
            "terminate_if_running": "end",
        }.get(reuse, "attach")
        if verdict == "attach":
            return _started(store, prior["execution_id"], new, state, created=False)
        if verdict == "end":
            await _end_prior(store.shard_id, connection, actor, prior["execution_id"])
            return None
    elif state is State.TERMINATED or state in _MAKES_WAY[reuse]:
        return None
    raise ExecutionExistsError(
        f"workflow {new.workflow_name!r} with id {new.workflow_id!r} exists ({state.name}), "
        f"and reuse_policy {reuse!r} with conflict_policy {conflict!r} does not allow another run",
        existing_execution_id=str(prior["execution_id"]),
        existing_state=state.name,
    )


async def _end_prior(shard_id: int, connection: Connection, actor: Actor, execution_id: UUID) -> None:
    """The holder of the prior run learns of its end when its next commit is refused."""
    reason = "replaced by a new start"
    await appends.close_on(
        connection,
        execution_id,
        EventKind.WORKFLOW_TERMINATED,
        encode_data(WorkflowTerminated(reason=reason, actor=actor.name)),
        State.TERMINATED,
        audit_entry(actor, "workflow.terminate", shard_id=shard_id, target_id=str(execution_id), reason=reason),
    )


async def _keyed_replay(
    store: Store, connection: Connection, holder: UUID, new: NewExecution, wanted: _Wanted
) -> Started:
    key = wanted.key
    row = await appends.by_id(connection, holder)
    if row is None:
        raise IdempotencyConflictError(f"idempotency key {key!r} belongs to a run that is gone; use another key")
    if row["workflow_id"] != new.workflow_id and wanted.names_id:
        raise IdempotencyConflictError(
            f"idempotency key {key!r} was used for workflow id {row['workflow_id']!r}; use another key",
            existing_execution_id=str(holder),
        )
    return Started(
        execution_id=holder,
        workflow_name=row["workflow_name"],
        workflow_id=row["workflow_id"],
        state=State(row["state"]).name,
        shard_id=store.shard_id,
        created=False,
        started_fresh=False,
        deduplicated=True,
    )


def _started(store: Store, execution_id: UUID, new: NewExecution, state: State, *, created: bool) -> Started:
    return Started(
        execution_id=execution_id,
        workflow_name=new.workflow_name,
        workflow_id=new.workflow_id,
        state=state.name,
        shard_id=store.shard_id,
        created=created,
        started_fresh=created,
    )


def new_execution(
    shard_id: int,
    *,
    workflow_name: str,
    workflow_id: str,
    version: int,
    input: bytes,
    queue: str = "default",
    tenant: str = "default",
    priority: int = 0,
    memo: bytes | None = None,
    search_attributes: str | None = None,
    execution_timeout: float | None = None,
) -> NewExecution:
    """A run to insert, with a fresh id and seed."""
    execution_id = mint_execution_id(shard_id)
    started = WorkflowStarted(
        workflow_name=workflow_name,
        workflow_id=workflow_id,
        version=version,
        seed=int.from_bytes(clock.random_bytes(8)) >> 3,
        input=Raw(input),
        queue=queue,
        execution_timeout_seconds=execution_timeout,
    )
    return NewExecution(
        execution_id=UUID(int=execution_id.int),
        business_key=business_key(tenant, workflow_name, workflow_id),
        workflow_name=workflow_name,
        workflow_id=workflow_id,
        version=version,
        partition=partition_of(workflow_id),
        queue=queue,
        started=encode_data(started),
        input=input,
        tenant=tenant,
        priority=priority,
        memo=memo,
        search_attributes=search_attributes,
        execution_timeout=execution_timeout,
    )


async def start_many(
    shards: Shards, workflow_name: str, workflow_ids: Sequence[str], input: bytes, *, batch: int = 500
) -> int:
    """Start many runs of one type with one input; ids whose key is taken are left out. Returns how many began."""
    definition = await definitions.find(shards, workflow_name)
    check_input(input, definition.input_schema, what=f"the input of workflow {workflow_name!r}")
    declared = definition.input_schema.get("x-options", {})
    by_shard: dict[int, list[NewExecution]] = {}
    for workflow_id in workflow_ids:
        shard_id = shards.router.place(
            workflow_name, check_text(workflow_id, what="workflow_id", most=WORKFLOW_ID_BYTES)
        )
        by_shard.setdefault(shard_id, []).append(
            new_execution(
                shard_id,
                workflow_name=workflow_name,
                workflow_id=workflow_id,
                version=definition.version,
                input=input,
                queue=declared.get("queue", "default"),
                execution_timeout=declared.get("execution_timeout"),
            )
        )
    began = 0
    for shard_id, new in by_shard.items():
        store = shards.store(shard_id)
        for first in range(0, len(new), batch):
            began += await appends.start_many(store, new[first : first + batch])
        store.waker.wake(None)
    return began


def _check_choice(field: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidRequestError(f"{field} is {value[:80]!r}; it must be one of {', '.join(choices)}", field=field)
