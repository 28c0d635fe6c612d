"""Worker sessions of an environment: its one worker opens them at once, and time, or a test, breaks them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from msgspec import Struct

from harvest.history.data import ActivityFailed, Failure, SessionBroken, SessionOpened
from harvest.history.kinds import EventKind
from harvest.replay.commands import ScheduleActivity
from harvest.replay.sessions import BROKEN_TYPE
from harvest.store.commit import Batch
from harvest.testing.activities import WORKER
from harvest.testing.clock import Due
from harvest.testing.execution import Execution
from harvest.worker.deciding import NOBODY

if TYPE_CHECKING:
    from harvest.testing.world import World


class Held(Struct):
    """A session that is open: the run's number for it, and when it breaks by itself."""

    execution: Execution
    seq: int
    due: Due | None = None


class Sessions:
    """All sessions of one environment, by their ids."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[UUID, Held] = {}

    def commit(self, execution: Execution, batch: Batch) -> None:
        """What a decision says of its sessions."""
        for key, _, seq, _, _, lasts in batch.sessions:
            held = self._open[key] = Held(execution, seq)
            if lasts is not None:
                held.due = self._world.clock.after(lasts, partial(self._break, key, "execution_timeout"))
            self._world.append(execution, EventKind.SESSION_OPENED, seq, SessionOpened(NOBODY.hex, WORKER))
        for (key,) in batch.session_ends:
            self._drop(key)

    def closed(self, execution: Execution) -> None:
        """The run has ended, and its sessions with it."""
        for key in [key for key, held in self._open.items() if held.execution is execution]:
            self._drop(key)

    def lose(self, execution: Execution) -> int:
        """The worker of every session of a run dies; returns how many there were."""
        found = [key for key, held in self._open.items() if held.execution is execution]
        for key in found:
            self._break(key, "worker_lost")
        return len(found)

    def _drop(self, key: UUID) -> Held | None:
        held = self._open.pop(key, None)
        if held is not None and held.due is not None:
            held.due.cancel()
        return held

    def _break(self, key: UUID, reason: str) -> None:
        held = self._drop(key)
        if held is None:
            return
        execution = held.execution
        self._world.append(execution, EventKind.SESSION_BROKEN, held.seq, SessionBroken(reason, WORKER))
        failure = Failure(BROKEN_TYPE, f"its session is broken: {reason.replace('_', ' ')}", non_retryable=True)
        for activity in list(execution.activities.values()):
            command = activity.command
            session = command.session if isinstance(command, ScheduleActivity) else None
            if session is not None and session.seq == held.seq:
                attempts = max(1, activity.attempts)
                self._world.activities.fail(activity, ActivityFailed(failure, attempts))
