"""What requests that change something have in common: the run that they mean, and the key to repeat them with."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, TypeVar
from uuid import UUID

from litestar import Request

from harvest import clock
from harvest.errors import ExecutionClosedError, ExecutionNotFoundError, OutcomeUnknownError, ShardUnavailableError
from harvest.history.limits import check_text
from harvest.operations.resolving import resolve
from harvest.shards import Shards
from harvest_console.paths import part
from harvest_console.problems import name_execution

AnyRequest = Request[Any, Any, Any]
T = TypeVar("T")
ONE: Final = "/workflows/{execution_id:str}"
BY_KEY: Final = "/workflows/by-id/{workflow_name:str}/{workflow_id:str}"
NEEDS_IT: Final = (ExecutionNotFoundError, ExecutionClosedError, ShardUnavailableError, OutcomeUnknownError)


async def run_of_key(request: AnyRequest, shards: Shards, workflow_name: str, workflow_id: str) -> UUID:
    """The open run of a business key, else its newest. A refusal that follows names it, too."""
    found = await resolve(shards, part(workflow_name), part(workflow_id))
    name_execution(request, found)
    return found


def key_of(request: AnyRequest, given: str | None) -> str:
    """The caller's idempotency key, the header's before the other; else one of ours, to repeat a lost request with."""
    header = request.headers.get("idempotency-key")
    key = header if header is not None else given
    return check_text(key, what="idempotency_key") if key is not None else clock.random_bytes(12).hex()


async def repeatable(change: Awaitable[T], key: str) -> T:
    """Await a keyed change; when its answer is lost, the refusal names the key to repeat it with."""
    try:
        return await change
    except OutcomeUnknownError as error:
        error.fields.setdefault("idempotency_key", key)
        raise
