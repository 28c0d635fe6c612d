"""The audit log: read over all shards, and written for acts that changed nothing (answers 11)."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.errors import InvalidRequestError, ShardUnavailableError
from harvest.operations.actor import Actor
from harvest.operations.asking import ask
from harvest.operations.paging import Page, filter_digest, keyset_page
from harvest.shards import Shards
from harvest.store import audit
from harvest.store.audit import AuditEntry, AuditFilter
from harvest.store.store import Store

__all__ = ["AuditFilter", "AuditView", "list_audit", "record"]

MOST_ENTRIES: Final = 200
_SUMMARY_CHARACTERS: Final = 500


class AuditView(Struct, frozen=True, kw_only=True):
    """One act: who did what to what, by which way, and how it ended."""

    id: UUID
    occurred_at: datetime
    actor: str
    on_behalf_of: str | None
    operation: str
    target_type: str
    target_id: str
    route_or_command: str
    request_id: str
    idempotency_key: str | None
    status: str
    error_summary: str | None
    reason: str | None
    source: str
    shard_id: int


async def list_audit(
    shards: Shards, wanted: AuditFilter | None = None, *, limit: int = 50, cursor: str | None = None
) -> Page[AuditView]:
    """The newest acts first, merged over the shards by (occurred_at, id). Raises CursorError."""
    wanted = wanted or AuditFilter()
    if not 1 <= limit <= MOST_ENTRIES:
        raise InvalidRequestError(f"limit is {limit}; it must be 1 to {MOST_ENTRIES}", field="limit")

    async def read(store: Store, anchor: tuple[datetime, UUID] | None, descending: bool, most: int) -> list[AuditView]:
        return [_view(row) for row in await audit.page(store, wanted, anchor, descending=descending, limit=most)]

    return await keyset_page(
        shards,
        read,
        key=lambda entry: (entry.occurred_at, entry.id),
        size=limit,
        descending=True,
        cursor=cursor,
        digest=filter_digest("audit", msgspec.to_builtins(wanted)),
    )


def _view(row: Any) -> AuditView:
    return AuditView(**{name: row[name] for name in AuditView.__struct_fields__})


async def record(
    shards: Shards,
    actor: Actor,
    operation: str,
    target_type: str,
    target_id: str,
    status: str,
    error_summary: str | None = None,
) -> None:
    """Write a row for an act that changed nothing: on the default shard, else on the first that takes it.

    Raises ShardUnavailableError when none does.
    """
    default = shards.router.default
    failure: ShardUnavailableError | None = None
    for shard_id in (default, *(shard for shard in shards.router.readable if shard != default)):
        entry = AuditEntry(
            id=UUID(bytes=clock.random_bytes(16), version=4),
            actor=actor.name,
            on_behalf_of=actor.on_behalf_of,
            operation=operation,
            target_type=target_type,
            target_id=target_id,
            route_or_command=actor.route,
            request_id=actor.request_id,
            idempotency_key=None,
            status=status,
            error_summary=error_summary[:_SUMMARY_CHARACTERS] if error_summary else None,
            reason=None,
            source=actor.source,
            shard_id=shard_id,
        )
        try:
            await ask(shards, shard_id, partial(audit.insert, entry=entry))
        except ShardUnavailableError as error:
            failure = error
        else:
            return
    if failure is not None:
        raise failure
