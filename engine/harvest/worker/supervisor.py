"""What bounds the claim-and-execute cycles of a worker: back-off of its claim loops, and what it cannot execute."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from harvest import clock
from harvest.definitions.registry import Registry
from harvest.store.claims import Claimed
from harvest.worker.options import Counters

FIRST_PAUSE: Final = 0.025
LONGEST_PAUSE: Final = 5.0


class Backoff:
    """The pauses of one claim loop: they double while nothing is found or asking fails, and begin anew with work.

    A wake cuts a pause short, and after an idle one they begin anew, too. What was missed is found within
    `poll_interval` seconds all the same: idle pauses grow no longer than that.
    """

    def __init__(self, counters: Counters, poll_interval: float) -> None:
        self._counters = counters
        self._longest_idle = min(poll_interval, LONGEST_PAUSE)
        self._next = FIRST_PAUSE

    def worked(self) -> None:
        """A cycle has begun."""
        self._next = FIRST_PAUSE

    async def idle(self, wake: asyncio.Event, at_most: float | None = None) -> None:
        """Nothing was found: wait for a wake, or until it is time to look again, in `at_most` seconds if given."""
        self._counters.idle_polls += 1
        pause = min(self._grow(self._longest_idle), self._longest_idle)
        if await clock.wait_event(wake, pause if at_most is None else min(pause, at_most)):
            self._next = FIRST_PAUSE

    async def failed(self, wake: asyncio.Event) -> None:
        """Asking has failed. A wake cuts the wait short, but does not make a shard that fails be asked without end."""
        self._counters.infrastructure_errors += 1
        pause = self._grow(LONGEST_PAUSE)
        await clock.sleep(FIRST_PAUSE)
        await clock.wait_event(wake, max(0.0, pause - FIRST_PAUSE))

    def _grow(self, longest: float) -> float:
        self._counters.backoffs += 1
        pause = min(self._next, longest)
        self._next = min(pause * 2, longest)
        return clock.jittered(pause)


class Lacking:
    """The workflow definitions that this worker was given tasks of and has no code for, `name/version`.

    Such a task is deferred: others may have the code. This worker takes no more of them until its registry has it.
    """

    def __init__(self, registry: Registry, counters: Counters) -> None:
        self._registry = registry
        self._counters = counters
        self._known: dict[str, tuple[str, int]] = {}

    @property
    def definitions(self) -> list[str]:
        """What is not to be taken now. Any thread may ask."""
        if not self._known:
            return []
        return [text for text, definition in list(self._known.items()) if self._registry.workflow(*definition) is None]

    def split(self, claimed: Sequence[Claimed]) -> tuple[list[Claimed], list[Claimed]]:
        """What can be executed here, and what is to be deferred: that is noted and counted."""
        able: list[Claimed] = []
        unable: list[Claimed] = []
        for each in claimed:
            if self._registry.workflow(each.workflow_name, each.version) is not None:
                able.append(each)
                continue
            unable.append(each)
            self._known[f"{each.workflow_name}/{each.version}"] = (each.workflow_name, each.version)
        self._counters.definitions_unavailable += len(unable)
        return able, unable
