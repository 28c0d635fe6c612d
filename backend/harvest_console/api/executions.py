"""One execution: the whole of it, its history, its payloads, its result. By execution id and by business key."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from litestar import Request, Response, get

from harvest.errors import ExecutionNotFoundError, InvalidRequestError, PayloadsErasedError, ShardUnavailableError
from harvest.history.ids import parse_execution_id
from harvest.operations import reading
from harvest.operations.reading import HistoryPage, Outcome
from harvest.operations.resolving import resolve
from harvest.operations.views import API_ROOT, ExecutionDetail
from harvest.shards import Shards
from harvest_console.api.answers import answer, read_query
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import HistoryQuery, NoQuery, ResultQuery
from harvest_console.auth.caller import settings_of
from harvest_console.paths import part
from harvest_console.problems import EXECUTION_HEADER as EXECUTION_HEADER

AnyRequest = Request[Any, Any, Any]
MISSING = (ExecutionNotFoundError, ShardUnavailableError)
_OCTETS = "application/octet-stream"


def _root(request: AnyRequest) -> str:
    return settings_of(request).base_path + API_ROOT


async def _result(request: AnyRequest, shards: Shards, execution_id: UUID) -> Response[bytes]:
    query = read_query(request, ResultQuery)
    outcome = await reading.result(shards, execution_id, wait=query.seconds, api_root=_root(request))
    headers = {EXECUTION_HEADER: str(execution_id)}
    if outcome is None:
        return Response(b"", status_code=204, headers=headers | {"retry-after": "1"})
    return answer(outcome, headers=headers)


@get(
    "/workflows/{execution_id:str}",
    opt={"doc": Doc("One execution.", query=NoQuery, answers={200: ExecutionDetail}, refusals=MISSING)},
)
async def get_execution(request: AnyRequest, shards: Shards, execution_id: str) -> Response[bytes]:
    """State, payloads and what is under way."""
    read_query(request, NoQuery)
    return answer(await reading.get(shards, parse_execution_id(part(execution_id)), api_root=_root(request)))


@get(
    "/workflows/{execution_id:str}/history",
    opt={"doc": Doc("A window of the history.", query=HistoryQuery, answers={200: HistoryPage}, refusals=MISSING)},
)
async def get_history(request: AnyRequest, shards: Shards, execution_id: str) -> Response[bytes]:
    """Events in the order asked for; the cursor goes into `after`, or into `before` for `order=desc`."""
    return await history_answer(request, shards, parse_execution_id(part(execution_id)))


async def history_answer(request: AnyRequest, shards: Shards, execution_id: UUID) -> Response[bytes]:
    """Events in the order asked for; the cursor goes into `after`, or into `before` for `order=desc`."""
    query = read_query(request, HistoryQuery)
    page = await reading.history(
        shards,
        execution_id,
        after=query.after,
        before=query.before,
        limit=query.limit,
        newest_first=query.order == "desc",
        api_root=_root(request),
    )
    return answer(page)


@get(
    "/workflows/{execution_id:str}/history/{event_id:str}/payload",
    opt={"doc": Doc("The whole data of one event, as a file.", query=NoQuery, answers={200: None}, refusals=MISSING)},
)
async def get_event_payload(shards: Shards, execution_id: str, event_id: str) -> Response[bytes]:
    """The stored JSON text, byte for byte."""
    if not re.fullmatch(r"[0-9]{1,9}", event_id):
        raise InvalidRequestError(f"{event_id[:80]!r} is no event id; it must be a number", field="event_id")
    found = parse_execution_id(part(execution_id))
    return _file(await reading.event_payload(shards, found, int(event_id)), f"{found}-event-{event_id}.json")


@get(
    "/workflows/{execution_id:str}/payload/{name:str}",
    opt={
        "doc": Doc(
            "The whole input, result, memo or current details, as a file.", answers={200: None}, refusals=MISSING
        )
    },
)
async def get_payload(shards: Shards, execution_id: str, name: str) -> Response[bytes]:
    """The stored JSON text, byte for byte."""
    found = parse_execution_id(part(execution_id))
    return _file(await reading.detail_payload(shards, found, part(name)), f"{found}-{name}.json")


def _file(content: bytes, name: str) -> Response[bytes]:
    # Never a type that a browser would render: payloads are hostile.
    return Response(content, media_type=_OCTETS, headers={"content-disposition": f'attachment; filename="{name}"'})


@get(
    "/workflows/{execution_id:str}/result",
    opt={
        "doc": Doc(
            "How the execution ended; 204 while it is open.",
            query=ResultQuery,
            answers={200: Outcome, 204: None},
            refusals=(*MISSING, PayloadsErasedError),
        )
    },
)
async def get_result(request: AnyRequest, shards: Shards, execution_id: str) -> Response[bytes]:
    """Waits as long as asked, 30 seconds at most; waiting holds no connection."""
    return await _result(request, shards, parse_execution_id(part(execution_id)))


@get("/workflows/by-id/{workflow_name:str}", include_in_schema=False)
async def get_by_name_alone(workflow_name: str) -> Response[bytes]:
    """A business key has two parts."""
    raise InvalidRequestError(
        f"by-id/{part(workflow_name)[:80]} names a workflow type; the workflow id must follow it", field="workflow_id"
    )


@get(
    "/workflows/by-id/{workflow_name:str}/{workflow_id:str}",
    opt={
        "doc": Doc(
            "The open run of a business key, else its newest.",
            query=NoQuery,
            answers={200: ExecutionDetail},
            refusals=MISSING,
        )
    },
)
async def get_by_id(request: AnyRequest, shards: Shards, workflow_name: str, workflow_id: str) -> Response[bytes]:
    """State, payloads and what is under way."""
    read_query(request, NoQuery)
    found = await resolve(shards, part(workflow_name), part(workflow_id))
    detail = await reading.get(shards, found, api_root=_root(request))
    return answer(detail, headers={EXECUTION_HEADER: str(found)})


@get(
    "/workflows/by-id/{workflow_name:str}/{workflow_id:str}/result",
    opt={
        "doc": Doc(
            "How the run of a business key ended; 204 while it is open.",
            query=ResultQuery,
            answers={200: Outcome, 204: None},
            refusals=(*MISSING, PayloadsErasedError),
        )
    },
)
async def get_result_by_id(
    request: AnyRequest, shards: Shards, workflow_name: str, workflow_id: str
) -> Response[bytes]:
    """Waits as long as asked, 30 seconds at most."""
    return await _result(request, shards, await resolve(shards, part(workflow_name), part(workflow_id)))


handlers = [
    get_execution,
    get_history,
    get_event_payload,
    get_payload,
    get_result,
    get_by_name_alone,
    get_by_id,
    get_result_by_id,
]
