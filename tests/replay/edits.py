"""Workflows as lists of operations, written out as source, so that a test can change one as a careless deploy would.

Each operation is one line of the source: what a replay reports must point at the line that was changed, or at one after
it.
"""

from __future__ import annotations

import asyncio
import linecache
import random
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from functools import cache
from typing import Any, Final, TypeVar

from msgspec import Struct

from harvest import Harvest
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import ResultTimeoutError
from harvest.history.document import HistoryDocument
from harvest.testing import Divergence, Verdict, WorkflowEnvironment, verify

T = TypeVar("T")
NAMES: Final = ("one", "two", "three")
HEADER: Final = "async def edited(ctx):"


class Op(Struct, frozen=True):
    """One operation: `what` is a key of SOURCES, or `both`, which does its parts at once."""

    what: str
    name: str = "one"
    number: int = 1
    parts: tuple[Op, ...] = ()

    @property
    def source(self) -> str:
        """Its line."""
        if self.what == "both":
            return f"await asyncio.gather({', '.join(part.source.removeprefix('await ') for part in self.parts)})"
        return SOURCES[self.what].format(name=self.name, number=self.number)


Ops = tuple[Op, ...]


class Edit(Struct, frozen=True):
    """One change of a list of operations, of the one at `at` or before it."""

    what: str
    ops: Ops
    at: int


SOURCES: Final = {
    "activity": "await ctx.execute_activity(activities['{name}'], {number})",
    "named activity": "await ctx.execute_activity('{name}', {number})",
    "local": "await ctx.execute_local_activity(activities['{name}'], {number})",
    "timer": "await ctx.sleep({number})",
    "until": "await ctx.sleep_until(ctx.info.started_at + timedelta(hours={number}))",
    "started timer": "ctx.start_timer({number} + 1_000_000)",
    "cancelled timer": "timer = ctx.start_timer({number}); await ctx.sleep(0.25); timer.cancel()",
    "dropped activity": (
        "task = asyncio.create_task(ctx.execute_activity('{name}', {number})); await ctx.sleep(0.5); task.cancel()"
    ),
    "child": "await ctx.execute_child_workflow(children['{name}'], {number})",
    "named child": "await ctx.execute_child_workflow('{name}', {number})",
    "started child": "child = await ctx.start_child_workflow(children['{name}'], {number}); await child",
    "cancelled child": (
        "child = await ctx.start_child_workflow('slow {name}', {number}); await ctx.sleep(1); child.cancel()"
    ),
    "detached child": "await ctx.start_child_workflow(children['{name}'].with_options(detached=True), {number})",
    "effect": "ctx.side_effect(lambda: {number}, name='{name}')",
    "patch": "ctx.patched('{name}')",
    "deprecated patch": "ctx.deprecate_patch('{name}')",
    "version": "ctx.version('{name}', 0, {number})",
    "signal": "await ctx.signal_external_workflow_by_id('target', 'open', '{name}', {number})",
    "cancel": "await ctx.cancel_external_workflow_by_id('target', '{name}')",
    "await": "await ctx.await_external_workflow_by_id('ended', '{name}')",
    "receive": "await ctx.wait_for_signal('{name}')",
    "update": "ctx.register_update_handler('ask {name}', lambda: {number}); await ctx.wait_for_signal('ask {name}')",
    "working update": (
        "ctx.register_update_handler('ask {name}', lambda: ctx.execute_activity('{name}', {number})); "
        "await ctx.wait_for_signal('ask {name}')"
    ),
    "race": "await ctx.race(ctx.execute_activity('{name}', {number}), ctx.sleep(100))",
    "timeout": "await asyncio.wait_for(ctx.execute_activity('{name}', {number}), 50)",
    "condition": "await asyncio.wait([asyncio.create_task(ctx.wait_condition(lambda: False, timeout={number}))])",
    "fan out": "await ctx.fan_out(activities['{name}'], [{number}, {number} + 1])",
}
# What has no number: it may come at another place of the same step, and what was recorded of it holds.
MARKERS: Final = frozenset({"patch", "version", "deprecated patch"})
# What does not wait, so that what follows is of the same step.
INSTANT: Final = MARKERS | {"effect", "started timer", "detached child"}
# What takes no argument that history records.
WITHOUT_ARGUMENT: Final = frozenset({"effect", "cancel", "await", "receive", "update", "condition", *MARKERS})
WITHOUT_NAME: Final = frozenset({"timer", "until", "started timer", "cancelled timer", "condition"})
INSERTED: Final = (
    Op("activity", "three", 77),
    Op("timer", number=77),
    Op("effect", "three", 77),
    Op("child", "three", 77),
    Op("local", "three", 77),
    Op("signal", "three", 77),
    Op("detached child", "three", 77),
    Op("started timer", "three", 77),
    Op("named activity", "three", 77),
    Op("race", "three", 77),
    Op("cancel", "three"),
)
WRITTEN: Final[dict[str, Ops]] = {
    "sequence": (Op("activity", "one", 1), Op("timer", number=5), Op("activity", "two", 2), Op("activity", "one", 1)),
    "at once": (
        Op("both", parts=(Op("activity", "one", 1), Op("timer", number=3))),
        Op("activity", "three", 4),
        Op("both", parts=(Op("activity", "one", 1), Op("activity", "two", 1))),
    ),
    "dropped": (
        Op("dropped activity", "two", 7),
        Op("cancelled timer", number=9),
        Op("until", number=30),
        Op("activity", "one", 1),
    ),
    "children": (Op("child", "one", 1), Op("started child", "two", 2), Op("cancelled child", "one", 3), Op("timer")),
    "strangers": (Op("signal", "one", 1), Op("await", "two"), Op("cancel", "one"), Op("activity", "one", 2)),
    "values": (Op("effect", "one", 1), Op("local", "one", 2), Op("effect", "two", 3), Op("local", "two", 4)),
    "changed before": (Op("patch", "one"), Op("activity", "one", 1), Op("version", "two", 3), Op("timer", number=4)),
    "messages": (Op("receive", "one"), Op("update", "two", 5), Op("working update", "one", 6), Op("activity", "two")),
    "spawning": (Op("detached child", "one", 1), Op("started timer", number=8), Op("activity", "one", 1)),
    "joining": (Op("race", "one", 1), Op("timeout", "two", 2), Op("fan out", "three", 3), Op("condition", number=2)),
}


