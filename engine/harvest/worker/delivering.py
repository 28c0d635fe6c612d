"""What a delivery does to the run that it finds: rules alone, no I/O. The courier sends what is decided here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from harvest.history import deliveries
from harvest.history.data import (
    ChildWorkflowFailed,
    ExternalAwaitFailed,
    ExternalAwaitResolved,
    ExternalDelivered,
    ExternalFailed,
    Failure,
    SignalReceived,
    WorkflowCancelRequested,
)
from harvest.history.deliveries import DeliveryKind
from harvest.history.endings import failure_of_end, failure_of_erased
from harvest.history.erasing import ERASED
from harvest.history.events import encode_data
from harvest.history.kinds import EventKind
from harvest.history.states import FIRST_CLOSED, State
from harvest.shards.keys import KeyedRun
from harvest.store.changes import ChildEnd
from harvest.store.deliveries import Delivery, PutOff, Run
from harvest.store.pool import Record

PLACEMENT_REFUSED: Final = "PlacementRefused"
PARENT_ENDED: Final = "its parent has ended"
FIRST_LOOK, LONGEST_LOOK = 0.2, 5.0
BACK_OFF, MOST_BACK_OFFS = 5.0, 6
LOOK_AGAIN: Final = 0.5  # until a cancel by name looks whether there is another run to ask
DATA_OF: Final[dict[int, type[Struct]]] = {
    DeliveryKind.CHILD_START: deliveries.ChildStart,
    DeliveryKind.CHILD_CLOSED: deliveries.ChildClosed,
    DeliveryKind.CHILD_CANCEL: deliveries.Cancel,
    DeliveryKind.CLOSE_POLICY: deliveries.ClosePolicy,
    DeliveryKind.EXTERNAL_SIGNAL: deliveries.ExternalSignal,
    DeliveryKind.EXTERNAL_CANCEL: deliveries.ExternalCancel,
    DeliveryKind.EXTERNAL_AWAIT: deliveries.ExternalAwait,
}
ANSWERED: Final = frozenset(
    (DeliveryKind.EXTERNAL_SIGNAL, DeliveryKind.EXTERNAL_CANCEL, DeliveryKind.EXTERNAL_AWAIT)
)  # fmt: skip


class Step(Struct):
    """What becomes of one delivery.

    On the target's shard: an event for `run`, `run` terminated, or a parent told of the end of a child. On the
    source's: an `answer`, or its own child told to be `rejected`. With `put_off` it is tried again then, `undecided` at
    once; with nothing at all it is settled.
    """

    delivery: Delivery
    data: Any
    run: UUID | None = None
    event: tuple[int, bytes] | None = None
    terminates: bool = False
    ended: ChildEnd | None = None
    answer: tuple[int, bytes] | None = None
    rejected: ChildEnd | None = None
    put_off: PutOff | None = None
    undecided: bool = False

    @property
    def once(self) -> bool:
        """Whether its event is a request to cancel, of which a run takes one."""
        return self.event is not None and self.event[0] == EventKind.WORKFLOW_CANCEL_REQUESTED


def step_of(delivery: Delivery) -> Step:
    """A delivery with its data; raises msgspec.MsgspecError, KeyError for a kind that this release does not know."""
    return Step(delivery, msgspec.json.decode(delivery.payload, type=DATA_OF[delivery.kind]))


def meet(step: Step, found: Run | None) -> None:
    """Decide what the delivery does to the run that was found at its target; None: there is none."""
    _MEETS[step.delivery.kind](step, found)


def _signal(step: Step, found: Run | None) -> None:
    data: deliveries.ExternalSignal = step.data
    signal = SignalReceived(name=data.name, payload=data.payload, actor=_actor(step.delivery))
    if _reaches(step, found, EventKind.EXTERNAL_SIGNAL_FAILED):
        step.event = (int(EventKind.SIGNAL_RECEIVED), encode_data(signal))
        step.answer = (int(EventKind.EXTERNAL_SIGNAL_DELIVERED), encode_data(ExternalDelivered(str(step.run))))


def _external_cancel(step: Step, found: Run | None) -> None:
    if _reaches(step, found, EventKind.EXTERNAL_CANCEL_FAILED):
        step.event = _cancel_event(step, step.data.reason)
        step.answer = (int(EventKind.EXTERNAL_CANCEL_DELIVERED), encode_data(ExternalDelivered(str(step.run))))


def _reaches(step: Step, found: Run | None, failed: EventKind) -> bool:
    """Whether there is an open run to write to; else the answer says why there is none."""
    if found is not None and found.current_state < FIRST_CLOSED:
        step.run = found.current_id
        return True
    if found is None:
        _fail(step, failed, None)
    else:
        _fail(step, failed, (found.current_id, found.current_state))
    return False


def _fail(step: Step, failed: EventKind, ended: tuple[UUID, int] | None) -> None:
    """The answer that nothing was reached: there is no such run, or that one has ended."""
    if ended is None:
        refusal = ExternalFailed("target_unknown", "there is no such run")
    else:
        refusal = ExternalFailed("target_terminal", f"execution {ended[0]} is {State(ended[1]).name}")
    step.answer = (int(failed), encode_data(refusal))


def report_cancel(step: Step, asked: UUID | None, newest: KeyedRun | None) -> None:
    """No run of the name is left that could be asked to end: the answer is which one was, or why none could be."""
    if asked is None and newest is not None and newest.is_open:
        asked = newest.execution_id
    if asked is not None:
        step.answer = (int(EventKind.EXTERNAL_CANCEL_DELIVERED), encode_data(ExternalDelivered(str(asked))))
    else:
        ended = None if newest is None else (newest.execution_id, newest.state)
        _fail(step, EventKind.EXTERNAL_CANCEL_FAILED, ended)


def _child_cancel(step: Step, found: Run | None) -> None:
    if found is not None and found.current_state < FIRST_CLOSED:
        step.run = found.current_id
        step.event = _cancel_event(step, step.data.reason)


def _close_policy(step: Step, found: Run | None) -> None:
    if found is None or found.current_state >= FIRST_CLOSED:
        return
    step.run = found.current_id
    if step.data.action == "terminate":
        step.terminates = True
    else:
        step.event = _cancel_event(step, PARENT_ENDED)


def _cancel_event(step: Step, reason: str) -> tuple[int, bytes]:
    data = WorkflowCancelRequested(reason=reason, actor=_actor(step.delivery))
    return int(EventKind.WORKFLOW_CANCEL_REQUESTED), encode_data(data)


def _actor(delivery: Delivery) -> str:
    return f"execution:{delivery.source_execution_id}"


def _await(step: Step, found: Run | None) -> None:
    """Where the run has ended, `outcome` says how."""
    if found is None:
        failure = Failure(type="ExecutionNotFound", message="there is no such run")
        step.answer = _await_failed(failure, "UNKNOWN")
    elif found.current_state < FIRST_CLOSED:
        delay = min(LONGEST_LOOK, FIRST_LOOK * 1.5 ** min(step.delivery.attempts, 20))
        step.put_off = PutOff(step.delivery.delivery_id, delay)
    else:
        step.run = found.current_id


def outcome(step: Step, ended: Record) -> None:
    """The answer to who awaits a run that has ended: its result, or why there is none."""
    state = State(ended["state"])
    if state is State.COMPLETED and ended["result"] == ERASED:
        failure = failure_of_erased(ended["workflow_name"], ended["workflow_id"])
        step.answer = _await_failed(failure, state.name)
    elif state is State.COMPLETED:
        output = Raw(ended["result"] or b"null")
        step.answer = (int(EventKind.EXTERNAL_AWAIT_RESOLVED), encode_data(ExternalAwaitResolved(output)))
    elif ended["failure"] is not None:
        step.answer = _await_failed(msgspec.json.decode(ended["failure"], type=Failure), state.name)
    else:
        failure = failure_of_end(state, ended["workflow_name"], ended["workflow_id"])
        step.answer = _await_failed(failure, state.name)


def _await_failed(failure: Failure, state: str) -> tuple[int, bytes]:
    return int(EventKind.EXTERNAL_AWAIT_FAILED), encode_data(ExternalAwaitFailed(failure=failure, state=state))


_MEETS: Final[dict[int, Callable[[Step, Run | None], None]]] = {
    DeliveryKind.CHILD_CANCEL: _child_cancel,
    DeliveryKind.CLOSE_POLICY: _close_policy,
    DeliveryKind.EXTERNAL_SIGNAL: _signal,
    DeliveryKind.EXTERNAL_CANCEL: _external_cancel,
    DeliveryKind.EXTERNAL_AWAIT: _await,
}


def close(step: Step) -> None:
    """A child has ended: its parent is told."""
    data: deliveries.ChildClosed = step.data
    step.ended = ChildEnd(UUID(data.first_execution_id), data.kind, bytes(data.data))


def reject(step: Step, holder: UUID) -> None:
    """The child's business key is taken: it never begins."""
    data: deliveries.ChildStart = step.data
    failure = Failure(
        type="WorkflowAlreadyStarted",
        message=f"workflow {data.workflow_name!r} with id {data.workflow_id!r} runs already, as execution {holder}",
    )
    _reject(step, failure)


