"""Answers questions to running code: from the run that is here, else from a replay that is thrown away (design 8).

Nothing here decides, commits or changes a run. What is parked answers at once; a run that is just being decided gets a
moment to come to rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar
from uuid import UUID

import asyncpg
import msgspec
from msgspec import Raw, Struct

from harvest import clock
from harvest.definitions.registry import Registry
from harvest.errors import (
    ExecutionClosedError,
    ExecutionNotFoundError,
    HarvestError,
    InputInvalidError,
    PayloadDecodeError,
    QueryFailedError,
    ShardUnavailableError,
    StepTooLongError,
)
from harvest.history.ids import ExecutionId
from harvest.history.states import FIRST_CLOSED, State
from harvest.replay import unwinding
from harvest.replay.context import WorkflowContext
from harvest.replay.run import Run
from harvest.replay.state import Identity
from harvest.replay.waits import buffered_in, waits_of
from harvest.store import requests
from harvest.store.requests import Answer, Refusal, Standing, Taken
from harvest.store.store import Store
from harvest.worker.metrics import Measures
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.watch import StepInterrupted, StepWatch
from harvest.worker.work import Work

T = TypeVar("T")
KINDS: Final = (requests.QUERY, requests.HANDLERS, requests.STACK)
_log = logging.getLogger("harvest.worker")
MOST_TAKEN, MOST_SERVED = 50, 200
# A run that is being decided comes to rest in milliseconds; one that does not in so long is replayed beside it.
PATIENCE: Final = 0.5
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.02
LAST_ANSWERS: Final = 1.0
AWAY: Final = (ShardUnavailableError, asyncpg.PostgresError)


class Reply(Struct, frozen=True):
    """The answer to a question as it is stored; `workflow_name` is empty where there is no such run."""

    asked: Taken
    answer: bytes
    workflow_name: str
    is_refusal: bool = False


class Requests:
    """One for each shard of a worker. `kick` says that a question may have come; `find` is the run that is here."""

    def __init__(
        self,
        store: Store,
        worker: UUID,
        registry: Registry,
        find: Callable[[UUID], Work | None],
        steps: StepWatch,
        options: WorkerOptions,
        counters: Counters,
        measures: Measures,
    ) -> None:
        self._measures = measures
        self._store = store
        self._worker = worker
        self._registry = registry
        self._find = find
        self._steps = steps
        self._options = options
        self._counters = counters
        self._wake = asyncio.Event()
        self._stopping = False
        self._replaying = asyncio.Lock()
        self._serving: set[asyncio.Task[None]] = set()

    def kick(self) -> None:
        """Look for questions now."""
        self._wake.set()

    def stop(self) -> None:
        """Take no more; what was taken is answered first."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Take and answer questions until stopped."""
        try:
            await self._take_until_stopped()
            if self._serving:
                await asyncio.wait(self._serving, timeout=LAST_ANSWERS)
        finally:
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _take_until_stopped(self) -> None:
        delay = 0.1
        while not self._stopping:
            if len(self._serving) >= MOST_SERVED:
                await asyncio.wait(self._serving, return_when=asyncio.FIRST_COMPLETED)
                continue
            self._wake.clear()
            try:
                taken = await self._take()
                delay = 0.1
            except AWAY as error:
                _log.warning("shard %s: looking for questions failed: %s", self._store.shard_id, error)
                await clock.sleep(clock.jittered(delay))
                delay = min(delay * 2, 5.0)
                continue
            for execution_id in dict.fromkeys(each.execution_id for each in taken):
                self._serve(execution_id, [each for each in taken if each.execution_id == execution_id])
            if len(taken) < MOST_TAKEN:
                await clock.wait_event(self._wake, clock.jittered(self._options.poll_interval))

    async def _take(self) -> list[Taken]:
        types = self._registry.workflows
        return await requests.take(self._store, self._worker, types, MOST_TAKEN) if types else []

    def _serve(self, execution_id: UUID, asked: list[Taken]) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(execution_id, asked))
        self._serving.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("shard %s: a question could not be answered", self._store.shard_id, exc_info=error)

    async def _answer(self, execution_id: UUID, asked: list[Taken]) -> None:
        """Answer the questions to one run before their time is over; a database that is away is asked again."""
        began = clock.monotonic()
        end = began + max(each.seconds for each in asked)
        pause = 0.1
        while clock.monotonic() < end:
            try:
                replies = await self._answers(execution_id, asked, end)
                await requests.answer(self._store, [(each.asked.request_id, each.answer) for each in replies])
                self._measure(replies, clock.monotonic() - began)
                return
            except AWAY as error:
                _log.warning("a question to execution %s could not be answered yet: %s", execution_id, error)
                await clock.sleep(clock.jittered(pause))
                pause *= 2

    def _measure(self, replies: list[Reply], seconds: float) -> None:
        for each in replies:
            if each.workflow_name and each.asked.kind in KINDS:
                status = "failed" if each.is_refusal else "completed"
                self._measures.question_answered(each.workflow_name, each.asked.kind, status, seconds)

    async def _answers(self, execution_id: UUID, asked: list[Taken], end: float) -> list[Reply]:
        if await self._comes_to_rest(execution_id):
            # Up to the answers nothing is awaited: what answers is what was found at rest.
            work = self._find(execution_id)
            assert work is not None
            assert work.run is not None
            self._counters.requests_warm += len(asked)
            return self._ask_all(work.run, work.workflow_name, asked)
        async with self._replaying:
            return await self._answers_of_replay(execution_id, asked) if clock.monotonic() < end else []

    async def _standing(self, execution_id: UUID) -> Standing | None:
        return (await requests.standing(self._store, [execution_id])).get(execution_id)

    async def _comes_to_rest(self, execution_id: UUID) -> bool:
        """Wait until the run that is here knows all that is in history now; False when it is not here or will not.

        Only what was written before the first look has to be known: whoever keeps on writing holds up no answer.
        """
        end, pause = clock.monotonic() + PATIENCE, FIRST_PAUSE
        standing = await self._standing(execution_id)
        while standing is not None and standing.state < FIRST_CLOSED:
            work = self._find(execution_id)
            if work is not None and _knows(work, standing.seen_through):
                return True
            if standing.stands_still or not _is_moving(work, standing) or clock.monotonic() > end:
                return False
            await clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            if work is None:
                standing = await self._standing(execution_id)
        return False

    # Replays that are thrown away

    async def _answers_of_replay(self, execution_id: UUID, asked: list[Taken]) -> list[Reply]:
        standing = await self._standing(execution_id)
        workflow_name = "" if standing is None else standing.workflow_name
        if standing is None or standing.state >= FIRST_CLOSED:
            return _refused(asked, workflow_name, _closed(execution_id, standing))
        # A run that is blocked, paused or struck is shown as its last decision left it: what blocks it, or kills its
        # worker, must not run again for a question.
        events = await requests.history(self._store, execution_id, standing.known_good + 1)
        if not events:
            begun = QueryFailedError(f"the code of execution {execution_id} has not begun", type="NotBegun")
            return _refused(asked, workflow_name, begun)
        self._counters.requests_cold += len(asked)
        run = self._new_run(standing)
        try:
            error = self._watched(standing.workflow_name, lambda: run.replay(events, standing.decided_through))
            if error is not None:
                run.block(error)
            return self._ask_all(run, standing.workflow_name, asked)
        finally:
            self._release(standing.workflow_name, run)

    def _new_run(self, standing: Standing) -> Run:
        # Questions are taken only for the types that are here.
        definition = self._registry.workflows[standing.workflow_name, standing.version]
        execution_id = ExecutionId(int=standing.execution_id.int)
        identity = Identity(execution_id, standing.workflow_name, standing.workflow_id, standing.queue)
        return Run(definition, identity, WorkflowContext)

    def _release(self, workflow_name: str, run: Run) -> None:
        self._steps.begin(workflow_name)
        try:
            ended = run.release(self._steps.hurry)
        except StepInterrupted:
            unwinding.keep([run])
            ended = False
        finally:
            interrupted = self._steps.end() is not None
        if interrupted or not ended:
            self._counters.refused_release += 1

    # Asking a run that is at rest

    def _ask_all(self, run: Run, workflow_name: str, asked: list[Taken]) -> list[Reply]:
        return [self._reply(run, workflow_name, each) for each in asked]

    def _reply(self, run: Run, workflow_name: str, asked: Taken) -> Reply:
        found = self._ask(run, workflow_name, asked)
        if isinstance(found, HarvestError):
            return Reply(asked, _refusal(found), workflow_name, is_refusal=True)
        return Reply(asked, msgspec.json.encode(Answer(result=Raw(found))), workflow_name)

    def _ask(self, run: Run, workflow_name: str, asked: Taken) -> bytes | HarvestError:
        if run.blocked is not None and asked.kind != requests.STACK:
            return _blocked(run.blocked)
        found = self._watched(workflow_name, lambda: _told(run, asked))
        if isinstance(found, StepTooLongError):
            return QueryFailedError(found.message, type=type(found).__name__)
        return found

    def _watched(self, workflow_name: str, act: Callable[[], T]) -> T | HarvestError:
        """Let the author's code run under the watch, like every step of it."""
        self._steps.begin(workflow_name)
        found: T | HarvestError
        try:
            found = act()
        except StepInterrupted:
            found = QueryFailedError("the code was interrupted", type=StepInterrupted.__name__)
        except HarvestError as error:
            found = error
        except BaseException as error:
            # Whatever it is, it must not end the loop that all runs live by.
            _log.error("a question to workflow %r failed", workflow_name, exc_info=error)
            found = QueryFailedError(f"answering failed: {type(error).__name__}: {error}", type=type(error).__name__)
        return self._steps.end() or found


