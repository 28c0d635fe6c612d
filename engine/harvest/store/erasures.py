"""Erasing a run's payloads, and the receipts of it: one transaction a run, which works in slices of its history.

Lock order: execution, then its details and events. Who commits, pauses or holds a run locks its row first, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Struct
from sqlalchemy import Select, func, select

from harvest.history.erasing import ERASED, Digest, KeyedDigest, erased_event, erased_failure, erased_value
from harvest.history.payload import CODEC_JSON
from harvest.history.states import FIRST_CLOSED
from harvest.store import legal_holds
from harvest.store.audit import AuditEntry, insert_many
from harvest.store.pool import Connection, Record
from harvest.store.schema import ERASURES, EXECUTIONS, beyond, run
from harvest.store.store import Store

SLICE_EVENTS: Final = 500
SLICE_BYTES: Final = 4 * 1024 * 1024
# Room for a child's id and the name of its type, each character of it escaped.
HEAD_BYTES: Final = 2_048
_DETAILS: Final = ("input", "memo", "search_attributes", "details", "result", "failure", "blocked")
_RECEIPT: Final = """
    select r.receipt, r.execution_id, r.parent_receipt, r.actor, r.reason, r.erased_at, r.events_scrubbed,
           r.fields_tombstoned, r.bytes_removed, r.digest_before, r.digest_after,
           coalesce(e.workflow_name, '') as workflow_name, coalesce(e.workflow_id, '') as workflow_id
      from harvest_erasures r left join harvest_executions e on e.execution_id = r.execution_id
"""

# By itself first: the statements that follow see what was written before the lock was given.
_LOCK: Final = "select state, partition from harvest_executions where execution_id = $1 for update"
_OF_EXECUTIONS: Final = f"{_RECEIPT} where r.execution_id = any($1)"
_OF_ID: Final = f"{_RECEIPT} where r.receipt = $1"
# Who waits for another's end (7) tells it nothing, and of a run that has ended that may stay for years.
_UNDER_WAY: Final = (
    "exists (select from harvest_deliveries w where w.source_execution_id = {0}.execution_id and w.kind <> 7)"
)
_IS_UNDER_WAY: Final = f"select {_UNDER_WAY.format('k')} from (select $1::uuid as execution_id) k"
# At least one event, however large: `before` is the size of those before it.
_SLICE: Final = f"""
    select event_id, kind, codec, payload from (
        select event_id, kind, codec, payload,
               sum(octet_length(payload)) over (order by event_id) - octet_length(payload) as before
          from (select event_id, kind, codec, payload from harvest_events
                 where execution_id = $1 and event_id > $2 order by event_id limit {SLICE_EVENTS}) page
    ) sized
     where before < {SLICE_BYTES} order by event_id
"""
_PUT_EVENTS: Final = f"""
    update harvest_events v set payload = n.payload, codec = {CODEC_JSON}
      from unnest($2::int[], $3::bytea[]) as n(event_id, payload)
     where v.execution_id = $1 and v.event_id between $4 and $5 and v.event_id = n.event_id
"""
_READ_DETAILS: Final = """
    select input, memo, search_attributes::text as search_attributes, details, result, failure, blocked, codec
      from harvest_execution_details where execution_id = $1
"""
_PUT_DETAILS: Final = f"""
    update harvest_execution_details
       set input = $2, memo = $3, search_attributes = $4, details = $5, result = $6, failure = $7, blocked = $8,
           codec = {CODEC_JSON}
     where execution_id = $1
"""
_FORGET: Final = (
    "update harvest_triage set note = null where execution_id = $1 and note is not null",
    """delete from harvest_triage
        where execution_id = $1 and owner is null and severity is null and note is null""",
    "delete from harvest_heartbeats where execution_id = $1",
    "delete from harvest_progress where execution_id = $1",
    "delete from harvest_requests where execution_id = $1",
)
_WRITE: Final = """
    insert into harvest_erasures (receipt, execution_id, parent_receipt, actor, reason, events_scrubbed,
        fields_tombstoned, bytes_removed, digest_before, digest_after)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""

_HEAD: Final = f"""
    select e.workflow_name, e.workflow_id, e.state, e.next_event_id - 1 as events,
           {_UNDER_WAY.format("e")} as under_way,
           (select coalesce(sum(octet_length(v.payload)), 0)::bigint from harvest_events v
             where v.execution_id = e.execution_id) as payload_bytes
      from harvest_executions e where e.execution_id = $1
"""
_STANDING: Final = f"""
    case when e.state < {FIRST_CLOSED} then 'open'
         when exists (select from harvest_erasures r where r.execution_id = e.execution_id) then 'erased'
         when exists (select from harvest_legal_holds h
                       where h.execution_id = e.execution_id
                         and (h.hold_until is null or h.hold_until > statement_timestamp())) then 'legal_hold'
         when {_UNDER_WAY.format("e")} then 'under_way'
         else 'erasable' end as standing"""
