"""`/w/{execution_id}`: one run, with what it does now and its history."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from litestar import get

from harvest.errors import HarvestError
from harvest.history.ids import parse_execution_id
from harvest.operations import reading
from harvest.operations.views import EventView, ExecutionDetail, FailureView, is_open
from harvest.operations.waiting import OWN_CODE
from harvest.shards import Shards
from harvest_console.pages.blocking import block_text
from harvest_console.pages.payloads import payload_head, plain_text
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.pages.windows import Asked, read_window
from harvest_console.rendering import render, render_region
from harvest_console.rendering.states import shown_state, state_text
from harvest_console.rendering.times import span_text

_DID = {
    "started": "Started.",
    "found": "This run was there already; nothing new was started.",
    "signalled": "The signal is in its history.",
    "repeated": "This was sent before; nothing was done twice.",
    "cancelled": "It was asked to cancel; its code may still clean up.",
    "terminated": "It was terminated.",
    "unchanged": "Nothing was left to do: it had been asked already.",
}
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
) -> Page:
    """The whole page. Raises ExecutionNotFoundError and ShardUnavailableError."""
    execution_id = parse_execution_id(execution)
    run = await reading.get(shards, execution_id)
    asked = Asked(direction=dir, at=at, after=after, before=before)
    window, context = await asyncio.gather(
        read_window(shards, execution_id, asked, newest_first=is_open(run.state), base=base_path(request)),
        run_context(shards, run),
    )
    return render(
        request,
        "execution.html",
        window=window,
        did=_DID.get(did, ""),
        section="workflows",
        topics=f"run:{run.shard_id}.{run.partition}" if is_open(run.state) else "",
        **context,
    )


@get(FRAGMENTS + "/w/{execution:str}")
async def execution_region(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """What the run does now, and with it its head and its facts."""
    run = await reading.get(shards, parse_execution_id(execution))
    return render_region(request, "regions/run_update.html", **await run_context(shards, run))


@get(FRAGMENTS + "/w/{execution:str}/history")
async def history_region(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    dir: str = "",
    at: int | None = None,
    after: int | None = None,
    before: int | None = None,
) -> Page:
    """One window of the history."""
    asked = Asked(direction=dir, at=at, after=after, before=before)
    window = await read_window(shards, parse_execution_id(execution), asked, newest_first=True, base=base_path(request))
    return render_region(request, "regions/history_update.html", window=window)


async def run_context(shards: Shards, run: ExecutionDetail) -> dict[str, Any]:
    """What the templates of a run need beside the run itself."""
    last = await _last_event(shards, run.execution_id) if run.state in _ENDED_BY_EVENT else None
    return {
        "run": run,
        "is_open": is_open(run.state),
        "shown": shown_state(run.state, run.blocked.code if run.blocked else None),
        "block": block_text(run.blocked.code) if run.blocked else None,
        "causes": causes(run.failure),
        "input": payload_head(run.input),
        "result": payload_head(run.result) if run.state == "COMPLETED" else None,
        "memo": payload_head(run.memo),
        "ending": _ending(run),
        "unserved": _unserved(run),
        "own_code": run.waiting == OWN_CODE,
        "ended_by": _ended_by(last),
        "successor": plain_text(last.data.get("new_execution_id")) if last else "",
    }


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


async def _last_event(shards: Shards, execution_id: UUID) -> EventView | None:
    """The event that ended a run; the page does without when it cannot be read."""
    try:
        page = await reading.history(shards, execution_id, limit=1, newest_first=True)
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


handlers = [execution_page, execution_region, history_region]
