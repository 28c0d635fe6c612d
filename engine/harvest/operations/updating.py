"""Updates: requests that a run's code answers. Admitted like a signal; the answer is an event of that run or the next.

An update is known by its id. Waiting for an answer holds no connection: all who wait in a process share one look a
shard.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Final, Literal
from uuid import UUID, uuid5
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Raw, Struct

from harvest import clock
from harvest.errors import (
    ExecutionNotFoundError,
    HarvestError,
    PayloadsErasedError,
    ShardUnavailableError,
    UpdateFailedError,
    UpdateNotFoundError,
    UpdateRejectedError,
    UpdateTimeoutError,
)
from harvest.history import payload as payloads
from harvest.history.data import UpdateAdmitted, UpdateCompleted, UpdateFailed
from harvest.history.erasing import ERASED
from harvest.history.events import encode_data
from harvest.history.ids import ExecutionId
from harvest.history.kinds import EventKind
from harvest.history.large import warn_if_large
from harvest.history.limits import check_text
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.asking import ask
from harvest.operations.auditing import record
from harvest.operations.routing import reach, routed
from harvest.operations.signalling import check_declared, refusal, unchanged
from harvest.shards import Shards
from harvest.store import appends, updates
from harvest.store.store import Store
from harvest.store.updates import Admitted, Look

Stage = Literal["admitted", "completed"]
DEFAULT_WAIT: Final = 30.0
POLL_SECONDS: Final = 0.02
_KEYS: Final = UUID("6c1f8b5e-6d5c-5b0a-9f0e-2f8f3b1f7a41")
_MOST_RUNS: Final = 1000


class Updated(Struct, frozen=True, kw_only=True):
    """An update that was admitted, and its answer if it has come.

    `execution_id` is the run that has it, `routed_execution_id` the same where another of its chain was asked for.
    `output` is the JSON text that the handler returned, None while there is no answer; `event_id` is that of the
    answer, else of the event that admitted the update.
    """

    execution_id: UUID
    update_id: str
    stage: Stage
    event_id: int
    output: bytes | None = None
    deduplicated: bool = False
    routed_execution_id: UUID | None = None


async def update(
    shards: Shards,
    actor: Actor,
    execution_id: UUID,
    name: str,
    input: bytes,
    *,
    wait: Stage = "completed",
    timeout: float = DEFAULT_WAIT,
    idempotency_key: str | None = None,
) -> Updated:
    """Send an update to a run, or to the live run of its chain, and wait `timeout` seconds for its answer.

    With `wait="admitted"` it is enough that the update is in the history. A repeated key finds the update of the first
    request. Raises UpdateRejectedError, UpdateFailedError, UpdateTimeoutError (the update stays admitted: `update_id`
    is in the fields), PayloadsErasedError (a repeated one, whose answer was erased with its run),
    ExecutionClosedError, ExecutionNotFoundError, InputInvalidError, LimitError, PayloadError.
    """
    store = shards.store_of(ExecutionId(int=execution_id.int))
    data = update_data(actor, name, input, idempotency_key)

    async def send(target: UUID) -> appends.Appending:
        await check_declared(shards, store, target, "update", name, input)
        audit = audit_entry(
            actor,
            "workflow.update",
            shard_id=store.shard_id,
            target_id=str(target),
            idempotency_key=idempotency_key,
            reason=f"update {name}",
        )
        return await appends.append(
            store, target, EventKind.UPDATE_ADMITTED, encode_data(data), audit, key=data.update_id
        )

    reached, answer = await reach(store, execution_id, send)
    if answer.written:
        store.waker.wake(answer.holder)
        store.hints.touch(answer.partition)
        admitted = Admitted(reached, answer.event_id, answer.event_id)
    elif answer.deduplicated:
        await unchanged(shards, actor, "workflow.update", reached, "repeated: this key was used before")
        admitted = await _find(shards, store, reached, data.update_id)
    else:
        error = refusal(reached, answer, "takes no updates")
        await record(shards, actor, "workflow.update", "execution", str(reached), "failed", error.message)
        raise error
    done = await answer_of(shards, store, admitted, data.update_id, wait=wait, timeout=timeout)
    return msgspec.structs.replace(
        done, deduplicated=not answer.written, routed_execution_id=routed(execution_id, done.execution_id)
    )


def update_data(actor: Actor, name: str, input: bytes, idempotency_key: str | None) -> UpdateAdmitted:
    """The event of an update; its id follows from the key. Raises LimitError and PayloadError."""
    check_text(name, what="update name")
    if idempotency_key is not None:
        check_text(idempotency_key, what="idempotency_key")
    payloads.check_text(input, what=f"the input of update {name!r}")
    warn_if_large(input, f"the input of update {name!r}")
    update_id = UUID(bytes=clock.random_bytes(16), version=4) if idempotency_key is None else key_id(idempotency_key)
    return UpdateAdmitted(update_id=str(update_id), name=name, input=Raw(input), actor=actor.name)


def key_id(idempotency_key: str) -> UUID:
    """The id of the update that an idempotency key stands for, in any run: the same for every repetition."""
    return uuid5(_KEYS, idempotency_key)


async def result(shards: Shards, execution_id: UUID, update_id: str, *, wait: float = 0) -> Updated:
    """How an update was answered; still `admitted` when no answer came within `wait` seconds.

    Raises UpdateNotFoundError, UpdateRejectedError, UpdateFailedError, PayloadsErasedError, ExecutionNotFoundError.
    """
    check_text(update_id, what="update_id")
    store = shards.store_of(ExecutionId(int=execution_id.int))
    admitted = await _find(shards, store, execution_id, update_id)
    done = await _answered(shards, store, admitted, update_id, wait)
    found = done or Updated(
        execution_id=admitted.execution_id, update_id=update_id, stage="admitted", event_id=admitted.event_id
    )
    return msgspec.structs.replace(found, routed_execution_id=routed(execution_id, found.execution_id))


async def awaited(shards: Shards, execution_id: UUID, update_id: str, *, wait: Stage, timeout: float) -> Updated:
    """Wait for the answer of an update that an earlier request has sent to a run. Raises as `update` does."""
    store = shards.store_of(ExecutionId(int=execution_id.int))
    admitted = await _find(shards, store, execution_id, update_id)
    return await answer_of(shards, store, admitted, update_id, wait=wait, timeout=timeout)


async def answer_of(
    shards: Shards, store: Store, admitted: Admitted, update_id: str, *, wait: Stage, timeout: float
) -> Updated:
    """Wait for the answer of an update that is in a history. Raises as `update` does."""
    if wait == "admitted":
        return Updated(
            execution_id=admitted.execution_id, update_id=update_id, stage="admitted", event_id=admitted.event_id
        )
    try:
        done = await _answered(shards, store, admitted, update_id, timeout)
    except ShardUnavailableError as error:
        # It is admitted all the same: whoever asks again asks for its result.
        error.fields |= {"update_id": update_id, "execution_id": str(admitted.execution_id)}
        raise
    if done is None:
        raise UpdateTimeoutError(
            f"update {update_id} was admitted and not answered within {timeout:g} s; its result can be asked for later",
            update_id=update_id,
            execution_id=str(admitted.execution_id),
        )
    return done


async def _find(shards: Shards, store: Store, execution_id: UUID, update_id: str) -> Admitted:
    found = await ask(shards, store.shard_id, partial(updates.find, execution_id=execution_id, update_id=update_id))
    if found is None:
        raise UpdateNotFoundError(
            f"execution {execution_id} has admitted no update {update_id[:80]!r}",
            execution_id=str(execution_id),
            update_id=update_id,
        )
    return found


async def _answered(shards: Shards, store: Store, admitted: Admitted, update_id: str, seconds: float) -> Updated | None:
    """The answer, in the run that admitted it or in one that it was carried over to; None after so many seconds."""
    end = clock.monotonic() + seconds
    for _ in range(_MOST_RUNS):
        look = await _answers(shards).wait(shards, store.shard_id, admitted, end - clock.monotonic())
        if look is None:
            return None
        if look.kind is not None:
            return _answer(admitted.execution_id, update_id, look)
        following = await ask(
            shards, store.shard_id, partial(updates.carried, execution_id=admitted.execution_id, update_id=update_id)
        )
        if following is None:
            break
        admitted = following
    raise UpdateFailedError(
        f"execution {admitted.execution_id} ended before it answered update {update_id}",
        update_id=update_id,
        execution_id=str(admitted.execution_id),
        event_id=admitted.event_id,
        failure_type="WorkflowEnded",
    )


def _answer(execution_id: UUID, update_id: str, look: Look) -> Updated:
    if look.kind == EventKind.UPDATE_COMPLETED:
        output = bytes(msgspec.json.decode(look.payload, type=UpdateCompleted).output)
        if output == ERASED:
            raise PayloadsErasedError(
                f"the answer of update {update_id} was erased",
                update_id=update_id,
                execution_id=str(execution_id),
                event_id=look.event_id,
            )
        return Updated(
            execution_id=execution_id,
            update_id=update_id,
            stage="completed",
            event_id=look.event_id,
            output=output,
        )
    answer = msgspec.json.decode(look.payload, type=UpdateFailed)
    kind, word = (UpdateRejectedError, "rejected") if answer.rejected else (UpdateFailedError, "failed")
    raise kind(
        f"update {update_id} {word}: {answer.failure.type}: {answer.failure.message}",
        update_id=update_id,
        execution_id=str(execution_id),
        event_id=look.event_id,
        failure_type=answer.failure.type,
        failure=msgspec.to_builtins(answer.failure),
    )


class _Waiter:
    """One who waits for the answer of an update; `admitted` moves on to what was seen before."""

    def __init__(self, admitted: Admitted) -> None:
        self.admitted = admitted
        self.look: asyncio.Future[Look] = asyncio.get_running_loop().create_future()


class Answers:
    """Who waits for which update; a shard is looked at only while somebody waits on it."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[_Waiter]] = {}
        self._polls: dict[int, asyncio.Task[None]] = {}

    async def wait(self, shards: Shards, shard_id: int, admitted: Admitted, seconds: float) -> Look | None:
        """The answer, or that the run has ended without one; None when neither came in time.

        It is looked for once even where there is no time. Raises ShardUnavailableError, ExecutionNotFoundError.
        """
        if seconds <= 0:
            (look,) = await ask(shards, shard_id, partial(updates.look, wanted=[admitted]))
            if look is None:
                raise _gone(admitted)
            return look if look.kind is not None or look.closed else None
        waiter = _Waiter(admitted)
        self._waiting.setdefault(shard_id, []).append(waiter)
        if shard_id not in self._polls:
            self._polls[shard_id] = asyncio.create_task(self._poll(shards, shard_id))
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                return await waiter.look
        except TimeoutError:
            return None
        finally:
            if waiter in self._waiting.get(shard_id, ()):
                self._waiting[shard_id].remove(waiter)

    async def _poll(self, shards: Shards, shard_id: int) -> None:
        waiting = self._waiting[shard_id]
        try:
            while waiting:
                asked = list(waiting)
                try:
                    looks = await ask(shards, shard_id, partial(updates.look, wanted=[each.admitted for each in asked]))
                except HarvestError as error:
                    self._settle(waiting, asked, error)
                    return
                for waiter, look in zip(asked, looks, strict=True):
                    if look is None:
                        self._settle(waiting, [waiter], _gone(waiter.admitted))
                    elif look.kind is not None or look.closed:
                        self._settle(waiting, [waiter], look)
                    else:
                        waiter.admitted = msgspec.structs.replace(waiter.admitted, after=look.through)
                if waiting:
                    await clock.sleep(POLL_SECONDS)
        finally:
            del self._polls[shard_id]

    def _settle(self, waiting: list[_Waiter], which: list[_Waiter], answer: Look | HarvestError) -> None:
        for waiter in which:
            if waiter in waiting:
                waiting.remove(waiter)
            if waiter.look.done():
                continue
            if isinstance(answer, Look):
                waiter.look.set_result(answer)
            else:
                waiter.look.set_exception(answer)


def _gone(admitted: Admitted) -> ExecutionNotFoundError:
    return ExecutionNotFoundError(
        f"there is no execution {admitted.execution_id}", execution_id=str(admitted.execution_id)
    )


_of_shards: WeakKeyDictionary[Shards, Answers] = WeakKeyDictionary()


def _answers(shards: Shards) -> Answers:
    return _of_shards.setdefault(shards, Answers())