def _drawn(seed: int) -> Ops:
    """A workflow of operations of all kinds, names not repeated where they may stand once only."""
    chance = random.Random(seed)
    kinds = [what for what in SOURCES if what != "deprecated patch"]
    ops: list[Op] = []
    for _ in range(chance.randint(4, 7)):
        what = chance.choice(kinds)
        taken = {op.name for op in ops if op.what in MARKERS or "update" in op.what}
        name = next((each for each in chance.sample(NAMES, 3) if each not in taken), None)
        if name is not None:
            ops.append(Op(what, name, chance.randint(1, 9)))
    # What only waits for others is missed by what is asked for after it.
    return (*ops, Op("activity", "one", 10))


BASES: Final[dict[str, Ops]] = {**WRITTEN, **{f"drawn {seed}": _drawn(seed) for seed in range(20)}}


def workflow_of(ops: Ops, app: Harvest | None = None) -> WorkflowDefinition[..., Any]:
    """A workflow that does these operations in order, a line for each."""
    lines = [HEADER, *(f"    {op.source}" for op in ops), "    return 0"]
    names: dict[str, Any] = {"asyncio": asyncio, "timedelta": timedelta, "activities": _activities}
    names |= {"children": _children}
    file = f"<edited {len(_files)}>"
    _files.append(file)
    text = "\n".join(lines)
    linecache.cache[file] = (len(text), None, [f"{line}\n" for line in lines], file)
    exec(compile(text, file, "exec"), names)
    return (app or Harvest()).workflow(allow_nondeterministic_apis=True)(names["edited"])


