"""Errors as pages: what is missing, what is unknown, what is forbidden, and what went wrong, each in its own words."""

from __future__ import annotations

from litestar import Response
from litestar.exceptions import HTTPException

from harvest.errors import (
    ExecutionClosedError,
    ExecutionNotFoundError,
    ForbiddenError,
    HarvestError,
    InvalidRequestError,
    NoWorkerError,
    OutcomeUnknownError,
    QueryFailedError,
    ReceiptNotFoundError,
    RequestTimeoutError,
    SavedViewNotFoundError,
    ShardUnavailableError,
    UpdateNotFoundError,
    WorkerNotFoundError,
    WorkflowNotRegisteredError,
)
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.rendering import render

_HEADINGS: dict[type[HarvestError], str] = {
    ExecutionNotFoundError: "There is no such run",
    ExecutionClosedError: "This run has ended",
    WorkflowNotRegisteredError: "No worker knows this workflow type",
    UpdateNotFoundError: "There is no such update",
    WorkerNotFoundError: "There is no such worker",
    SavedViewNotFoundError: "There is no such view",
    ReceiptNotFoundError: "There is no such receipt",
    NoWorkerError: "No worker can answer for this run now",
    RequestTimeoutError: "The workers did not answer in time",
    QueryFailedError: "The run's code did not answer",
    OutcomeUnknownError: "Nobody knows whether this was done",
    ShardUnavailableError: "Cannot tell: a shard does not answer",
    ForbiddenError: "You may not do this",
    InvalidRequestError: "This address or form is not right",
}
_HELP: dict[type[HarvestError], str] = {
    ExecutionNotFoundError: "Every shard answered, and none has it. It may have been written down wrong.",
    UpdateNotFoundError: "Neither this run nor another of its chain has admitted it.",
    WorkerNotFoundError: "Workers are forgotten some time after their end. Those of the last hour are in the list.",
    ReceiptNotFoundError: "Nothing was erased under this number. It may have been written down wrong.",
    NoWorkerError: "Start a worker that has this workflow type and version. Nothing is lost meanwhile.",
    RequestTimeoutError: "They may be busy, or just gone. If it stays so, look at the workers on the overview.",
    SavedViewNotFoundError: "It may have been deleted. A view takes no run with it.",
    WorkflowNotRegisteredError: "Start a worker that registers it; types are known for seven days after that.",
    OutcomeUnknownError: "The request was sent and its answer was lost. Look at the run before you repeat it.",
    ShardUnavailableError: "Nothing is said to be missing until every shard has been asked. Runs go on meanwhile.",
    ForbiddenError: "If you have just signed in or out in another tab, load the page again.",
}


def error_page(request: AnyRequest, error: Exception, request_id: str) -> Page:
    """The page for an error; a region gets one line, which the tab that asked for it does not show."""
    status = _status(error)
    if request.url.path.startswith(base_path(request) + FRAGMENTS):
        return Response(_detail(error, request_id), status_code=status, media_type="text/plain")
    return render(
        request,
        "error.html",
        status=status,
        heading=_heading(error, status),
        detail=_detail(error, request_id),
        help=_of_kind(_HELP, error) or "",
        unknown=isinstance(error, ShardUnavailableError),
        shards=_shards(error),
        code=error.code if isinstance(error, HarvestError) else f"HTTP {status}",
        request_id=request_id,
        again=request.method == "GET" and status >= 500,
    )


def _status(error: Exception) -> int:
    if isinstance(error, HarvestError):
        return error.status
    return error.status_code if isinstance(error, HTTPException) else 500


def _heading(error: Exception, status: int) -> str:
    known = _of_kind(_HEADINGS, error)
    if known:
        return known
    return {404: "There is no such page", 405: "This page takes no such request"}.get(status, "Something went wrong")


def _detail(error: Exception, request_id: str) -> str:
    if isinstance(error, HarvestError):
        return error.message
    if isinstance(error, HTTPException) and error.status_code < 500:
        return "" if error.status_code == 404 else str(error.detail)
    return f"It is in the console's log, under request {request_id}."


def _of_kind(texts: dict[type[HarvestError], str], error: Exception) -> str | None:
    """The text of the error's class, else of the nearest one above it."""
    for kind in type(error).__mro__:
        if kind in texts:
            return texts[kind]
    return None


def _shards(error: Exception) -> list[dict[str, object]]:
    """Which shards did not answer, and why."""
    if not isinstance(error, ShardUnavailableError):
        return []
    several = error.fields.get("unavailable_shards")
    if several:
        return list(several)
    if "shard_id" not in error.fields:
        return []
    return [{"shard_id": error.fields["shard_id"], "reason": error.fields.get("reason", "no answer")}]
