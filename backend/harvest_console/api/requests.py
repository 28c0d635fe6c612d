"""What a run's code says of itself: queries, its handlers, its stack, what it waits for, and its progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream
from msgspec import UNSET, Raw, Struct, UnsetType

from harvest.errors import (
    ExecutionClosedError,
    ExecutionNotFoundError,
    HarvestError,
    InputInvalidError,
    InvalidRequestError,
    NoWorkerError,
    QueryFailedError,
    QueryNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from harvest.history.ids import parse_execution_id
from harvest.history.payload import NULL
from harvest.operations import progressing, requesting, stacks
from harvest.operations.actor import Actor
from harvest.operations.progressing import Ended
from harvest.operations.requesting import HandlersView, of_chain, of_key
from harvest.operations.resolving import resolve
from harvest.operations.stacks import AwaitablesView, StackView
from harvest.shards import Shards
from harvest.store.progress import Chunk
from harvest_console.api.answers import JSON, answer, read_body, read_query
from harvest_console.api.doc import Doc
from harvest_console.api.executions import EXECUTION_HEADER
from harvest_console.api.shapes import NoQuery
from harvest_console.auth.caller import request_id
from harvest_console.live.hub import Hub
from harvest_console.live.routes import HEADERS
from harvest_console.paths import part
from harvest_console.problems import problem_of

AnyRequest = Request[Any, Any, Any]
T = TypeVar("T")
EVENT_STREAM: Final = "text/event-stream"
_ONE: Final = "/workflows/{execution_id:str}"
_KEY: Final = "/workflows/by-id/{workflow_name:str}/{workflow_id:str}"
_MISSING: Final = (ExecutionNotFoundError, ShardUnavailableError)
_UNANSWERED: Final = (*_MISSING, NoWorkerError, RequestTimeoutError, QueryFailedError)


class QueryBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a query, as the handler takes them: one value, or an array of several."""

    args: Raw | UnsetType = UNSET


class QueryAnswer(Struct, frozen=True):
    """What the handler returned."""

    result: Raw


class QueriesAnswer(Struct, frozen=True):
    """The names of the queries that the run answers now, sorted."""

    execution_id: UUID
    queries: list[str]


class HandlersAnswer(HandlersView, frozen=True, kw_only=True):
    """Everything that the run answers to now, with the JSON Schema of what each takes."""

    execution_id: UUID


_QUERY: Final = Doc(
    "Ask a query handler of the run; it changes nothing.",
    query=NoQuery,
    answers={200: QueryAnswer},
    refusals=(*_UNANSWERED, QueryNotFoundError, InputInvalidError, ExecutionClosedError),
)
_QUERY_WITH: Final = msgspec.structs.replace(_QUERY, body=QueryBody)
_QUERIES: Final = Doc(
    "The names of the run's queries.",
    query=NoQuery,
    answers={200: QueriesAnswer},
    refusals=(*_UNANSWERED, ExecutionClosedError),
)
_HANDLERS: Final = Doc(
    "The signals, queries and updates that the run has handlers for.",
    query=NoQuery,
    answers={200: HandlersAnswer},
    refusals=(*_UNANSWERED, ExecutionClosedError),
)
_STACK: Final = Doc("Where the run's code waits.", query=NoQuery, answers={200: StackView}, refusals=_UNANSWERED)
_AWAITABLES: Final = Doc(
    "Everything that the run waits for; from what is recorded where its code cannot be asked.",
    query=NoQuery,
    answers={200: AwaitablesView},
    refusals=_MISSING,
)
_STREAM: Final = Doc(
    "What the run's code publishes of its progress, as it comes: events `progress`, `end` and `error`.",
    query=NoQuery,
    stream=True,
    refusals=_MISSING,
)


class Asked(Struct, frozen=True):
    """Which run a request means: one by its id, or the current one of a business key."""

    shards: Shards
    execution_id: str | None = None
    workflow_name: str = ""
    workflow_id: str = ""

    async def find(self) -> UUID:
        """The run now."""
        if self.execution_id is not None:
            return parse_execution_id(part(self.execution_id))
        return await resolve(self.shards, part(self.workflow_name), part(self.workflow_id))

    async def ask(self, act: Callable[[UUID], Awaitable[T]]) -> tuple[UUID, T]:
        """Ask the run, or the one that its chain or its business key means while it answers."""
        if self.execution_id is None:
            return await of_key(self.shards, part(self.workflow_name), part(self.workflow_id), act)
        return await of_chain(self.shards, await self.find(), act)


def _answer(found: UUID, content: Struct) -> Response[bytes]:
    return answer(content, headers={EXECUTION_HEADER: str(found)})


# Queries


async def _query(request: AnyRequest, actor: Actor, asked: Asked, name: str, args: bytes) -> Response[bytes]:
    read_query(request, NoQuery)
    found, result = await asked.ask(lambda one: requesting.query(asked.shards, actor, one, part(name), args))
    return _answer(found, QueryAnswer(Raw(result)))


def _args(body: bytes) -> bytes:
    given = read_body(body, QueryBody).args
    return NULL if given is UNSET else bytes(given)


@get([f"{_ONE}/query", f"{_KEY}/query"], include_in_schema=False)
async def query_without_a_name() -> Response[bytes]:
    """The name is a part of the path."""
    raise InvalidRequestError("the query's name is missing: it must follow /query/", field="query_name")


@get(f"{_ONE}/query/{{query_name:str}}", opt={"doc": _QUERY})
async def query(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, query_name: str
) -> Response[bytes]:
    """A query without arguments."""
    return await _query(request, actor, Asked(shards, execution_id), query_name, NULL)


