"""Handles to executions and updates, and what a start asks for, as the application's own code uses them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar
from uuid import UUID

from msgspec import Struct

from harvest.definitions.options import Retry
from harvest.definitions.signature import Signature
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import (
    ApplicationError,
    HarvestError,
    PayloadsErasedError,
    ResultTimeoutError,
    WorkflowFailedError,
)
from harvest.history import payload
from harvest.history.erasing import ERASED
from harvest.operations import closing, pausing, reading, requesting, signalling, updating
from harvest.operations.actor import in_process
from harvest.operations.preparing import StartRequest
from harvest.operations.views import FailureView
from harvest.shards import AUTOMATIC, Placement, Shards

R = TypeVar("R")
ReusePolicy = Literal["allow_duplicate", "reject_duplicate", "allow_duplicate_failed_only", "terminate_if_running"]
ConflictPolicy = Literal["unspecified", "fail", "use_existing", "terminate_existing"]
_FOREVER: Final = float("inf")


class RunOptions(TypedDict, total=False):
    """Keyword options of every way to start a run.

    `version` is the exact version of the workflow; without it the latest that a worker has registered is started.
    `execution_timeout` bounds the run, `chain_execution_timeout` it and all that follow it, as new or as a retry.
    """

    workflow_id: str | None
    version: int | None
    idempotency_key: str | None
    queue: str | None
    priority: int
    execution_timeout: timedelta | None
    chain_execution_timeout: timedelta | None
    retry: Retry | None
    memo: Any
    search_attributes: Mapping[str, Any] | None


class StartOptions(RunOptions, total=False):
    """Keyword options of `Harvest.start`. `shard_id` or `residency_key` places the run; else its id does."""

    reuse_policy: ReusePolicy
    conflict_policy: ConflictPolicy
    shard_id: int | None
    residency_key: str | None


class WorkflowHandle(Generic[R]):
    """One execution: await its result, send it signals and updates, ask it, hold it, end it.

    Made by `Harvest.start` and `Harvest.handle`; cheap, without a connection of its own. Where the run has continued as
    new, or is tried again, it is the live run of its chain that is reached. Every method raises ExecutionNotFoundError
    when there is no such execution, and ShardUnavailableError when its shard does not answer: then it is not known
    whether there is. `workflow_id` is None where the handle was made of an execution id alone.
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
        `timeout`, a timedelta or seconds, PayloadsErasedError when its result was erased.
        """
        left = seconds_of(timeout)
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
                type=error.type if error else None,
                failure_type=error.type if error else None,
            ) from _cause(error)
        data = await reading.detail_payload(self._shards, outcome.execution_id, "result")
        as_type = self._signature.result if self._signature else Any
        # It may have been erased between the two reads.
        if data == ERASED:
            raise PayloadsErasedError(
                f"the result of execution {outcome.execution_id} was erased", execution_id=str(outcome.execution_id)
            )
        value: R = payload.decode(data, as_type, what=f"the result of execution {outcome.execution_id}")
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

    async def query(self, name: str, *args: Any, result_type: Any = Any) -> Any:
        """Ask the run's code; nothing is recorded of it. The answer is decoded as `result_type`.

        Raises QueryNotFoundError, QueryFailedError, NoWorkerError, RequestTimeoutError, and ExecutionClosedError when
        the run has ended.
        """
        asked = encode_arguments(args, f"the arguments of query {name!r}")
        _, data = await requesting.of_chain(
            self._shards,
            self.execution_id,
            lambda run: requesting.query(self._shards, in_process("handle.query"), run, name, asked),
        )
        return payload.decode(data, result_type, what=f"the answer of query {name!r}")

    async def update(
        self,
        name: str,
        *args: Any,
        result_type: Any = Any,
        timeout: timedelta | float | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Send an update and return the answer of its handler, decoded as `result_type`.

        Raises UpdateRejectedError when the workflow refused it, UpdateFailedError when the handler raised or the run
        ended, UpdateTimeoutError when there is no answer after `timeout`: it is admitted all the same. With a key, a
        repeated call finds the update of the first. Raises as `signal` does, too.
        """
        done = await updating.update(
            self._shards,
            in_process("handle.update"),
            self.execution_id,
            name,
            encode_arguments(args, f"the input of update {name!r}"),
            timeout=seconds_of(timeout),
            idempotency_key=idempotency_key,
        )
        return payload.decode(done.output or payload.NULL, result_type, what=f"the answer of update {name!r}")

    async def start_update(
        self, name: str, *args: Any, result_type: Any = Any, idempotency_key: str | None = None
    ) -> UpdateHandle:
        """Send an update without waiting for its answer. Raises as `signal` does."""
        sent = await updating.update(
            self._shards,
            in_process("handle.start_update"),
            self.execution_id,
            name,
            encode_arguments(args, f"the input of update {name!r}"),
            wait="admitted",
            idempotency_key=idempotency_key,
        )
        return UpdateHandle(self._shards, sent.execution_id, sent.update_id, result_type)

    async def pause(self, reason: str = "") -> bool:
        """Hold the run: nothing of it goes on until `resume`, and what comes meanwhile is kept. False: it was held.

        Raises ExecutionClosedError when the run has ended.
        """
        actor = in_process("handle.pause")
        return (await pausing.pause(self._shards, actor, self.execution_id, reason=reason)).newly_paused

    async def resume(self) -> bool:
        """Let a paused run go on. False when it was not paused. Raises ExecutionClosedError when the run has ended."""
        actor = in_process("handle.resume")
        return (await pausing.resume(self._shards, actor, self.execution_id)).newly_resumed

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


