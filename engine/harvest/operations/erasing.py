"""Erasing what users put into a run that has ended, for ever, and proving later that it is gone (reference 2.11)."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, cast
from uuid import UUID

from msgspec import Struct

from harvest import clock
from harvest.errors import (
    DeliveriesUnderWayError,
    ExecutionNotFoundError,
    HarvestError,
    InvalidRequestError,
    LegalHoldError,
    OutcomeUnknownError,
    ReceiptNotFoundError,
    RunNotClosedError,
    ShardUnavailableError,
)
from harvest.history.erasing import Digest, erased_event
from harvest.history.ids import ExecutionId, mint_execution_id
from harvest.history.payload import CODEC_JSON
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.asking import ask
from harvest.operations.auditing import record
from harvest.operations.legal_holds import LegalHold, hold_of, missing, required_reason
from harvest.operations.paging import Page, filter_digest, keyset_page
from harvest.operations.signalling import unchanged
from harvest.operations.views import is_open, state_word
from harvest.shards import Shards
from harvest.store import erasures
from harvest.store.pool import Record
from harvest.store.store import Store

KEY_BYTES: Final = 32
_log = logging.getLogger("harvest.erasing")
OPERATION: Final = "workflow.erase_payloads"
VERIFY: Final = "workflow.erasure_verify"
MOST_RUNS: Final = 1_000
# From then on no further run below is begun. The last one may take a minute by itself: who asks waits for 90 s.
MOST_SECONDS: Final = 20.0
MOST_RECEIPTS: Final = 200
# Whose histories are asked at once for children on other shards.
_HISTORIES: Final = 100
Skipping = Literal["open", "other_shard", "legal_hold", "under_way", "too_many"]


class SkippedRun(Struct, frozen=True, kw_only=True):
    """A run below the one that is erased which stays as it is, and why: `too_many` stands for all that follow it."""

    execution_id: UUID
    workflow_name: str
    reason: Skipping


class ErasedRun(Struct, frozen=True, kw_only=True):
    """What the erasure of one run did. `newly_erased` is false where it was erased before: the receipt is of then.

    `bytes_removed` is by how much its events and details became smaller. The digests are over all of these, in hex;
    that of before is made with the key that the erasure has answered, and kept nowhere.
    """

    receipt: UUID
    execution_id: UUID
    newly_erased: bool
    erased_at: datetime
    events_scrubbed: int
    fields_tombstoned: int
    bytes_removed: int
    digest_before: str
    digest_after: str


class Erasure(Struct, frozen=True, kw_only=True):
    """A run that is erased, and what became of those below it.

    `incomplete` says why not all of those were looked at, and is empty where they were: the same request again does
    what is left. `digest_key` is told here and never again, in hex: with it and a copy of what was there,
    `digest_before` of each run that is newly erased can be made anew. It is empty where none is.
    """

    run: ErasedRun
    children: list[ErasedRun]
    skipped_children: list[SkippedRun]
    incomplete: str = ""
    digest_key: str = ""


class Receipt(ErasedRun, frozen=True, kw_only=True):
    """An erasure as it is on record. `parent_receipt` is that of the run that was asked for, if it was another."""

    workflow_name: str
    workflow_id: str
    actor: str
    reason: str
    parent_receipt: UUID | None
    shard_id: int


class ErasurePlan(Struct, frozen=True, kw_only=True):
    """What an erasure would do now: to the run itself, and to how many below it.

    `blockers` say why it would be refused: open, legal_hold, under_way; or that there is nothing to do: already_erased.
    """

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    state: str
    events: int
    payload_bytes: int
    children: int
    skipped_children: list[SkippedRun]
    hold: LegalHold | None
    erased: Receipt | None
    blockers: list[str]


class Verification(Struct, frozen=True, kw_only=True):
    """Whether a run is still as its receipt says.

    `differs_at` is the first place that is not: `event 17` or `details` where something is not erased, `digest` where
    everything is but its bytes are others, and empty where it matches.
    """

    receipt: UUID
    matches: bool
    digest: str
    expected: str
    events: int
    differs_at: str
    checked_at: datetime


async def plan(shards: Shards, execution_id: UUID) -> ErasurePlan:
    """What an erasure of the run would do now. Raises ExecutionNotFoundError, ShardUnavailableError."""
    shard_id = shards.store_of(ExecutionId(int=execution_id.int)).shard_id
    head = await ask(shards, shard_id, lambda store: erasures.head(store, execution_id))
    if head is None:
        raise ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=str(execution_id))
    state = state_word(head["state"])
    held, erased = await hold_of(shards, execution_id), await receipt_of(shards, execution_id)
    erasable = await _below(shards, shard_id, execution_id, ("erasable",), MOST_RUNS + 1)
    erased_before = await _below(shards, shard_id, execution_id, ("erased",), MOST_RUNS)
    walked = [execution_id, *(row["execution_id"] for row in (*erasable[:MOST_RUNS], *erased_before))]
    blockers = {
        "open": is_open(state),
        "legal_hold": held is not None,
        "under_way": head["under_way"] and not is_open(state),
        "already_erased": erased is not None,
    }
    return ErasurePlan(
        execution_id=execution_id,
        workflow_name=head["workflow_name"],
        workflow_id=head["workflow_id"],
        state=state,
        events=head["events"],
        payload_bytes=head["payload_bytes"],
        children=min(len(erasable), MOST_RUNS),
        skipped_children=[
            *await _kept(shards, shard_id, execution_id),
            *_too_many(erasable[MOST_RUNS:]),
            *await _elsewhere(shards, shard_id, walked),
        ],
        hold=held,
        erased=erased,
        blockers=[code for code, blocks in blockers.items() if blocks],
    )


async def erase_payloads(shards: Shards, actor: Actor, execution_id: UUID, *, reason: str) -> Erasure:
    """Erase a run that has ended, for ever, and then those below it on its shard that have ended, at most 1,000.

    Each is a transaction of its own. A run that was erased before is answered with the receipt that it has, and those
    below it which have ended since are erased. Once the run itself is erased nothing is raised: what fails below it is
    told in the answer, and so is what there was no time for. Raises RunNotClosedError, LegalHoldError,
    DeliveriesUnderWayError, ExecutionNotFoundError, LimitError, ShardUnavailableError.
    """
    reason = required_reason(reason)
    shard_id = shards.store_of(ExecutionId(int=execution_id.int)).shard_id
    end = clock.monotonic() + MOST_SECONDS
    key = secrets.token_bytes(KEY_BYTES)
    done = await _erase(shards, actor, shard_id, execution_id, None, reason, key)
    if done.outcome == "before":
        await unchanged(shards, actor, OPERATION, execution_id, "its payloads were erased before")
    elif done.outcome != "erased":
        raise await _refused(shards, actor, execution_id, done.outcome)
    run = _erased_run(done)
    children: list[ErasedRun] = []
    skipped: list[SkippedRun] = []
    try:
        incomplete = await _erase_below(shards, actor, shard_id, run, reason, key, end, children, skipped)
    except Exception as error:
        # The run is erased: its receipt goes out, whatever happens below it.
        _log.warning("the runs below %s were not all erased", execution_id, exc_info=error)
        silent = isinstance(error, ShardUnavailableError | OutcomeUnknownError)
        why = f"shard {shard_id} did not answer" if silent else "the console failed, and has logged why"
        incomplete = f"{why}; repeat the request for the rest"
    # What failed may have been written all the same.
    used = incomplete or any(each.newly_erased for each in (run, *children))
    return Erasure(
        run=run,
        children=children,
        skipped_children=skipped,
        incomplete=incomplete,
        digest_key=key.hex() if used else "",
    )


async def _erase_below(
    shards: Shards,
    actor: Actor,
    shard_id: int,
    run: ErasedRun,
    reason: str,
    key: bytes,
    end: float,
    children: list[ErasedRun],
    skipped: list[SkippedRun],
) -> str:
    """Erase the runs below one until `end`, and note each as soon as it is known. Answers what `incomplete` says."""
    execution_id, incomplete = run.execution_id, ""
    erasable = await _below(shards, shard_id, execution_id, ("erasable",), MOST_RUNS + 1)
    left = erasable[MOST_RUNS:]
    for number, row in enumerate(erasable[:MOST_RUNS]):
        if clock.monotonic() >= end:
            left = erasable[number:]
            incomplete = f"there was no time for more after {MOST_SECONDS:.0f} s; repeat the request for the rest"
            break
        # Whoever keeps its row now, or has erased it meanwhile, shows below.
        child = await _erase(shards, actor, shard_id, row["execution_id"], run.receipt, reason, key)
        if child.outcome == "erased":
            children.append(_erased_run(child))
    before = await _below(shards, shard_id, execution_id, ("erased",), 2 * MOST_RUNS)
    known = {child.execution_id for child in children}
    earlier = [row["execution_id"] for row in before if row["execution_id"] not in known][:MOST_RUNS]
    children += await _earlier(shards, shard_id, earlier)
    skipped += [*await _kept(shards, shard_id, execution_id), *_too_many(left)]
    skipped += await _elsewhere(shards, shard_id, [execution_id, *(child.execution_id for child in children)])
    return incomplete


async def receipts(shards: Shards, *, limit: int = 50, cursor: str | None = None) -> Page[Receipt]:
    """The receipts of all shards, newest first. Raises CursorError, InvalidRequestError."""
    if not 1 <= limit <= MOST_RECEIPTS:
        raise InvalidRequestError(f"limit is {limit}; it must be 1 to {MOST_RECEIPTS}", field="limit")

    async def read(store: Store, anchor: tuple[datetime, UUID] | None, descending: bool, most: int) -> list[Receipt]:
        rows = await erasures.page(store, anchor, descending=descending, limit=most)
        return [_receipt(row, store.shard_id) for row in rows]

    return await keyset_page(
        shards,
        read,
        key=lambda each: (each.erased_at, each.receipt),
        size=limit,
        descending=True,
        cursor=cursor,
        digest=filter_digest("erasures"),
    )


async def receipt(shards: Shards, receipt_id: UUID) -> Receipt:
    """One receipt; its id says its shard. Raises ReceiptNotFoundError, ShardUnavailableError."""
    shard_id = shards.store_of(ExecutionId(int=receipt_id.int)).shard_id
    row = await ask(shards, shard_id, lambda store: erasures.of_id(store, receipt_id))
    if row is None:
        raise ReceiptNotFoundError(f"there is no receipt {receipt_id}", receipt=str(receipt_id))
    return _receipt(row, shard_id)


async def receipt_of(shards: Shards, execution_id: UUID) -> Receipt | None:
    """The receipt of a run, where it was erased. Raises ShardUnavailableError."""
    shard_id = shards.store_of(ExecutionId(int=execution_id.int)).shard_id
    rows = await ask(shards, shard_id, lambda store: erasures.of_executions(store, [execution_id]))
    return _receipt(rows[0], shard_id) if rows else None


async def verify(shards: Shards, actor: Actor, receipt_id: UUID) -> Verification:
    """Read an erased run again: whether its bytes have the digest of the receipt, and nothing in it came back.

    Raises ReceiptNotFoundError, ShardUnavailableError.
    """
    found = await receipt(shards, receipt_id)
    digest, events, differs_at = await _look(shards, found)
    matches = digest == found.digest_after and not differs_at
    checked = Verification(
        receipt=receipt_id,
        matches=matches,
        digest=digest,
        expected=found.digest_after,
        events=events,
        # Every value is erased, but names, numbers or times are others than they were.
        differs_at=differs_at or ("" if matches else "digest"),
        checked_at=clock.now(),
    )
    status, told = ("succeeded", None) if matches else ("failed", f"differs at {checked.differs_at}")
    await record(shards, actor, VERIFY, "execution", str(found.execution_id), status, told)
    return checked


async def _erase(
    shards: Shards,
    actor: Actor,
    shard_id: int,
    execution_id: UUID,
    parent_receipt: UUID | None,
    reason: str,
    key: bytes,
) -> erasures.Erasing:
    store = shards.store(shard_id)
    done = await erasures.erase(
        store,
        execution_id,
        receipt=UUID(int=mint_execution_id(shard_id).int),
        parent_receipt=parent_receipt,
        actor=actor.name,
        reason=reason,
        key=key,
        audit=audit_entry(actor, OPERATION, shard_id=shard_id, target_id=str(execution_id), reason=reason),
    )
    if done.outcome == "erased":
        store.hints.touch(done.partition)
    return done


async def _refused(shards: Shards, actor: Actor, execution_id: UUID, outcome: erasures.Outcome) -> HarvestError:
    if outcome == "missing":
        return await missing(shards, actor, OPERATION, execution_id)
    told = {
        "open": (RunNotClosedError, "has not ended; only what has ended can be erased"),
        "legal_hold": (LegalHoldError, "is under a legal hold; release that first"),
        "under_way": (DeliveriesUnderWayError, "still has to tell others of what it did; try again a little later"),
    }
    kind, why = told[outcome]
    error = kind(f"execution {execution_id} {why}", execution_id=str(execution_id), blocker=outcome)
    await record(shards, actor, OPERATION, "execution", str(execution_id), "failed", error.message)
    return error


async def _below(
    shards: Shards, shard_id: int, execution_id: UUID, standings: Sequence[str], limit: int
) -> list[Record]:
    return await ask(shards, shard_id, lambda store: erasures.below(store, execution_id, standings, limit))


async def _kept(shards: Shards, shard_id: int, execution_id: UUID) -> list[SkippedRun]:
    """Those below a run that stay as they are, by their own standing."""
    rows = await _below(shards, shard_id, execution_id, ("open", "legal_hold", "under_way"), MOST_RUNS)
    return [_skipped(row["execution_id"], row["workflow_name"], row["standing"]) for row in rows]


def _too_many(left: Sequence[Record]) -> list[SkippedRun]:
    """The first of those that nothing but their number keeps from being erased."""
    return [_skipped(row["execution_id"], row["workflow_name"], "too_many") for row in left[:1]]


async def _elsewhere(shards: Shards, shard_id: int, execution_ids: Sequence[UUID]) -> list[SkippedRun]:
    """The children of these runs that are on other shards, as the histories of these runs tell."""
    found: list[tuple[UUID, str]] = []
    for start in range(0, len(execution_ids), _HISTORIES):
        some = execution_ids[start : start + _HISTORIES]
        read = partial(erasures.elsewhere, execution_ids=some, limit=MOST_RUNS)
        found += await ask(shards, shard_id, read)
        if len(found) >= MOST_RUNS:
            break
    return [
        _skipped(child, workflow_name, "other_shard")
        for child, workflow_name in found[:MOST_RUNS]
        if shards.router.locate(ExecutionId(int=child.int)) != shard_id
    ]


def _skipped(execution_id: UUID, workflow_name: str, reason: str) -> SkippedRun:
    return SkippedRun(execution_id=execution_id, workflow_name=workflow_name, reason=cast(Skipping, reason))


async def _earlier(shards: Shards, shard_id: int, execution_ids: Sequence[UUID]) -> list[ErasedRun]:
    """Runs that were erased before, in this order."""
    rows = await ask(shards, shard_id, lambda store: erasures.of_executions(store, execution_ids))
    of = {row["execution_id"]: row for row in rows}
    return [_erased(of[each], newly=False) for each in execution_ids if each in of]


async def _look(shards: Shards, found: Receipt) -> tuple[str, int, str]:
    """The digest of a run as it is now, its number of events, and the first place that is not erased."""
    execution_id, shard_id = found.execution_id, found.shard_id
    digest, last, expected, differs_at = Digest(), 0, 1, ""
    while rows := await ask(shards, shard_id, partial(erasures.events_after, execution_id=execution_id, after=last)):
        for row in rows:
            event_id, kind, payload, codec = row["event_id"], row["kind"], row["payload"], row["codec"]
            digest.event(event_id, kind, payload)
            whole = event_id == expected and codec == CODEC_JSON and erased_event(kind, payload) == (payload, 0)
            if not whole and not differs_at:
                differs_at = f"event {expected}"
            expected = event_id + 1
        last = rows[-1]["event_id"]
    head = await ask(shards, shard_id, lambda store: erasures.head(store, execution_id))
    events = expected - 1
    if not differs_at and head is not None and events < head["events"]:
        differs_at = f"event {events + 1}"
    details = await ask(shards, shard_id, lambda store: erasures.details(store, execution_id))
    if details is not None:
        erasures.take_details(digest, erasures.stored_details(details))
    if not differs_at and (details is None or erasures.erased_details(details)[1]):
        differs_at = "details"
    return digest.hex(), events, differs_at


def _erased_run(done: erasures.Erasing) -> ErasedRun:
    assert done.row is not None
    return _erased(done.row, newly=done.outcome == "erased")


def _erased(row: Any, *, newly: bool) -> ErasedRun:
    fields = {name: row[name] for name in ErasedRun.__struct_fields__ if name != "newly_erased"}
    return ErasedRun(newly_erased=newly, **fields)


def _receipt(row: Any, shard_id: int) -> Receipt:
    beside = ("newly_erased", "shard_id")
    fields = {name: row[name] for name in Receipt.__struct_fields__ if name not in beside}
    return Receipt(newly_erased=False, shard_id=shard_id, **fields)
