"""One worker process of a fleet under measurement: `python -m tests.bench.fleet_worker URL GIVEN`.

It joins, and claims nothing until it is told to. It answers each line that it reads (`go`, `counters`, `stop`) with a
line of JSON; the first line that it writes says that it has joined.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import msgspec
import uvloop

from harvest.shards import Shards
from harvest.store.claims import NO_EPOCHS, Owner
from harvest.store.pool import Connections
from harvest.worker.activities import ActivityRunner
from harvest.worker.options import WorkerOptions
from harvest.worker.worker import Worker
from tests.bench.fleet_app import app

LONG_IDLE: Final = 0.001
"""Seconds of idleness that are worth a note; the bound of bench (k) is five times as much."""


class Given(msgspec.Struct, frozen=True):
    """What a fleet tells a worker process.

    Without `eager` no activity begins in its decision: all are queued for whoever claims them. With `watched` the loop
    tells when it idled.
    """

    name: str
    eager: bool = True
    watched: bool = False
    options: dict[str, Any] = {}


class Idle(msgspec.Struct, frozen=True):
    """A stretch with nothing to run in Python and no SQL in flight, and how many runs had closed when it began."""

    seconds: float
    closed: int


class IdleWatch(selectors.DefaultSelector):
    """The selector of the event loop: while it waits, no Python runs. Notes the waits that no SQL was in flight for.

    In flight is a statement from when a connection is asked for to when its answer has been read: the loop starts none
    while it waits, so that one look at the beginning of a wait is enough.
    """

    def __init__(self) -> None:
        super().__init__()
        self.worker: Worker | None = None
        self.in_flight = 0
        self.found: list[Idle] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait, and note it."""
        began = time.perf_counter()
        ready = super().select(timeout)
        seconds = time.perf_counter() - began
        # Between its first claim and the end of its last run a worker has a backlog.
        if self.worker is not None and not self.in_flight and seconds > LONG_IDLE and self.worker.counters.claims:
            self.found.append(Idle(seconds, self.worker.counters.closed))
        return ready

    def count_statements(self) -> None:
        """From now on, know of every statement of this process's loop."""
        original: Callable[..., AbstractAsyncContextManager[Any]] = Connections.connection

        @asynccontextmanager
        async def counted(pool: Connections, *given: Any, **named: Any) -> AsyncIterator[Any]:
            self.in_flight += 1
            try:
                async with original(pool, *given, **named) as connection:
                    yield connection
            finally:
                self.in_flight -= 1

        Connections.connection = counted  # type: ignore[method-assign, assignment]


class Member:
    """The worker, and the gate before its claims."""

    def __init__(self, worker: Worker, watch: IdleWatch | None) -> None:
        self._worker = worker
        self._watch = watch
        self.hold()

    def hold(self) -> None:
        """Claim nothing: of no partition is anything taken."""
        for part in self._worker._parts.values():
            part.claimer.owner = lambda: Owner(0, NO_EPOCHS)

    def go(self) -> None:
        """Claim from now on."""
        for part in self._worker._parts.values():
            part.claimer.owner = part.ownership.takeable
            part.claimer.wake()

    def told(self) -> dict[str, Any]:
        """The counters, and the stretches of idleness: before the last run closed here, and how many after that."""
        counters = self._worker.counters
        found = self._watch.found if self._watch is not None else []
        idle = [each.seconds for each in found if each.closed < counters.closed]
        return {"counters": msgspec.structs.asdict(counters), "idle": idle, "idle_after": len(found) - len(idle)}


async def work(url: str, given: Given, watch: IdleWatch | None) -> None:
    """Join, answer, leave."""
    if not given.eager:
        ActivityRunner.reserve = lambda self, shard_id, command: False  # type: ignore[method-assign]
    shards = await Shards.open({0: url})
    worker = Worker(app.registry, shards, WorkerOptions(name=given.name, build="bench", **given.options))
    member = Member(worker, watch)
    await worker.start()
    if watch is not None:
        watch.worker = worker
        watch.count_statements()
    asked = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    say({"joined": str(worker.id)})
    answering = asyncio.create_task(answer(asked, member))
    lost = asyncio.create_task(worker.lost.wait())
    await asyncio.wait((answering, lost), return_when=asyncio.FIRST_COMPLETED)
    if lost.done():
        raise SystemExit("the worker was lost, or a loop of it has died")
    lost.cancel()
    await answering
    await worker.stop()
    await shards.close()
    say(member.told())


async def answer(asked: asyncio.StreamReader, member: Member) -> None:
    """Answer until told to stop, or until nobody asks any more."""
    while (line := (await asked.readline()).decode().strip()) not in ("stop", ""):
        if line == "go":
            member.go()
        elif line == "hold":
            member.hold()
        say(member.told())


def say(answer: dict[str, Any]) -> None:
    """One line of JSON."""
    print(msgspec.json.encode(answer).decode(), flush=True)


def main() -> None:
    """Work for the fleet that the command line tells of: on the loop of production, or on one that can be watched."""
    url, given = sys.argv[1], msgspec.json.decode(sys.argv[2], type=Given)
    if not given.watched:
        uvloop.run(work(url, given, None))
        return
    watch = IdleWatch()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watch)) as runner:
        runner.run(work(url, given, watch))


if __name__ == "__main__":
    main()
