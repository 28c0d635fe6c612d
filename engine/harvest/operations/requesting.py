"""Asking a run's code: queries, and the handlers that it has. The answer comes from a worker (design 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.errors import (
    ExecutionClosedError,
    ExecutionNotFoundError,
    HarvestError,
    NoWorkerError,
    OutcomeUnknownError,
    QueryFailedError,
    RequestTimeoutError,
    ShardUnavailableError,
    every_error,
)
from harvest.history import payload as payloads
from harvest.history.ids import ExecutionId
from harvest.history.limits import check_text
from harvest.operations.actor import Actor
from harvest.operations.asking import ask
from harvest.operations.resolving import resolve
from harvest.operations.routing import live_run
from harvest.shards import Shards
from harvest.store import requests
from harvest.store.requests import Answer, Placed, Refusal
from harvest.store.store import Store

T = TypeVar("T")
SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.02
_MOST_ROTATIONS: Final = 20


class HandlersView(Struct, frozen=True):
    """The names that a run answers to now, with the JSON Schema of what each takes."""

    signals: dict[str, dict[str, Any]]
    queries: dict[str, dict[str, Any]]
    updates: dict[str, dict[str, Any]]


async def query(
    shards: Shards,
    actor: Actor,
    execution_id: UUID,
    name: str,
    args: bytes = payloads.NULL,
    *,
    seconds: float = SECONDS,
) -> bytes:
    """The answer of a run's query handler to `args` (JSON, as a signal's payload), as JSON text.

    It knows everything that was written before. Nothing is recorded of it, in history or in the audit log: `actor` is
    for the rights that asking takes. Raises QueryNotFoundError, QueryFailedError, InputInvalidError,
    ExecutionClosedError, ExecutionNotFoundError, NoWorkerError, and RequestTimeoutError after `seconds`.
    """
    check_text(name, what="query name")
    payloads.check_text(args, what=f"the arguments of query {name!r}")
    return await ask_code(shards, execution_id, requests.QUERY, name, args, seconds=seconds)


async def handlers(shards: Shards, execution_id: UUID, *, seconds: float = SECONDS) -> HandlersView:
    """What a run answers to at this moment. Raises as `query` does."""
    told = await ask_code(shards, execution_id, requests.HANDLERS, seconds=seconds)
    return msgspec.json.decode(told, type=HandlersView)


async def of_key(
    shards: Shards, workflow_name: str, workflow_id: str, act: Callable[[UUID], Awaitable[T]]
) -> tuple[UUID, T]:
    """Ask the run that a business key means; one that ends meanwhile to go on as another is asked there.

    Answers which run it was, too. Raises as `resolve` and `act` do.
    """
    asked: UUID | None = None
    for _ in range(_MOST_ROTATIONS):
        found = await resolve(shards, workflow_name, workflow_id)
        try:
            return found, await act(found)
        except ExecutionClosedError:
            if found == asked:
                raise
            asked = found
    raise RequestTimeoutError(
        f"{workflow_name} {workflow_id!r} goes on as new runs faster than one can be asked",
        workflow_name=workflow_name,
        workflow_id=workflow_id,
    )


async def of_chain(shards: Shards, execution_id: UUID, act: Callable[[UUID], Awaitable[T]]) -> tuple[UUID, T]:
    """Ask a run, or the live one of its chain where it has gone on as another.

    Answers which run it was, too. Raises as `act` does.
    """
    asked = execution_id
    for _ in range(_MOST_ROTATIONS):
        try:
            return asked, await act(asked)
        except ExecutionClosedError:
            live = await live_run(shards, asked)
            if live == asked:
                raise
            asked = live
    raise RequestTimeoutError(
        f"execution {execution_id} goes on as new runs faster than one can be asked", execution_id=execution_id
    )


async def ask_code(
    shards: Shards,
    execution_id: UUID,
    kind: str,
    name: str = "",
    payload: bytes = payloads.NULL,
    *,
    seconds: float = SECONDS,
) -> bytes:
    """Put a question of a kind to a run's code and wait for the answer, JSON text. Raises as `query` does."""
    store = shards.store_of(ExecutionId(int=execution_id.int))
    request_id = UUID(bytes=clock.random_bytes(16), version=4)
    placed = await _place(store, request_id, execution_id, kind, name, payload, seconds)
    _require_answerable(execution_id, placed)
    store.waker.ask(placed.worker)
    stored = await _waiters(shards).wait(shards, store, request_id, seconds)
    if stored is None:
        raise RequestTimeoutError(
            f"no worker has answered for execution {execution_id} in {seconds:g} s; those of "
            f"{placed.workflow_name!r} version {placed.version} may be busy",
            execution_id=str(execution_id),
        )
    told = msgspec.json.decode(stored, type=Answer)
    if told.refusal is not None:
        raise _error_of(told.refusal)
    return bytes(told.result)


