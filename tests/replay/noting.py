"""What programs are played on: a context with notes, and activities and children whose results say whom they answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final
from zlib import crc32

from harvest.definitions.activity import ActivityDefinition, define_activity
from harvest.definitions.options import Retry, activity_options, workflow_options
from harvest.definitions.workflow import WorkflowDefinition, define_workflow
from harvest.errors import ActivityError, HarvestError
from harvest.replay import ordered
from harvest.replay.context import WorkflowContext
from harvest.replay.run import Run
from tests.replay import program as p

ordered.install()
Trace = list[tuple[int, str, str]]
OLD_BUILD, NEW_BUILD = 1, 2
LUCK: Final = 10


class NotingContext(WorkflowContext):
    """The context of the product, with the notes of the run that it belongs to, and the build of the code it runs.

    `pace` is what a second of a program takes.
    """

    def __init__(self, run: Run, trace: Trace, build: int = NEW_BUILD, pace: float = 1.0) -> None:
        super().__init__(run)
        self.trace = trace
        self.build = build
        self.pace = pace


class Boom(Exception):
    """What programs raise."""


def answer_to(salt: int, seen: int) -> int:
    """What whoever is asked with these arguments answers, but for its last digit."""
    return crc32(b"%d %d" % (salt, seen)) % 1_000_000


def as_workflow(function: Callable[..., Any], name: str = "play", version: int = 1) -> WorkflowDefinition[..., Any]:
    """A workflow of a plain function, without an application."""
    ordered.rebind(function)
    options = workflow_options(queue="default", execution_timeout=None)
    return define_workflow(function, name=name, version=version, options=options, signals=None)


def _activity(name: str, body: Callable[..., Any]) -> ActivityDefinition[..., Any]:
    options = activity_options(
        queue=None,
        priority=0,
        schedule_to_start=None,
        start_to_close=None,
        schedule_to_close=None,
        heartbeat_timeout=None,
        retry=Retry(max_attempts=2, initial_interval=timedelta(0)),
    )
    return define_activity(body, name=name, options=options)


def _truly(salt: int, seen: int) -> int:
    """What is asked answers, or fails now and then, wherever and whenever it is asked."""
    answer = answer_to(salt, seen)
    if answer % 11 == 0:
        raise Boom(f"{answer} cannot be answered")
    return answer * LUCK + answer % LUCK


async def _of_two(salt: int, seen: int) -> int:
    return _truly(salt, seen)


async def _of_one(both: list[int]) -> int:
    return _truly(*both)


async def _of_words(words: list[str], more: dict[str, int]) -> int:
    return len(words) + more["seen"]


async def _child_of_two(ctx: WorkflowContext, salt: int, seen: int) -> int:
    await ctx.sleep(0.002 * (salt % 3))
    return _truly(salt, seen)


async def _child_of_one(ctx: WorkflowContext, both: list[int]) -> int:
    return _truly(*both)


activities = {name: _activity(name, _of_two) for name in p.ACTIVITIES}
fanned_activity = _activity("fanned", _of_one)
elsewhere = _activity("elsewhere", _of_words)
child: WorkflowDefinition[..., Any] = as_workflow(_child_of_two, "child")
fanned_child: WorkflowDefinition[..., Any] = as_workflow(_child_of_one, "fanned_child")


class Noting:
    """One run of a program: what it sees is noted, and goes into all that it asks for."""

    players: dict[type, Callable[[Any, Any], Awaitable[None]]]

    def __init__(self, ctx: NotingContext) -> None:
        self.ctx = ctx
        self.trace = ctx.trace
        self.seen = 0
        self.latest = ctx.now()

    def note(self, what: str, value: object = None) -> None:
        text = repr(value)
        self.trace.append((self.ctx.info.history_events, what, text))
        now = self.ctx.now()
        if now < self.latest:
            self.wrong("time went back", f"from {self.latest} to {now}")
        self.latest = now
        self.seen = (self.seen * 31 + crc32(f"{what} {text}".encode())) % 1_000_003

    def seconds(self, seconds: float) -> float:
        """What the program calls so many seconds."""
        return round(seconds * self.ctx.pace, 6)

    def wrong(self, what: str, value: object) -> None:
        """What no program may ever see."""
        self.trace.append((self.ctx.info.history_events, f"wrong: {what}", repr(value)))

    def answered(self, what: str, value: object, salt: int, seen: int) -> None:
        """Note a result, which must be the answer to what was asked."""
        if not isinstance(value, int) or value // LUCK != answer_to(salt, seen):
            self.wrong(f"answer of another {what}", value)
        self.note(what, value)

    async def play(self, block: p.Block) -> None:
        for statement in block:
            await self.players[type(statement)](self, statement)

    async def branch(self, number: int, block: p.Block) -> int:
        await self.play(block)
        self.note("branch", number)
        return self.seen


def name_of(error: object) -> object:
    """An error without what may differ from one Python to the next."""
    if isinstance(error, BaseExceptionGroup):
        return [name_of(inner) for inner in error.exceptions]
    if isinstance(error, ActivityError | HarvestError | Boom):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__ if isinstance(error, BaseException) else error
