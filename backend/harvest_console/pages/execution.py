"""`/w/{execution_id}`: one run, with what it does now and the newest of its history."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, Final

from litestar import get
from litestar.response import Redirect
from msgspec import Raw, Struct

from harvest.errors import HarvestError
from harvest.history.ids import parse_execution_id
from harvest.operations import erasing, legal_holds, progressing, reading
from harvest.operations.erasing import Receipt
from harvest.operations.legal_holds import LegalHold
from harvest.operations.progressing import Published
from harvest.operations.views import EventView, ExecutionDetail, FailureView, is_open
from harvest.operations.waiting import OWN_CODE
from harvest.shards import Shards
from harvest_console.pages.blocking import block_text
from harvest_console.pages.conditions import attribute_text, expression_with
from harvest_console.pages.frames import frame
from harvest_console.pages.payloads import payload_head, plain_text, said_text
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.pages.windows import FULL, Asked, read_window
from harvest_console.rendering import build_url, render, render_region
from harvest_console.rendering.states import state_text
from harvest_console.rendering.times import span_text

_DID = {
    "started": "Started.",
    "found": "This run was there already; nothing new was started.",
    "signalled": "The signal is in its history.",
    "repeated": "This was sent before; nothing was done twice.",
    "cancelled": "It was asked to cancel; its code may still clean up.",
    "terminated": "It was terminated.",
    "paused": "It is paused: nothing of it goes on until it is resumed.",
    "resumed": "It goes on, with all that came meanwhile.",
    "held": "It is under a legal hold: its payloads cannot be erased.",
    "released": "The legal hold was released.",
    "triaged": "Its triage is changed.",
    "same": "Nothing of it was changed.",
    "unchanged": "Nothing was left to do: it had been asked already.",
}
PROGRESS_BYTES: Final = 180
_ENDED_BY_EVENT = ("CANCELLED", "TERMINATED", "CONTINUED_AS_NEW")


@get("/w/{execution:str}")
async def execution_page(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    dir: str = "",
    at: int | None = None,
    after: int | None = None,
    before: int | None = None,
    did: str = "",
) -> Page | Redirect:
    """The whole page. Raises ExecutionNotFoundError and ShardUnavailableError."""
    execution_id = parse_execution_id(execution)
    base = base_path(request)
    if dir or at is not None or after is not None or before is not None:
        # What was an address of a part of its history before that had a page of its own.
        history = build_url(base, f"/w/{execution_id}/history", view=FULL, dir=dir, at=at, after=after, before=before)
        return Redirect(history, status_code=303)
    run = await reading.get(shards, execution_id)
    newest_first = is_open(run.state)
    window, context = await asyncio.gather(
        read_window(shards, execution_id, Asked(view=FULL, brief=True), newest_first=newest_first, base=base),
        run_context(shards, run),
    )
    return render(request, "execution.html", window=window, did=_DID.get(did, ""), **context)


@get(FRAGMENTS + "/w/{execution:str}")
async def execution_region(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What the run does now, and with it its head and its facts."""
    run = await reading.get(shards, parse_execution_id(execution))
    return render_region(request, "regions/run_update.html", **await run_context(shards, run))


@get(FRAGMENTS + "/w/{execution:str}/head")
async def head_region(request: AnyRequest, shards: Shards, execution: str, tab: str = "history") -> Page:
    """The head of a run on its other pages."""
    run = await reading.get(shards, parse_execution_id(execution))
    return render_region(request, "regions/run_head_update.html", **frame(run, tab))


