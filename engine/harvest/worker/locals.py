"""Runs local activities: inside the worker that decides their run, without a task of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from msgspec import Raw

from harvest import clock
from harvest.history.data import Failure, LocalActivityCompleted, LocalActivityFailed
from harvest.history.events import encode_data
from harvest.history.kinds import EventKind
from harvest.history.retrying import retry_delay
from harvest.replay.failures import failure_of
from harvest.replay.records import RunLocal
from harvest.worker.activities import ActivityRunner, Attempt
from harvest.worker.work import Result, Work


class LocalRunner:
    """One for each shard of a worker. `on_end` hears how each local activity ended."""

    def __init__(self, shard_id: int, runner: ActivityRunner, on_end: Callable[[UUID, Result], None]) -> None:
        self._shard_id = shard_id
        self._runner = runner
        self._on_end = on_end
        self._running: dict[UUID, dict[int, asyncio.Task[None]]] = {}

    def sync(self, work: Work) -> None:
        """Start what the run waits for and does not run yet; stop what it has turned away from."""
        run = work.run
        wanted = run.locals if run is not None else {}
        if not wanted and work.execution_id not in self._running:
            return
        running = self._running.setdefault(work.execution_id, {})
        for seq in [seq for seq in running if seq not in wanted]:
            running.pop(seq).cancel()
        for seq, (_, command) in wanted.items():
            if seq not in running and not work.has_result(seq):
                running[seq] = asyncio.get_running_loop().create_task(self._run(work, command))
        if not running:
            del self._running[work.execution_id]

    def forget(self, execution_id: UUID) -> None:
        """The run is let go: whoever takes it runs its local activities again."""
        for task in self._running.pop(execution_id, {}).values():
            task.cancel()

    async def stop(self) -> None:
        """Stop them all."""
        tasks = [task for running in self._running.values() for task in running.values()]
        for execution_id in list(self._running):
            self.forget(execution_id)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, work: Work, command: RunLocal) -> None:
        attempt = 0
        while True:
            attempt += 1
            ended, failure = await self._attempt(work, command, attempt)
            delay = None
            if failure is not None:
                delay = retry_delay(command.retry, failure, attempt, f"{work.execution_id}/{command.seq}")
            if delay is None:
                break
            await clock.sleep(delay)
        self._running.get(work.execution_id, {}).pop(command.seq, None)
        self._on_end(work.execution_id, Result(command.seq, attempt, *ended))

    async def _attempt(self, work: Work, command: RunLocal, number: int) -> tuple[tuple[int, bytes], Failure | None]:
        attempt = Attempt(
            shard_id=self._shard_id,
            execution_id=work.execution_id,
            seq=command.seq,
            attempt=number,
            workflow_name=work.workflow_name,
            workflow_id=work.workflow_id,
            name=command.name,
            input=command.input,
            start_to_close=None,
            heartbeat=None,
            retry=command.retry,
            eager=True,
            is_local=True,
        )
        ended = await self._outcome(work, command, attempt)
        await self._runner.reports_written(attempt)
        return ended

    async def _outcome(
        self, work: Work, command: RunLocal, attempt: Attempt
    ) -> tuple[tuple[int, bytes], Failure | None]:
        number = attempt.attempt
        try:
            async with asyncio.timeout(command.start_to_close):
                output = await self._runner.value_of(attempt, command.definition)
        except TimeoutError as error:
            return self._failed(command, failure_of(error), number)
        except asyncio.CancelledError as error:
            if self._running.get(work.execution_id, {}).get(command.seq) is not asyncio.current_task():
                raise
            failure = Failure(
                type="Cancelled",
                message="the activity raised CancelledError",
                traceback=failure_of(error).traceback,
                non_retryable=True,
            )
            return self._failed(command, failure, number)
        except BaseException as error:
            # SystemExit and KeyboardInterrupt of user code fail the activity, not the worker.
            return self._failed(command, failure_of(error), number)
        data = encode_data(LocalActivityCompleted(Raw(output), number, command.name, command.digest))
        return (int(EventKind.LOCAL_ACTIVITY_COMPLETED), data), None

    def _failed(self, command: RunLocal, failure: Failure, number: int) -> tuple[tuple[int, bytes], Failure]:
        data = encode_data(LocalActivityFailed(failure, number, command.name, command.digest))
        return (int(EventKind.LOCAL_ACTIVITY_FAILED), data), failure
