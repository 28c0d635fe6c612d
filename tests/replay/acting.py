"""How programs use what the engine adds to asyncio: children, handlers, versions, other runs, what is shown."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from harvest.definitions.children import ChildPlacement
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import ApplicationError, SessionBrokenError
from harvest.replay.context import ChildHandle, Session, TimerHandle
from tests.replay import program as p
from tests.replay.noting import (
    OLD_BUILD,
    Boom,
    Noting,
    NotingContext,
    activities,
    child,
    fanned_activity,
    fanned_child,
    name_of,
)

ELSEWHERE = UUID("00000000-0000-8000-8000-00000000beef")


class Acting(Noting):
    """The part of a player that acts through the context."""

    def __init__(self, ctx: NotingContext) -> None:
        super().__init__(ctx)
        self.children: list[tuple[ChildHandle[Any], int, int]] = []
        self.timers: list[TimerHandle] = []
        self.spawned: list[asyncio.Task[None]] = []
        self.ctx.register_query_handler("look", self.looked_at)
        self.ctx.register_query_handler("act", self.acting)

    async def local(self, s: p.Local) -> None:
        seen = self.seen
        value = await self.ctx.execute_local_activity(activities[s.name], s.salt, seen)
        self.answered(f"local {s.name}", value, s.salt, seen)

    # Children

    async def start_child(self, s: p.Child) -> None:
        seen = self.seen
        if s.how == "await":
            self.answered("child", await self.ctx.execute_child_workflow(child, s.salt, seen), s.salt, seen)
        elif s.how == "name":
            self.answered("child", await self.ctx.execute_child_workflow("child", s.salt, seen), s.salt, seen)
        elif s.how == "deadline":
            soon = child.with_options(deadline=timedelta(seconds=self.seconds(20.0)), close_policy="terminate")
            self.answered("child", await self.ctx.execute_child_workflow(soon, s.salt, seen), s.salt, seen)
        elif s.how == "detach":
            apart = child.with_options(detached=True, workflow_id=f"apart-{s.salt}")
            handle = await self.ctx.start_child_workflow(apart, s.salt, seen)
            self.note("detached", (handle.workflow_id, handle.execution_id, handle.done))
            if s.salt % 3 == 0:
                handle.cancel()
        else:
            chosen = child.with_options(placement=ChildPlacement.Distributed) if s.how == "spread" else child
            handle = await self.ctx.start_child_workflow(chosen, s.salt, seen)
            self.children.append((handle, s.salt, seen))
            self.note("child begun", (handle.workflow_id, handle.execution_id))

    async def kin(self, s: p.Kin) -> None:
        if not self.children:
            return
        handle, salt, seen = self.children[0]
        if s.what == "look":
            self.note("child done", handle.done)
        elif s.what == "signal":
            await handle.signal("hello", self.seen)
            self.note("child signalled")
        elif s.what == "cancel":
            self.children.pop(0)
            handle.cancel()
            self.note("child cancelled", handle.done)
        else:
            self.children.pop(0)
            await self.unless_dropped(handle, lambda value: self.answered("child", value, salt, seen))

    async def unless_dropped(self, awaited: Awaitable[Any], then: Callable[[Any], None]) -> None:
        """Await what somebody else may cancel meanwhile, which is no cancellation of this task."""
        try:
            value = await awaited
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            self.note("dropped")
        else:
            then(value)

    async def fan(self, s: p.Fan) -> None:
        items = [[number, self.seen] for number in range(s.items)]
        what: Any = fanned_child if s.children else fanned_activity
        call = self.ctx.fan_out_collect if s.collect else self.ctx.fan_out
        for (salt, seen), value in zip(items, await call(what, items, at_once=s.at_once), strict=True):
            if isinstance(value, Exception):
                self.note("fanned", name_of(value))
            else:
                self.answered("fanned", value, salt, seen)

    # Time and chance

    async def timer(self, s: p.Timer) -> None:
        self.timers.append(self.ctx.start_timer(self.seconds(s.seconds)))

    async def ring(self, s: p.Ring) -> None:
        if not self.timers:
            return
        handle = self.timers.pop(0)
        if s.what == "cancel":
            self.note("timer cancelled", handle.cancel())
        elif s.what == "race":
            winner = await self.ctx.race(self.ctx.wait_for_signal("gamma"), handle)
            self.note("timer raced", winner.index)
        else:
            await self.unless_dropped(handle, lambda _: self.note("timer rang", handle.done))

    async def race(self, branches: list[p.Block]) -> None:
        ended: list[int] = []

        async def run(number: int, block: p.Block) -> int:
            try:
                return await self.branch(number, block)
            finally:
                ended.append(number)

        winner = await self.ctx.race(*(run(number, block) for number, block in enumerate(branches)))
        if winner.index != ended[0]:
            self.wrong("winner of a race", f"{winner.index}, but they ended as {ended}")
        self.note("winner", (winner.index, winner.value))

    async def effect(self, s: p.Effect) -> None:
        seen = self.seen

        def chance() -> list[int]:
            """Runs once: what a replay says is what was said."""
            if self.ctx.is_replaying():
                self.wrong("side effect", "it runs on replay")
            if s.fails:
                raise Boom("no luck")
            return [seen, *os.urandom(0), int(time.time() > 0)]

        try:
            found = self.ctx.side_effect(chance, as_type=list[int], name=s.name)
        except ApplicationError as error:
            self.note("effect failed", (error.type, str(error)))
        else:
            if found != [seen, 1]:
                self.wrong("side effect", f"{found} of another")
            self.note("effect", found)

    async def patched(self, s: p.Patched) -> None:
        changed = False
        if self.ctx.build > OLD_BUILD:
            if s.how == "patched":
                changed = self.ctx.patched(s.change)
            elif s.how == "version":
                changed = self.ctx.version(s.change, 0, 3) == 3
            else:
                self.ctx.deprecate_patch(s.change)
        await self.play(s.then if changed else s.otherwise)

    # Others

    async def hosted(self, s: p.Hosted) -> None:
        lasts = None if s.lasts is None else self.seconds(s.lasts)
        try:
            async with self.ctx.create_session(execution_timeout=lasts) as session:
                self.note("session", session.is_broken)
                if s.leaves:
                    self.spawned.append(asyncio.ensure_future(self._in_session(session, s)))
                for _ in range(s.calls):
                    await self._in_session(session, s)
            self.note("session left", session.is_broken)
        except SessionBrokenError as error:
            self.note("session broken", (error.fields["reason"], isinstance(error, TimeoutError)))
            if not s.forgives:
                raise

    async def _in_session(self, session: Session, s: p.Hosted) -> None:
        seen = self.seen
        self.answered("hosted", await session.execute_activity(activities[s.name], s.salt, seen), s.salt, seen)

    async def reach_out(self, s: p.Reachable) -> None:
        ctx, key = self.ctx, ("other", "w-9")
        if s.what == "signal":
            if s.by_id:
                await ctx.signal_external_workflow(ELSEWHERE, "hello", {"seen": self.seen})
            else:
                await ctx.signal_external_workflow_by_id(*key, "hello", self.seen)
        elif s.what == "cancel":
            if s.by_id:
                await ctx.cancel_external_workflow(ELSEWHERE, "go")
            else:
                await ctx.cancel_external_workflow_by_id(*key)
        else:
            found = ctx.await_external_workflow(ELSEWHERE) if s.by_id else ctx.await_external_workflow_by_id(*key)
            self.note("awaited", await found)
        self.note("reached out", s.what)

    async def show(self, s: p.Show) -> None:
        if s.what == "details":
            self.ctx.set_current_details(f"seen {self.seen}")
        elif s.what == "attributes":
            self.ctx.upsert_search_attributes({"seen": self.seen, f"at_{self.seen % 3}": None})
        elif s.what == "progress":
            self.ctx.publish_progress({"seen": self.seen})
        else:
            self.ctx.metrics.count("shown")

    async def onward(self, s: p.Onward) -> None:
        self.note("onward", s.other)
        if s.other:
            one, another = ONWARD[self.ctx.info.workflow_name]
            self.ctx.continue_as_new(s.body, workflow=another if self.ctx.info.workflow_name == one.name else one)
        self.ctx.continue_as_new(s.body)

    # Handlers

    async def listen(self, s: p.Listen) -> None:
        if s.kind == "signal":
            self.ctx.register_signal_handler(s.name, self.signal_handler(s))
        elif s.kind == "update":
            validators = {"refuse": self.refusing, "act": self.refusing_by_acting}
            self.ctx.register_update_handler(s.name, self.update_handler(s), validator=validators.get(s.how))
        else:
            at = len(self.trace)
            self.ctx.register_query_handler(s.name, lambda: [at, self.seen])

    def signal_handler(self, s: p.Listen) -> Callable[[int], Any]:
        async def handle(value: int) -> None:
            self.note(f"signal {s.name}", value)
            try:
                await self.play(s.body)
            except Exception as error:
                self.note("handler failed", name_of(error))
                if s.how == "strict":
                    raise
            self.note("handled", value)

        def take(value: int) -> None:
            self.note(f"signal {s.name}", value)

        return take if s.how == "plain" else handle

    def update_handler(self, s: p.Listen) -> Callable[[int], Any]:
        async def handle(value: int) -> int:
            self.note(f"update {s.name}", value)
            await self.play(s.body)
            self.note("update done", value)
            return self.seen

        def add(value: int) -> int:
            self.note(f"update {s.name}", value)
            return self.seen

        return add if s.how == "plain" else handle

    def refusing(self, value: int) -> None:
        if value % 3 == 0:
            raise Boom(f"{value} of {self.seen}")

    def refusing_by_acting(self, value: int) -> None:
        if value % 3 == 0:
            self.ctx.start_timer(value)
            self.wrong("validator", "it has acted")

    async def finish(self, s: p.Finish) -> None:
        await self.ctx.wait_condition(self.ctx.all_handlers_finished, timeout=self.seconds(s.timeout))
        self.note("all handlers finished")

    # Questions

    def looked_at(self) -> list[Any]:
        """What a program knows between two events."""
        ctx = self.ctx
        facts: list[Any] = [ctx.info.history_events, ctx.now(), ctx.time_until_deadline()]
        facts += [ctx.is_cancelled(), ctx.should_continue_as_new()]
        known = [self.seen, len(self.trace), ctx.all_handlers_finished(), ctx.is_replaying()]
        return [*facts, *known, [handle.done for handle, *_ in self.children]]

    def acting(self, number: int) -> str:
        """Try what only the code itself may do; "acted" if nothing refuses it."""
        ctx = self.ctx
        held: list[Any] = [handle for handle, *_ in self.children if not handle.done]
        held += [timer for timer in self.timers if not timer.done]
        held += [task for task in self.spawned if not task.done()]
        acts: list[Callable[[], object]] = [
            lambda: held[0].cancel(),
            lambda: held[-1].cancel(),
            lambda: ctx.start_timer(1),
            lambda: asyncio.get_running_loop().create_task(ctx.sleep(1)),
            lambda: asyncio.get_running_loop().create_future(),
            lambda: asyncio.get_running_loop().call_later(1, print),
            lambda: ctx.side_effect(int),
            lambda: ctx.version("blue", 0, 3),
            lambda: ctx.patched("green"),
            lambda: ctx.deprecate_patch("green"),
            lambda: ctx.random().random(),
            lambda: ctx.uuid4(),
            lambda: ctx.set_current_details("asked"),
            lambda: ctx.upsert_search_attributes({"asked": True}),
            lambda: ctx.publish_progress("asked"),
            lambda: ctx.try_receive_signal("alpha"),
            lambda: ctx.drain_signals("beta"),
            lambda: ctx.register_signal_handler("delta", print),
            lambda: ctx.register_query_handler("extra", int),
            lambda: ctx.metrics.count("asked"),
            lambda: self.ctx.continue_as_new([]),
        ]
        acts[number % len(acts) if held else 2 + number % (len(acts) - 2)]()
        return "acted"


ACTS = 21
# The two types, by the name of each, that a program may go on as.
ONWARD: dict[str, tuple[WorkflowDefinition[..., Any], WorkflowDefinition[..., Any]]] = {}
PLAYERS: dict[type, Callable[[Any, Any], Awaitable[None]]] = {
    p.Local: Acting.local,
    p.Child: Acting.start_child,
    p.Kin: Acting.kin,
    p.Fan: Acting.fan,
    p.Timer: Acting.timer,
    p.Ring: Acting.ring,
    p.Effect: Acting.effect,
    p.Patched: Acting.patched,
    p.Reachable: Acting.reach_out,
    p.Hosted: Acting.hosted,
    p.Show: Acting.show,
    p.Listen: Acting.listen,
    p.Finish: Acting.finish,
    p.Onward: Acting.onward,
}