class Recording(Struct, frozen=True):
    """The history of a run of some operations, and what it was at moments before."""

    whole: HistoryDocument
    before: list[HistoryDocument]


async def record(workflow: WorkflowDefinition[..., Any], app: Harvest) -> Recording:
    """Run a workflow in a world where all that is asked for comes."""
    for declared in (*_activities.values(), *_others.registry.activities.values()):
        app.registry.activities.setdefault(declared.name, declared)
    for other in _others.registry.workflows.values():
        app.registry.add_workflow(other)
    before: list[HistoryDocument] = []
    async with WorkflowEnvironment(app, replay_check=False) as env:
        for name in NAMES:
            await env.start(_others.registry.workflows["target", 1], workflow_id=name)
            await env.start(_others.registry.workflows["ended", 1], workflow_id=name)
        await env.start(_others.registry.workflows["target", 1], workflow_id="open")
        handle = await env.start(workflow)
        for _ in range(60):
            before.append(env.history(handle))
            if handle.state != "RUNNING":
                break
            wanted = [wait.name for wait in env.look(handle).waits if wait.kind == "signal"]
            for name in wanted:
                if name.startswith("ask "):
                    await handle.update(name)
                await handle.signal(name, 1)
            if not wanted:
                try:
                    await handle.result(timeout=1)
                except ResultTimeoutError:
                    await env.skip(3600)
        assert handle.state == "COMPLETED", f"the workflow ends {handle.state}: {env.look(handle).waits}"
        return Recording(env.history(handle), before)


@cache
def recorded(ops: Ops) -> Recording:
    """The history of these operations. Raises AssertionError where there is none."""
    app = Harvest()
    try:
        return _run(record(workflow_of(ops, app), app))
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"recording {[op.what for op in ops]} failed: {error!r}") from error


def _run(act: Coroutine[Any, Any, T]) -> T:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(act)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def replayed(ops: Ops, document: HistoryDocument) -> Verdict:
    """These operations over a history that other operations have made."""
    return verify(document, workflow_of(ops))


# Edits that must be reported


def harmful(ops: Ops, inserted: int = len(INSERTED)) -> Iterator[Edit]:
    """Every operation inserted, removed, swapped, renamed, given other arguments or made another kind.

    At each place so many of INSERTED are tried, others at the next.
    """
    for at in range(len(ops) + 1):
        for number in range(inserted):
            new = INSERTED[(at * inserted + number) % len(INSERTED)]
            yield Edit(f"{new.what} inserted at {at}", (*ops[:at], new, *ops[at:]), at)
    for at, op in enumerate(ops):
        before, after = ops[:at], ops[at + 1 :]
        if op.what != "receive" or _asks(after[:1]):
            yield Edit(f"{op.what} removed at {at}", before + after, at)
        if after and _is_seen_swapped(op, after[0]):
            yield Edit(f"{op.what} swapped at {at}", (*before, after[0], op, *after[1:]), at)
        for what, changed in _changed(op):
            yield Edit(f"{op.what} {what} at {at}", (*before, changed, *after), at)


def _asks(ops: Ops) -> bool:
    """Whether the first of them asks for something, so that no longer waiting before it shows."""
    return bool(ops) and ops[0].what not in MARKERS and "update" not in ops[0].what and ops[0].what != "receive"


def _is_seen_swapped(op: Op, other: Op) -> bool:
    """A marker that comes earlier, or later within its step, is the same marker."""
    if op == other or other.what in MARKERS or (op.what == "receive" and not _asks((other,))):
        return False
    return op.what not in MARKERS or other.what not in INSTANT


def _changed(op: Op) -> Iterator[tuple[str, Op]]:
    if op.what == "both":
        yield "turned round", Op("both", parts=op.parts[::-1])
        for number, part in enumerate(op.parts):
            for what, changed in _changed(part):
                yield f"part {what}", Op("both", parts=(*op.parts[:number], changed, *op.parts[number + 1 :]))
        return
    if op.what not in WITHOUT_ARGUMENT:
        yield "with another argument", Op(op.what, op.name, op.number + 50)
    if op.what not in WITHOUT_NAME:
        yield "renamed", Op(op.what, "four", op.number)
    if op.what == "condition":
        yield "with another time", Op("condition", op.name, op.number + 50)
    made = Op("timer", number=op.number + 60) if op.what not in WITHOUT_NAME else Op("activity", "one", op.number)
    yield f"made a {made.what}", made


