"""How others are told of a run that did not complete: its parent, and whoever waits for it."""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from harvest.history.data import ChildWorkflowFailed, Failure
from harvest.history.deliveries import ChildClosed
from harvest.history.events import encode_data
from harvest.history.kinds import EventKind
from harvest.history.states import State

_TOLD: Final = {
    State.FAILED: ("WorkflowFailed", "failed"),
    State.CANCELLED: ("WorkflowCancelled", "was cancelled"),
    State.TERMINATED: ("WorkflowTerminated", "was terminated"),
    State.TIMED_OUT: ("WorkflowTimedOut", "ran into its execution timeout"),
}
_MESSAGE_CHARACTERS: Final = 8_000
RESULT_ERASED: Final = "PayloadsErased"


def failure_of_end(state: State, workflow_name: str, workflow_id: str, reason: str = "") -> Failure:
    """The failure that stands for an end without an exception: cancelled, terminated, timed out."""
    word, text = _TOLD.get(state, (state.name, f"is {state.name}"))
    message = f"workflow {workflow_name!r} ({workflow_id}) {text}{f': {reason}' if reason else ''}"
    return Failure(type=word, message=message[:_MESSAGE_CHARACTERS])


def failure_of_erased(workflow_name: str, workflow_id: str) -> Failure:
    """The failure that stands for a result that was erased before it was told: the run completed, with what is gone."""
    message = f"workflow {workflow_name!r} ({workflow_id}) completed, and its result was erased since"
    return Failure(type=RESULT_ERASED, message=message[:_MESSAGE_CHARACTERS])


def child_failed(first_execution_id: str, state: State, failure: Failure) -> bytes:
    """The payload of a CHILD_CLOSED delivery of a child that did not complete; its chain began with that run."""
    data = ChildWorkflowFailed(failure=failure, state=state.name)
    kind = int(EventKind.CHILD_WORKFLOW_FAILED)
    return encode_data(ChildClosed(first_execution_id=first_execution_id, kind=kind, data=Raw(encode_data(data))))
