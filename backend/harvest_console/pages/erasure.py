"""`/w/{execution_id}/erase`, `/erasure` and `/erasure/{receipt}`: what an erasure takes, and what proves it later."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final
from uuid import UUID

from litestar import Response, get, post
from litestar.response import Redirect
from msgspec import Struct

from harvest.errors import (
    CursorError,
    DeliveriesUnderWayError,
    HarvestError,
    InvalidRequestError,
    LegalHoldError,
    LimitError,
    RunNotClosedError,
)
from harvest.history.ids import parse_execution_id
from harvest.operations import erasing, reading
from harvest.operations.actor import Actor
from harvest.operations.erasing import ErasurePlan, Receipt, SkippedRun, Verification
from harvest.operations.paging import Page as Keyset
from harvest.shards import Shards
from harvest_console.pages.confirming import Confirmation, run_page, typed
from harvest_console.pages.types import AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render

PHRASE: Final = "erase"
ERASURE: Final = "/erasure"
PAGE_SIZE: Final = 50
MOST_SHOWN: Final = 100
# What is told on the page itself; anything else is an error page.
_REFUSALS: Final = (RunNotClosedError, LegalHoldError, DeliveriesUnderWayError, InvalidRequestError, LimitError)
_WHY_SKIPPED: Final = {
    "open": "it has not ended",
    "other_shard": "it is on another shard; erase it from its own page",
    "legal_hold": "a legal hold keeps it",
    "under_way": "what it sent has not arrived yet",
    "too_many": "an erasure takes 1,000 runs or 20 s at most; ask again after it",
}


class LeftOut(Struct, frozen=True, kw_only=True):
    """Children that an erasure does not take: the first of them with the reason in words, and how many there are."""

    rows: list[tuple[SkippedRun, str]]
    total: int
    counts: list[tuple[str, int]]


def left_out(skipped: list[SkippedRun]) -> LeftOut:
    """The children of a plan that are left out, for a page."""
    counts = Counter(one.reason for one in skipped)
    return LeftOut(
        rows=[(one, _WHY_SKIPPED.get(one.reason, one.reason)) for one in skipped[:MOST_SHOWN]],
        total=len(skipped),
        counts=[(_WHY_SKIPPED.get(reason, reason), count) for reason, count in counts.most_common()],
    )


@get("/w/{execution:str}/erase")
async def erase_page(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What an erasure of this run would take, leave, and be kept from."""
    return await _erase_page(request, shards, execution, Confirmation())


@post("/w/{execution:str}/erase")
async def erase(request: AnyRequest, shards: Shards, actor: Actor, execution: str) -> Response[Any]:
    """Erase the run and show its receipt, or draw the page again with what is missing.

    The key of the digests is in this answer alone: an address would carry it into logs.
    """
    form = await typed(request, phrase=PHRASE)
    if form.problems:
        return await _erase_page(request, shards, execution, form, status=422)
    try:
        done = await erasing.erase_payloads(shards, actor, parse_execution_id(execution), reason=form.reason)
    except _REFUSALS as error:
        return await _erase_page(request, shards, execution, form, status=error.status, refused=error.message)
    did = "erased" if done.run.newly_erased else "unchanged"
    children = sum(child.newly_erased for child in done.children)
    if not done.digest_key:
        address = build_url(base_path(request), f"{ERASURE}/{done.run.receipt}", did=did)
        return Redirect(address, status_code=303)
    return await _receipt_page(
        request,
        shards,
        await erasing.receipt(shards, done.run.receipt),
        did=did,
        children=children,
        incomplete=bool(done.incomplete),
        digest_key=done.digest_key,
    )


async def _erase_page(
    request: AnyRequest, shards: Shards, execution: str, form: Confirmation, *, status: int = 200, refused: str = ""
) -> Page:
    """The page before the act, drawn again with what is wrong. Raises as `reading.get` does."""
    run = await reading.get(shards, parse_execution_id(execution))
    plan = await erasing.plan(shards, run.execution_id)
    return run_page(
        request,
        "erase.html",
        run,
        status=status,
        plan=plan,
        left=left_out(plan.skipped_children),
        ready=bool(plan.children) if plan.erased else not plan.blockers,
        typed=form,
        refused=refused,
        phrase=PHRASE,
    )


@get("/erasure")
async def erasure_page(request: AnyRequest, shards: Shards, cursor: str = "") -> Page:
    """The receipts, newest first, merged over the shards."""
    page, stale = await _read(shards, cursor)
    base = base_path(request)
    return render(
        request,
        "erasure.html",
        section="erasure",
        page=page,
        stale_link=stale,
        here_url=build_url(base, ERASURE, cursor=(None if stale else cursor) or None),
        newer_url=build_url(base, ERASURE, cursor=page.previous_cursor) if page.previous_cursor else None,
        older_url=build_url(base, ERASURE, cursor=page.next_cursor) if page.next_cursor else None,
    )


async def _read(shards: Shards, cursor: str) -> tuple[Keyset[Receipt], bool]:
    """One page; an old or damaged cursor gives the first page and says so."""
    try:
        return await erasing.receipts(shards, limit=PAGE_SIZE, cursor=cursor or None), False
    except CursorError:
        return await erasing.receipts(shards, limit=PAGE_SIZE, cursor=None), True


@get("/erasure/{receipt:str}")
async def receipt_page(request: AnyRequest, shards: Shards, receipt: str, did: str = "") -> Page:
    """One receipt. Raises ReceiptNotFoundError and ShardUnavailableError."""
    found = await erasing.receipt(shards, _receipt_id(receipt))
    return await _receipt_page(request, shards, found, did=did)


@post("/erasure/{receipt:str}", status_code=200)
async def check_again(request: AnyRequest, shards: Shards, actor: Actor, receipt: str) -> Page:
    """Read the run as it is now and draw the receipt with what was found. Raises as the page does."""
    found = await erasing.receipt(shards, _receipt_id(receipt))
    return await _receipt_page(request, shards, found, checked=await erasing.verify(shards, actor, found.receipt))


async def _receipt_page(
    request: AnyRequest,
    shards: Shards,
    receipt: Receipt,
    *,
    did: str = "",
    children: int = 0,
    incomplete: bool = False,
    digest_key: str = "",
    checked: Verification | None = None,
) -> Page:
    plan = await _plan(shards, receipt)
    return render(
        request,
        "receipt.html",
        section="erasure",
        receipt=receipt,
        did=did,
        children=children,
        incomplete=incomplete,
        digest_key=digest_key,
        checked=checked,
        erasable=plan.children if plan else 0,
        left=left_out(plan.skipped_children) if plan else None,
    )


async def _plan(shards: Shards, receipt: Receipt) -> ErasurePlan | None:
    """Which children of the run are not erased now; the page does without when that cannot be read."""
    try:
        return await erasing.plan(shards, receipt.execution_id)
    except HarvestError:
        return None


def _receipt_id(text: str) -> UUID:
    """The number of a receipt as an address carries it; raises InvalidRequestError."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequestError(f"{text[:60]!r} is no number of a receipt", field="receipt") from None


handlers = [erase_page, erase, erasure_page, receipt_page, check_again]
