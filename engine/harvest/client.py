"""Handles to executions, as the application's own code uses them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

from harvest.definitions.signature import Signature
from harvest.errors import ResultTimeoutError, WorkflowFailedError
from harvest.history import payload
from harvest.operations import closing, reading, signalling
from harvest.operations.actor import in_process
from harvest.shards import Shards

R = TypeVar("R")


class WorkflowHandle(Generic[R]):
    """One execution: await its result, send it signals, end it.

    Made by `Harvest.start` and `Harvest.handle`; cheap, without a connection of its own. Every method raises
    ExecutionNotFoundError when there is no such execution, and ShardUnavailableError when its shard does not answer:
    then it is not known whether there is. `workflow_id` is None where the handle was made of an execution id alone.
    """

    def __init__(
        self, shards: Shards, execution_id: UUID, signature: Signature | None, workflow_id: str | None = None
    ) -> None:
        self.execution_id = execution_id
        self.workflow_id = workflow_id
        self._shards = shards
        self._signature = signature

    def __repr__(self) -> str:
        """Which execution it is: its workflow and workflow id where they are known, and its id."""
        known = [self._signature.what] if self._signature else []
        known += [repr(self.workflow_id)] if self.workflow_id is not None else []
        return f"<WorkflowHandle {' '.join([*known, str(self.execution_id)])}>"

    async def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the end and return the result.

        Raises WorkflowFailedError when the run did not complete, ResultTimeoutError when it is still open after
        `timeout`, a timedelta or seconds.
        """
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        left = float("inf") if timeout is None else timeout
        while True:
            outcome = await reading.result(self._shards, self.execution_id, wait=min(left, reading.MOST_WAIT))
            if outcome is not None:
                break
            left -= reading.MOST_WAIT
            if left <= 0:
                raise ResultTimeoutError(f"execution {self.execution_id} is still open", execution_id=self.execution_id)
        if outcome.state != "COMPLETED":
            error = outcome.error
            why = f": {error.type}: {error.message}" if error else ""
            raise WorkflowFailedError(
                f"execution {outcome.execution_id} ended {outcome.state}{why}",
                execution_id=str(outcome.execution_id),
                state=outcome.state,
                failure_type=error.type if error else None,
            )
        data = await reading.detail_payload(self._shards, outcome.execution_id, "result")
        value: R = payload.decode(data, self._signature.result if self._signature else Any)
        return value

    async def signal(self, name: str, value: Any = None, *, idempotency_key: str | None = None) -> None:
        """Send a signal. With a key, a repeated call is taken once.

        Raises ExecutionClosedError when the run has ended, PayloadError for a value that cannot be stored, and
        OutcomeUnknownError when the answer was lost: repeat it with the same key.
        """
        await signalling.signal(
            self._shards,
            in_process("handle.signal"),
            self.execution_id,
            name,
            payload.encode(value, what=f"the payload of signal {name!r}"),
            idempotency_key=idempotency_key,
        )

    async def cancel(self, reason: str = "") -> bool:
        """Ask the run to end; its code may clean up first. False when that was asked before.

        Raises ExecutionClosedError when the run has ended.
        """
        actor = in_process("handle.cancel")
        return (await closing.cancel(self._shards, actor, self.execution_id, reason=reason)).newly_cancelled

    async def terminate(self, reason: str = "") -> bool:
        """End the run at once, without running its code. False when it was terminated before.

        Raises ExecutionClosedError when the run has ended in another way.
        """
        actor = in_process("handle.terminate")
        return (await closing.terminate(self._shards, actor, self.execution_id, reason=reason)).newly_terminated