@get(FRAGMENTS + "/w/{execution:str}/progress")
async def progress_region(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What its code published in the last minute."""
    run = await reading.get(shards, parse_execution_id(execution))
    told = {"progress": await _progress(shards, run), "run": run, "is_open": is_open(run.state)}
    return render_region(request, "regions/run_progress_update.html", **told)


async def run_context(shards: Shards, run: ExecutionDetail) -> dict[str, Any]:
    """What the templates of a run need beside the run itself."""
    last, (hold, hold_known), (receipt, receipt_known), progress = await asyncio.gather(
        _last_event(shards, run), _hold(shards, run), _receipt(shards, run), _progress(shards, run)
    )
    return {
        **frame(run, "run", hold, hold_known=hold_known),
        "receipt": receipt,
        "receipt_known": receipt_known,
        "block": block_text(run.blocked.code) if run.blocked else None,
        "causes": causes(run.failure),
        "input": payload_head(run.input),
        "result": payload_head(run.result) if run.state == "COMPLETED" else None,
        "memo": payload_head(run.memo),
        "details": said_text(run.current_details),
        "attributes": [_attribute(key, value) for key, value in (run.search_attributes or {}).items()],
        "progress": progress,
        "ending": _ending(run),
        "unserved": _unserved(run),
        "own_code": run.waiting == OWN_CODE,
        "ended_by": _ended_by(last),
    }


class Attribute(Struct, frozen=True):
    """A search attribute; `filter` is the expression that finds what has the same, None where there is none."""

    key: str
    text: str
    filter: str | None


def _attribute(key: str, value: Raw) -> Attribute:
    return Attribute(key, attribute_text(value), expression_with("", key, value))


class ProgressRow(Struct, frozen=True):
    """A chunk of progress: the first part of its text, and its size in bytes where there is more of it."""

    seq: int
    at: datetime
    text: str
    cut: bool
    size: int


async def _progress(shards: Shards, run: ExecutionDetail) -> list[ProgressRow]:
    """What an open run published of late; the page does without when it cannot be read."""
    if not is_open(run.state):
        return []
    try:
        found = await progressing.recent(shards, run.execution_id, head=PROGRESS_BYTES)
    except HarvestError:
        return []
    return [_progress_row(each) for each in found]


def _progress_row(chunk: Published) -> ProgressRow:
    cut = len(chunk.head) < chunk.size
    text = chunk.head.decode(errors="ignore") if cut else plain_text(Raw(chunk.head))
    return ProgressRow(chunk.seq, chunk.at, text, cut, chunk.size)


def _unserved(run: ExecutionDetail) -> list[str]:
    """Queues that something of an open run waits in and that no living worker takes work from."""
    if not is_open(run.state):
        return []
    waiting = [one.queue for one in run.pending.activities if one.state == "PENDING" and not one.queue_served]
    return sorted({*waiting, *([] if run.queue_served else [run.queue])})


def causes(failure: FailureView | None) -> list[FailureView]:
    """A failure and its causes, the root cause first."""
    found: list[FailureView] = []
    while failure is not None and len(found) < 20:
        found.insert(0, failure)
        failure = failure.cause
    return found


async def _hold(shards: Shards, run: ExecutionDetail) -> tuple[LegalHold | None, bool]:
    """The hold of a run, and whether that could be read: what is not known is not told as none."""
    try:
        return await legal_holds.hold_of(shards, run.execution_id), True
    except HarvestError:
        return None, False


async def _receipt(shards: Shards, run: ExecutionDetail) -> tuple[Receipt | None, bool]:
    """The receipt of an erased run, and whether that could be read; an open one has none."""
    if is_open(run.state):
        return None, True
    try:
        return await erasing.receipt_of(shards, run.execution_id), True
    except HarvestError:
        return None, False


async def _last_event(shards: Shards, run: ExecutionDetail) -> EventView | None:
    """The event that ended a run, where that says who did it; the page does without when it cannot be read."""
    if run.state not in _ENDED_BY_EVENT:
        return None
    try:
        page = await reading.history(shards, run.execution_id, limit=1, newest_first=True)
    except HarvestError:
        return None
    return page.events[0] if page.events else None


def _ending(run: ExecutionDetail) -> str:
    after = f" after {span_text((run.closed_at - run.started_at).total_seconds())}" if run.closed_at else ""
    endings = {
        "COMPLETED": f"It completed{after}.",
        "FAILED": f"It failed{after}.",
        "CANCELLED": f"It was cancelled{after}, and could clean up.",
        "TERMINATED": f"It was ended at once{after}; its code did not get to clean up.",
        "TIMED_OUT": f"It ran into its own deadline{after}.",
        "CONTINUED_AS_NEW": f"It went on as a new run{after}.",
    }
    return endings.get(run.state, f"It is {state_text(run.state)}.")


def _ended_by(event: EventView | None) -> str:
    if event is None:
        return ""
    actor, reason = plain_text(event.data.get("actor")), plain_text(event.data.get("reason"))
    return ", ".join(part for part in (f"by {actor}" if actor else "", f"“{reason}”" if reason else "") if part)


handlers = [execution_page, execution_region, head_region, progress_region]
