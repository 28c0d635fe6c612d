"""Finds the runs that deliveries know by name: by looking at every shard, the open run before all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.history.deliveries import DeliveryKind
from harvest.shards import MissingShard, Shards
from harvest.shards.keys import NO_ANSWER, NO_POOL, KeyedRun, meant
from harvest.store import deliveries
from harvest.store.deliveries import Delivery, PutOff
from harvest.store.pool import Record
from harvest.store.store import Store
from harvest.worker import delivering
from harvest.worker.delivering import Step
from harvest.worker.metrics import Measures

# A shard that did not answer is not asked again for so long: a backlog pays for it once, not once a row.
AWAY_SECONDS: Final = 2.0
CANCEL: Final = int(DeliveryKind.EXTERNAL_CANCEL)
SIGNAL: Final = int(DeliveryKind.EXTERNAL_SIGNAL)


class Ask(Struct, frozen=True):
    """A run that a cancel by name has found. The cancel reports when another look over all shards finds no more."""

    delivery: Delivery
    run: UUID


class Sought(Struct):
    """What becomes of deliveries by name: made at a shard, asked at one, answered, put off; `left` are tried soon."""

    by_shard: dict[int, list[Delivery]] = msgspec.field(default_factory=dict)
    targets: dict[int, UUID | None] = msgspec.field(default_factory=dict)
    asks: dict[int, list[Ask]] = msgspec.field(default_factory=dict)
    answers: list[Step] = msgspec.field(default_factory=list)
    put_off: list[PutOff] = msgspec.field(default_factory=list)
    left: list[Delivery] = msgspec.field(default_factory=list)


class _Look(Struct, frozen=True):
    """What one shard has: runs by business key, and what deliveries have left there when they were made before."""

    runs: list[tuple[UUID, KeyedRun]]
    made: dict[tuple[UUID, str], UUID | None]
    asked: dict[tuple[UUID, str], UUID | None]


class _Seen(Struct):
    """What all shards have that could be looked at, and those that could not."""

    runs: dict[UUID, list[KeyedRun]] = msgspec.field(default_factory=dict)
    made: dict[tuple[UUID, str], UUID | None] = msgspec.field(default_factory=dict)
    asked: dict[tuple[UUID, str], UUID | None] = msgspec.field(default_factory=dict)
    missing: tuple[MissingShard, ...] = ()

    def asked_by(self, delivery: Delivery) -> UUID | None:
        """A run that this cancel has asked before."""
        beginning = f"{delivery.key}/"
        return next(
            (
                run
                for (source, key), run in self.asked.items()
                if source == delivery.source_execution_id and key.startswith(beginning)
            ),
            None,
        )


class Seeker:
    """Resolves the names of one shard's deliveries. `Could not look` is never `not there`: such a delivery waits."""

    def __init__(self, shards: Shards, store: Store, measures: Measures) -> None:
        self._shards = shards
        self._store = store
        self._measures = measures
        self._away: dict[int, tuple[float, MissingShard]] = {}
        self._oldest: dict[int, float] = {}

    @property
    def is_inline(self) -> bool:
        """Whether a name can mean a run of this shard alone."""
        return self._shards.router.readable == (self._store.shard_id,)

    async def seek(self, named: list[Delivery]) -> Sought:
        """Decide what becomes of each, in the order of each pair. Raises what this shard raises where it is alone."""
        seen = await self._look(named)
        sought = Sought()
        under_way: set[tuple[UUID, UUID]] = set()
        held: set[tuple[UUID, UUID]] = set()
        for delivery in named:
            if delivery.pair in held:
                sought.left.append(delivery)
            elif delivery.kind == CANCEL and not self.is_inline:
                if delivery.pair in under_way:
                    sought.left.append(delivery)
                else:
                    self._cancel(sought, seen, delivery)
                held.add(delivery.pair)
            elif not self._aim(sought, seen, delivery):
                held.add(delivery.pair)
            elif not delivery.is_await:
                under_way.add(delivery.pair)
        return sought

    def _aim(self, sought: Sought, seen: _Seen, delivery: Delivery) -> bool:
        """Find its target; tells whether what follows in its pair may follow at once."""
        place = (delivery.source_execution_id, delivery.key)
        if place in seen.made:
            step = delivering.step_of(delivery)
            delivering.made_before(step, seen.made[place])
            sought.answers.append(step)
            return False
        run = meant(seen.runs.get(delivery.target_execution_id, ()))
        # An earlier try may have been made on a missing shard and its answer lost: only that shard knows.
        repeats = delivery.kind == SIGNAL and delivery.attempts > 0
        if seen.missing and (run is None or not run.is_open or repeats):
            self._wait(sought, seen, delivery)
            return delivery.is_await
        if seen.missing:
            self._measures.count(("external_signal.by_id_found_over_incomplete_fanout",))
        sought.targets[delivery.delivery_id] = None if run is None else run.execution_id
        sought.by_shard.setdefault(self._store.shard_id if run is None else run.shard_id, []).append(delivery)
        return True

    def _cancel(self, sought: Sought, seen: _Seen, delivery: Delivery) -> None:
        """Ask the newest open run that nobody has asked yet; where there is none on any shard, report.

        Looking at the shards takes a while, and a run of the same name may start meanwhile on one that was looked at:
        the report comes from a later look than the request, so that such a run is found and asked, too.
        """
        runs = seen.runs.get(delivery.target_execution_id, [])
        unasked = meant(run for run in runs if run.is_open and not run.asked)
        if unasked is not None:
            if seen.missing:
                self._measures.count(("external_signal.by_id_found_over_incomplete_fanout",))
            sought.asks.setdefault(unasked.shard_id, []).append(Ask(delivery, unasked.execution_id))
        elif seen.missing:
            self._wait(sought, seen, delivery)
        else:
            step = delivering.step_of(delivery)
            delivering.report_cancel(step, seen.asked_by(delivery), meant(runs))
            sought.answers.append(step)

    def _wait(self, sought: Sought, seen: _Seen, delivery: Delivery) -> None:
        for shard in seen.missing:
            kind = NO_ANSWER if shard.shard_id in self._shards.stores else NO_POOL
            self._measures.count(("external_signal.by_id_indeterminate_shard", str(shard.shard_id), kind))
        reasons = "; ".join(f"shard {each.shard_id}: {each.reason}" for each in seen.missing)
        sought.put_off.append(delivering.unreachable(delivery, reasons))

    async def _look(self, named: list[Delivery]) -> _Seen:
        if self.is_inline:
            return _together([await self._read(self._store, named)], ())
        now = clock.monotonic()
        self._away = {shard: each for shard, each in self._away.items() if each[0] > now}
        expected = [shard for shard in self._shards.router.readable if shard not in self._away]

        async def read(store: Store) -> list[_Look]:
            return [await self._read(store, named)]

        partial = await self._shards.fan_out(read, over=expected)
        until = clock.monotonic() + AWAY_SECONDS
        missing = (*(each for _, each in self._away.values()), *partial.missing)
        self._away.update({each.shard_id: (until, each) for each in partial.missing})
        return _together(partial.rows, missing)

    async def _read(self, store: Store, named: list[Delivery]) -> _Look:
        keyed = [each for each in named if each.kind == SIGNAL]
        cancelling = {each.source_execution_id for each in named if each.kind == CANCEL}
        async with store.deliver.connection() as connection:
            rows = await deliveries.by_keys(connection, {each.target_execution_id for each in named})
            if self.is_inline:
                return _Look([(key, _run(store, row)) for key, row in rows.items()], {}, {})
            made = await deliveries.applied(connection, keyed) if keyed else {}
            left = await deliveries.left_by(connection, cancelling, f"delivery:{CANCEL}/") if cancelling else []
        return _Look(
            [(key, _run(store, row)) for key, row in rows.items()],
            made,
            {(row["execution_id"], row["key"]): row["written_to"] for row in left},
        )

    async def look_at_age(self) -> None:
        """Note for how long the oldest signal and the oldest cancel have waited for shards that were not looked at."""
        async with self._store.deliver.connection() as connection:
            found = await deliveries.unlocated(connection, (SIGNAL, CANCEL))
        now = clock.monotonic()
        self._oldest = {kind: now - age for kind, age in found.items()}

    def ages(self) -> Iterable[tuple[tuple[str, ...], float]]:
        """The same, as gauges of now."""
        now, shard = clock.monotonic(), str(self._store.shard_id)
        for kind, what in ((SIGNAL, "external_signal"), (CANCEL, "external_cancel")):
            began = self._oldest.get(kind)
            yield (f"{what}.by_id_oldest_pending_indeterminate_age", shard), 0.0 if began is None else now - began


def _run(store: Store, row: Record) -> KeyedRun:
    return KeyedRun(store.shard_id, row["execution_id"], row["state"], row["started_at"], row["asked"])


def _together(looks: Iterable[_Look], missing: tuple[MissingShard, ...]) -> _Seen:
    seen = _Seen(missing=missing)
    for look in looks:
        seen.made.update(look.made)
        seen.asked.update(look.asked)
        for key, run in look.runs:
            seen.runs.setdefault(key, []).append(run)
    return seen