@post(f"{_ONE}/query/{{query_name:str}}", status_code=200, opt={"doc": _QUERY_WITH})
async def query_with_arguments(
    request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, query_name: str, body: bytes
) -> Response[bytes]:
    """A query with arguments."""
    return await _query(request, actor, Asked(shards, execution_id), query_name, _args(body))


@get(f"{_KEY}/query/{{query_name:str}}", opt={"doc": _QUERY})
async def query_by_id(
    request: AnyRequest, shards: Shards, actor: Actor, workflow_name: str, workflow_id: str, query_name: str
) -> Response[bytes]:
    """A query without arguments, to the current run of a business key."""
    return await _query(request, actor, Asked(shards, None, workflow_name, workflow_id), query_name, NULL)


@post(f"{_KEY}/query/{{query_name:str}}", status_code=200, opt={"doc": _QUERY_WITH})
async def query_by_id_with_arguments(
    request: AnyRequest,
    shards: Shards,
    actor: Actor,
    workflow_name: str,
    workflow_id: str,
    query_name: str,
    body: bytes,
) -> Response[bytes]:
    """A query with arguments, to the current run of a business key."""
    return await _query(request, actor, Asked(shards, None, workflow_name, workflow_id), query_name, _args(body))


# What it answers to, where it stands, what it waits for


async def _queries(request: AnyRequest, asked: Asked) -> Response[bytes]:
    read_query(request, NoQuery)
    found, told = await asked.ask(lambda one: requesting.handlers(asked.shards, one))
    return _answer(found, QueriesAnswer(found, sorted(told.queries)))


async def _handlers(request: AnyRequest, asked: Asked) -> Response[bytes]:
    read_query(request, NoQuery)
    found, told = await asked.ask(lambda one: requesting.handlers(asked.shards, one))
    return _answer(found, HandlersAnswer(told.signals, told.queries, told.updates, execution_id=found))


async def _stack(request: AnyRequest, asked: Asked) -> Response[bytes]:
    read_query(request, NoQuery)
    found, told = await asked.ask(lambda one: stacks.stack(asked.shards, one))
    return _answer(found, told)


async def _awaitables(request: AnyRequest, asked: Asked) -> Response[bytes]:
    read_query(request, NoQuery)
    found, told = await asked.ask(lambda one: stacks.awaitables(asked.shards, one))
    return _answer(found, told)


def _pair(
    name: str, doc: Doc, tell: Callable[[AnyRequest, Asked], Awaitable[Any]], media_type: str = JSON
) -> list[HTTPRouteHandler]:
    """The routes of one question: by execution id, and by business key."""

    async def by_execution_id(request: AnyRequest, shards: Shards, execution_id: str) -> Any:
        """Of one run."""
        return await tell(request, Asked(shards, execution_id))

    async def by_business_key(request: AnyRequest, shards: Shards, workflow_name: str, workflow_id: str) -> Any:
        """Of the current run of a business key."""
        return await tell(request, Asked(shards, None, workflow_name, workflow_id))

    by_execution_id.__name__, by_business_key.__name__ = f"get_{name}", f"get_{name}_by_id"
    return [
        get(f"{_ONE}/{name}", media_type=media_type, opt={"doc": doc})(by_execution_id),
        get(f"{_KEY}/{name}", media_type=media_type, opt={"doc": doc})(by_business_key),
    ]


# Progress


async def _stream(request: AnyRequest, asked: Asked) -> Stream:
    read_query(request, NoQuery)
    found = await asked.find()
    told = await progressing.follow(asked.shards, found, last_seen=_last_seen(request))
    hub: Hub = request.app.state.hub
    frames = _frames(told, hub.closing, request_id(request))
    return Stream(frames, headers={**HEADERS, EXECUTION_HEADER: str(found)})


def _last_seen(request: AnyRequest) -> int | None:
    """The number of the last chunk that a caller saw who comes back."""
    given = request.headers.get("last-event-id", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else None


async def _frames(
    told: AsyncGenerator[Chunk | Ended | None, None], closing: asyncio.Event, at: str
) -> AsyncIterator[bytes]:
    """The frames of a stream, until the run or the console ends."""
    closed = asyncio.ensure_future(closing.wait())
    step: asyncio.Future[Chunk | Ended | None] | None = None
    try:
        yield b": following\n\n"
        while not closed.done():
            step = asyncio.ensure_future(anext(told))
            await asyncio.wait({step, closed}, return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                yield _frame(step.result())
    except StopAsyncIteration:
        return
    except HarvestError as error:
        yield b"event: error\ndata: " + msgspec.json.encode(problem_of(error, at)) + b"\n\n"
    finally:
        for waiting in (closed, step):
            if waiting is not None:
                waiting.cancel()
        await asyncio.gather(closed, *([step] if step else []), return_exceptions=True)
        await told.aclose()


def _frame(told: Chunk | Ended | None) -> bytes:
    if told is None:
        return b": ping\n\n"
    if isinstance(told, Ended):
        return b"event: end\ndata: " + msgspec.json.encode(told) + b"\n\n"
    # A stored text may have lines; JSON has none inside of its values.
    return b"id: %d\nevent: progress\ndata: %s\n\n" % (told.seq, b" ".join(told.data.splitlines()))


handlers = [
    query_without_a_name,
    query,
    query_with_arguments,
    query_by_id,
    query_by_id_with_arguments,
    *_pair("queries", _QUERIES, _queries),
    *_pair("handlers", _HANDLERS, _handlers),
    *_pair("stack", _STACK, _stack),
    *_pair("awaitables", _AWAITABLES, _awaitables),
    *_pair("stream", _STREAM, _stream, EVENT_STREAM),
]
