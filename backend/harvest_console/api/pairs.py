"""Two routes of one read or one change: by execution id, and by business key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler

from harvest.history.ids import parse_execution_id
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest_console.api.asking import BY_KEY, ONE, run_of_key
from harvest_console.api.doc import Doc
from harvest_console.paths import part
from harvest_console.problems import EXECUTION_HEADER

AnyRequest = Request[Any, Any, Any]
Read = Callable[[AnyRequest, Shards, UUID], Awaitable[Response[bytes]]]
Change = Callable[[AnyRequest, Shards, Actor, UUID, bytes], Awaitable[Response[bytes]]]


def read_pair(path: str, doc: Doc, read: Read, *, by_id_only: bool = False) -> list[HTTPRouteHandler]:
    """The GET routes of `read` below an execution, at `path`; with `by_id_only` the second of them alone."""

    async def by_execution_id(request: AnyRequest, shards: Shards, execution_id: str) -> Response[bytes]:
        return await read(request, shards, parse_execution_id(part(execution_id)))

    async def by_business_key(
        request: AnyRequest, shards: Shards, workflow_name: str, workflow_id: str
    ) -> Response[bytes]:
        found = await run_of_key(request, shards, workflow_name, workflow_id)
        response = await read(request, shards, found)
        response.headers[EXECUTION_HEADER] = str(found)
        return response

    name = path.strip("/").replace("/", "_").replace("-", "_")
    by_execution_id.__name__, by_business_key.__name__ = f"get_{name}", f"get_{name}_by_id"
    by_execution_id.__doc__ = read.__doc__
    by_business_key.__doc__ = f"{read.__doc__} Of the open run of a business key, else of its newest."
    pair = [
        get(f"{ONE}{path}", opt={"doc": doc})(by_execution_id),
        get(f"{BY_KEY}{path}", opt={"doc": doc})(by_business_key),
    ]
    return pair[by_id_only:]


def change_pair(verb: str, status: int, doc: Doc, change: Change) -> list[HTTPRouteHandler]:
    """The POST routes of `change` below an execution, at its verb."""

    async def by_execution_id(
        request: AnyRequest, shards: Shards, actor: Actor, execution_id: str, body: bytes
    ) -> Response[bytes]:
        return await change(request, shards, actor, parse_execution_id(part(execution_id)), body)

    async def by_business_key(
        request: AnyRequest, shards: Shards, actor: Actor, workflow_name: str, workflow_id: str, body: bytes
    ) -> Response[bytes]:
        return await change(request, shards, actor, await run_of_key(request, shards, workflow_name, workflow_id), body)

    by_execution_id.__name__, by_business_key.__name__ = f"{verb}_execution", f"{verb}_by_id"
    by_execution_id.__doc__ = change.__doc__
    by_business_key.__doc__ = "The open run of a business key."
    return [
        post(f"{ONE}/{verb}", status_code=status, opt={"doc": doc})(by_execution_id),
        post(f"{BY_KEY}/{verb}", status_code=status, opt={"doc": doc})(by_business_key),
    ]
