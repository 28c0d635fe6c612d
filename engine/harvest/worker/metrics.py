"""What a worker measures, and how OpenTelemetry gets it: the seeds' names, a closed set of labels.

Counting is a dictionary's work and always on. Where the process has a meter provider, counters and gauges are told to
it when it asks; values of histograms go there one by one, so that they cost only those who look at them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import asyncpg
from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation

from harvest import clock
from harvest.history.built_in import CANARY
from harvest.history.states import State
from harvest.store.measures import CATALOGUE, PREFIX, TOLD_BOUNDS, Key, Metric, Totals, with_derived
from harvest.store.pool import passing_reason

_TOTALS_SECONDS: Final = 0.5
WORKFLOW_TASK: Final = "workflow_task"
# A decision that others keep overtaking is committed under a lock, on the pool of what people write.
SITES: Final = {
    "commit": WORKFLOW_TASK,
    "write": WORKFLOW_TASK,
    "claim": "claim",
    "scan": "scan",
    "deliver": "delivery",
}
"""What a worker does on each of its pools, as the retries of the database name it."""
_WORDS: Final = {state: state.name.lower() for state in State}


class Measures:
    """The totals of one worker on one shard. `fresh` is what was measured since the last `flush`."""

    def __init__(self, shard_id: int) -> None:
        self.fresh = Totals()
        self.whole = Totals()
        self.records = has_meter()
        self._shard = str(shard_id)
        # What has not happened yet is told as 0: an alert on its rise needs a beginning.
        for metric in CATALOGUE.values():
            if metric.kind == "counter" and metric.labels in ((), ("shard",)):
                self.count((metric.name, *(self._shard for _ in metric.labels)), 0)

    def flush(self) -> Totals:
        """Take what is fresh, without the engine's own runs; from now on it is in `whole` too."""
        fresh, self.fresh = self.fresh, Totals()
        _leave_out(fresh.counters, 1)
        _leave_out(fresh.shares, 0)
        _leave_out(fresh.spreads, 1)
        whole = Totals()
        whole.add(self.whole)
        whole.add(fresh)
        # Whoever reads it in another thread goes on with the one before.
        self.whole = whole
        return fresh

    def count(self, key: Key, amount: float = 1) -> None:
        """Add to a counter of the catalogue: its name, then the values of its labels."""
        self.fresh.count(key, amount)

    def observe(self, key: Key, seconds: float) -> None:
        """Add to a histogram of the catalogue."""
        self.fresh.observe(key, seconds)
        if self.records:
            self.record(key, seconds)

    def record(self, key: Key, value: float) -> None:
        """Tell OpenTelemetry of a value."""
        PROCESS.record(key, value)

    def dispatched(self, queue: str, waited: float) -> None:
        """A workflow task was taken from its queue, so many seconds after it was due."""
        self.count(("shard.dispatched", self._shard))
        self.observe(("queue.schedule_to_start", queue, "workflow"), waited)

    def activity_taken(self, queue: str, waited: float) -> None:
        """An activity was taken from its queue, so many seconds after it was due."""
        self.count(("shard.dispatched", self._shard))
        self.observe(("queue.schedule_to_start", queue, "activity"), waited)

    def activity_ended(self, name: str, status: str, seconds: float) -> None:
        """An attempt is over: `completed`, `failed`, `timed_out`, `retried`, or `overruled` by its timeout."""
        self.observe(("activity.duration", name, status), seconds)

    def activity_timed_out(self, name: str, kind: str) -> None:
        """A timeout has ended an attempt: `schedule_to_start`, `start_to_close`, `heartbeat` or `schedule_to_close`."""
        self.count(("activity.timeouts", name, kind))

    def update_answered(self, workflow: str, status: str, seconds: float) -> None:
        """The answer to an update was committed: `completed`, `failed` or `rejected`."""
        self.observe(("update.duration", workflow, status), seconds)

    def question_answered(self, workflow: str, kind: str, status: str, seconds: float) -> None:
        """A question to running code was answered: `completed` or `failed`."""
        self.observe(("query.duration", workflow, kind, status), seconds)

    def refused(self, site: str, error: asyncpg.PostgresError) -> None:
        """What was refused for now is sent again."""
        self.count(("db.transaction_retry", site, passing_reason(error)))

    def closed(self, workflow: str, state: State, seconds: float, events: int) -> None:
        """A decision has closed a run, so many seconds after its start and with so many events."""
        self.observe(("workflow.duration", workflow, _WORDS[state]), seconds)
        self.observe(("workflow.history_size", workflow), events / 1e6)

    def fenced(self) -> None:
        """A decision was refused because another holds the run."""
        self.count(("shard.fenced", self._shard))


