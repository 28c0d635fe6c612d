"""What each kind of event holds. Struct fields are additive: an old row always decodes. Times in seconds."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Raw, Struct

_NULL: Final = Raw(b"null")


class Failure(Struct, frozen=True, omit_defaults=True):
    """Why something failed, as history keeps it."""

    type: str
    message: str
    traceback: str = ""
    non_retryable: bool = False
    cause: Failure | None = None


class RetryPolicy(Struct, frozen=True, omit_defaults=True):
    """Reference 2.15. Intervals in seconds."""

    max_attempts: int = 3
    initial_interval: float = 1.0
    coefficient: float = 2.0
    max_interval: float = 300.0
    non_retryable: tuple[str, ...] = ()
    jitter: str = "none"


class WorkflowStarted(Struct, frozen=True, omit_defaults=True):
    """First event. `carried` events that follow it were written by the same transaction (design 3).

    `reports` says whether the parent is told of the end. `attempt` counts the runs of a workflow-level retry, whose
    policy is frozen here; `last_failure` is that of the attempt before. `chain_deadline` holds over a whole chain.
    """

    workflow_name: str
    workflow_id: str
    version: int
    seed: int
    input: Raw = _NULL
    queue: str = "default"
    carried: int = 0
    execution_timeout_seconds: float | None = None
    build: str = ""
    tenant: str = "default"
    priority: int = 0
    parent_id: str = ""
    root_id: str = ""
    reports: bool = False
    first_execution_id: str = ""
    previous_execution_id: str = ""
    attempt: int = 1
    retry: RetryPolicy | None = None
    chain_deadline: datetime | None = None
    last_failure: Failure | None = None


class WorkflowCompleted(Struct, frozen=True, omit_defaults=True):
    """The workflow returned `output`."""

    output: Raw = _NULL
    unhandled_signals: int = 0


class WorkflowFailed(Struct, frozen=True, omit_defaults=True):
    """An exception left the workflow, or a limit ended it. A retry goes on as `retry_execution_id` at `retry_at`."""

    failure: Failure
    retry_execution_id: str = ""
    retry_at: datetime | None = None


class WorkflowCancelled(Struct, frozen=True, omit_defaults=True):
    """Cancellation left the workflow."""

    reason: str = ""


class WorkflowCancelRequested(Struct, frozen=True, omit_defaults=True):
    """Somebody asked the workflow to end in its own time."""

    reason: str = ""
    actor: str = ""


class WorkflowTerminated(Struct, frozen=True, omit_defaults=True):
    """Somebody ended the run at once; no user code ran."""

    reason: str = ""
    actor: str = ""


class WorkflowExecutionTimedOut(Struct, frozen=True):
    """The run's deadline passed."""

    deadline: datetime


class ActivityScheduled(Struct, frozen=True, omit_defaults=True):
    """The workflow asked for an activity. All times in seconds; the policy is frozen here.

    `session` is the number of the session that it belongs to; 0 for none.
    """

    name: str
    digest: str
    input: Raw = _NULL
    queue: str = "default"
    priority: int = 0
    schedule_to_start: float | None = None
    start_to_close: float | None = None
    schedule_to_close: float | None = None
    heartbeat: float | None = None
    retry: RetryPolicy = RetryPolicy()
    session: int = 0


class ActivityStarted(Struct, frozen=True, omit_defaults=True):
    """An attempt began. Nothing is delivered; `last_failure` is that of the attempt before."""

    attempt: int
    worker: str = ""
    last_failure: Failure | None = None


class ActivityCompleted(Struct, frozen=True, omit_defaults=True):
    """The activity returned `output`."""

    output: Raw = _NULL
    attempt: int = 1


class ActivityFailed(Struct, frozen=True, omit_defaults=True):
    """The last attempt failed, or the failure must not be retried."""

    failure: Failure
    attempt: int = 1


class ActivityTimedOut(Struct, frozen=True, omit_defaults=True):
    """A timeout ended the activity: schedule_to_start, start_to_close, schedule_to_close or heartbeat."""

    timeout_type: str
    attempt: int = 1
    last_failure: Failure | None = None


class ActivityCancelRequested(Struct, frozen=True):
    """The workflow no longer waits for the activity; a late result is recorded and ignored."""


class TimerStarted(Struct, frozen=True, omit_defaults=True):
    """A durable timer; `fires_at` is database time. `until` is set where the workflow named an instant."""

    duration: float
    fires_at: datetime
    until: datetime | None = None


class TimerFired(Struct, frozen=True):
    """The timer's time came."""


class TimerCancelled(Struct, frozen=True):
    """The workflow dropped the timer."""


class SignalReceived(Struct, frozen=True, omit_defaults=True):
    """A message for the workflow."""

    name: str
    payload: Raw = _NULL
    actor: str = ""


class MarkerRecorded(Struct, frozen=True, omit_defaults=True):
    """A named decision that replay must repeat, such as a version."""

    name: str
    details: Raw = _NULL


class WorkflowContinuedAsNew(Struct, frozen=True, omit_defaults=True):
    """The run ended and goes on as another, of the same type unless `workflow_name` says otherwise."""

    new_execution_id: str
    input: Raw = _NULL
    workflow_name: str = ""


