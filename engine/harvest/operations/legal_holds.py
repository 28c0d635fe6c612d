"""Legal holds: what is held cannot be erased. Set and released by people, in any state of the run (reference 2.11)."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest import clock
from harvest.errors import ExecutionNotFoundError, HarvestError, InvalidRequestError, RunBusyError
from harvest.history.ids import ExecutionId
from harvest.history.limits import REASON_CHARACTERS, check_text
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.asking import ask
from harvest.operations.auditing import record
from harvest.operations.signalling import unchanged
from harvest.shards import Shards
from harvest.store import legal_holds as rows
from harvest.store.pool import Record

SET: Final = "legal_hold.set"
RELEASE: Final = "legal_hold.release"


class LegalHold(Struct, frozen=True, kw_only=True):
    """A hold that is in force: why, by whom, since when, and until when; null is until it is released."""

    execution_id: UUID
    reason: str
    actor: str
    set_at: datetime
    hold_until: datetime | None


class HeldRun(Struct, frozen=True, kw_only=True):
    """A run that is held. A second hold changes nothing: `newly_held` is false, and `hold` the one that was there."""

    held: bool
    newly_held: bool
    hold: LegalHold


async def hold(
    shards: Shards, actor: Actor, execution_id: UUID, *, reason: str, hold_until: datetime | None = None
) -> HeldRun:
    """Keep a run from being erased, until `hold_until` or a release. A hold that has run out is replaced.

    Raises InvalidRequestError, LimitError, ExecutionNotFoundError, RunBusyError, ShardUnavailableError.
    """
    reason = required_reason(reason)
    _check_until(hold_until)
    store = shards.store_of(ExecutionId(int=execution_id.int))
    audit = audit_entry(actor, SET, shard_id=store.shard_id, target_id=str(execution_id), reason=reason)
    try:
        done = await rows.set_hold(store, execution_id, reason, actor.name, hold_until, audit)
    except RunBusyError as error:
        await _refused(shards, actor, SET, execution_id, error)
        raise
    if done is None:
        raise await missing(shards, actor, SET, execution_id)
    if done.written:
        store.hints.touch(done.partition)
    else:
        await unchanged(shards, actor, SET, execution_id, "the run was held before")
    return HeldRun(held=True, newly_held=done.written, hold=hold_view(done.row))


async def release(shards: Shards, actor: Actor, execution_id: UUID, *, reason: str = "") -> bool:
    """Let a run go; answers whether it was held.

    Raises LimitError, ExecutionNotFoundError, RunBusyError, ShardUnavailableError.
    """
    check_text(reason, what="reason", most=4 * REASON_CHARACTERS, empty=True)
    store = shards.store_of(ExecutionId(int=execution_id.int))
    audit = audit_entry(actor, RELEASE, shard_id=store.shard_id, target_id=str(execution_id), reason=reason or None)
    try:
        done = await rows.release(store, execution_id, audit)
    except RunBusyError as error:
        await _refused(shards, actor, RELEASE, execution_id, error)
        raise
    if done is None:
        raise await missing(shards, actor, RELEASE, execution_id)
    if not done.released:
        await unchanged(shards, actor, RELEASE, execution_id, "the run was not held")
        return False
    store.hints.touch(done.partition)
    return True


async def hold_of(shards: Shards, execution_id: UUID) -> LegalHold | None:
    """The hold that is in force on a run. Raises ShardUnavailableError."""
    shard_id = shards.store_of(ExecutionId(int=execution_id.int)).shard_id
    row = await ask(shards, shard_id, lambda store: rows.in_force(store, execution_id))
    return None if row is None else hold_view(row)


def hold_view(row: Record) -> LegalHold:
    """A hold from its row."""
    return LegalHold(**{name: row[name] for name in LegalHold.__struct_fields__})


def required_reason(reason: str) -> str:
    """A reason that must be given, as it is kept. Raises LimitError, InvalidRequestError for one of space alone."""
    check_text(reason, what="reason", most=4 * REASON_CHARACTERS)
    if not reason.strip():
        raise InvalidRequestError("reason must say why", field="reason")
    return reason[:REASON_CHARACTERS]


def _check_until(hold_until: datetime | None) -> None:
    if hold_until is None:
        return
    if hold_until.tzinfo is None:
        raise InvalidRequestError("hold_until has no time zone: write one, such as Z", field="hold_until")
    if hold_until <= clock.now():
        raise InvalidRequestError(
            f"hold_until is {hold_until.isoformat()}; it must be in the future", field="hold_until"
        )


async def missing(shards: Shards, actor: Actor, operation: str, execution_id: UUID) -> ExecutionNotFoundError:
    """The error of a run that is not there, after it was audited."""
    error = ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=str(execution_id))
    await _refused(shards, actor, operation, execution_id, error)
    return error


async def _refused(shards: Shards, actor: Actor, operation: str, execution_id: UUID, error: HarvestError) -> None:
    await record(shards, actor, operation, "execution", str(execution_id), "failed", error.message)