def refuse(step: Step) -> None:
    """No shard takes the child: it never begins. Its parent's history says so, also where nobody waits for it."""
    data: deliveries.ChildStart = step.data
    payload = _reject(step, Failure(type=PLACEMENT_REFUSED, message=data.refused))
    if not data.awaited:
        step.answer = (int(EventKind.CHILD_WORKFLOW_FAILED), payload)


def _reject(step: Step, failure: Failure) -> bytes:
    payload = encode_data(ChildWorkflowFailed(failure=failure, state="REJECTED"))
    step.rejected = ChildEnd(step.delivery.target_execution_id, int(EventKind.CHILD_WORKFLOW_FAILED), payload)
    return payload


def made_before(step: Step, run: UUID | None) -> None:
    """It was made on the other shard, and the answer was lost: only that is left to be written."""
    delivered = {
        DeliveryKind.EXTERNAL_SIGNAL: EventKind.EXTERNAL_SIGNAL_DELIVERED,
        DeliveryKind.EXTERNAL_CANCEL: EventKind.EXTERNAL_CANCEL_DELIVERED,
    }.get(DeliveryKind(step.delivery.kind))
    if delivered is not None:
        step.answer = (int(delivered), encode_data(ExternalDelivered("" if run is None else str(run))))


def unreachable(delivery: Delivery, error: str) -> PutOff:
    """The target's shard does not answer, or the delivery cannot be made: tried again after 5, 10 … 30 s."""
    delay = BACK_OFF * min(delivery.attempts + 1, MOST_BACK_OFFS)
    return PutOff(delivery.delivery_id, delay, error.encode("utf-8", "replace").decode().replace("\x00", "")[:500])
