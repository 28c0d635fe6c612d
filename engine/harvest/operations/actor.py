"""Who acts, and by which way in: what every mutation writes into its audit row."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from msgspec import Struct

from harvest import clock
from harvest.history.ids import mint_execution_id
from harvest.history.limits import REASON_CHARACTERS
from harvest.store.audit import AuditEntry

Source = Literal["api", "cli", "ui"]


class Actor(Struct, frozen=True):
    """`name` is `token:admin`, `session:<id8>` or `app`; a claimed other is kept apart as `on_behalf_of`."""

    name: str
    source: Source
    request_id: str
    route: str
    on_behalf_of: str | None = None
    tenant: str = "default"


def audit_entry(
    actor: Actor,
    operation: str,
    *,
    shard_id: int,
    target_id: str,
    target_type: str = "execution",
    idempotency_key: str | None = None,
    reason: str | None = None,
    error: str | None = None,
) -> AuditEntry:
    """The audit row of one act; `error` makes it a failed one."""
    return AuditEntry(
        id=UUID(int=mint_execution_id(shard_id).int),
        actor=actor.name,
        on_behalf_of=actor.on_behalf_of,
        operation=operation,
        target_type=target_type,
        target_id=target_id,
        route_or_command=actor.route,
        request_id=actor.request_id,
        idempotency_key=idempotency_key,
        status="succeeded" if error is None else "failed",
        error_summary=error,
        reason=None if reason is None else reason[:REASON_CHARACTERS],
        source=actor.source,
        shard_id=shard_id,
    )


def in_process(route: str) -> Actor:
    """The application itself, through the Python client."""
    return Actor("app", "api", clock.random_bytes(8).hex(), route)
