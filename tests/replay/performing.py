"""Programs as an application that real workers run: `app` has the workflows, and activities that answer by themselves.

What each run notes is kept by its execution id, so that a replay elsewhere can be compared with it.
"""

from __future__ import annotations

from collections import defaultdict

from harvest import Harvest, WorkflowContext
from tests.replay import acting, player
from tests.replay import program as p
from tests.replay.noting import (
    NotingContext,
    Trace,
    activities,
    as_workflow,
    child,
    elsewhere,
    fanned_activity,
    fanned_child,
)

PACE = 0.002
# The notes of every run of the code, live or replayed, of one execution.
notes: defaultdict[str, list[Trace]] = defaultdict(list)


async def perform(ctx: WorkflowContext, block: list[p.Statement]) -> int:
    """The workflow."""
    trace: Trace = []
    notes[str(ctx.info.execution_id)].append(trace)  # harvest: allow HVG007
    return await player.play(NotingContext(ctx._run, trace, pace=PACE), block)


async def stays(ctx: WorkflowContext) -> str:
    """Somebody else's run, which programs signal, cancel and wait for."""
    return str(await ctx.wait_for_signal("leave"))


PERFORM = as_workflow(perform, "perform")
PERFORM_ON = as_workflow(perform, "perform_on")
OTHER = as_workflow(stays, "other")
acting.ONWARD["perform"] = acting.ONWARD["perform_on"] = (PERFORM, PERFORM_ON)

app = Harvest()
for _activity in (*activities.values(), fanned_activity, elsewhere):
    app.registry.add_activity(_activity)
for _workflow in (PERFORM, PERFORM_ON, OTHER, child, fanned_child):
    app.registry.add_workflow(_workflow)
