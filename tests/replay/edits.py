"""Workflows as lists of operations, so that a test can change one of them as a careless deploy would."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from msgspec import Raw, Struct

from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import NonDeterminismError
from harvest.history.data import ActivityCompleted
from harvest.history.kinds import EventKind
from harvest.replay.run import Run
from tests.replay.oracle import Oracle, Recording, fresh
from tests.replay.player import NotingContext, activities, as_workflow


class Op(Struct, frozen=True):
    """One command, or two at once: `what` is activity, timer, until, dropped activity, dropped timer or both."""

    what: str
    name: str = "one"
    number: int = 1
    parts: tuple[Op, ...] = ()


class Edit(Struct, frozen=True):
    """One change of a list of operations."""

    what: str
    ops: tuple[Op, ...]


BASES: dict[str, tuple[Op, ...]] = {
    "sequence": (Op("activity", "one", 1), Op("timer", number=5), Op("activity", "two", 2), Op("activity", "one", 1)),
    "at once": (
        Op("both", parts=(Op("activity", "one", 1), Op("timer", number=3))),
        Op("activity", "three", 4),
        Op("both", parts=(Op("activity", "one", 1), Op("activity", "two", 1))),
    ),
    "dropped": (
        Op("dropped activity", "two", 7),
        Op("dropped timer", number=9),
        Op("until", number=30),
        Op("activity", "one", 1),
    ),
}


def workflow_of(ops: tuple[Op, ...]) -> WorkflowDefinition[..., Any]:
    """A workflow that does these operations in order."""

    async def edited(ctx: NotingContext) -> int:
        for op in ops:
            await _do(ctx, op)
        return len(ops)

    return as_workflow(edited, "edited")


async def _do(ctx: NotingContext, op: Op) -> None:
    if op.what == "activity":
        await ctx.execute_activity(activities[op.name], op.number, 0)
    elif op.what == "timer":
        await ctx.sleep(op.number)
    elif op.what == "until":
        await ctx.sleep_until(ctx.info.started_at + timedelta(hours=op.number))
    elif op.what == "both":
        await asyncio.gather(*(_do(ctx, part) for part in op.parts))
    else:
        task = asyncio.create_task(_do(ctx, Op(op.what.removeprefix("dropped "), op.name, op.number)))
        await ctx.sleep(0.5)
        task.cancel()


class Steady(Oracle):
    """A world where all that is asked for comes, oldest first, and nothing else happens."""

    def __init__(self, workflow: WorkflowDefinition[..., Any]) -> None:
        super().__init__(workflow, b"null", random.Random(1))
        self.intrusion = self.eviction = 0.0
        self.run, self.recording.trace = fresh(workflow)

    def _result(self) -> tuple[EventKind, Struct]:
        return EventKind.ACTIVITY_COMPLETED, ActivityCompleted(output=Raw(b"1"))

    def move(self) -> bool:
        if self.timers and min(self.timers.values()) < self.now + timedelta(seconds=1):
            self.fire(min(self.timers, key=self.timers.__getitem__))
        elif self.activities:
            self.end_activity(min(self.activities), merged=False)
        elif self.timers:
            self.fire(min(self.timers, key=self.timers.__getitem__))
        else:
            return False
        return True


def recorded(ops: tuple[Op, ...]) -> Recording:
    """The history of a run of these operations."""
    return Steady(workflow_of(ops)).record()


def harmful(ops: tuple[Op, ...]) -> Iterator[Edit]:
    """Every operation inserted, removed, swapped, renamed, given other arguments or made another kind."""
    new = Op("activity", "three", 77)
    for at in range(len(ops) + 1):
        yield Edit(f"activity inserted at {at}", (*ops[:at], new, *ops[at:]))
        yield Edit(f"timer inserted at {at}", (*ops[:at], Op("timer", number=1), *ops[at:]))
    for at, op in enumerate(ops):
        before, after = ops[:at], ops[at + 1 :]
        yield Edit(f"{op.what} removed at {at}", before + after)
        if after and after[0] != op:
            yield Edit(f"{op.what} swapped at {at}", (*before, after[0], op, *after[1:]))
        for what, changed in _changed(op):
            yield Edit(f"{op.what} {what} at {at}", (*before, changed, *after))


def _changed(op: Op) -> Iterator[tuple[str, Op]]:
    if op.what == "both":
        yield "turned round", Op("both", parts=op.parts[::-1])
        for number, part in enumerate(op.parts):
            for what, changed in _changed(part):
                yield f"part {what}", Op("both", parts=(*op.parts[:number], changed, *op.parts[number + 1 :]))
        return
    yield "with another argument", Op(op.what, op.name, op.number + 1)
    if "activity" in op.what:
        yield "renamed", Op(op.what, "three" if op.name != "three" else "one", op.number)
        yield "made a timer", Op("timer", number=op.number)
    else:
        yield "made an activity", Op("activity", "one", op.number)
    if op.what.startswith("dropped"):
        yield "no longer dropped", Op(op.what.removeprefix("dropped "), op.name, op.number)


def replayed(ops: tuple[Op, ...], recording: Recording) -> Run:
    """These operations over a history that other operations have made."""
    run, _ = fresh(workflow_of(ops))
    run.replay(recording.events, recording.decisions[-1].after)
    return run


def every_edit_is_reported() -> int:
    """Raises AssertionError for an edit that passes; returns how many were tried."""
    tried = 0
    for base, ops in BASES.items():
        recording = recorded(ops)
        assert replayed(ops, recording).blocked is None, f"{base}: the unchanged code is reported"
        for edit in harmful(ops):
            tried += 1
            error = replayed(edit.ops, recording).blocked
            assert isinstance(error, NonDeterminismError), f"{base}: {edit.what} passes as {error!r}"
            assert error.fields["recorded"], f"{base}: {edit.what} does not name what is recorded"
            assert error.fields["asked"], f"{base}: {edit.what} does not name what is asked"
    return tried
