"""Who looks after a run, how bad it is, and a note: changed by people, in any state of the run (reference 4.3)."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from harvest.errors import ExecutionNotFoundError, InvalidRequestError
from harvest.history.ids import ExecutionId
from harvest.history.limits import NAME_BYTES, check_text
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.auditing import record
from harvest.operations.listing import severity_named
from harvest.operations.signalling import unchanged
from harvest.shards import Shards
from harvest.store import triage

OPERATION: Final = "workflow.triage"
NOTE_BYTES: Final = 8_192


class TriageChange(Struct, frozen=True, kw_only=True):
    """What to set: a field that is left out stays, None clears it."""

    owner: str | UnsetType | None = UNSET
    severity: str | UnsetType | None = UNSET
    note: str | UnsetType | None = UNSET


class TriagedRun(Struct, frozen=True, kw_only=True):
    """A run's triage after a change, and which of its fields are others than before."""

    execution_id: UUID
    changed_fields: tuple[str, ...]
    owner: str | None
    severity: str | None
    note: str | None


async def change_triage(shards: Shards, actor: Actor, execution_id: UUID, change: TriageChange) -> TriagedRun:
    """Set owner, severity and note of exactly this run, whatever its state.

    Raises InvalidRequestError, LimitError, ExecutionNotFoundError, ShardUnavailableError.
    """
    given = _given(change)
    store = shards.store_of(ExecutionId(int=execution_id.int))
    audit = audit_entry(actor, OPERATION, shard_id=store.shard_id, target_id=str(execution_id), reason=", ".join(given))
    done = await triage.change(store, execution_id, given, actor.name, audit)
    if done is None:
        error = ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=str(execution_id))
        await record(shards, actor, OPERATION, "execution", str(execution_id), "failed", error.message)
        raise error
    if done.changed:
        store.hints.touch(done.partition)
    else:
        await unchanged(shards, actor, OPERATION, execution_id, "it was so before")
    return TriagedRun(
        execution_id=execution_id,
        changed_fields=done.changed,
        owner=done.owner,
        severity=done.severity,
        note=done.note,
    )


def _given(change: TriageChange) -> dict[str, str | None]:
    given: dict[str, str | None] = {}
    for name in triage.FIELDS:
        value = getattr(change, name)
        if value is UNSET:
            continue
        # A form sends an empty text for what it clears.
        given[name] = _checked(name, value) if value else None
    if not given:
        raise InvalidRequestError("nothing to change: give owner, severity or note; null clears one", field="owner")
    return given


def _checked(name: str, value: str) -> str:
    if name == "severity":
        return severity_named(value)
    return check_text(value, what=name, most=NOTE_BYTES if name == "note" else NAME_BYTES)