class UpdateHandle:
    """An update that is in a run's history: await its answer. Made by `WorkflowHandle.start_update`."""

    def __init__(self, shards: Shards, execution_id: UUID, update_id: str, result_type: Any) -> None:
        self.execution_id = execution_id
        self.update_id = update_id
        self._shards = shards
        self._result_type = result_type

    def __repr__(self) -> str:
        """Its id, and the run that has it."""
        return f"<UpdateHandle {self.update_id} of {self.execution_id}>"

    async def result(self, timeout: timedelta | float | None = None) -> Any:
        """The answer of the handler.

        Raises UpdateRejectedError, UpdateFailedError, UpdateTimeoutError, and PayloadsErasedError for an answer that
        was erased with its run.
        """
        done = await updating.awaited(
            self._shards, self.execution_id, self.update_id, wait="completed", timeout=seconds_of(timeout)
        )
        return payload.decode(done.output or payload.NULL, self._result_type, what=f"the answer of {self.update_id}")


class StartItem(Struct, frozen=True, kw_only=True):
    """One run of `Harvest.start_batch`: a workflow, its arguments, and options as `Harvest.start` has them."""

    workflow: WorkflowDefinition[..., Any]
    args: tuple[Any, ...] = ()
    workflow_id: str | None = None
    version: int | None = None
    idempotency_key: str | None = None
    queue: str | None = None
    priority: int = 0
    memo: Any = None
    search_attributes: Mapping[str, Any] | None = None

    def request(self) -> StartRequest:
        """As operations take it. Raises PayloadError, and TypeError for arguments that do not fit."""
        options = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("workflow", "args")}
        return start_request(self.workflow, self.args, **options)


class StartedItem(Struct, frozen=True):
    """What became of one item of a batch: a handle to its run, or why there is none."""

    handle: WorkflowHandle[Any] | None
    error: HarvestError | None
    started_fresh: bool = False


def start_request(
    workflow: WorkflowDefinition[..., Any],
    args: tuple[Any, ...],
    *,
    workflow_id: str | None = None,
    version: int | None = None,
    idempotency_key: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    execution_timeout: timedelta | None = None,
    chain_execution_timeout: timedelta | None = None,
    retry: Retry | None = None,
    memo: Any = None,
    search_attributes: Mapping[str, Any] | None = None,
    placement: Placement = AUTOMATIC,
) -> StartRequest:
    """A start as operations take it. Raises PayloadError, and TypeError for arguments that do not fit."""
    return StartRequest(
        workflow_name=workflow.name,
        workflow_id=workflow_id,
        version=version or 0,
        input=workflow.signature.encode(args, {}),
        queue=queue,
        priority=priority,
        memo=None if memo is None else payload.encode(memo, what="memo"),
        search_attrs=search_attributes,
        execution_timeout_secs=None if execution_timeout is None else execution_timeout.total_seconds(),
        chain_execution_timeout_secs=(
            None if chain_execution_timeout is None else chain_execution_timeout.total_seconds()
        ),
        retry=None if retry is None else retry.policy(),
        idempotency_key=idempotency_key,
        placement=placement,
    )


def encode_arguments(args: tuple[Any, ...], what: str) -> bytes:
    """Arguments of a handler whose signature is not at hand: none, the one, or an array of them."""
    if not args:
        return payload.NULL
    return payload.encode(args[0] if len(args) == 1 else list(args), what=what)


def seconds_of(timeout: timedelta | float | None) -> float:
    """A timeout as a number of seconds; None is no limit."""
    if timeout is None:
        return _FOREVER
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


def _cause(view: FailureView | None) -> ApplicationError | None:
    """A recorded failure as the exception that stands for it, as workflow code sees one."""
    if view is None:
        return None
    error = ApplicationError(view.message, type=view.type)
    error.__cause__ = _cause(view.cause)
    return error
