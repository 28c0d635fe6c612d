"""Makes deliveries: those within a shard in one statement, those to another there first and then settled here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.history.deliveries import ANYWHERE, DeliveryKind
from harvest.history.ids import ExecutionId
from harvest.history.states import FIRST_CLOSED
from harvest.shards import Shards
from harvest.store import closings, deliveries
from harvest.store.changes import Change, Made
from harvest.store.deliveries import Delivery, PutOff, Run
from harvest.store.pool import Connection
from harvest.store.store import Store
from harvest.worker import delivering
from harvest.worker.begetting import Begetter
from harvest.worker.delivering import Step
from harvest.worker.seeking import Ask

# What is written at its target under a key of its own, so that it is not made twice; the others cannot be.
_KEYED: Final = delivering.ANSWERED - {DeliveryKind.EXTERNAL_AWAIT} | {
    DeliveryKind.CHILD_CANCEL,
    DeliveryKind.CLOSE_POLICY,
}


class Delivered(Struct):
    """What is settled of a group, and what is to be tried at a time of its own. The rest was locked: at once again."""

    settled: set[int] = msgspec.field(default_factory=set)
    put_off: list[PutOff] = msgspec.field(default_factory=list)


class Courier:
    """Makes the deliveries of one shard's runs. What a lock keeps from being made is left to be tried again.

    `on_step` hears of each point between two steps, `on_told` of a run here that has something to deliver by its end.
    """

    def __init__(self, shards: Shards, store: Store) -> None:
        self.on_step: Callable[[str], None] = lambda _: None
        self.on_told: Callable[[UUID], None] = lambda _: None
        self._shards = shards
        self._store = store
        self._begetter = Begetter()

    def locate(self, found: Iterable[Delivery]) -> dict[int, list[Delivery]]:
        """Deliveries to runs that are known by their id, by the shard of those."""
        by_shard: dict[int, list[Delivery]] = {}
        for each in found:
            by_shard.setdefault(self._resides(each), []).append(each)
        return by_shard

    def _resides(self, delivery: Delivery) -> int:
        """The shard of a target that is known by its id; one that is gone leads to the one that has its runs now."""
        router = self._shards.router
        if delivery.target_shard not in router.forwards:
            return delivery.target_shard
        return router.locate(ExecutionId(int=delivery.target_execution_id.int))

    async def within(self, found: list[Delivery], targets: Mapping[int, UUID | None]) -> Delivered:
        """Make deliveries whose target is on this shard: each is applied and settled by one statement."""
        store = self._store
        async with store.deliver.connection(writes=True) as connection:
            steps = [delivering.step_of(each) for each in found]
            await self._begetter.beget(connection, store, steps)
            self.on_step("begun")
            looked = await deliveries.runs(connection, {*_targets(steps, targets), *_asking(steps)})
            await self._meet(connection, store, steps, targets, looked, looked)
            ready, ending, put = _arranged(steps)
            passed = await self._write(connection, store, ready, sources=looked, at_target=True)
            self.on_step("settled")
            ended = await self._terminate(connection, store, _unhindered(ending, steps, passed))
            self.on_step("ended")
            passed |= await self._write(connection, store, ended, sources=looked, at_target=False)
        return Delivered(passed, put)

    async def beyond(self, store: Store, found: list[Delivery], targets: Mapping[int, UUID | None]) -> Delivered:
        """Make deliveries whose target is on another shard, there first; raises what that shard raises.

        Whoever does not know that they were made makes them again: by their key, or by what they find, they are not.
        """
        steps = [delivering.step_of(each) for each in found]
        async with self._store.deliver.connection() as here:
            sources = await deliveries.runs(here, _asking(steps))
        async with store.deliver.connection(writes=True) as there:
            before, fresh = await _known(there, steps)
            await self._begetter.beget(there, store, fresh)
            self.on_step("begun")
            looked = await deliveries.runs(there, _targets(fresh, targets))
            await self._meet(there, store, fresh, targets, looked, sources)
            ready, ending, put = _arranged(fresh)
            passed = await self._write(there, store, ready, sources=None, at_target=True)
            self.on_step("applied")
            ended = await self._terminate(there, store, _unhindered(ending, fresh, passed))
            self.on_step("ended")
        done = [step for step in ready if step.delivery.delivery_id in passed]
        async with self._store.deliver.connection(writes=True) as here:
            settled = await self._write(here, self._store, [*before, *done, *ended], sources=sources, at_target=False)
            self.on_step("settled")
        return Delivered(settled, put)

    async def ask(self, store: Store, asks: list[Ask]) -> Delivered:
        """Request the cancellation of runs of a shard, each once; none of the deliveries is settled by that.

        What is left there under each one's key and its run tells a later look that it has asked.
        """
        change = Change()
        async with store.deliver.connection(writes=True) as there:
            looked = await deliveries.runs(there, {each.run for each in asks})
            for each in asks:
                step = delivering.step_of(each.delivery)
                delivering.meet(step, looked.get(each.run))
                if step.event is not None and step.run is not None:
                    key = f"{each.delivery.key}/{step.run}"
                    change.delivery(each.delivery, -len(change) - 1, key=key, run=step.run)
                    change.event(each.delivery, step.run, step.event[0], 0, step.event[1], once=True)
            if len(change):
                _wake(store, await change.make(there, settles=False))
        self.on_step("asked")
        return Delivered(put_off=[PutOff(each.delivery.delivery_id, delivering.LOOK_AGAIN) for each in asks])

    async def answer(self, steps: list[Step]) -> Delivered:
        """Settle deliveries of which no more is to be made: write the answers of the steps."""
        async with self._store.deliver.connection(writes=True) as here:
            sources = await deliveries.runs(here, _asking(steps))
            settled = await self._write(here, self._store, steps, sources=sources, at_target=False)
        self.on_step("settled")
        return Delivered(settled)

    async def put_off(self, put: list[PutOff]) -> None:
        """Try those later."""
        if put:
            async with self._store.deliver.connection(writes=True) as connection:
                await deliveries.put_off(connection, put)

    async def _meet(
        self,
        connection: Connection,
        store: Store,
        steps: list[Step],
        targets: Mapping[int, UUID | None],
        looked: Mapping[UUID, Run],
        sources: Mapping[UUID, Run],
    ) -> None:
        """Decide what each delivery does to what it finds."""
        awaited = []
        for step in steps:
            delivery = step.delivery
            if delivery.kind == DeliveryKind.CHILD_START:
                continue
            if delivery.kind == DeliveryKind.CHILD_CLOSED:
                delivering.close(step)
            elif not delivery.is_await or _is_open(sources.get(delivery.source_execution_id)):
                target = targets.get(delivery.delivery_id, delivery.target_execution_id)
                delivering.meet(step, None if target is None else looked.get(target))
                if step.put_off is not None and delivery.target_shard == ANYWHERE:
                    # From now on it is this run that is awaited, and not whoever has its name later.
                    pin = {"target_execution_id": target, "target_shard": store.shard_id}
                    step.put_off = msgspec.structs.replace(step.put_off, **pin)
                elif delivery.is_await and step.run is not None:
                    awaited.append(step)
        if awaited:
            outcomes = await deliveries.outcomes(connection, {step.run for step in awaited if step.run})
            for step in awaited:
                assert step.run is not None
                delivering.outcome(step, outcomes[step.run])

    async def _write(
        self,
        connection: Connection,
        store: Store,
        steps: list[Step],
        *,
        sources: Mapping[UUID, Run] | None,
        at_target: bool,
    ) -> set[int]:
        """Write what the steps do `at_target`, and with `sources` settle them there. Returns what passed."""
        if not steps:
            return set()
        change = Change()
        pairs: dict[tuple[UUID, UUID], int] = {}
        for step in steps:
            delivery = step.delivery
            keyed = sources is None and delivery.kind in _KEYED
            pair = -len(change) - 1 if delivery.is_await else pairs.setdefault(delivery.pair, len(pairs))
            change.delivery(delivery, pair, key=delivery.key if keyed else None, run=step.run if keyed else None)
            if at_target and step.event is not None and step.run is not None:
                change.event(delivery, step.run, step.event[0], 0, step.event[1], once=step.once)
            if at_target and step.ended is not None:
                change.end(delivery, step.ended)
            if sources is None:
                continue
            if step.answer is not None and _is_open(sources.get(delivery.source_execution_id)):
                kind, payload = step.answer
                change.event(delivery, delivery.source_execution_id, kind, delivery.source_seq, payload)
            if step.rejected is not None:
                change.end(delivery, step.rejected)
        made = await change.make(connection, settles=sources is not None)
        _wake(store, made)
        return made.passed

    async def _terminate(self, connection: Connection, store: Store, steps: list[Step]) -> list[Step]:
        """End those runs that can be ended now; returns the steps that are done, with nothing more to write."""
        if not steps:
            return []
        runs = {step.run for step in steps if step.run is not None}
        ended = await closings.terminate_many(connection, sorted(runs), delivering.PARENT_ENDED)
        for each in ended:
            store.hints.touch(each.partition)
            if each.holder is not None or each.told:
                store.waker.wake(each.holder)
            if each.told and store is self._store:
                self.on_told(each.execution_id)
        done = {each.execution_id for each in ended}
        return [step for step in steps if step.run in done]


def _is_open(run: Run | None) -> bool:
    return run is not None and run.state < FIRST_CLOSED


def _targets(steps: Iterable[Step], targets: Mapping[int, UUID | None]) -> set[UUID]:
    """The runs that must be looked at: those that deliveries reach by their own id."""
    found = {
        targets.get(step.delivery.delivery_id, step.delivery.target_execution_id)
        for step in steps
        if step.delivery.kind in _KEYED or step.delivery.is_await
    }
    return {target for target in found if target is not None}


def _asking(steps: Iterable[Step]) -> set[UUID]:
    """The runs that get an answer, if they are open."""
    return {
        step.delivery.source_execution_id
        for step in steps
        if step.delivery.kind in delivering.ANSWERED or step.answer is not None
    }


async def _known(connection: Connection, steps: list[Step]) -> tuple[list[Step], list[Step]]:
    """Steps that were made on that shard before, and those that were not."""
    keyed = [step.delivery for step in steps if step.delivery.kind in _KEYED]
    applied = await deliveries.applied(connection, keyed) if keyed else {}
    before, fresh = [], []
    for step in steps:
        made = (step.delivery.source_execution_id, step.delivery.key)
        if made in applied:
            delivering.made_before(step, applied[made])
            before.append(step)
        else:
            fresh.append(step)
    return before, fresh


def _arranged(steps: list[Step]) -> tuple[list[Step], list[Step], list[PutOff]]:
    """What can be written, what is to be terminated after that, and what must wait, in the order of each pair."""
    ready: list[Step] = []
    ending: list[Step] = []
    put: list[PutOff] = []
    held: set[tuple[UUID, UUID]] = set()
    for step in steps:
        pair = step.delivery.pair
        if pair in held:
            continue
        if step.put_off is not None:
            put.append(step.put_off)
        elif step.undecided:
            held.add(pair)
        elif step.terminates:
            ending.append(step)
            held.add(pair)
        else:
            ready.append(step)
    return ready, ending, put


def _unhindered(ending: list[Step], steps: list[Step], passed: set[int]) -> list[Step]:
    """Those with nothing before them in their pair that has not passed."""
    left = {step.delivery.pair: step.delivery.delivery_id for step in reversed(steps) if not _is_over(step, passed)}
    return [step for step in ending if left.get(step.delivery.pair) == step.delivery.delivery_id]


def _is_over(step: Step, passed: set[int]) -> bool:
    return step.delivery.is_await or step.delivery.delivery_id in passed


def _wake(store: Store, made: Made) -> None:
    for each in made.woken:
        store.waker.wake(each.holder)
        store.hints.touch(each.partition)
