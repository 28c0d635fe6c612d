"""Why a run does not end, in words: what it waits for, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from harvest.history.states import State
from harvest.replay.waits import Wait
from harvest.testing.execution import Execution

if TYPE_CHECKING:
    from harvest.testing.world import World

_MOST: Final = 5


def why_open(world: World, execution: Execution) -> str:
    """`it waits for signal 'approved', at shop.py:41 in order_flow; nothing that is to come would end that`."""
    started = execution.started
    if world.registry.workflow(started.workflow_name, started.version) is None:
        return (
            f"no code of workflow {started.workflow_name!r} version {started.version} is declared in the application "
            "of this environment; declare it, or mock it"
        )
    if execution.state is State.PAUSED:
        return "it is paused"
    waits = execution.waits()
    if not waits:
        return "its code waits for what no event brings: something that another task of it has to set" + _where(
            execution
        )
    told = [_told(world, execution, wait) for wait in waits[:_MOST]]
    more = f" and {len(waits) - _MOST} more" if len(waits) > _MOST else ""
    return f"it waits for {', '.join(told)}{more}{_where(execution)}; nothing that is to come would end that"


def _told(world: World, execution: Execution, wait: Wait) -> str:
    if wait.kind == "activity":
        activity = execution.activities.get(wait.seq)
        if activity is not None and activity.attempts == 0:
            return (
                f"activity {wait.name!r}, for which there is no code here (declare it in the application, or mock it)"
            )
        return f"activity {wait.name!r}, which does not end"
    if wait.kind == "child_workflow":
        child = world.current(UUID(wait.execution_id))
        if child is None or not child.state.is_open:
            return f"child workflow {wait.name!r}"
        return f"child workflow {wait.name!r} (of which: {why_open(world, child)})"
    words = wait.kind.replace("_", " ")
    return f"{words} {wait.name!r}" if wait.name else f"a {words}"


def _where(execution: Execution) -> str:
    stack = execution.stack()
    frames = stack[0].frames if stack else []
    return f", at {frames[-1].file}:{frames[-1].line} in {frames[-1].function}" if frames else ""
