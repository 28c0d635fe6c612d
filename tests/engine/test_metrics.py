"""What a worker measures: the seeds' names, a closed set of labels, and the same figures wherever they are told."""

from __future__ import annotations

import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from harvest import Harvest, Retry, WorkflowContext, clock
from harvest.errors import ConfigurationError
from harvest.shards import Shards
from harvest.store import rollups
from harvest.store.decisions import ColdReason, DecisionOutcome
from harvest.store.measures import (
    BOUNDS,
    CATALOGUE,
    LABELS,
    TOLD_BOUNDS,
    Totals,
    new_spread,
    told_buckets,
    with_derived,
)
from harvest.worker.exporting import exporting
from harvest.worker.metrics import PROCESS
from harvest.worker.worker import Worker
from tests.support import at_work, eventually
from tools import metrics_doc

SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]
app = Harvest()


@app.activity(retry=Retry(max_attempts=2, initial_interval=timedelta(milliseconds=1)))
async def stumble(n: int) -> int:
    if n < 0:
        raise ValueError("never")
    return n


@app.workflow
async def measured(ctx: WorkflowContext, n: int) -> int:
    return await ctx.execute_activity(stumble, n)


@pytest.fixture
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("metrics")) as working:
        yield working


async def measured_run(work: Work) -> Totals:
    """The totals of a worker after one run that went well and one that failed."""
    worker, _ = work
    good = await app.start(measured, 1, workflow_id=f"good-{uuid.uuid4()}")
    bad = await app.start(measured, -1, workflow_id=f"bad-{uuid.uuid4()}")
    await good.result(SOON)
    with pytest.raises(Exception, match="never"):
        await bad.result(SOON)

    async def all_known() -> bool:
        return worker.counters.closed == 2

    await eventually(all_known)
    for part in worker._parts.values():
        await part.rollups.write_rollup()
    found = Totals()
    for part in worker._parts.values():
        found.add(part.committer.tracer.measures.whole)
    return with_derived(found)


def test_labels_are_a_closed_set() -> None:
    assert {label for metric in CATALOGUE.values() for label in metric.labels} <= LABELS
    assert not LABELS & {"execution_id", "execution.id", "workflow_id", "worker", "tenant"}


def test_the_seeds_metrics_are_there_by_name() -> None:
    assert CATALOGUE["workflow.resident"].labels == ("workflow", "outcome")
    assert CATALOGUE["workflow.resident.duration"].labels == ("workflow", "outcome")
    assert CATALOGUE["workflow.cache_hit"].labels == CATALOGUE["workflow.cache_miss"].labels == ("workflow",)


async def test_a_worker_counts_only_what_the_catalogue_has(work: Work) -> None:
    totals = await measured_run(work)
    for kind, figures in (("counter", totals.counters), ("histogram", totals.spreads), ("gauge", totals.gauges)):
        assert figures
        for key in figures:
            assert CATALOGUE[key[0]].kind == kind, key
            assert len(CATALOGUE[key[0]].labels) == len(key) - 1, key
            values = dict(zip(CATALOGUE[key[0]].labels, key[1:], strict=True))
            assert values.get("workflow", "measured") == "measured"
            if key[0] == "workflow.cold":
                assert values["reason"] in set(ColdReason)
            if key[0].startswith("workflow.resident"):
                assert values["outcome"] in set(DecisionOutcome)


async def test_what_happened_is_in_the_figures(work: Work) -> None:
    totals = await measured_run(work)
    assert totals.counters["workflow.started", "measured"] == 2
    assert totals.counters["workflow.terminal", "measured", "completed"] == 1
    assert totals.counters["workflow.terminal", "measured", "failed"] == 1
    assert totals.counters["workflow.resident", "measured", "cold"] == 2
    assert totals.counters["workflow.resident", "measured", "hit"] == work[0].counters.passed - 2
    assert totals.counters["workflow.cold", "measured", "first"] == 2
    assert totals.counters["activity.attempts", "stumble"] == 3
    assert totals.counters["activity.retries", "stumble"] == 1
    assert totals.counters["activity.failed", "stumble"] == 1
    assert totals.counters["commit.answers", "passed"] == work[0].counters.passed
    assert totals.spreads["workflow.duration", "measured", "completed"].count == 1
    assert totals.spreads["activity.duration", "stumble", "completed"].count == 1
    assert totals.spreads["queue.schedule_to_start", "default", "workflow"].count >= 2
    assert totals.gauges["worker.slots_available", "activity"] == 400