async def _place(
    store: Store, request_id: UUID, execution_id: UUID, kind: str, name: str, payload: bytes, seconds: float
) -> Placed:
    try:
        return await requests.place(store, request_id, execution_id, kind, name, payload, seconds)
    except OutcomeUnknownError as lost:
        # Whether the question is there matters to nobody: it changes nothing, and can be asked again.
        raise ShardUnavailableError(lost.message, **lost.fields) from lost


def _require_answerable(execution_id: UUID, placed: Placed) -> None:
    if placed.state is None:
        raise ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=str(execution_id))
    if not placed.state.is_open:
        raise ExecutionClosedError(
            f"execution {execution_id} has ended ({placed.state.name}); its code answers no more",
            execution_id=str(execution_id),
            state=placed.state.name,
        )
    if not placed.has_worker:
        raise NoWorkerError(
            f"no living worker has workflow {placed.workflow_name!r} version {placed.version}; start one that has it",
            workflow_name=placed.workflow_name,
            version=placed.version,
        )


def _error_of(refusal: Refusal) -> HarvestError:
    """The typed error that the worker raised."""
    kinds = {kind.slug: kind for kind in every_error()}
    error = kinds.get(refusal.slug, QueryFailedError)(refusal.message)
    error.fields.update(refusal.fields)
    return error


class _Waiter:
    """Who waits for one answer. All workers are told once, when the one that was told first is late."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.tell_others_at = clock.monotonic() + requests.OTHERS_AFTER

    def is_overdue(self) -> bool:
        """Whether it is time to tell the others; true once."""
        if clock.monotonic() < self.tell_others_at:
            return False
        self.tell_others_at = float("inf")
        return True


class _Waiters:
    """Everybody in this process who waits for answers: one poll a shard, while somebody waits there."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[UUID, _Waiter]] = {}
        self._polls: dict[int, asyncio.Task[None]] = {}

    async def wait(self, shards: Shards, store: Store, request_id: UUID, seconds: float) -> bytes | None:
        """The stored answer, or None after `seconds`. Raises ShardUnavailableError when the shard stops answering."""
        waiter = _Waiter()
        waiting = self._waiting.setdefault(store.shard_id, {})
        waiting[request_id] = waiter
        if store.shard_id not in self._polls:
            self._polls[store.shard_id] = asyncio.create_task(self._poll(shards, store, waiting))
        try:
            async with asyncio.timeout(seconds):
                return await waiter.answer
        except TimeoutError:
            return None
        finally:
            waiting.pop(request_id, None)

    async def _poll(self, shards: Shards, store: Store, waiting: dict[UUID, _Waiter]) -> None:
        try:
            while waiting:
                try:
                    answers = await ask(shards, store.shard_id, lambda store: requests.answers(store, list(waiting)))
                except HarvestError as error:
                    for waiter in waiting.values():
                        if not waiter.answer.done():
                            waiter.answer.set_exception(error)
                    return
                for request_id, answer in answers.items():
                    if request_id in waiting and not (waited := waiting.pop(request_id).answer).done():
                        waited.set_result(answer)
                if sum(waiter.is_overdue() for waiter in waiting.values()):
                    store.waker.ask(None)
                if answers:
                    await self._forget(store, list(answers))
                if waiting:
                    await clock.sleep(POLL_SECONDS)
        finally:
            del self._polls[store.shard_id]

    async def _forget(self, store: Store, request_ids: list[UUID]) -> None:
        try:
            await requests.forget(store, request_ids)
        except ShardUnavailableError:
            return  # a sweep of the workers deletes them later


_of_shards: WeakKeyDictionary[Shards, _Waiters] = WeakKeyDictionary()


def _waiters(shards: Shards) -> _Waiters:
    return _of_shards.setdefault(shards, _Waiters())