# Level by level. What stays as it is keeps those below it, too.
_BELOW: Final = f"""
with recursive below as (
    select e.execution_id, e.workflow_name, {_STANDING}
      from harvest_executions e where e.parent_id = $1
     union all
    select e.execution_id, e.workflow_name, {_STANDING}
      from below b join harvest_executions e on e.parent_id = b.execution_id
     where b.standing in ('erasable', 'erased')
)
select execution_id, workflow_name, standing from below where standing = any($2) limit $3"""
# Kinds: 15 ChildWorkflowStarted, 36 ChildWorkflowSpawnedDetached, 17 ChildWorkflowFailed. The first 16 bits of an id
# are its shard. A child that was rejected never began. Events are compared as bytes: PostgreSQL reads no JSON that has
# \u0000 in it. The child's id and type are the first fields, the state of its failure is the last one, so that no input
# and no message can stand for them.
_ELSEWHERE: Final = f"""
    select substring(v.payload for {HEAD_BYTES}) as head
      from harvest_events v
     where v.execution_id = any($1) and v.kind in (15, 36) and v.codec = {CODEC_JSON}
       and substring(v.payload for 13) = '{{"child_id":"'::bytea
       and substring(v.payload from 14 for 4) <> convert_to(left(v.execution_id::text, 4), 'UTF8')
       and not exists (
           select from harvest_events f
            where f.execution_id = v.execution_id and f.seq = v.seq and f.kind = 17 and f.codec = {CODEC_JSON}
              and substring(f.payload from greatest(octet_length(f.payload) - 19, 1)) = ',"state":"REJECTED"}}'::bytea)
     order by v.execution_id, v.event_id limit $2
"""
_CHILD: Final = re.compile(rb'\{"child_id":("[0-9a-f-]{36}"),"workflow_name":("(?:[^"\\]|\\.)*")')
Outcome = Literal["erased", "before", "missing", "open", "legal_hold", "under_way"]


class Erasing(Struct, frozen=True):
    """What became of an erasure: `row` is its receipt, or the one that was there before, else None."""

    outcome: Outcome
    row: Record | None = None
    partition: int = 0


class _Tally:
    """What an erasure has done so far."""

    def __init__(self, key: bytes, execution_id: UUID) -> None:
        self.before = KeyedDigest(key, execution_id)
        self.after = Digest()
        self.events = 0
        self.values = 0
        self.bytes = 0


async def erase(
    store: Store,
    execution_id: UUID,
    *,
    receipt: UUID,
    parent_receipt: UUID | None,
    actor: str,
    reason: str,
    key: bytes,
    audit: AuditEntry,
) -> Erasing:
    """Erase one run that has ended, once, with its receipt and its audit row in the same transaction.

    The digest of before is made with `key`, which is not kept.
    """
    async with store.erase.connection(writes=True) as connection, connection.transaction():
        known = await connection.fetchrow(_LOCK, execution_id)
        if known is None:
            return Erasing("missing")
        if known["state"] < FIRST_CLOSED:
            return Erasing("open")
        row = await connection.fetchrow(_OF_EXECUTIONS, [execution_id])
        if row is not None:
            return Erasing("before", row)
        if await legal_holds.in_force_on(connection, execution_id) is not None:
            return Erasing("legal_hold")
        if await connection.fetchval(_IS_UNDER_WAY, execution_id):
            return Erasing("under_way")
        tally = _Tally(key, execution_id)
        await _erase_events(connection, execution_id, tally)
        await _erase_details(connection, execution_id, tally)
        for statement in _FORGET:
            await connection.execute(statement, execution_id)
        done = (tally.events, tally.values, max(tally.bytes, 0), tally.before.hex(), tally.after.hex())
        await connection.execute(_WRITE, receipt, execution_id, parent_receipt, actor, reason, *done)
        await insert_many(connection, [audit])
        row = await connection.fetchrow(_OF_ID, receipt)
        return Erasing("erased", row, known["partition"])


async def _erase_events(connection: Connection, execution_id: UUID, tally: _Tally) -> None:
    last = 0
    while rows := await connection.fetch(_SLICE, execution_id, last):
        changed: list[tuple[int, bytes]] = []
        for row in rows:
            event_id, kind, was = row["event_id"], row["kind"], row["payload"]
            now, values = erased_event(kind, was, row["codec"])
            tally.before.event(event_id, kind, was)
            tally.after.event(event_id, kind, now)
            tally.events += bool(values)
            tally.values += values
            tally.bytes += len(was) - len(now)
            if now != was or row["codec"] != CODEC_JSON:
                changed.append((event_id, now))
        if changed:
            ids, payloads = [event_id for event_id, _ in changed], [payload for _, payload in changed]
            await connection.execute(_PUT_EVENTS, execution_id, ids, payloads, ids[0], ids[-1])
        last = rows[-1]["event_id"]


