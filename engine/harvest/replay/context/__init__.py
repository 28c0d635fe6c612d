"""What workflow code is given: the only door to the world, and the same on every replay."""

from __future__ import annotations

from harvest.replay.context.base import WorkflowInfo, WorkflowLogger
from harvest.replay.context.children import ChildHandle
from harvest.replay.context.handling import HandlerCalls
from harvest.replay.context.joining import JoiningCalls, Winner
from harvest.replay.context.messages import MessageCalls
from harvest.replay.context.sessions import Session, SessionCalls
from harvest.replay.context.timing import TimerHandle, TimingCalls
from harvest.replay.context.versioning import VersioningCalls
from harvest.replay.context.visibility import VisibilityCalls

__all__ = ["ChildHandle", "Session", "TimerHandle", "Winner", "WorkflowContext", "WorkflowInfo", "WorkflowLogger"]


class WorkflowContext(
    JoiningCalls,
    SessionCalls,
    MessageCalls,
    HandlerCalls,
    TimingCalls,
    VersioningCalls,
    VisibilityCalls,
):
    """Handed to a workflow as its first parameter. Plain asyncio works beside it, deterministically."""

    __slots__ = ()
