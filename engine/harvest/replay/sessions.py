"""Commands of worker sessions: a series of activities that runs on one worker."""

from __future__ import annotations

from msgspec import Struct

from harvest.errors import SessionBrokenError, SessionTimeoutError
from harvest.history.data import SessionRequested
from harvest.history.events import EMPTY, Event, encode_data
from harvest.history.kinds import EventKind
from harvest.replay.commands import Difference, Key

BROKEN_TYPE = "SessionBroken"
"""The type of the failure with which an activity of a broken session ends."""
_WHY = {
    "creation_timeout": "no worker had room for it in time",
    "execution_timeout": "its execution timeout has come",
    "worker_lost": "its worker has gone",
}


class OpenSession(Struct):
    """Have a worker open a session. What history says of it afterwards is kept here too.

    `worker` is the incarnation in hex that opened it, `broken` the reason for which it ended.
    """

    seq: int
    queue: str
    creation_timeout: float
    execution_timeout: float | None
    worker: str = ""
    worker_name: str = ""
    broken: str = ""
    kind: EventKind = EventKind.SESSION_REQUESTED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"session (number {self.seq})"

    def payload(self) -> bytes:
        """The data of its event."""
        return encode_data(
            SessionRequested(
                queue=self.queue,
                creation_timeout=self.creation_timeout,
                execution_timeout=self.execution_timeout,
            )
        )

    def difference(self, event: Event) -> Difference | None:
        """Nothing beside number and kind can differ: the rest are options, and history's hold."""
        recorded: SessionRequested = event.data()
        self.queue = recorded.queue
        return None

    def error(self) -> SessionBrokenError:
        """What code sees of a broken session."""
        made = SessionTimeoutError if self.broken == "creation_timeout" else SessionBrokenError
        on = f" on worker {self.worker_name!r}" if self.worker_name else ""
        return made(
            f"session {self.seq}{on} is broken: {_WHY.get(self.broken, self.broken)}",
            reason=self.broken,
            worker=self.worker_name,
        )


class CloseSession(Struct):
    """Let the worker of a session go."""

    seq: int
    kind: EventKind = EventKind.SESSION_CLOSED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"end of session {self.seq}"

    def payload(self) -> bytes:
        """The data of its event."""
        return EMPTY

    def difference(self, event: Event) -> Difference | None:
        """Nothing beside number and kind can differ."""
        return None
