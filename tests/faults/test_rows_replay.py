"""Events that come together (docs/faults.md, 25): their order in history decides, however they were brought."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from msgspec import Raw, json

from harvest.history.data import ActivityCompleted, SignalReceived, UpdateAdmitted
from harvest.history.events import Event, encode_data
from harvest.history.kinds import EventKind
from harvest.replay.context import WorkflowContext
from tests.replay.driving import Driven

ORDERS = 200
ACTIVITIES, SIGNALS, UPDATES = 4, 4, 2


async def takes_what_comes(ctx: WorkflowContext) -> list[str]:
    """What it asks for next depends on the order in which signals, results and updates came."""
    seen: list[str] = []

    async def update(word: str) -> list[str]:
        seen.append(word)
        await ctx.execute_activity("for_update", [*seen])
        return [*seen]

    async def result(n: int) -> None:
        seen.append(str(await ctx.execute_activity(f"first_{n}")))
        await ctx.execute_activity("for_result", [*seen])

    async def signals() -> None:
        for _ in range(SIGNALS):
            seen.append(await ctx.wait_for_signal("s", str))
            await ctx.execute_activity("for_signal", [*seen])

    ctx.register_update_handler("u", update)
    async with asyncio.TaskGroup() as group:
        for n in range(ACTIVITIES):
            group.create_task(result(n))
        group.create_task(signals())
    return seen


Brought = Callable[[Driven], None]


def what_comes() -> list[Brought]:
    """The events of one delta, in any order."""

    def completed(seq: int) -> Brought:
        return lambda run: event(run, EventKind.ACTIVITY_COMPLETED, seq, ActivityCompleted(Raw(json.encode(f"r{seq}"))))

    def signal(n: int) -> Brought:
        return lambda run: event(run, EventKind.SIGNAL_RECEIVED, 0, SignalReceived("s", Raw(json.encode(f"s{n}"))))

    def update(n: int) -> Brought:
        data = UpdateAdmitted(f"id-{n}", "u", Raw(json.encode(f"u{n}")))
        return lambda run: event(run, EventKind.UPDATE_ADMITTED, 0, data)

    found = [completed(seq) for seq in range(1, ACTIVITIES + 1)]
    return found + [signal(n) for n in range(SIGNALS)] + [update(n) for n in range(UPDATES)]


def event(run: Driven, kind: EventKind, seq: int, data: Any) -> None:
    """Written, and not yet delivered."""
    run.at += run.tick
    run.events.append(Event(len(run.events) + 1, int(kind), seq, run.at, encode_data(data)))


def begun() -> Driven:
    run = Driven(takes_what_comes)
    run.committed()
    return run


def commands(run: Driven) -> list[tuple[int, int, bytes]]:
    """What was recorded of what the code asked for, without the events that others wrote."""
    others = (EventKind.ACTIVITY_COMPLETED, EventKind.SIGNAL_RECEIVED, EventKind.UPDATE_ADMITTED)
    return [(each.kind, each.seq, each.payload) for each in run.events if each.kind not in others]


def brought(order: list[Brought], at_once: int) -> Driven:
    """The run after these events were delivered, so many in one delta, and each decision was committed."""
    run = begun()
    for first in range(0, len(order), at_once):
        so_far = len(run.events)
        for bring in order[first : first + at_once]:
            bring(run)
        run.run.deliver(run.events[so_far:])
        run.committed()
    assert run.run.blocked is None
    return run


def test_25_signals_updates_and_results_in_one_delta_replay_as_they_were_decided() -> None:
    chance = random.Random(25)
    decided = set()
    for _ in range(ORDERS):
        order = what_comes()
        chance.shuffle(order)
        run = brought(order, at_once=len(order))
        decided.add(tuple(commands(run)))
        assert commands(run) == commands(brought(order, at_once=1))
        cold = run.replayed()
        assert cold.blocked is None
        assert not cold.asked, "the replay asks for exactly what was recorded"
    assert len(decided) > ORDERS / 2, "the order decides what is asked for"
