"""`/metrics` for Prometheus: what the whole fleet has measured, from the rows that workers write.

Workers are other processes; this one adds up what they have written since it was first asked, so that its counters only
rise. A worker's own metrics, with those of its user's code, are at `harvest worker --metrics-port`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from litestar import Request, Response, get
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from harvest.operations import relay, shard_health
from harvest.operations.warmth import fleet_totals
from harvest.shards import Partial, Shards
from harvest.store.measures import CATALOGUE, TOLD_BOUNDS, Key, Spread, Totals, told_buckets, with_derived
from harvest.store.rollups import Rollup

AnyRequest = Request[Any, Any, Any]
MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# A row is stamped a moment before it can be read.
OVERLAP: Final = timedelta(seconds=10)
FRESH: Final = timedelta(seconds=30)
_UNITS: Final = {"s": "_seconds", "By": "_bytes", "events": "_events"}


class Fleet:
    """The sum of what workers have written since this process was first asked. One a process."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._last: dict[tuple[int, UUID], Rollup] = {}
        self._read_until: dict[int, datetime] = {}
        self._asking = asyncio.Lock()

    async def scrape(self, shards: Shards) -> bytes:
        """Read what is new and answer with everything, in Prometheus' text format."""
        async with self._asking:
            totals, of_now, under_way = await asyncio.gather(
                fleet_totals(shards, self._read_until), shard_health.gauges(shards), relay.gauges(shards)
            )
            self._take(totals)
        registry = CollectorRegistry()
        registry.register(_Told(with_derived(self._totals), self._gauges() | of_now | under_way))
        return generate_latest(registry)

    def _take(self, found: Partial[Rollup]) -> None:
        for rollup in found.rows:
            place = (rollup.shard_id, rollup.worker)
            last = self._last.get(place)
            if last is None or rollup.at > last.at:
                self._totals.add(rollup.totals)
                self._last[place] = rollup
                newest = self._read_until.get(rollup.shard_id)
                read_until = rollup.at - OVERLAP
                self._read_until[rollup.shard_id] = max(newest, read_until) if newest else read_until
        self._forget()

    def _forget(self) -> None:
        """Workers that write no more."""
        newest: dict[int, datetime] = {}
        for (shard_id, _), rollup in self._last.items():
            newest[shard_id] = max(rollup.at, newest.get(shard_id, rollup.at))
        for place, rollup in list(self._last.items()):
            if rollup.at < newest[place[0]] - FRESH:
                del self._last[place]

    def _gauges(self) -> dict[Key, float]:
        """The sum over the workers; what one says of itself on each shard counts once, and of a shard the newest."""
        of_workers: dict[tuple[UUID | None, Key], tuple[datetime, float]] = {}
        sums: dict[Key, float] = {}
        for (_, worker), rollup in self._last.items():
            for key, value in rollup.totals.gauges.items():
                if key[0].startswith(("worker.", "shard.", "external_")):
                    place = (worker if key[0].startswith("worker.") else None, key)
                    known = of_workers.get(place)
                    if known is None or known[0] < rollup.at:
                        of_workers[place] = (rollup.at, value)
                else:
                    sums[key] = sums.get(key, 0) + value
        for (_, key), (_, value) in of_workers.items():
            sums[key] = sums.get(key, 0) + value
        return sums


class _Told(Collector):
    """Totals as Prometheus' client wants them."""

    def __init__(self, totals: Totals, gauges: dict[Key, float]) -> None:
        self._totals = totals
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Every metric of the catalogue that has a value."""
        for name, metric in CATALOGUE.items():
            told = prometheus_name(name, metric.unit)
            if metric.kind == "counter":
                counter = CounterMetricFamily(told, metric.about, labels=metric.labels)
                for key, value in _of(name, self._totals.counters.items()):
                    counter.add_metric(key, value)
                yield counter
            elif metric.kind == "gauge":
                gauge = GaugeMetricFamily(told, metric.about, labels=metric.labels)
                for key, value in _of(name, self._gauges.items()):
                    gauge.add_metric(key, value)
                yield gauge
            else:
                histogram = HistogramMetricFamily(told, metric.about, labels=metric.labels)
                scale = 1.0 if metric.unit == "s" else 1e6
                for key, spread in _of(name, self._totals.spreads.items()):
                    histogram.add_metric(key, _buckets(spread, scale), round(spread.sum * scale, 9))
                yield histogram


def _of(name: str, items: Iterable[tuple[Key, Any]]) -> Iterator[tuple[Sequence[str], Any]]:
    return ((key[1:], value) for key, value in items if key[0] == name)


def _buckets(spread: Spread, scale: float) -> list[tuple[str, float]]:
    counts = told_buckets(spread)
    bounds = [repr(bound * scale) for bound in TOLD_BOUNDS]
    return [(bound, float(count)) for bound, count in zip([*bounds, "+Inf"], counts, strict=True)]


def prometheus_name(name: str, unit: str) -> str:
    """A metric's name in Prometheus, as OpenTelemetry's exporter makes it; counters get `_total` beside."""
    told = "harvest_" + name.replace(".", "_")
    suffix = _UNITS.get(unit, "")
    return told if told.endswith(suffix) else told + suffix


@get(["/metrics", "/api/harvest/admin/metrics"], include_in_schema=False)
async def metrics(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """Prometheus sends the console's bearer token; a shard that does not answer adds nothing this time."""
    fleet: Fleet = request.app.state.setdefault("fleet", Fleet())
    return Response(await fleet.scrape(shards), media_type=MEDIA_TYPE)
