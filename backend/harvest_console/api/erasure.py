"""Erasing what users put into a run, what that would do, and the receipts of what was erased."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from litestar import Request, Response, get, post
from msgspec import Meta, Struct

from harvest.errors import (
    CursorError,
    DeliveriesUnderWayError,
    ExecutionNotFoundError,
    InvalidRequestError,
    LegalHoldError,
    LimitError,
    OutcomeUnknownError,
    ReceiptNotFoundError,
    RunNotClosedError,
    ShardUnavailableError,
)
from harvest.history.ids import parse_execution_id
from harvest.history.limits import REASON_CHARACTERS
from harvest.operations import erasing
from harvest.operations.actor import Actor
from harvest.operations.erasing import (
    MOST_RECEIPTS,
    ErasedRun,
    ErasurePlan,
    Receipt,
    SkippedRun,
    Verification,
)
from harvest.shards import Shards
from harvest_console.api.answers import UnavailableShard, answer, read_body, read_query, status_fields
from harvest_console.api.asking import ONE
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import Availability, Cursor, EmptyBody, NoQuery
from harvest_console.paths import part
from harvest_console.problems import EXECUTION_HEADER

AnyRequest = Request[Any, Any, Any]
_TAG = "erasure"
_RECEIPT = "/admin/erasures/{receipt:str}"


class ErasureBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why; the receipt and the audit log keep it."""

    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARACTERS)]


class ErasureAnswer(Struct, frozen=True, kw_only=True):
    """The payloads of the run cannot be read any more; the figures are those of its receipt.

    `newly_erased` is false where they had been erased before. `children` are the runs below it that are erased, too,
    `skipped_children` those that stay as they are, each with the reason. `incomplete` says why not all of them were
    looked at, and is empty where they were; the same request again does what is left. The digests are in hexadecimal:
    SHA-256 of what is there now, and of what was there HMAC-SHA-256 with `digest_key`. That is told in this answer and
    kept nowhere; it is empty where nothing is newly erased.
    """

    ok: bool = True
    execution_id: UUID
    receipt: UUID
    newly_erased: bool
    erased_at: datetime
    events_scrubbed: int
    execution_row_scrubbed: bool = True
    fields_tombstoned: int
    bytes_removed: int
    digest_before: str
    digest_after: str
    children: list[ErasedRun]
    skipped_children: list[SkippedRun]
    incomplete: str
    digest_key: str


class ReceiptsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of the receipts."""

    limit: Annotated[int, Meta(ge=1, le=MOST_RECEIPTS)] = 50
    cursor: Cursor | None = None


class ReceiptsAnswer(Struct, frozen=True, kw_only=True):
    """One page of receipts, newest first."""

    erasures: list[Receipt]
    next_cursor: str | None
    previous_cursor: str | None
    status: Availability
    unavailable_shards: list[UnavailableShard]


@post(
    f"{ONE}/erase-payloads",
    status_code=200,
    opt={
        "doc": Doc(
            "Erase the payloads of a run that has ended, and of those below it, for ever.",
            tag=_TAG,
            query=NoQuery,
            body=ErasureBody,
            answers={200: ErasureAnswer},
            refusals=(
                InvalidRequestError,
                LimitError,
                ExecutionNotFoundError,
                RunNotClosedError,
                LegalHoldError,
                DeliveriesUnderWayError,
                ShardUnavailableError,
                OutcomeUnknownError,
            ),
        )
    },
)
async def erase_payloads(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, body: bytes
) -> Response[bytes]:
    """Exactly this run. Repeating it answers the same receipt, and erases what has ended below it since."""
    read_query(request, NoQuery)
    wanted = read_body(body, ErasureBody)
    done = await erasing.erase_payloads(shards, actor, parse_execution_id(part(execution_id)), reason=wanted.reason)
    run = done.run
    content = ErasureAnswer(
        execution_id=run.execution_id,
        receipt=run.receipt,
        newly_erased=run.newly_erased,
        erased_at=run.erased_at,
        events_scrubbed=run.events_scrubbed,
        fields_tombstoned=run.fields_tombstoned,
        bytes_removed=run.bytes_removed,
        digest_before=run.digest_before,
        digest_after=run.digest_after,
        children=done.children,
        skipped_children=done.skipped_children,
        incomplete=done.incomplete,
        digest_key=done.digest_key,
    )
    return answer(content, headers={EXECUTION_HEADER: str(run.execution_id)})


@get(
    f"{ONE}/erasure",
    opt={
        "doc": Doc(
            "What erasing a run would do now, and what keeps it from being erased.",
            tag=_TAG,
            query=NoQuery,
            answers={200: ErasurePlan},
            refusals=(ExecutionNotFoundError, ShardUnavailableError),
        )
    },
)
async def get_erasure(request: AnyRequest, shards: Shards, execution_id: str) -> Response[bytes]:
    """Nothing is changed; `erased` is the receipt where it was erased before."""
    read_query(request, NoQuery)
    return answer(await erasing.plan(shards, parse_execution_id(part(execution_id))))


@get(
    "/admin/erasures",
    opt={
        "doc": Doc(
            "The receipts of what was erased, newest first, merged over the shards.",
            tag=_TAG,
            query=ReceiptsQuery,
            answers={200: ReceiptsAnswer},
            refusals=(CursorError,),
        )
    },
)
async def list_erasures(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """One page; shards that do not answer are named in it."""
    query = read_query(request, ReceiptsQuery)
    page = await erasing.receipts(shards, limit=query.limit, cursor=query.cursor or None)
    return answer(
        ReceiptsAnswer(
            erasures=page.rows.rows,
            next_cursor=page.next_cursor,
            previous_cursor=page.previous_cursor,
            **status_fields(page.rows),
        )
    )


@get(
    _RECEIPT,
    opt={
        "doc": Doc(
            "The receipt of an erasure.",
            tag=_TAG,
            query=NoQuery,
            answers={200: Receipt},
            refusals=(InvalidRequestError, ReceiptNotFoundError, ShardUnavailableError),
        )
    },
)
async def get_receipt(request: AnyRequest, shards: Shards, receipt: str) -> Response[bytes]:
    """By whom, when and why, and the digests from before and after."""
    read_query(request, NoQuery)
    return answer(await erasing.receipt(shards, _id(receipt)))


@post(
    f"{_RECEIPT}/verify",
    status_code=200,
    opt={
        "doc": Doc(
            "Check that a run is still as its receipt says.",
            tag=_TAG,
            query=NoQuery,
            body=EmptyBody,
            answers={200: Verification},
            refusals=(InvalidRequestError, ReceiptNotFoundError, ShardUnavailableError, OutcomeUnknownError),
        )
    },
)
async def verify_erasure(
    request: AnyRequest, shards: Shards, actor: Actor, receipt: str, body: bytes
) -> Response[bytes]:
    """Its whole history is read again; `differs_at` names the first place that is not as it was left."""
    read_query(request, NoQuery)
    read_body(body, EmptyBody)
    return answer(await erasing.verify(shards, actor, _id(receipt)))


def _id(text: str) -> UUID:
    text = part(text)
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequestError(f"{text[:40]!r} is no id of a receipt; it is a UUID", field="receipt") from None


handlers = [erase_payloads, get_erasure, list_erasures, get_receipt, verify_erasure]
