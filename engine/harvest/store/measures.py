"""What a process measures: the closed catalogue of names and labels, and the totals of one process on one shard.

Names are the seeds'. A label is never an execution, a workflow id or a worker: the number of series stays bounded by
what is deployed.
"""

from __future__ import annotations

import itertools
from typing import Final, Literal

from msgspec import Struct

Kind = Literal["counter", "histogram", "gauge"]
Key = tuple[str, ...]

LABELS: Final = frozenset(
    {"workflow", "activity", "queue", "status", "shard", "kind", "name", "reason", "op", "dimension", "outcome", "site"}
)
BOUNDS: Final[tuple[float, ...]] = tuple(float(2**power) / 1e6 for power in range(27))
"""Upper bounds of a histogram's buckets in seconds, from a microsecond to 67 s, each twice the one before; one more
bucket has the rest. Histograms of numbers have the same bounds times a million."""
_REST: Final = len(BOUNDS)


class Metric(Struct, frozen=True):
    """One entry: what it counts, in what unit (`s`, `By`, or nothing), and its labels in the order of a key."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    about: str


def _metrics(*rows: tuple[str, Kind, str, str, str]) -> dict[str, Metric]:
    return {name: Metric(name, kind, unit, tuple(labels.split()), about) for name, kind, unit, labels, about in rows}


CATALOGUE: Final = _metrics(
    ("workflow.started", "counter", "", "workflow", "Runs whose first decision was committed."),
    (
        "workflow.terminal",
        "counter",
        "",
        "workflow outcome",
        "Runs closed by a decision or their deadline, by the state they closed in.",
    ),
    (
        "workflow.duration",
        "histogram",
        "s",
        "workflow outcome",
        "From the start of a run to the decision that closed it.",
    ),
    ("workflow.history_size", "histogram", "events", "workflow", "Events in the histories of runs as they closed."),
    ("workflow.continue_as_new", "counter", "", "workflow", "Runs that went on as another."),
    ("workflow.timeout", "counter", "", "workflow", "Runs that their deadline ended."),
    (
        "workflow.cache_hit",
        "counter",
        "",
        "workflow",
        "Decisions that read no history but what was new to this worker.",
    ),
    ("workflow.cache_miss", "counter", "", "workflow", "Decisions for which the whole history was read."),
    ("workflow.resident", "counter", "", "workflow outcome", "Attempts to decide, by how they began."),
    ("workflow.resident.duration", "histogram", "s", "workflow outcome", "From taking a run until its code had run."),
    ("workflow.cold", "counter", "", "workflow reason", "Attempts to decide that were no hit, by why."),
    ("workflow.events_loaded", "counter", "", "workflow", "Events of histories read for decisions."),
    ("workflow.bytes_loaded", "counter", "By", "workflow", "Bytes of histories read for decisions."),
    ("activity.attempts", "counter", "", "activity", "Attempts of activities that ended here."),
    ("activity.duration", "histogram", "s", "activity status", "How long attempts ran, by how they ended."),
    ("activity.failed", "counter", "", "activity", "Activities that failed for good."),
    ("activity.retries", "counter", "", "activity", "Attempts after which another follows."),
    (
        "activity.timeouts",
        "counter",
        "",
        "activity kind",
        "Timeouts that came to activities, by which of the four it was.",
    ),
    ("timer.started", "counter", "", "workflow", "Timers that committed decisions set."),
    ("timer.fired", "counter", "", "workflow", "Timers that fired."),
    (
        "signal.received",
        "counter",
        "",
        "workflow",
        "Signals that committed decisions took in; one that a run hands on unread counts again for its successor.",
    ),
    ("signal.unhandled", "counter", "", "workflow", "Signals that nobody had taken when a decision closed their run."),
    (
        "update.admitted",
        "counter",
        "",
        "workflow",
        "Updates that committed decisions took in; one that a run hands on counts again for its successor.",
    ),
    (
        "update.duration",
        "histogram",
        "s",
        "workflow status",
        "From when an update was admitted until its answer was committed: `completed`, `failed` or `rejected`.",
    ),
    ("update.completed", "counter", "", "workflow", "Updates that their handler answered."),
    ("update.failed", "counter", "", "workflow", "Updates whose handler failed, or had no time to end."),
    ("update.rejected", "counter", "", "workflow", "Updates that were refused before a handler had them."),
    (
        "query.duration",
        "histogram",
        "s",
        "workflow kind status",
        "How long a worker took over a question to a run's code (`query`, `handlers`, `stack`), by how it ended: "
        "`completed` or `failed`.",
    ),
    ("query.resident", "counter", "", "outcome", "Questions that parked code answered, `hit`, and replays, `cold`."),
    ("queue.dispatched", "counter", "", "queue kind", "Workflow tasks and activities taken from a queue."),
    ("queue.schedule_to_start", "histogram", "s", "queue kind", "From when a task was due until it was taken."),
    (
        "queue.depth",
        "gauge",
        "",
        "queue",
        "Tasks that could be taken now, over all shards, or at least so many; of the console, and of a worker at its "
        "own port for its queues and shards.",
    ),
    ("queue.oldest_pending_age", "gauge", "s", "queue", "How long the oldest of them has been due; told by the same."),
    ("shard.dispatched", "counter", "", "shard", "Workflow tasks and activities taken from a shard."),
    (
        "shard.stranded_pending",
        "gauge",
        "",
        "shard",
        "Tasks that no living worker of their shard would take, or at least so many.",
    ),
    ("shard.ready", "gauge", "", "shard", "1 for a shard that is ready for work, else 0; of the console."),
    ("shard.live_workers", "gauge", "", "shard", "Living, active workers on a shard; of the console."),
    (
        "external_signal.by_id_indeterminate_shard",
        "counter",
        "",
        "shard kind",
        "Deliveries by workflow id that wait because a shard could not be looked at: `no_pool` here, or `no_answer`.",
    ),
    (
        "external_signal.by_id_found_over_incomplete_fanout",
        "counter",
        "",
        "",
        "Deliveries by workflow id to an open run that was found while a shard could not be looked at.",
    ),
    (
        "external_signal.by_id_oldest_pending_indeterminate_age",
        "gauge",
        "s",
        "shard",
        "How long the oldest such signal of a shard's runs has waited.",
    ),
    (
        "external_cancel.by_id_oldest_pending_indeterminate_age",
        "gauge",
        "s",
        "shard",
        "How long the oldest such cancel of a shard's runs has waited.",
    ),
    ("shard.fenced", "counter", "", "shard", "Decisions refused because another holds the run by now."),
    (
        "cross_shard_child.in_flight",
        "gauge",
        "",
        "shard status",
        "Children on another shard, or at least so many; of the console.",
    ),
    ("cross_shard_child.oldest_age", "gauge", "s", "shard", "Age of the oldest of them; of the console."),
    (
        "cross_shard_child.failing",
        "gauge",
        "",
        "shard kind",
        "Deliveries between them that fail, or at least so many; of the console.",
    ),
    ("commit.statements", "counter", "", "", "Statements that committed decisions, several each."),
    ("commit.answers", "counter", "", "status", "What became of decisions that were sent."),
    ("worker.lease_lost", "counter", "", "", "Leases that this worker lost."),
    ("worker.definition_unavailable", "counter", "", "", "Tasks left to others because their code is not here."),
    ("worker.slow_steps", "counter", "", "", "Steps of workflow code that held the worker for over 50 ms."),
    ("worker.evicted", "counter", "", "", "Parked runs let go to keep memory within its bounds."),
    ("worker.waits", "counter", "", "kind", "Looks that found nothing, and pauses after those and after errors."),
    ("worker.failures", "counter", "", "", "Errors of the database or the network that a worker met."),
    (
        "worker.pollers",
        "gauge",
        "",
        "queue",
        "Living workers that take a queue, on each shard; told as `queue.depth` is.",
    ),
    ("worker.slots_in_use", "gauge", "", "kind", "Slots that are taken."),
    ("worker.slots_available", "gauge", "", "kind", "Slots that are free."),
    ("worker.residents", "gauge", "", "", "Parked runs in memory, of all shards."),
    ("worker.resident_bytes", "gauge", "By", "", "Roughly what they take."),
    ("db.pool.in_use", "gauge", "", "name", "Connections of a pool that are busy."),
    ("db.pool.idle", "gauge", "", "name", "Connections of a pool that are open and free."),
    ("db.pool.wait_duration", "histogram", "s", "name", "How long callers waited for a busy pool."),
    (
        "db.query.duration",
        "histogram",
        "s",
        "name",
        "How long a connection of a pool was taken, each time for one statement or one transaction.",
    ),
    (
        "db.transaction_retry",
        "counter",
        "",
        "site reason",
        "What the database refused for now and a worker repeats: a commit (`workflow_task`; where a console is in the "
        "same process, what people write as well), a `claim`, a `delivery`, "
        "or a timer, timeout or result (`scan`); for a `deadlock`, `serialization`, `lock`, `cancelled`, `read_only`, "
        "`no_room`, `system_error` or `rolled_back`.",
    ),
    (
        "task.quarantined",
        "counter",
        "",
        "kind",
        "Runs put aside and activities ended because their workers died of them.",
    ),
    ("scanner.tick", "histogram", "s", "name", "How long the passes of the scanner took."),
)
PREFIX: Final = "harvest."
TOLD_BOUNDS: Final = BOUNDS[4::2]
"""The bounds that leave this house: from 16 microseconds on, each four times the one before."""


class Spread(Struct):
    """A histogram: how many, their sum, and the count of each bucket."""

    count: int = 0
    sum: float = 0.0
    buckets: list[int] = []

    def add(self, other: Spread) -> None:
        """Take in another of the same bounds."""
        self.count += other.count
        self.sum += other.sum
        if len(self.buckets) < len(other.buckets):
            self.buckets = self.buckets + [0] * (len(other.buckets) - len(self.buckets))
        for place, count in enumerate(other.buckets):
            self.buckets[place] += count

    def quantile(self, share: float) -> float:
        """The value below which `share` of all lie, in seconds, as far as buckets tell; 0 when there are none."""
        wanted = share * self.count
        below = 0
        for place, count in enumerate(self.buckets):
            if count and below + count >= wanted:
                low = BOUNDS[place - 1] if place else 0.0
                high = BOUNDS[min(place, len(BOUNDS) - 1)]
                return low + (high - low) * max(0.0, wanted - below) / count
            below += count
        return 0.0


def new_spread() -> Spread:
    """An empty histogram with all its buckets."""
    return Spread(buckets=[0] * (len(BOUNDS) + 1))


def bucket_of(nanoseconds: int) -> int:
    """The bucket that a duration falls into."""
    place = ((nanoseconds - 1) // 1_000).bit_length() if nanoseconds > 1_000 else 0
    return place if place < _REST else _REST


def told_buckets(spread: Spread) -> list[int]:
    """How many lie at or below each of `TOLD_BOUNDS`, and at last how many there are."""
    below = list(itertools.accumulate(spread.buckets))
    return [*below[4:-1:2], spread.count]


class Share(Spread):
    """The attempts of one type, queue, outcome, reason and source; as a histogram, of `workflow.resident.duration`."""

    events: int = 0
    bytes: int = 0


class Totals(Struct):
    """What has been measured. Keys are a metric's name and its labels' values; those of `shares` are workflow type,
    queue, outcome, reason and source."""

    counters: dict[Key, float] = {}
    spreads: dict[Key, Spread] = {}
    gauges: dict[Key, float] = {}
    shares: dict[Key, Share] = {}

    def count(self, key: Key, amount: float = 1) -> None:
        """Add to a counter."""
        self.counters[key] = self.counters.get(key, 0) + amount

    def observe(self, key: Key, seconds: float) -> None:
        """Add to a histogram of seconds, or of millionths of a number."""
        spread = self.spreads.get(key)
        if spread is None:
            spread = self.spreads[key] = new_spread()
        spread.count += 1
        spread.sum += seconds
        spread.buckets[bucket_of(int(seconds * 1e9))] += 1

    def add(self, other: Totals) -> None:
        """Take in what another has measured; gauges are the other's."""
        for key, amount in other.counters.items():
            self.count(key, amount)
        for key, spread in other.spreads.items():
            self.spreads.setdefault(key, new_spread()).add(spread)
        for key, share in other.shares.items():
            mine = self.shares.get(key)
            if mine is None:
                mine = self.shares[key] = Share(buckets=[0] * (len(BOUNDS) + 1))
            mine.add(share)
            mine.events += share.events
            mine.bytes += share.bytes
        self.gauges.update(other.gauges)