async def _erase_details(connection: Connection, execution_id: UUID, tally: _Tally) -> None:
    row = await connection.fetchrow(_READ_DETAILS, execution_id)
    if row is None:
        return
    was = stored_details(row)
    now, values = erased_details(row)
    take_details(tally.before, was)
    take_details(tally.after, now)
    tally.values += values
    tally.bytes += sum(len(value or b"") for value in was.values()) - sum(len(value or b"") for value in now.values())
    await connection.execute(_PUT_DETAILS, execution_id, *now.values())


def stored_details(row: Record) -> dict[str, bytes | None]:
    """The values of a run's details as bytes, in the order in which digests take them."""
    return {name: row[name].encode() if isinstance(row[name], str) else row[name] for name in _DETAILS}


def erased_details(row: Record) -> tuple[dict[str, bytes | None], int]:
    """The values of a run's details without what users put into them, and how many values went."""
    was = stored_details(row)
    now: dict[str, bytes | None] = dict.fromkeys(was)
    gone = 0
    for name, value in was.items():
        if name in ("input", "memo", "result"):
            # What is sealed may be anything.
            now[name], values = erased_value(value) if row["codec"] == CODEC_JSON else _erased_sealed(value)
        elif name == "failure":
            now[name], values = erased_failure(value)
        else:
            values = int(value is not None)
        gone += values
    return now, gone


def take_details(digest: Digest, values: dict[str, bytes | None]) -> None:
    """Take the values of a run's details into a digest."""
    for name, value in values.items():
        digest.detail(name, value)


def _erased_sealed(value: bytes | None) -> tuple[bytes | None, int]:
    return (None, 0) if value is None else (ERASED, int(value != ERASED))


async def head(store: Store, execution_id: UUID) -> Record | None:
    """What a plan says of a run itself: workflow_name, workflow_id, state, events, payload_bytes, under_way."""
    return await store.read.fetch_row(_HEAD, execution_id)


async def below(store: Store, execution_id: UUID, standings: Sequence[str], limit: int) -> list[Record]:
    """Runs below one on its shard, of these standings, those nearest to it first.

    A standing is erasable, erased, open, legal_hold or under_way. What is below one of the last three is not looked at.
    """
    rows: list[Any] = await store.read.fetch(_BELOW, execution_id, list(standings), limit)
    return rows


async def elsewhere(store: Store, execution_ids: Sequence[UUID], limit: int) -> list[tuple[UUID, str]]:
    """The children of these runs whose ids are of other shards, as their histories tell, each with its type."""
    rows = await store.read.fetch(_ELSEWHERE, list(execution_ids), limit)
    found = (_CHILD.match(row["head"]) for row in rows)
    return [
        (msgspec.json.decode(child[1], type=UUID), msgspec.json.decode(child[2], type=str)) for child in found if child
    ]


async def of_executions(store: Store, execution_ids: Sequence[UUID]) -> list[Record]:
    """The receipts of those runs that were erased."""
    rows: list[Any] = await store.read.fetch(_OF_EXECUTIONS, list(execution_ids))
    return rows


async def of_id(store: Store, receipt: UUID) -> Record | None:
    """One receipt."""
    return await store.read.fetch_row(_OF_ID, receipt)


def page_statement(anchor: tuple[datetime, UUID] | None, *, descending: bool, limit: int) -> Select[Any]:
    """The first `limit` receipts beyond `anchor` by (erased_at, receipt)."""
    columns, runs = ERASURES.c, EXECUTIONS.c
    statement = (
        select(
            ERASURES,
            func.coalesce(runs.workflow_name, "").label("workflow_name"),
            func.coalesce(runs.workflow_id, "").label("workflow_id"),
        )
        .select_from(ERASURES.outerjoin(EXECUTIONS, runs.execution_id == columns.execution_id))
        .limit(limit)
    )
    if anchor is not None:
        statement = statement.where(beyond(columns.erased_at, columns.receipt, anchor, descending=descending))
    order = (columns.erased_at, columns.receipt)
    return statement.order_by(*(column.desc() if descending else column.asc() for column in order))


async def page(store: Store, anchor: tuple[datetime, UUID] | None, *, descending: bool, limit: int) -> list[Record]:
    """Run `page_statement` on a shard."""
    return await run(store, page_statement(anchor, descending=descending, limit=limit))


async def events_after(store: Store, execution_id: UUID, after: int) -> list[Record]:
    """The next slice of a history: event_id, kind, codec, payload."""
    rows: list[Any] = await store.read.fetch(_SLICE, execution_id, after)
    return rows


async def details(store: Store, execution_id: UUID) -> Record | None:
    """The details of a run as digests take them, and their codec."""
    return await store.read.fetch_row(_READ_DETAILS, execution_id)