async def test_open_telemetry_is_told_the_totals_of_the_process(work: Work) -> None:
    before = PROCESS.totals().counters.get(("workflow.started", "measured"), 0)
    await measured_run(work)

    async def told() -> bool:
        return PROCESS.totals().counters.get(("workflow.started", "measured"), 0) == before + 2

    assert await clock.until(told, within=30)


async def test_a_row_has_what_was_measured_since_the_one_before(work: Work) -> None:
    await measured_run(work)
    store = work[1].stores[0]
    until = await rollups.now(store)
    rows = await rollups.read(store, until - timedelta(minutes=1), until)
    assert {row.worker for row in rows} == {work[0].id}
    assert sum(share.count for row in rows for share in row.totals.shares.values()) == work[0].counters.passed
    assert rows[-1].totals.gauges["worker.residents",] == 0


def test_a_quantile_lies_in_the_bucket_of_its_value() -> None:
    totals = Totals()
    for thousandth in range(1, 101):
        totals.observe(("scanner.tick", "sweep"), thousandth / 1_000)
    spread = totals.spreads["scanner.tick", "sweep"]
    assert 0.032 < spread.quantile(0.5) <= 0.066
    assert 0.065 < spread.quantile(0.99) <= 0.132
    assert new_spread().quantile(0.5) == 0.0


def test_told_buckets_count_all_at_or_below_their_bound() -> None:
    totals = Totals()
    for seconds in (TOLD_BOUNDS[0], TOLD_BOUNDS[1], TOLD_BOUNDS[1] * 1.01, 1_000.0):
        totals.observe(("scanner.tick", "sweep"), seconds)
    told = told_buckets(totals.spreads["scanner.tick", "sweep"])
    assert told[:3] == [1, 2, 3]
    assert told[-2:] == [3, 4]
    assert len(told) == len(TOLD_BOUNDS) + 1
    assert BOUNDS[4::2] == TOLD_BOUNDS


_SCRAPED = """
import urllib.request
from opentelemetry import metrics, trace
from harvest.worker.exporting import exporting
from harvest.worker.metrics import PROCESS, Measures, has_meter, span_tracer
import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
assert span_tracer() is None and not has_meter()
with exporting(port):
    assert has_meter()
    measures = Measures(0)
    measures.observe(("db.query.duration", "scan"), 0.25)
    PROCESS.join(measures)
    measures.dispatched("default", 0.25)
    measures.closed("w", __import__("harvest.history.states").history.states.State.COMPLETED, 2.0, 17)
    metrics.get_meter("harvest.user").create_counter("harvest.user.orders").add(3, {"workflow": "w"})
    measures.fresh.gauges[("worker.resident_bytes",)] = 5
    measures.flush()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        print(answer.read().decode())
"""


def test_a_worker_serves_its_own_metrics_and_those_of_its_users_code() -> None:
    answer = subprocess.run([sys.executable, "-c", _SCRAPED], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert 'harvest_queue_dispatched_total{kind="workflow",queue="default"} 1.0' in lines
    assert 'harvest_shard_dispatched_total{shard="0"} 1.0' in lines
    assert 'harvest_workflow_terminal_total{outcome="completed",workflow="w"} 1.0' in lines
    assert 'harvest_user_orders_total{workflow="w"} 3.0' in lines
    assert 'harvest_queue_schedule_to_start_seconds_count{kind="workflow",queue="default"} 1.0' in lines
    assert 'harvest_workflow_history_size_events_sum{workflow="w"} 17.0' in lines
    assert "harvest_worker_resident_bytes 5.0" in lines
    assert not any("otel_scope" in line for line in lines)


_SENT = """
import http.server, threading, os
paths = set()
class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        paths.add(self.path)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{server.server_address[1]}"
from harvest.worker.exporting import exporting
from harvest.worker.metrics import PROCESS, Measures, span_tracer
with exporting():
    measures = Measures(0)
    PROCESS.join(measures)
    measures.dispatched("default", 0.25)
    measures.flush()
    span_tracer().start_span("workflow.execute").end()
print(*sorted(paths))
"""


def test_metrics_and_spans_are_sent_where_the_environment_names_a_collector() -> None:
    answer = subprocess.run([sys.executable, "-c", _SENT], capture_output=True, text=True, timeout=120)
    assert answer.stdout.split() == ["/v1/metrics", "/v1/traces"], answer.stderr


def test_a_port_that_is_taken_is_an_error_of_configuration() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=str(port)), exporting(port):
            pass


def test_the_page_of_metrics_is_the_catalogue() -> None:
    assert metrics_doc.PAGE.read_text() == metrics_doc.page(), "run python tools/metrics_doc.py"
