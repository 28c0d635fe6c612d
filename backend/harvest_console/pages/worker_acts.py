"""`/workers/{worker_id}/drain` and `/evict`: what would happen to the fleet, a reason, and for a drain a typed word."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from litestar import Response, get, post
from litestar.response import Redirect

from harvest import clock
from harvest.errors import HarvestError, InvalidRequestError, LimitError, WorkerStoppedError
from harvest.operations import workers
from harvest.operations.actor import Actor
from harvest.operations.worker_views import DrainPreview, WorkerDetail
from harvest.shards import Partial, Shards
from harvest_console.pages.confirming import Confirmation, typed
from harvest_console.pages.queries import read_instant
from harvest_console.pages.types import AnyRequest, Page, base_path, posted
from harvest_console.pages.worker import worker_id_of
from harvest_console.pages.worker_words import health_shown, status_shown
from harvest_console.rendering import build_url, render

PHRASE: Final = "drain"
# The fields of the form, in its order.
ASKED: Final = ("reason", "deadline", "phrase")
MOST_WAIT: Final = timedelta(days=7)
REFUSALS: Final = (WorkerStoppedError, InvalidRequestError, LimitError)


@get("/workers/{worker:str}/drain")
async def drain_page(request: AnyRequest, shards: Shards, worker: str) -> Page:
    """What a drain would do now. Raises WorkerNotFoundError and ShardUnavailableError."""
    return await _drain_page(request, shards, worker, Confirmation())


@post("/workers/{worker:str}/drain")
async def drain(request: AnyRequest, shards: Shards, actor: Actor, worker: str) -> Response[Any]:
    """Tell the worker to drain, or draw the page again with what is missing."""
    form = await typed(request, phrase=PHRASE)
    fields = await posted(request)
    text, until = fields.get("deadline", "").strip(), None
    try:
        until = deadline(text, fields.get("tz", ""), clock.now())
    except InvalidRequestError as error:
        problems = {**form.problems, "deadline": f"{error.message}."}
        form = msgspec.structs.replace(form, problems={name: problems[name] for name in ASKED if name in problems})
    if form.problems:
        return await _drain_page(request, shards, worker, form, text, status=422)
    try:
        done = await workers.drain(shards, actor, worker_id_of(worker), deadline_at=until, reason=form.reason)
    except REFUSALS as error:
        return await _drain_page(request, shards, worker, form, text, status=error.status, refused=error.message)
    return _back(request, worker, done.outcome)


def deadline(text: str, zone_name: str, now: datetime) -> datetime | None:
    """The deadline that was typed, None for none: seconds from now, or a time, in the named zone where it names none.

    Raises InvalidRequestError for what is neither, what is over, and what is more than `MOST_WAIT` ahead.
    """
    if not text:
        return None
    if text.isascii() and text.replace(".", "", 1).isdigit():
        seconds = float(text)
    else:
        seconds = (_instant(text, zone_name) - now).total_seconds()
    if seconds > MOST_WAIT.total_seconds():
        raise InvalidRequestError(
            f"{text[:40]!r} is more than {MOST_WAIT.days} days from now: {MOST_WAIT.total_seconds():,.0f} seconds",
            field="deadline",
        )
    if seconds <= 0:
        raise InvalidRequestError(f"{text[:40]!r} is not ahead: leave it empty to end soon", field="deadline")
    return now + timedelta(seconds=seconds)


def _instant(text: str, zone_name: str) -> datetime:
    try:
        at = read_instant(text, zone_name, "deadline")
    except InvalidRequestError:
        at = None
    if at is None:
        raise InvalidRequestError(
            f"{text[:40]!r} is neither seconds, like 300, nor a time, like 2026-11-29T14:00", field="deadline"
        )
    return at


async def _drain_page(
    request: AnyRequest,
    shards: Shards,
    worker: str,
    form: Confirmation,
    deadline_text: str = "",
    *,
    status: int = 200,
    refused: str = "",
) -> Page:
    found = await workers.get(shards, worker_id_of(worker))
    preview = await _preview(shards, found)
    return render(
        request,
        "worker_drain.html",
        status=status,
        preview=preview.rows[0] if preview and preview.rows else None,
        partly=bool(found.missing_shards or (preview and preview.missing)),
        phrase=PHRASE,
        deadline_text=deadline_text,
        **_frame(found, form, refused),
    )


async def _preview(shards: Shards, worker: WorkerDetail) -> Partial[DrainPreview] | None:
    """What would happen; a worker that has stopped, or of which nothing can be read now, has none."""
    if worker.status == "stopped":
        return None
    try:
        return await workers.drain_preview(shards, worker.worker_id)
    except HarvestError:
        return None


@get("/workers/{worker:str}/evict")
async def evict_page(request: AnyRequest, shards: Shards, worker: str) -> Page:
    """What letting go of its parked runs would do. Raises WorkerNotFoundError and ShardUnavailableError."""
    return await _evict_page(request, shards, worker, Confirmation())


@post("/workers/{worker:str}/evict")
async def evict(request: AnyRequest, shards: Shards, actor: Actor, worker: str) -> Response[Any]:
    """Tell the worker to let go of its parked runs, or draw the page again with what is missing."""
    form = await typed(request)
    if form.problems:
        return await _evict_page(request, shards, worker, form, status=422)
    try:
        done = await workers.evict(shards, actor, worker_id_of(worker), reason=form.reason)
    except REFUSALS as error:
        return await _evict_page(request, shards, worker, form, status=error.status, refused=error.message)
    return _back(request, worker, done.outcome)


async def _evict_page(
    request: AnyRequest, shards: Shards, worker: str, form: Confirmation, *, status: int = 200, refused: str = ""
) -> Page:
    found = await workers.get(shards, worker_id_of(worker))
    return render(request, "worker_evict.html", status=status, **_frame(found, form, refused))


def _frame(worker: WorkerDetail, form: Confirmation, refused: str) -> dict[str, Any]:
    return {
        "section": "workers",
        "worker": worker,
        "status_shown": status_shown(worker.status),
        "health_shown": health_shown(worker.health) if worker.health else None,
        "typed": form,
        "refused": refused,
    }


def _back(request: AnyRequest, worker: str, did: str) -> Redirect:
    return Redirect(build_url(base_path(request), f"/workers/{worker_id_of(worker)}", did=did), status_code=303)


handlers = [drain_page, drain, evict_page, evict]