def _is_moving(work: Work | None, standing: Standing) -> bool:
    """Whether a decision of the run is under way here, or is about to be made somewhere."""
    deciding = work is not None and (work.busy or work.queued or bool(work.consumed))
    return deciding or (standing.under_way and standing.news_at > standing.decided_through)


def _knows(work: Work, event_id: int) -> bool:
    """Whether the run that is here has come through that event, and is at rest on confirmed ground."""
    at_rest = work.run is not None and work.run.blocked is None and not work.busy and not work.consumed
    return at_rest and work.next_event_id > event_id


def _told(run: Run, asked: Taken) -> bytes:
    if asked.kind == requests.QUERY:
        try:
            return run.query(asked.name, asked.payload)
        except PayloadDecodeError as error:
            raise InputInvalidError(error.message, **error.fields) from error
    if asked.kind == requests.HANDLERS:
        return msgspec.json.encode(run.handlers())
    if asked.kind == requests.STACK:
        return msgspec.json.encode(_stack(run))
    raise QueryFailedError(f"this worker does not know how to answer {asked.kind!r}", type="UnknownRequest")


def _stack(run: Run) -> dict[str, Any]:
    blocked = run.blocked
    return {
        "tasks": run.stack(),
        "waits": waits_of(run),
        "buffered_signals": buffered_in(run),
        "last_event_id": run.position,
        "blocked": None if blocked is None else {"code": blocked.slug, "message": blocked.message},
    }


def _blocked(error: HarvestError) -> QueryFailedError:
    return QueryFailedError(
        f"the run is blocked, and its code cannot be brought to where it stood: {error.message}",
        type=type(error).__name__,
        blocked=error.slug,
    )


def _closed(execution_id: UUID, standing: Standing | None) -> HarvestError:
    if standing is None:
        return ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=str(execution_id))
    state = State(standing.state).name
    return ExecutionClosedError(
        f"execution {execution_id} has ended ({state}); its code answers no more",
        execution_id=str(execution_id),
        state=state,
    )


def _refused(asked: list[Taken], workflow_name: str, error: HarvestError) -> list[Reply]:
    refusal = _refusal(error)
    return [Reply(each, refusal, workflow_name, is_refusal=True) for each in asked]


def _refusal(error: HarvestError) -> bytes:
    try:
        return msgspec.json.encode(Answer(refusal=Refusal(error.slug, error.message, error.fields)))
    except (TypeError, ValueError, RecursionError):
        fields = {name: str(value) for name, value in error.fields.items()}
        text = error.message.encode("utf-8", "replace").decode()
        return msgspec.json.encode(Answer(refusal=Refusal(error.slug, text, fields)))