class LocalActivityScheduled(Struct, frozen=True, omit_defaults=True):
    """The workflow asked for an activity that runs inside the worker of its decision."""

    name: str
    digest: str
    input: Raw = _NULL
    start_to_close: float = 60.0
    retry: RetryPolicy = RetryPolicy(max_attempts=1)


class LocalActivityCompleted(Struct, frozen=True, omit_defaults=True):
    """The local activity of this name and these arguments returned `output`."""

    output: Raw = _NULL
    attempt: int = 1
    name: str = ""
    digest: str = ""


class LocalActivityFailed(Struct, frozen=True, omit_defaults=True):
    """The last attempt of the local activity of this name and these arguments failed."""

    failure: Failure
    attempt: int = 1
    name: str = ""
    digest: str = ""


class SideEffectRecorded(Struct, frozen=True, omit_defaults=True):
    """The value that `ctx.side_effect` had when the code was live, or why it had none."""

    value: Raw = _NULL
    name: str = ""
    failure: Failure | None = None


class ChildWorkflowStarted(Struct, frozen=True, omit_defaults=True):
    """The workflow asked for a child; a delivery starts it. `version` 0 is the latest that is registered."""

    child_id: str
    workflow_name: str
    workflow_id: str
    digest: str
    input: Raw = _NULL
    version: int = 0
    queue: str = ""
    priority: int = 0
    close_policy: str = "request_cancel"
    execution_timeout: float | None = None
    retry: RetryPolicy | None = None
    memo: Raw = _NULL


class ChildWorkflowSpawnedDetached(ChildWorkflowStarted, frozen=True, omit_defaults=True):
    """As ChildWorkflowStarted, of a child whose end the workflow does not wait for."""


class ChildWorkflowCompleted(Struct, frozen=True, omit_defaults=True):
    """The child returned `output`."""

    output: Raw = _NULL


class ChildWorkflowFailed(Struct, frozen=True, omit_defaults=True):
    """The child did not complete: FAILED, CANCELLED, TERMINATED, TIMED_OUT, or REJECTED where it never began."""

    failure: Failure
    state: str = "FAILED"


class ChildCancelRequested(Struct, frozen=True):
    """The workflow no longer waits for the child, which is asked to end; a late result is recorded and ignored."""


class UpdateAdmitted(Struct, frozen=True, omit_defaults=True):
    """A request that the workflow answers. Its answer has the id of this event as `seq`."""

    update_id: str
    name: str
    input: Raw = _NULL
    actor: str = ""


class UpdateCompleted(Struct, frozen=True, omit_defaults=True):
    """The handler of the update returned `output`."""

    update_id: str
    output: Raw = _NULL


class UpdateFailed(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The handler raised; `rejected` when the validator did, or there is no handler, so that nothing was done.

    The short fields come first: a list reads no more than the beginning of an event.
    """

    update_id: str
    rejected: bool = False
    failure: Failure


class Target(Struct, frozen=True, omit_defaults=True):
    """Another run: by its execution id, or by name and workflow id."""

    execution_id: str = ""
    workflow_name: str = ""
    workflow_id: str = ""


class ExternalSignalRequested(Struct, frozen=True, omit_defaults=True):
    """The workflow signals another run."""

    target: Target
    name: str
    digest: str
    payload: Raw = _NULL


class ExternalCancelRequested(Struct, frozen=True, omit_defaults=True):
    """The workflow asks another run to end."""

    target: Target
    reason: str = ""


class ExternalAwaitRequested(Struct, frozen=True, omit_defaults=True):
    """The workflow waits for the end of another run."""

    target: Target


class ExternalDelivered(Struct, frozen=True, omit_defaults=True):
    """The signal or cancel request is in the history of `execution_id`."""

    execution_id: str = ""


class ExternalFailed(Struct, frozen=True, omit_defaults=True):
    """It could not be delivered: target_terminal, target_unknown or not_running."""

    reason_code: str
    message: str = ""


class ExternalAwaitResolved(Struct, frozen=True, omit_defaults=True):
    """The awaited run returned `output`."""

    output: Raw = _NULL


class ExternalAwaitFailed(Struct, frozen=True, omit_defaults=True):
    """The awaited run did not complete, or is unknown."""

    failure: Failure
    state: str = "FAILED"


class WorkflowExecutionPaused(Struct, frozen=True, omit_defaults=True):
    """Somebody held the run: nothing of it is decided until it is resumed."""

    reason: str = ""
    actor: str = ""


class WorkflowExecutionResumed(Struct, frozen=True, omit_defaults=True):
    """The run goes on."""

    actor: str = ""


class SessionRequested(Struct, frozen=True, omit_defaults=True):
    """The workflow asked for a worker of `queue` that runs a series of activities. Times in seconds."""

    queue: str = "default"
    creation_timeout: float = 60.0
    execution_timeout: float | None = None


class SessionOpened(Struct, frozen=True, omit_defaults=True):
    """A worker took the session: its incarnation in hex, and what people know it by."""

    worker: str
    worker_name: str = ""


class SessionClosed(Struct, frozen=True):
    """The workflow no longer needs the session."""


class SessionBroken(Struct, frozen=True, omit_defaults=True):
    """The session ended against the workflow's will.

    `reason` is creation_timeout, execution_timeout or worker_lost. Its activities that have not ended fail after this.
    """

    reason: str
    worker_name: str = ""
