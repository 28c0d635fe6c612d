"""A signal or an update to the run of a business key, which is started where there is none: one transaction.

An open run may be on another shard than its id leads to: it was placed, or its shard drains since. So with several
shards it is looked for on all of them, and the policies hold where it is.

What a start brings along is in the history before its code runs for the first time.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.errors import ExecutionPausedError, HarvestError, InvalidRequestError
from harvest.history.data import SignalReceived, UpdateAdmitted
from harvest.history.events import encode_data
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations import resolving, starting, updating
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.auditing import record
from harvest.operations.inputs import check_input
from harvest.operations.preparing import Prepared, StartRequest, checked, prepare, target_of
from harvest.operations.signalling import signal_data
from harvest.operations.starting import RACES, REUSE_POLICIES, Taken, check_choice
from harvest.operations.updating import DEFAULT_WAIT, Stage, Updated
from harvest.shards import Shards
from harvest.store import appends, starts
from harvest.store.pool import Connection
from harvest.store.updates import Admitted

# What a policy says of a prior run that is open, and of one that has ended (reference 2.8). A terminated one, and none
# at all, always make way.
_VERDICTS: Final = {
    "allow_duplicate": ("attach", "start"),
    "reject_duplicate": ("refuse", "refuse"),
    "allow_duplicate_failed_only": ("attach", "start"),
    "terminate_if_running": ("end", "start"),
}


class StartedWith(Struct, frozen=True, kw_only=True):
    """The run that has the message. `started_fresh` tells whether this request began it.

    `delivered` is false only for a repeated idempotency key: the first request delivered it. `event_id` is that of the
    message, 0 for a repeated one.
    """

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    state: str
    shard_id: int
    started_fresh: bool
    delivered: bool
    deduplicated: bool
    event_id: int


class UpdatedWith(Struct, frozen=True):
    """The run that has the update, and how it was answered."""

    started: StartedWith
    updated: Updated


class _Message(Struct, frozen=True):
    """What goes along: its event, and the key that lets it in once."""

    kind: EventKind
    data: SignalReceived | UpdateAdmitted
    key: str | None

    @property
    def what(self) -> str:
        """`signal` or `update`, as operations and keys are named by it."""
        return "update" if self.kind is EventKind.UPDATE_ADMITTED else "signal"

    def scoped(self, workflow_name: str, key: str) -> str:
        """An idempotency key, apart from those of plain starts, which deliver nothing."""
        return f"{workflow_name}\x1f{self.what}\x1f{key}"


async def signal_with_start(
    shards: Shards,
    actor: Actor,
    request: StartRequest,
    name: str,
    payload: bytes,
    *,
    reuse_policy: str = "allow_duplicate",
) -> StartedWith:
    """Signal the open run of the request's workflow id, or start it with the signal, as reference 2.8 says.

    Raises ExecutionExistsError where the policy refuses a prior run, UnknownExecutionError where no open run was found
    and a shard did not answer, and as starts and signals do.
    """
    message = _Message(EventKind.SIGNAL_RECEIVED, signal_data(actor, name, payload), request.idempotency_key)
    return await _with_start(shards, actor, request, message, reuse_policy)


async def update_with_start(
    shards: Shards,
    actor: Actor,
    request: StartRequest,
    name: str,
    input: bytes,
    *,
    reuse_policy: str = "allow_duplicate",
    wait: Stage = "completed",
    timeout: float = DEFAULT_WAIT,
) -> UpdatedWith:
    """Send an update to the open run of the request's workflow id, or start it with the update; then wait as `update`.

    Raises ExecutionExistsError where the policy refuses a prior run, ExecutionPausedError for a paused one,
    UnknownExecutionError where no open run was found and a shard did not answer, and as starts and updates do.
    """
    data = updating.update_data(actor, name, input, request.idempotency_key)
    message = _Message(EventKind.UPDATE_ADMITTED, data, data.update_id)
    started = await _with_start(shards, actor, request, message, reuse_policy)
    if started.event_id:
        store = shards.store(started.shard_id)
        admitted = Admitted(started.execution_id, started.event_id, started.event_id)
        updated = await updating.answer_of(shards, store, admitted, data.update_id, wait=wait, timeout=timeout)
    else:
        updated = await updating.awaited(shards, started.execution_id, data.update_id, wait=wait, timeout=timeout)
    return UpdatedWith(started, updated)


async def _with_start(
    shards: Shards, actor: Actor, request: StartRequest, message: _Message, reuse_policy: str
) -> StartedWith:
    check_choice("reuse_policy", reuse_policy, REUSE_POLICIES)
    if not request.workflow_id:
        raise InvalidRequestError("workflow_id is missing: it names the run that is meant", field="workflow_id")
    request = checked(request, shards.router)
    operation = f"workflow.{message.what}_with_start"
    try:
        started = await _in_one(shards, actor, request, message, reuse_policy)
    except HarvestError as error:
        if not error.retryable:
            await record(shards, actor, operation, "workflow", target_of(request), "failed", error.message)
        raise
    if started.deduplicated:
        found = str(started.execution_id)
        await record(shards, actor, operation, "execution", found, "succeeded", "repeated: this key was used before")
    return started


def _check_message(prepared: Prepared, message: _Message) -> None:
    known = prepared.definition.updates if message.kind is EventKind.UPDATE_ADMITTED else prepared.definition.signals
    schema = known.get(message.data.name)
    if schema is not None:
        payload = message.data.input if isinstance(message.data, UpdateAdmitted) else message.data.payload
        check_input(bytes(payload), schema, what=f"the payload of {message.what} {message.data.name!r}")


async def _in_one(shards: Shards, actor: Actor, request: StartRequest, message: _Message, reuse: str) -> StartedWith:
    key, carried = request.idempotency_key, (message.kind, message.data)
    for _ in range(RACES):
        found = await _found_at(shards, actor, request, message)
        prepared = await prepare(shards, actor, request, carried=carried, shard_id=found)
        _check_message(prepared, message)
        store = prepared.store
        try:
            async with store.write.connection(writes=True) as connection, connection.transaction():
                started, holder = await _once(connection, actor, prepared, message, reuse, key, begins=found is None)
        except Taken:
            continue
        if started.delivered:
            # After the commit: a wake that comes before it finds nothing.
            store.waker.wake(holder)
            store.hints.touch(prepared.new.partition)
        return started
    raise starting.contended(prepared.new)


async def _found_at(shards: Shards, actor: Actor, request: StartRequest, message: _Message) -> int | None:
    """Where what the request means is: its key, else the open run. None: nowhere, or there is but one shard."""
    if len(shards.router.readable) == 1:
        return None
    name, key = request.workflow_name, request.idempotency_key
    scoped = None if key is None else message.scoped(name, key)
    return await resolving.shard_of_open(shards, name, request.workflow_id or "", tenant=actor.tenant, start_key=scoped)


async def _once(
    connection: Connection,
    actor: Actor,
    prepared: Prepared,
    message: _Message,
    reuse: str,
    key: str | None,
    *,
    begins: bool,
) -> tuple[StartedWith, UUID | None]:
    """One try: what it led to, and the worker to wake (None: anybody). Raises Taken.

    Without `begins` it is for the open run that was found on this shard: where that has ended, none begins here.
    """
    store, new = prepared.store, prepared.new
    scoped = message.scoped(new.workflow_name, key or "")
    if key is not None:
        holder = (await starts.take_start_keys(connection, [(new.execution_id, scoped)]))[scoped]
        if holder != new.execution_id:
            before = await starting.keyed_replay(store, connection, holder, key, new, names_id=True)
            return _replayed(before.execution_id, before.state, prepared), None
    prior = await starts.latest(connection, new.business_key)
    if not begins and (prior is None or not State(prior["state"]).is_open):
        raise Taken
    if prior is not None:
        state, found = State(prior["state"]), prior["execution_id"]
        verdict = _verdict(reuse, state)
        if verdict == "refuse":
            raise starting.exists(new, found, state, f"reuse_policy {reuse!r} does not allow")
        if verdict == "attach":
            if key is not None:
                await starts.point_start_key(connection, found, scoped)
            return await _attach(connection, actor, prepared, message, found, key)
        if verdict == "end":
            await starting.end_prior(store.shard_id, connection, actor, found)
    audit = audit_entry(
        actor,
        "workflow.start",
        shard_id=store.shard_id,
        target_id=str(new.execution_id),
        idempotency_key=key,
        reason=f"with {message.what} {message.data.name}",
    )
    if not await starts.start(connection, new, audit):
        raise Taken
    if message.key is not None:
        await appends.note_key(connection, new.execution_id, message.kind, message.key, event_id=2)
    return _delivered(new.execution_id, State.RUNNING, prepared, event_id=2, fresh=True), None


def _verdict(reuse: str, state: State) -> str:
    if_open, if_ended = _VERDICTS[reuse]
    if state is State.TERMINATED:
        return "start"
    return if_open if state.is_open else if_ended


async def _attach(
    connection: Connection, actor: Actor, prepared: Prepared, message: _Message, execution_id: UUID, key: str | None
) -> tuple[StartedWith, UUID | None]:
    audit = audit_entry(
        actor,
        f"workflow.{message.what}",
        shard_id=prepared.store.shard_id,
        target_id=str(execution_id),
        idempotency_key=key,
        reason=f"{message.what} {message.data.name}",
    )
    answer = await appends.append_on(
        connection, execution_id, message.kind, encode_data(message.data), audit, key=message.key
    )
    if answer.state is None or (not answer.written and not answer.deduplicated):
        # It has ended since it was looked at.
        raise Taken
    if answer.written and answer.state is State.PAUSED and message.kind is EventKind.UPDATE_ADMITTED:
        raise ExecutionPausedError(
            f"execution {execution_id} is paused and answers no update; resume it first",
            execution_id=str(execution_id),
        )
    if not answer.written:
        return _replayed(execution_id, answer.state.name, prepared), None
    return _delivered(execution_id, answer.state, prepared, event_id=answer.event_id, fresh=False), answer.holder


def _delivered(execution_id: UUID, state: State, prepared: Prepared, *, event_id: int, fresh: bool) -> StartedWith:
    return StartedWith(
        execution_id=execution_id,
        workflow_name=prepared.new.workflow_name,
        workflow_id=prepared.new.workflow_id,
        state=state.name,
        shard_id=prepared.store.shard_id,
        started_fresh=fresh,
        delivered=True,
        deduplicated=False,
        event_id=event_id,
    )


def _replayed(execution_id: UUID, state: str, prepared: Prepared) -> StartedWith:
    found = _delivered(execution_id, State.RUNNING, prepared, event_id=0, fresh=False)
    return msgspec.structs.replace(found, state=state, delivered=False, deduplicated=True)
