"""A history as a document: for replay on another machine, for golden histories, for archives (reference 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args
from uuid import UUID

from harvest import clock
from harvest.errors import ExecutionNotFoundError, ExportTooLargeError, InvalidRequestError
from harvest.history.document import (
    DocumentEvent,
    HistoryDocument,
    PayloadPolicy,
    assemble,
    document_event,
    encode_event,
)
from harvest.history.events import EMPTY
from harvest.history.payload import CODEC_JSON
from harvest.history.redaction import redact
from harvest.operations.asking import ask
from harvest.operations.views import state_word
from harvest.shards import Shards
from harvest.store import exports
from harvest.store.pool import Record
from harvest.store.store import Store

MOST_BYTES: Final = 64 * 1024 * 1024
_OF_ROW: Final = (
    "execution_id",
    "workflow_name",
    "workflow_id",
    "version",
    "tenant",
    "queue",
    "build",
    "parent_id",
    "root_id",
    "first_execution_id",
    "previous_execution_id",
    "started_at",
    "closed_at",
    "decided_through",
    "erased_at",
)


async def export_history(
    shards: Shards,
    execution_id: UUID,
    *,
    payload_policy: PayloadPolicy = "full",
    max_bytes: int = MOST_BYTES,
) -> bytes:
    """The history up to now as the JSON text of a HistoryDocument (history/document.py).

    `full` has every payload byte for byte; `redacted` their sizes; `omit` nothing of them. Raises ExportTooLargeError
    when the document would have more than `max_bytes` (64 MiB at most), ExecutionNotFoundError, ShardUnavailableError.
    """
    if payload_policy not in get_args(PayloadPolicy):
        raise InvalidRequestError(
            f"payload_policy is {payload_policy!r}; it must be full, redacted or omit", field="payload_policy"
        )
    if not 1 <= max_bytes <= MOST_BYTES:
        raise InvalidRequestError(f"max_bytes is {max_bytes}; it must be 1 to {MOST_BYTES}", field="max_bytes")
    row, events = await _read(shards, execution_id, payload_policy, max_bytes)
    content = assemble(_head(row, payload_policy), events)
    if len(content) > max_bytes:
        raise _too_large(execution_id, max_bytes)
    return content


async def _read(
    shards: Shards, execution_id: UUID, policy: PayloadPolicy, max_bytes: int
) -> tuple[Record, list[bytes]]:
    """The row and the events, both of before the run was erased or both of after it."""
    shard_id = shards.store_of(execution_id).shard_id
    while True:
        row = await ask(shards, shard_id, lambda store: exports.head(store, execution_id))
        if row is None:
            raise ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=execution_id)
        if policy == "full" and row["payload_bytes"] > max_bytes:
            raise _too_large(execution_id, max_bytes)
        events = await _events(shards, shard_id, execution_id, row["next_event_id"], policy, max_bytes)
        # Erased meanwhile, it is read once more: what was gone by the end is in no export.
        if row["erased_at"] == await ask(shards, shard_id, lambda store: exports.erased_at(store, execution_id)):
            return row, events


async def _events(
    shards: Shards, shard_id: int, execution_id: UUID, end: int, policy: PayloadPolicy, max_bytes: int
) -> list[bytes]:
    """The events below `end` as the document has them, a page of the database at a time."""
    encoded: list[bytes] = []
    size = last = 0

    async def page(store: Store) -> list[Record]:
        return await exports.events(store, execution_id, last, end)

    while last < end - 1:
        rows = await ask(shards, shard_id, page)
        if not rows:
            break
        for row in rows:
            encoded.append(encode_event(_event(row, policy)))
            size += len(encoded[-1])
        if size > max_bytes:
            raise _too_large(execution_id, max_bytes)
        last = rows[-1]["event_id"]
    return encoded


def _event(row: Mapping[str, Any], policy: PayloadPolicy) -> DocumentEvent:
    payload, codec = bytes(row["payload"]), row["codec"]
    if policy != "full":
        # What is sealed stays shut.
        payload, codec = (redact(row["kind"], payload, policy) if codec == CODEC_JSON else EMPTY), CODEC_JSON
    return document_event(
        event_id=row["event_id"],
        kind=row["kind"],
        seq=row["seq"],
        at=row["at"],
        payload=payload,
        format=row["format"],
        codec=codec,
    )


def _head(row: Mapping[str, Any], policy: PayloadPolicy) -> HistoryDocument:
    return HistoryDocument(
        payload_policy=policy,
        exported_at=clock.now(),
        state=state_word(row["state"]),
        **{name: row[name] for name in _OF_ROW},
    )


def _too_large(execution_id: UUID, max_bytes: int) -> ExportTooLargeError:
    return ExportTooLargeError(
        f"the exported history of {execution_id} would have more than {max_bytes:,} bytes; allow more with max_bytes, "
        "or leave the payloads out with payload_policy=redacted",
        execution_id=execution_id,
        limit=max_bytes,
    )
