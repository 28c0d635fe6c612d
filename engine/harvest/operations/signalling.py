"""Sending signals: an event in the run's history, and a wake."""

from __future__ import annotations

from typing import Literal
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
from harvest.operations.routing import Reply, reach, routed
from harvest.shards import Shards
from harvest.store import appends, starts
from harvest.store.store import Store


class Signalled(Struct, frozen=True):
    """`signal_delivered` is false only for a repeated idempotency key: the first one was.

    `routed_execution_id` is the run that has the signal, where that is a later one of the chain of `execution_id`.
    """

    execution_id: UUID
    signal_delivered: bool
    deduplicated: bool
    routed_execution_id: UUID | None = None


async def signal(
    shards: Shards,
    actor: Actor,
    execution_id: UUID,
    name: str,
    payload: bytes,
    *,
    idempotency_key: str | None = None,
) -> Signalled:
    """Send a signal to an open run, or to the live run of its chain.

    A payload must fit the type that the workflow declares for the signal, if it does. Raises ExecutionClosedError,
    ExecutionNotFoundError, InputInvalidError, LimitError, PayloadError.
    """
    store = shards.store_of(ExecutionId(int=execution_id.int))
    data = signal_data(actor, name, payload)
    if idempotency_key is not None:
        check_text(idempotency_key, what="idempotency_key")

    async def send(target: UUID) -> appends.Appending:
        await check_declared(shards, store, target, "signal", name, payload)
        audit = audit_entry(
            actor,
            "workflow.signal",
            shard_id=store.shard_id,
            target_id=str(target),
            idempotency_key=idempotency_key,
            reason=f"signal {name}",
        )
        return await appends.append(
            store, target, EventKind.SIGNAL_RECEIVED, encode_data(data), audit, key=idempotency_key
        )

    reached, answer = await reach(store, execution_id, send)
    if answer.written:
        store.waker.wake(answer.holder)
        store.hints.touch(answer.partition)
        return Signalled(execution_id, True, False, routed(execution_id, reached))
    if answer.deduplicated:
        await unchanged(shards, actor, "workflow.signal", reached, "repeated: this key was used before")
        return Signalled(execution_id, False, True, routed(execution_id, reached))
    error = refusal(reached, answer, "takes no signals")
    await record(shards, actor, "workflow.signal", "execution", str(reached), "failed", error.message)
    raise error


def signal_data(actor: Actor, name: str, payload: bytes) -> SignalReceived:
    """The event of a signal; raises LimitError and PayloadError."""
    check_text(name, what="signal name")
    payloads.check_text(payload, what=f"the payload of signal {name!r}")
    warn_if_large(payload, f"the payload of signal {name!r}")
    return SignalReceived(name=name, payload=Raw(payload), actor=actor.name)


async def unchanged(shards: Shards, actor: Actor, operation: str, execution_id: UUID, why: str) -> None:
    """Audit an act that was right and had nothing left to do (answers 11)."""
    await record(shards, actor, operation, "execution", str(execution_id), "succeeded", why)


async def check_declared(
    shards: Shards, store: Store, execution_id: UUID, kind: Literal["signal", "update"], name: str, payload: bytes
) -> None:
    """Refuse what the run's code declares otherwise: of a signal, what could not be decoded would block it."""
    known = await definitions.registered(shards)
    declared = {
        row.name: messages[name]
        for row in known.rows
        if row.kind == definitions.WORKFLOW and name in (messages := getattr(row, f"{kind}s"))
    }
    if not declared:
        return
    schema = declared.get(await starts.open_workflow_name(store, execution_id) or "")
    if schema is not None:
        check_input(payload, schema, what=f"the payload of {kind} {name!r}")


def refusal(execution_id: UUID, answer: Reply, what: str) -> HarvestError:
    """Why an append was not written: there is no such run, or it has ended."""
    if answer.state is None:
        return ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=str(execution_id))
    return ExecutionClosedError(
        f"execution {execution_id} has ended ({answer.state.name}) and {what}",
        execution_id=str(execution_id),
        state=answer.state.name,
    )