def _leave_out(figures: dict[Key, Any], place: int) -> None:
    """Drop what was measured of canaries: it says nothing of what users run."""
    for key in [key for key in figures if len(key) > place and key[place] == CANARY]:
        del figures[key]


class Sampled(Protocol):
    """What a process sees of more than itself, told only where it tells of itself: the fleet's figures have it once."""

    @property
    def own(self) -> Mapping[Key, float]:
        """Gauges as they were seen last; never changed, but replaced."""


class ProcessMetrics:
    """All measures of this process as OpenTelemetry sees them. What has ended stays in the counters."""

    def __init__(self) -> None:
        self._live: list[Measures] = []
        self._sampled: list[Sampled] = []
        self._ended = Totals()
        self._histograms: dict[str, Any] = {}
        self._begun = False
        self._summed = with_derived(Totals())
        self._summed_at = float("-inf")
        self._lock = threading.Lock()

    def join(self, measures: Measures) -> None:
        """Tell of these from now on."""
        with self._lock:
            self._live.append(measures)
            if not self._begun:
                self._begun = True
                self._make()

    def leave(self, measures: Measures) -> None:
        """These will not grow any more."""
        with self._lock:
            if measures in self._live:
                self._live.remove(measures)
                ended = Totals()
                ended.add(self._ended)
                ended.add(measures.whole)
                ended.gauges = {}
                self._ended = ended

    def show(self, sampled: Sampled) -> None:
        """Tell of these gauges from now on."""
        with self._lock:
            self._sampled.append(sampled)

    def hide(self, sampled: Sampled) -> None:
        """Nobody looks any more."""
        with self._lock:
            if sampled in self._sampled:
                self._sampled.remove(sampled)

    def record(self, key: Key, value: float) -> None:
        """Tell of one value of a histogram; before the first has joined, nobody hears of it."""
        metric, histogram = CATALOGUE[key[0]], self._histograms.get(key[0])
        if histogram is not None:
            value = value if metric.unit == "s" else value * 1e6
            histogram.record(value, dict(zip(metric.labels, key[1:], strict=True)))

    def totals(self) -> Totals:
        """The sum of everything in this process, half a second old at most."""
        with self._lock:
            if clock.monotonic() - self._summed_at > _TOTALS_SECONDS:
                found = Totals()
                for part in (self._ended, *(measures.whole for measures in self._live)):
                    found.add(part)
                for sampled in self._sampled:
                    found.gauges.update(sampled.own)
                self._summed, self._summed_at = with_derived(found), clock.monotonic()
            return self._summed

    def _make(self) -> None:
        meter = metrics.get_meter("harvest")
        for metric in CATALOGUE.values():
            name, about, unit = PREFIX + metric.name, metric.about, metric.unit
            if metric.kind == "counter":
                meter.create_observable_counter(name, [self._observed(metric)], unit, about)
            elif metric.kind == "gauge":
                meter.create_observable_gauge(name, [self._observed(metric)], unit, about)
            else:
                scale = 1.0 if unit == "s" else 1e6
                self._histograms[metric.name] = meter.create_histogram(
                    name, unit, about, explicit_bucket_boundaries_advisory=[bound * scale for bound in TOLD_BOUNDS]
                )

    def _observed(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            totals = self.totals()
            figures = totals.counters if metric.kind == "counter" else totals.gauges
            return [
                Observation(figure, dict(zip(metric.labels, key[1:], strict=True)))
                for key, figure in figures.items()
                if key[0] == metric.name
            ]

        return observe


PROCESS: Final = ProcessMetrics()


def has_meter() -> bool:
    """Whether this process has a meter provider: without one there is nobody to tell."""
    return not type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics")


def span_tracer() -> trace.Tracer | None:
    """The tracer of this process; None when it has no tracer provider."""
    if type(trace.get_tracer_provider()).__module__.startswith("opentelemetry.trace"):
        return None
    return trace.get_tracer("harvest")
