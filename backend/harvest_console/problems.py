"""Errors as application/problem+json, with the stable code and slug of the error tree (reference 4)."""

from __future__ import annotations

import logging
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from harvest.errors import HarvestError, OutcomeUnknownError, UnauthenticatedError
from harvest_console.auth.caller import request_id

MEDIA_TYPE: Final = "application/problem+json"
EXECUTION_HEADER: Final = "X-Harvest-Execution-Id"
_NAMED: Final = "harvest_execution_id"
AnyRequest = Request[Any, Any, Any]
_log = logging.getLogger("harvest.console")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every refusal. The error's own facts stand beside these fields."""

    type: str
    title: str
    status: int
    code: str
    slug: str
    detail: str
    request_id: str


def problem_of(error: Exception, at: str) -> Problem:
    """What a caller is told about `error`; nothing of an unexpected one but the request's id `at`."""
    if isinstance(error, HarvestError):
        status, code, slug, detail = error.status, error.code, error.slug, error.message
    elif isinstance(error, HTTPException):
        status, detail = error.status_code, str(error.detail)
        code, slug = f"HTTP-{status}", _phrase(status).lower().replace(" ", "_").replace("'", "")
    else:
        status, code, slug = 500, "HVT-000", "internal_error"
        detail = f"something went wrong here; the log of the console has the details of request {at}"
    return Problem(
        type=f"urn:harvest:error:{slug}",
        title=_phrase(status),
        status=status,
        code=code,
        slug=slug,
        detail=detail,
        request_id=at,
    )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def problem_response(request: AnyRequest, error: Exception) -> Response[bytes]:
    """The answer to a request that ended in `error`."""
    problem = problem_of(error, request_id(request))
    body = msgspec.to_builtins(problem)
    headers: dict[str, str] = {}
    if isinstance(error, HarvestError):
        body = {name: _plain(value) for name, value in error.fields.items()} | body
        if error.retryable and not isinstance(error, OutcomeUnknownError):
            headers["retry-after"] = "1"
    elif isinstance(error, HTTPException):
        headers |= {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
    if isinstance(error, UnauthenticatedError):
        headers["www-authenticate"] = "Bearer"
    if (named := request.scope["state"].get(_NAMED)) is not None:
        headers[EXECUTION_HEADER] = str(named)
    return Response(msgspec.json.encode(body), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def name_execution(request: AnyRequest, execution_id: UUID) -> None:
    """The run that a business key meant: a refusal of this request names it in its header."""
    request.scope["state"][_NAMED] = execution_id


def _plain(value: Any) -> Any:
    """A field of an error as JSON can say it."""
    if isinstance(value, (str, int, float, bool, datetime, UUID, dict, list, tuple)) or value is None:
        return value
    return str(value)


def log_unexpected(request: AnyRequest, error: Exception) -> None:
    """Write what nobody expected to the log, by request id and path; never the query, which may hold secrets."""
    if not isinstance(error, (HarvestError, HTTPException)):
        _log.error("request %s %s %s failed", request_id(request), request.method, request.url.path, exc_info=error)
