"""Sending signals: an event in the run's history, and a wake."""

from __future__ import annotations

from uuid import UUID

from msgspec import Raw, Struct

from harvest.errors import ExecutionClosedError, ExecutionNotFoundError, HarvestError
from harvest.history import payload as payloads
from harvest.history.data import SignalReceived
from harvest.history.events import encode_data
from harvest.history.ids import ExecutionId
from harvest.history.kinds import EventKind
from harvest.history.large import warn_if_large
from harvest.history.limits import check_text
from harvest.operations import definitions
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.auditing import record
from harvest.operations.inputs import check_input
from harvest.shards import Shards
from harvest.store import appends
from harvest.store.store import Store


class Signalled(Struct, frozen=True):
    """`signal_delivered` is false only for a repeated idempotency key: the first one was."""

    execution_id: UUID
    signal_delivered: bool
    deduplicated: bool


async def signal(
    shards: Shards,
    actor: Actor,
    execution_id: UUID,
    name: str,
    payload: bytes,
    *,
    idempotency_key: str | None = None,
) -> Signalled:
    """Send a signal to an open run. A payload must fit the type that the workflow declares for the signal, if it does.

    Raises ExecutionClosedError, ExecutionNotFoundError, InputInvalidError, LimitError, PayloadError.
    """
    check_text(name, what="signal name")
    if idempotency_key is not None:
        check_text(idempotency_key, what="idempotency_key")
    payloads.check_text(payload, what=f"the payload of signal {name!r}")
    store = shards.store_of(ExecutionId(int=execution_id.int))
    warn_if_large(payload, f"the payload of signal {name!r}")
    await _check_declared(shards, store, execution_id, name, payload)
    answer = await appends.append(
        store,
        execution_id,
        EventKind.SIGNAL_RECEIVED,
        encode_data(SignalReceived(name=name, payload=Raw(payload), actor=actor.name)),
        audit_entry(
            actor,
            "workflow.signal",
            shard_id=store.shard_id,
            target_id=str(execution_id),
            idempotency_key=idempotency_key,
            reason=f"signal {name}",
        ),
        key=idempotency_key,
    )
    if answer.written:
        store.waker.wake(answer.holder)
        store.hints.touch(answer.partition)
        return Signalled(execution_id, signal_delivered=True, deduplicated=False)
    if answer.deduplicated:
        await unchanged(shards, actor, "workflow.signal", execution_id, "repeated: this key was used before")
        return Signalled(execution_id, signal_delivered=False, deduplicated=True)
    error = refusal(execution_id, answer, "takes no signals")
    await record(shards, actor, "workflow.signal", "execution", str(execution_id), "failed", error.message)
    raise error


async def unchanged(shards: Shards, actor: Actor, operation: str, execution_id: UUID, why: str) -> None:
    """Audit an act that was right and had nothing left to do (answers 11)."""
    await record(shards, actor, operation, "execution", str(execution_id), "succeeded", why)


async def _check_declared(shards: Shards, store: Store, execution_id: UUID, name: str, payload: bytes) -> None:
    """Refuse what would block the run: it could not be decoded there."""
    known = await definitions.registered(shards)
    declared = {
        row.name: row.signals[name] for row in known.rows if row.kind == definitions.WORKFLOW and name in row.signals
    }
    if not declared:
        return
    schema = declared.get(await appends.open_workflow_name(store, execution_id) or "")
    if schema is not None:
        check_input(payload, schema, what=f"the payload of signal {name!r}")


def refusal(execution_id: UUID, answer: appends.Appending, what: str) -> HarvestError:
    """Why an append was not written: there is no such run, or it has ended."""
    if answer.state is None:
        return ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=str(execution_id))
    return ExecutionClosedError(
        f"execution {execution_id} has ended ({answer.state.name}) and {what}",
        execution_id=str(execution_id),
        state=answer.state.name,
    )
