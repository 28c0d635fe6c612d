"""The workflow that plays a program: it notes all that it sees, and what it saw goes into all that it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from datetime import timedelta

from tests.replay import acting
from tests.replay import program as p
from tests.replay.acting import Acting
from tests.replay.noting import Boom, NotingContext, Trace, activities, as_workflow, name_of

__all__ = ["PLAY", "PLAY_ON", "NotingContext", "Trace", "activities", "as_workflow"]
_inherited: ContextVar[int] = ContextVar("inherited", default=-1)


class Player(Acting):
    """One run of a program."""

    def __init__(self, ctx: NotingContext) -> None:
        super().__init__(ctx)
        self.lock = asyncio.Lock()
        self.semaphore = asyncio.Semaphore(2)
        self.queue: asyncio.Queue[int] = asyncio.Queue(1)
        self.event = asyncio.Event()
        self.changed = asyncio.Condition()

    async def call(self, s: p.Call) -> None:
        seen = self.seen
        self.answered("result", await self.ctx.execute_activity(activities[s.name], s.salt, seen), s.salt, seen)

    async def call_by_name(self, s: p.CallByName) -> None:
        self.note("by name", await self.ctx.execute_activity("elsewhere", set(s.words), {"seen": self.seen}))

    async def sleep(self, s: p.Sleep) -> None:
        if s.until:
            await self.ctx.sleep_until(self.ctx.now() + timedelta(seconds=self.seconds(s.seconds)))
        else:
            await self.ctx.sleep(self.seconds(s.seconds))
        self.note("slept", s.seconds)

    async def pause(self, _: p.Yield) -> None:
        await asyncio.sleep(0)

    async def look(self, s: p.Look) -> None:
        ctx = self.ctx
        looks: dict[str, Callable[[], object]] = {
            "random": lambda: (ctx.random().random(), ctx.random().sample(range(100), 3)),
            "uuid": ctx.uuid4,
            "now": ctx.now,
            "info": lambda: ctx.info,
            "all_tasks": lambda: [task.get_name() for task in asyncio.all_tasks()],
            "cancelled": lambda: (ctx.is_cancelled(), _inherited.get()),
        }
        self.note(s.at, looks[s.at]())

    async def receive(self, s: p.Receive) -> None:
        timeout = None if s.timeout is None else self.seconds(s.timeout)
        self.note(f"signal {s.signal}", await self.ctx.wait_for_signal(s.signal, int, timeout=timeout))

    async def try_receive(self, s: p.TryReceive) -> None:
        if s.drain:
            for value in self.ctx.drain_signals(s.signal, int):
                self.note(f"signal {s.signal}", value)
        else:
            value = self.ctx.try_receive_signal(s.signal, int)
            self.note("none" if value is None else f"signal {s.signal}", value)

    async def condition(self, s: p.Condition) -> None:
        target = len(self.trace) + s.notes
        timeout = None if s.timeout is None else self.seconds(s.timeout)
        await self.ctx.wait_condition(lambda: len(self.trace) >= target, timeout=timeout)
        self.note("condition", s.notes)

    async def branch(self, number: int, block: p.Block) -> int:
        _inherited.set(number)
        return await super().branch(number, block)

    def tasks(self, s: p.Together) -> list[asyncio.Task[int]]:
        return [
            asyncio.create_task(self.branch(number, block), name=f"b{number}")
            for number, block in enumerate(s.branches)
        ]

    async def together(self, s: p.Together) -> None:
        if s.how == "gather":
            self.note("gathered", await asyncio.gather(*(self.branch(n, b) for n, b in enumerate(s.branches))))
        elif s.how == "gather_all":
            all_of_it = asyncio.gather(*(self.branch(n, b) for n, b in enumerate(s.branches)), return_exceptions=True)
            self.note("gathered all", [name_of(found) for found in await all_of_it])
        elif s.how == "group":
            async with asyncio.TaskGroup() as group:
                for number, block in enumerate(s.branches):
                    group.create_task(self.branch(number, block), name=f"g{number}")
        elif s.how == "race":
            await self.race(s.branches)
        elif s.how == "set":
            for task in set(self.tasks(s)):
                await self._settle(task)
        elif s.how in ("as_completed", "async_for"):
            await self._as_completed(s)
        else:
            await self._wait(s)

    async def _as_completed(self, s: p.Together) -> None:
        tasks = self.tasks(s)
        if s.how == "as_completed":
            for number, soonest in enumerate(asyncio.as_completed(set(tasks))):
                self.note(f"completed {number}", await soonest)
        else:
            async for task in asyncio.as_completed(tasks, timeout=self.seconds(100.0)):
                await self._settle(task)

    async def _wait(self, s: p.Together) -> None:
        tasks = self.tasks(s)
        when = asyncio.FIRST_EXCEPTION if s.how == "wait_error" else asyncio.FIRST_COMPLETED
        timeout = self.seconds(20.0) if s.how == "wait_some" else None
        done, pending = await asyncio.wait(tasks, timeout=timeout, return_when=when)
        for task in done:
            await self._settle(task)
        for number, task in enumerate(pending):
            if number % 2:
                task.cancel()
        for task in pending:
            await self._settle(task)

    async def _settle(self, task: asyncio.Task[int]) -> None:
        try:
            self.note(f"task {task.get_name()}", await task)
        except (Exception, asyncio.CancelledError) as error:
            self.note(f"task {task.get_name()}", name_of(error))
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise

    async def limit(self, s: p.Limit) -> None:
        if s.how == "timeout":
            async with asyncio.timeout(self.seconds(s.seconds)):
                await self.play(s.body)
        elif s.how == "wait_for":
            await asyncio.wait_for(self.play(s.body), self.seconds(s.seconds))
        elif s.how == "shield":
            shielded = asyncio.shield(asyncio.create_task(self.play(s.body)))
            await asyncio.wait_for(shielded, self.seconds(s.seconds))
        else:
            task = asyncio.create_task(self.branch(9, s.body))
            await asyncio.sleep(self.seconds(s.seconds))
            task.cancel()
            await self._settle(task)
        self.note("limit", s.how)

    async def locked(self, s: p.Locked) -> None:
        async with self.semaphore if s.semaphore else self.lock:
            await self.play(s.body)

    async def exchange(self, s: p.Exchange) -> None:
        if s.what == "put":
            await self.queue.put(self.seen)
        elif s.what == "get":
            self.note("got", await self.queue.get())
        elif s.what == "wait":
            await self.event.wait()
        elif s.what == "set":
            self.event.set()
        elif s.what == "notify":
            async with self.changed:
                self.changed.notify(2)
        elif s.what == "notified":
            async with self.changed, asyncio.timeout(self.seconds(40.0)):
                await self.changed.wait()
        else:
            self.event.clear()
        self.note(s.what)

    async def spawn(self, s: p.Spawn) -> None:
        self.spawned.append(asyncio.create_task(self.play(s.body), name=f"s{len(self.trace)}"))

    async def reach(self, s: p.Reach) -> None:
        if self.spawned:
            task = self.spawned.pop(0)
            if s.cancel:
                task.cancel()
            if task is not asyncio.current_task():
                await asyncio.wait([task], timeout=self.seconds(30.0))
            self.note("reached", task.done())

    async def guarded(self, s: p.Guarded) -> None:
        catch: dict[str, tuple[type[BaseException], ...]] = {
            "error": (Exception,),
            "cancel": (asyncio.CancelledError,),
            "all": (Exception, asyncio.CancelledError),
            "nothing": (),
        }
        try:
            await self.play(s.body)
        except catch[s.catch] as error:
            self.note("caught", name_of(error))
            await self.play(s.handler)
        finally:
            await self.play(s.cleanup)

    async def fail(self, _: p.Raise) -> None:
        raise Boom(str(self.seen))

    async def repeat(self, s: p.Repeat) -> None:
        for _ in range(s.times):
            await self.play(s.body)

    async def choose(self, s: p.Choose) -> None:
        await self.play(s.then if self.seen % 2 else s.otherwise)

    async def numbers(self, body: p.Block) -> AsyncIterator[int]:
        try:
            for number in range(3):
                await self.play(body)
                yield number
        finally:
            self.note("generator closed")

    async def each(self, s: p.Each) -> None:
        async for number in self.numbers(s.body):
            if number >= s.leave_after:
                break


Player.players = {
    **acting.PLAYERS,
    p.Call: Player.call,
    p.CallByName: Player.call_by_name,
    p.Sleep: Player.sleep,
    p.Yield: Player.pause,
    p.Look: Player.look,
    p.Receive: Player.receive,
    p.TryReceive: Player.try_receive,
    p.Condition: Player.condition,
    p.Together: Player.together,
    p.Limit: Player.limit,
    p.Locked: Player.locked,
    p.Exchange: Player.exchange,
    p.Spawn: Player.spawn,
    p.Reach: Player.reach,
    p.Guarded: Player.guarded,
    p.Raise: Player.fail,
    p.Repeat: Player.repeat,
    p.Choose: Player.choose,
    p.Each: Player.each,
}


async def play(ctx: NotingContext, block: list[p.Statement]) -> int:
    """The workflow."""
    player = Player(ctx)
    try:
        for statement in block:
            try:
                await player.play([statement])
            except Exception as error:
                player.note("failed", name_of(error))
                if isinstance(statement, p.Raise):
                    raise
    except BaseException as error:
        player.note("out", name_of(error))
        raise
    return player.seen


PLAY = as_workflow(play)
PLAY_ON = as_workflow(play, "play_on")
acting.ONWARD["play"] = acting.ONWARD["play_on"] = (PLAY, PLAY_ON)
