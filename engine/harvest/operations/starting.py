"""Starting workflows: placement, the policies of reference 2.8, idempotency keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from harvest.errors import (
    ExecutionExistsError,
    HarvestError,
    IdempotencyConflictError,
    InvalidRequestError,
    PlacementError,
)
from harvest.history import payload
from harvest.history.data import RetryPolicy, WorkflowTerminated
from harvest.history.events import encode_data
from harvest.history.kinds import EventKind
from harvest.history.limits import WORKFLOW_ID_BYTES, check_text
from harvest.history.states import State
from harvest.operations import definitions
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.auditing import record
from harvest.operations.inputs import check_input
from harvest.operations.preparing import StartRequest, checked, prepare, retry_of, target_of
from harvest.shards import AUTOMATIC, Placement, Shards
from harvest.store import closings, starts
from harvest.store.pool import Connection, Record
from harvest.store.starts import NewExecution, new_execution
from harvest.store.store import Store

REUSE_POLICIES: Final = ("allow_duplicate", "reject_duplicate", "allow_duplicate_failed_only", "terminate_if_running")
CONFLICT_POLICIES: Final = ("unspecified", "fail", "use_existing", "terminate_existing")
RACES: Final = 20
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
    """What a start asks for beside the run itself. `place` refuses to begin one where only a repeat is answered."""

    reuse: str
    conflict: str
    key: str | None
    names_id: bool
    place: Callable[[], int]


class Taken(Exception):
    """Another came between: the key was taken, or the run that it stands for ended. Tried again; no caller sees it."""


async def start(
    shards: Shards,
    actor: Actor,
    *,
    workflow_name: str,
    workflow_id: str | None = None,
    version: int = 0,
    input: bytes = payload.NULL,
    queue: str | None = None,
    priority: int = 0,
    memo: bytes | None = None,
    search_attrs: Mapping[str, Any] | None = None,
    execution_timeout_secs: float | None = None,
    chain_execution_timeout_secs: float | None = None,
    retry: RetryPolicy | None = None,
    reuse_policy: str = "allow_duplicate",
    conflict_policy: str = "unspecified",
    idempotency_key: str | None = None,
    placement: Placement = AUTOMATIC,
) -> Started:
    """Start a workflow, or find the run that the policies say stands for it.

    What a run can be asked for is as StartRequest says. Raises PlacementError, WorkflowNotRegisteredError,
    InputInvalidError (`fields["problems"]` with JSON pointers), LimitError, ExecutionExistsError,
    IdempotencyConflictError, and the errors of an unreachable shard.
    """
    request = StartRequest(
        workflow_name=workflow_name,
        workflow_id=workflow_id,
        version=version,
        input=input,
        queue=queue,
        priority=priority,
        memo=memo,
        search_attrs=search_attrs,
        execution_timeout_secs=execution_timeout_secs,
        chain_execution_timeout_secs=chain_execution_timeout_secs,
        retry=retry,
        idempotency_key=idempotency_key,
        placement=placement,
    )
    return await start_one(shards, actor, request, reuse_policy=reuse_policy, conflict_policy=conflict_policy)


async def start_one(
    shards: Shards,
    actor: Actor,
    request: StartRequest,
    *,
    reuse_policy: str = "allow_duplicate",
    conflict_policy: str = "unspecified",
) -> Started:
    """As `start`, of a request."""
    check_choice("reuse_policy", reuse_policy, REUSE_POLICIES)
    check_choice("conflict_policy", conflict_policy, CONFLICT_POLICIES)
    names_id = bool(request.workflow_id)
    request = await _placeable(shards, actor, request)
    try:
        prepared = await prepare(shards, actor, request)
        place = partial(shards.router.place, request.workflow_name, request.workflow_id or "", request.placement)
        wanted = _Wanted(reuse_policy, conflict_policy, request.idempotency_key, names_id, place)
        started = await _start(prepared.store, actor, prepared.new, wanted)
    except HarvestError as error:
        if not error.retryable:
            await record(shards, actor, "workflow.start", "workflow", target_of(request), "failed", error.message)
        raise
    if not started.created:
        found = str(started.execution_id)
        await record(shards, actor, "workflow.start", "execution", found, "succeeded", "an existing run was found")
    return started


async def _placeable(shards: Shards, actor: Actor, request: StartRequest) -> StartRequest:
    """The request as `checked`; that somebody was refused a place is in the audit log."""
    try:
        return checked(request, shards.router)
    except PlacementError as error:
        await record(shards, actor, "workflow.start", "workflow", target_of(request), "failed", error.message)
        raise


async def _start(store: Store, actor: Actor, new: NewExecution, wanted: _Wanted) -> Started:
    for _ in range(RACES):
        try:
            async with store.write.connection(writes=True) as connection, connection.transaction():
                started = await _start_once(store, connection, actor, new, wanted)
        except Taken:
            continue
        if started.created:
            # After the commit: a wake that comes before it finds nothing.
            store.waker.wake(None)
            store.hints.touch(new.partition)
        return started
    raise contended(new)


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
        holder = (await starts.take_start_keys(connection, [(new.execution_id, scoped)]))[scoped]
        if holder != new.execution_id:
            return await keyed_replay(store, connection, holder, key, new, names_id=wanted.names_id)
    wanted.place()
    prior = await starts.latest(connection, new.business_key)
    if prior is not None:
        existing = await _apply_policies(store, connection, actor, new, prior, wanted)
        if existing is not None:
            if key is not None:
                await starts.point_start_key(connection, existing.execution_id, scoped)
            return existing
    audit = audit_entry(
        actor, "workflow.start", shard_id=store.shard_id, target_id=str(new.execution_id), idempotency_key=key
    )
    if not await starts.start(connection, new, audit):
        raise Taken
    return started_answer(store, new.execution_id, new, State.RUNNING, created=True)


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
            return started_answer(store, prior["execution_id"], new, state, created=False)
        if verdict == "end":
            await end_prior(store.shard_id, connection, actor, prior["execution_id"])
            return None
    elif state is State.TERMINATED or state in _MAKES_WAY[reuse]:
        return None
    raise exists(
        new, prior["execution_id"], state, f"reuse_policy {reuse!r} with conflict_policy {conflict!r} does not allow"
    )


def exists(new: NewExecution, prior: UUID, state: State, why: str) -> ExecutionExistsError:
    """The refusal of a start for the run that stands in its way."""
    return ExecutionExistsError(
        f"workflow {new.workflow_name!r} with id {new.workflow_id!r} exists ({state.name}), and {why} another run",
        existing_execution_id=str(prior),
        existing_state=state.name,
    )


def contended(new: NewExecution) -> ExecutionExistsError:
    """The refusal of a start that others came before each time."""
    return ExecutionExistsError(
        f"workflow id {new.workflow_id!r} is being started by others at this moment; try again",
        workflow_id=new.workflow_id,
    )


async def end_prior(shard_id: int, connection: Connection, actor: Actor, execution_id: UUID) -> None:
    """End the run that makes way. Its holder learns of it when its next commit is refused."""
    reason = "replaced by a new start"
    await closings.close_on(
        connection,
        execution_id,
        EventKind.WORKFLOW_TERMINATED,
        encode_data(WorkflowTerminated(reason=reason, actor=actor.name)),
        State.TERMINATED,
        audit_entry(actor, "workflow.terminate", shard_id=shard_id, target_id=str(execution_id), reason=reason),
    )


async def keyed_replay(
    store: Store, connection: Connection, holder: UUID, key: str, new: NewExecution, *, names_id: bool
) -> Started:
    """What a repeated request with an idempotency key is answered: the run that the first one led to."""
    row = await starts.by_id(connection, holder)
    if row is None:
        raise IdempotencyConflictError(f"idempotency key {key!r} belongs to a run that is gone; use another key")
    if row["workflow_id"] != new.workflow_id and names_id:
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


def started_answer(store: Store, execution_id: UUID, new: NewExecution, state: State, *, created: bool) -> Started:
    """The answer of a start that led to this run."""
    return Started(
        execution_id=execution_id,
        workflow_name=new.workflow_name,
        workflow_id=new.workflow_id,
        state=state.name,
        shard_id=store.shard_id,
        created=created,
        started_fresh=created,
    )


async def start_many(
    shards: Shards, workflow_name: str, workflow_ids: Sequence[str], input: bytes, *, batch: int = 500
) -> int:
    """Start many runs of one type with one input; ids whose key is taken are left out. Returns how many began."""
    definition = await definitions.find(shards, workflow_name)
    check_input(input, definition.input_schema, what=f"the input of workflow {workflow_name!r}")
    declared = definition.input_schema.get("x-options", {})
    chain_timeout = declared.get("chain_execution_timeout")
    deadlines = {
        shard_id: await starts.instant_in(shards.store(shard_id), chain_timeout)
        for shard_id in (shards.router.writable if chain_timeout else ())
    }
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
                chain_deadline=deadlines.get(shard_id),
                retry=retry_of(None, declared),
            )
        )
    began = 0
    for shard_id, new in by_shard.items():
        store = shards.store(shard_id)
        for first in range(0, len(new), batch):
            began += await starts.start_many(store, new[first : first + batch])
        store.waker.wake(None)
    return began


def check_choice(field: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that is none of the choices; raises InvalidRequestError."""
    if value not in choices:
        raise InvalidRequestError(f"{field} is {value[:80]!r}; it must be one of {', '.join(choices)}", field=field)
