"""The activity slots of a process, which its shards share: a backlog on one must not keep the others from theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from harvest import clock

if TYPE_CHECKING:
    from harvest.replay.commands import ScheduleActivity
    from harvest.worker.activities import ActivityRunner

PATIENCE_SECONDS: Final = 0.5


class _Wait(msgspec.Struct):
    """A shard that found no slot. `offered_at` is since when one is free for it."""

    wake: Callable[[], None]
    offered_at: float | None = None


class Slots:
    """A shard may take all that are free while no other one waits; while one does, no more than an equal share.

    So each of two shards with a backlog comes to half of them as slots get free, and one without a backlog keeps
    nothing from the other. Who waits has one before those who came later. A shard that was offered a slot and does not
    come for it loses its turn: its database may not answer.
    """

    def __init__(self, total: int) -> None:
        self.free = total
        self._total = total
        self._used: dict[int, int] = {}
        self._waiting: dict[int, _Wait] = {}

    def room(self, shard_id: int) -> int:
        """How many a shard may take now."""
        if not self._waiting or not (ahead := self._others_waiting(shard_id)):
            return self.free
        share = self._share()
        kept = sum(before and self._used.get(other, 0) < share for other, before in ahead)
        return max(0, min(self.free - kept, share - self._used.get(shard_id, 0)))

    def take(self, shard_id: int) -> None:
        """Take one."""
        self.free -= 1
        self._used[shard_id] = self._used.get(shard_id, 0) + 1

    def leave(self, shard_id: int) -> None:
        """Give one back; shards that wait and have less than their share hear of it."""
        self.free += 1
        self._used[shard_id] -= 1
        if self._waiting and len(self._taking() | {shard_id}) > 1:
            share, now = self._share(), clock.monotonic()
            for other, wait in self._waiting.items():
                if self._used.get(other, 0) < share:
                    wait.offered_at = wait.offered_at or now
                    wait.wake()

    def wait(self, shard_id: int, wake: Callable[[], None]) -> None:
        """A shard has found no room: `wake` is called when there is some. Who waits already keeps its place."""
        self._waiting[shard_id] = _Wait(wake)

    def content(self, shard_id: int) -> None:
        """A shard has no further use for slots now, or cannot come for them: those who were held back may have them."""
        if self._waiting and self._waiting.pop(shard_id, None) is not None:
            for wait in self._waiting.values():
                wait.wake()

    def _others_waiting(self, shard_id: int) -> list[tuple[int, bool]]:
        """The other shards that wait, and whether each came before this one."""
        late = clock.monotonic() - PATIENCE_SECONDS
        for other, wait in list(self._waiting.items()):
            if other != shard_id and wait.offered_at is not None and wait.offered_at < late:
                del self._waiting[other]
        found, before = [], True
        for other in self._waiting:
            if other == shard_id:
                before = False
            else:
                found.append((other, before))
        return found

    def _taking(self) -> set[int]:
        """The shards that have or want slots."""
        return {shard_id for shard_id, count in self._used.items() if count} | self._waiting.keys()

    def _share(self) -> int:
        return max(1, self._total // max(1, len(self._taking())))


class ShardSlots:
    """The slots of a process as the decisions of one shard take them."""

    def __init__(self, runner: ActivityRunner, shard_id: int) -> None:
        self._runner = runner
        self._shard_id = shard_id

    def reserve(self, command: ScheduleActivity) -> bool:
        """Take a slot for an activity that its decision starts here, or leave it to whoever claims it."""
        return self._runner.reserve(self._shard_id, command)

    def give_back(self, command: ScheduleActivity) -> None:
        """The decision was refused; its slot is free again."""
        self._runner.give_back(self._shard_id, command)