def with_derived(totals: Totals) -> Totals:
    """The same with the metrics that follow from others, so that nobody has to count them; `totals` stays as it is."""
    told = Totals(dict(totals.counters), dict(totals.spreads), dict(totals.gauges))
    for key, share in totals.shares.items():
        _derive_of_share(told, key, share)
    for key, amount in totals.counters.items():
        if key[0] == "workflow.timeout":
            told.count(("workflow.terminal", key[1], "timed_out"), amount)
    for key, spread in totals.spreads.items():
        if key[0] == "queue.schedule_to_start":
            told.count(("queue.dispatched", *key[1:]), spread.count)
        elif key[0] == "update.duration":
            told.count((f"update.{key[2]}", key[1]), spread.count)
        elif key[0] == "workflow.duration":
            told.count(("workflow.terminal", *key[1:]), spread.count)
            if key[2] == "continued_as_new":
                told.count(("workflow.continue_as_new", key[1]), spread.count)
        elif key[0] == "activity.duration":
            told.count(("activity.attempts", key[1]), spread.count)
            if key[2] in _BECAME:
                told.count((_BECAME[key[2]], key[1]), spread.count)
    return told


_BECAME: Final = {"failed": "activity.failed", "timed_out": "activity.failed", "retried": "activity.retries"}


def _derive_of_share(told: Totals, key: Key, share: Share) -> None:
    workflow, _, outcome, reason, source = key
    cache = "workflow.cache_miss" if source == "postgres" else "workflow.cache_hit"
    told.count((cache, workflow), share.count)
    told.count(("workflow.resident", workflow, outcome), share.count)
    if reason:
        told.count(("workflow.cold", workflow, reason), share.count)
    if reason == "first":
        told.count(("workflow.started", workflow), share.count)
    told.count(("workflow.events_loaded", workflow), share.events)
    told.count(("workflow.bytes_loaded", workflow), share.bytes)
    told.spreads.setdefault(("workflow.resident.duration", workflow, outcome), new_spread()).add(share)