# Edits that must pass


def harmless(ops: Ops) -> Iterator[Edit]:
    """What may be changed under open runs: new markers, values that were recorded, ranges that grow."""
    for at in range(len(ops) + 1):
        for new in (Op("patch", "new"), Op("version", "new", 4), Op("deprecated patch", "new")):
            yield Edit(f"{new.what} inserted at {at}", (*ops[:at], new, *ops[at:]), at)
    for at, op in enumerate(ops):
        for what, changed in _unseen(op):
            yield Edit(f"{op.what} {what} at {at}", (*ops[:at], changed, *ops[at + 1 :]), at)


def _unseen(op: Op) -> Iterator[tuple[str, Op]]:
    if op.what == "patch":
        yield "deprecated", Op("deprecated patch", op.name)
    if op.what == "version":
        yield "grown", Op("version", op.name, op.number + 1)
    if op.what in ("effect", "update"):
        yield "with another value", Op(op.what, op.name, op.number + 50)


# What must hold


def check_reported(base: str, ops: Ops, edit: Edit) -> Divergence:
    """The edit is reported with both sides and its line. Raises AssertionError.

    What no longer waits for a message asks for the same all the same, once that has come: it is found in the history of
    a run that still waited.
    """
    recording = recorded(ops)
    verdicts = (replayed(edit.ops, document) for document in (recording.whole, *reversed(recording.before)))
    found = next((verdict.divergence for verdict in verdicts if not verdict.is_clean), None)
    assert found is not None, f"{base}: {edit.what} passes"
    assert found.expected, f"{base}: {edit.what} does not name what is recorded"
    assert found.actual, f"{base}: {edit.what} does not name what the code does"
    assert found.line.startswith("<edited "), f"{base}: {edit.what} names no line of the code: {found}"
    line = int(found.line.partition(" in ")[0].rpartition(":")[2])
    at = line - 2
    assert line == 1 or at >= edit.at, f"{base}: {edit.what} points at line {at}, which was not changed: {found}"
    return found


def check_passes(base: str, ops: Ops, edit: Edit) -> None:
    """The edit passes. Raises AssertionError."""
    verdict = replayed(edit.ops, recorded(ops).whole)
    assert verdict.is_clean, f"{base}: {edit.what} is reported: {verdict.message}"


def every_edit_is_reported(bases: int = 10, inserted: int = 2) -> int:
    """Raises AssertionError for a harmful edit that passes; returns how many were tried."""
    tried = 0
    for base, ops in list(BASES.items())[:bases]:
        verdict = replayed(ops, recorded(ops).whole)
        assert verdict.is_clean, f"{base}: the unchanged code is reported: {verdict.message}"
        for edit in harmful(ops, inserted):
            tried += 1
            check_reported(base, ops, edit)
    return tried


# What the workflows call

_files: list[str] = []
_others = Harvest()


def _activity(name: str) -> Any:
    async def body(value: int) -> int:
        return value

    return _others.activity(name=name)(body)


def _child(name: str) -> Any:
    async def body(ctx: Any, value: int) -> int:
        if name.startswith("slow "):
            await ctx.sleep(1_000)
        return value

    return _others.workflow(name=name)(body)


async def _target(ctx: Any) -> None:
    while True:
        await ctx.wait_for_signal("one")


async def _ended(ctx: Any) -> int:
    return 1


_activities = {name: _activity(name) for name in (*NAMES, "four")}
_children = {name: _child(name) for name in (*NAMES, "four")}
for _name in NAMES:
    _child(f"slow {_name}")
_others.workflow(name="target")(_target)
_others.workflow(name="ended")(_ended)
