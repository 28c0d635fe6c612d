"""How a run goes on as another: what continues as new, and what is tried again after it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from harvest.history.data import Failure, WorkflowStarted
from harvest.history.events import encode_data
from harvest.history.ids import ExecutionId, derive_execution_id, shard_of
from harvest.history.retrying import retry_delay
from harvest.replay.failures import failure_of

if TYPE_CHECKING:
    from harvest.definitions.workflow import WorkflowDefinition
    from harvest.replay.state import RunState


class ContinueAsNew(BaseException):
    """Leaves the workflow function to go on as a new run with a history of its own; passes `except Exception`.

    `workflow` is None where the type stays the same.
    """

    def __init__(self, input: bytes, workflow: WorkflowDefinition[..., Any] | None) -> None:
        super().__init__("the workflow continues as new; let this leave the workflow function")
        self.input = input
        self.workflow = workflow


def leaving_with(error: BaseException | None) -> ContinueAsNew | None:
    """What a function left to continue as new with; a task group wraps whatever leaves its body."""
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return leaving_with(error.exceptions[0])
    return error if isinstance(error, ContinueAsNew) else None


class Onward(Struct, frozen=True):
    """The run that follows. `carried` events are written after its WorkflowStarted; `delay` in seconds.

    `keeps_children` says whether open children become its own.
    """

    execution_id: ExecutionId
    started: WorkflowStarted
    carried: list[tuple[int, bytes]]
    delay: float = 0.0
    keeps_children: bool = True

    def event(self) -> bytes:
        """The data of its WorkflowStarted."""
        return encode_data(self.started)


def continued(run: RunState, leaving: ContinueAsNew) -> Onward:
    """What a run continues as."""
    changes: dict[str, Any] = {"input": Raw(leaving.input), "attempt": 1, "last_failure": None}
    if leaving.workflow is not None:
        options = leaving.workflow.options
        changes.update(
            workflow_name=leaving.workflow.name,
            version=leaving.workflow.version,
            queue=options.queue,
            execution_timeout_seconds=options.execution_timeout,
            retry=options.retry,
        )
    return _following(run, changes)


def tried_again(run: RunState, failure: Failure) -> Onward | None:
    """The next attempt of a run that failed, if its policy has one left and its chain's deadline allows it.

    A run that was asked to end is not tried again.
    """
    policy, deadline = run.started.retry, run.chain_deadline
    if policy is None or run.cancel_reason is not None or run.messages.late_cancel is not None:
        return None
    delay = retry_delay(policy, failure, run.started.attempt, str(run.identity.execution_id))
    if delay is None or (deadline is not None and run.now_at.timestamp() + delay >= deadline.timestamp()):
        return None
    short = msgspec.structs.replace(failure, traceback="", cause=None)
    onward = _following(run, {"attempt": run.started.attempt + 1, "last_failure": short})
    return msgspec.structs.replace(onward, delay=delay, keeps_children=False)


def will_be_tried_again(run: RunState) -> bool:
    """Whether a run whose function has ended, or that a handler has failed, has another attempt after this one."""
    error = run.failure
    if error is None and run.main is not None and run.main.done() and not run.main.cancelled():
        error = run.main.exception()
    return error is not None and run.started.retry is not None and tried_again(run, failure_of(error)) is not None


def _following(run: RunState, changes: dict[str, Any]) -> Onward:
    own = run.identity.execution_id
    # Number 0 is no command's: the id is the same however often this decision is sent.
    following = derive_execution_id(shard_of(own), own, 0, int(run.now_at.timestamp() * 1000))
    carried = [(int(kind), data) for _, kind, data in run.messages.unread()]
    started = msgspec.structs.replace(
        run.started,
        seed=following.int & ((1 << 61) - 1),
        carried=len(carried),
        first_execution_id=run.started.first_execution_id or str(own),
        previous_execution_id=str(own),
        chain_deadline=run.chain_deadline,
        **changes,
    )
    return Onward(following, started, carried)
