"""Makes runs resident before their first decision here: those of partitions that another worker hands over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from harvest import clock
from harvest.history.events import Event
from harvest.store import claims, partitions
from harvest.store.partitions import Warmable
from harvest.store.store import Store
from harvest.worker.committer import Committer
from harvest.worker.deciding import Decider
from harvest.worker.options import Counters
from harvest.worker.work import Work

CHUNK: Final = 100
MOST_EVENTS: Final = 5_000


class Warmer:
    """One for each shard of a worker: replays what was decided, and keeps the parked code."""

    def __init__(self, store: Store, decider: Decider, committer: Committer, counters: Counters) -> None:
        self._store = store
        self._decider = decider
        self._committer = committer
        self._counters = counters

    async def warm(self, execution_ids: Sequence[UUID]) -> None:
        """Make these runs resident, as far as they are open, have been decided and are not here already."""
        wanted = [each for each in execution_ids if not self._is_here(each)]
        for first in range(0, len(wanted), CHUNK):
            for runs in _groups(await partitions.warmable(self._store, wanted[first : first + CHUNK])):
                await self._load(runs)

    async def _load(self, runs: list[Warmable]) -> None:
        events = await claims.load_events(self._store, {run.execution_id: 1 for run in runs})
        self._counters.statements += 1
        for run in runs:
            loaded = events[run.execution_id]
            self._counters.note_loaded(loaded)
            self._keep(run, [event for event in loaded if event.event_id <= run.decided_through])
            await clock.sleep(0)

    def _is_here(self, execution_id: UUID) -> bool:
        return execution_id in self._committer.held or self._committer.residents.find(execution_id) is not None

    def _keep(self, run: Warmable, decided: list[Event]) -> None:
        if self._is_here(run.execution_id) or len(decided) < run.decided_through:
            return
        work = Work(
            run.execution_id,
            partition=run.partition,
            workflow_name=run.workflow_name,
            workflow_id=run.workflow_id,
            version=run.version,
            queue=run.queue,
            deadline_at=run.deadline_at,
        )
        work.decided_through_hint = run.decided_through
        work.delta = decided
        if self._decider.warm(work):
            self._counters.warmed += 1
            self._committer.residents.put(work)
        else:
            self._committer.residents.let_go(work)


def _groups(runs: list[Warmable]) -> Iterator[list[Warmable]]:
    """Runs to be loaded together: long histories go alone."""
    group: list[Warmable] = []
    events = 0
    for run in runs:
        if group and events + run.decided_through > MOST_EVENTS:
            yield group
            group, events = [], 0
        group.append(run)
        events += run.decided_through
    if group:
        yield group
