"""The alert rules: promtool fires each and keeps it quiet, and they are on metrics that `/metrics` has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harvest.store.measures import CATALOGUE
from harvest_console.api.metrics import prometheus_name

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "alerts"
RULES, TESTS = FOLDER / "harvest.rules.yml", FOLDER / "harvest.tests.yml"
# Of the seeds' starter pack.
_STARTERS = """
preflight_failed no_active_workers queue_uncovered worker_saturation queue_schedule_to_start_high
queue_backlog_growth worker_slot_saturation activity_failure_surge dlq_growth schedule_missed_runs retention_lag
shard_unready shard_undrained dispatch_dropped_hints notify_send_failures notify_queue_usage_high
worker_gray_failure db_pool_wait_high db_query_latency_high no_compatible_worker schedule_ha_domination
workflow_failure_rate activity_success_ratio activity_retry_storm activity_retry_storm_critical
workflow_non_determinism saga_compensation_spike saga_compensation_failed update_rejected_rate signal_unhandled_rate
workflow_population_leak workflow_history_bloat queue_paused_too_long scanner_stalled no_capable_worker
capability_miss_never_offered capability_miss_release_sustained replication_down replication_lag_high shard_fenced
replication_unobservable replication_rpo_unknown audit_export_lag_high audit_export_unobservable
"""
STARTERS = frozenset(_STARTERS.split())


@pytest.fixture(scope="module")
def promtool() -> str:
    """The path of a promtool; one is fetched where that is possible."""
    found = subprocess.run([sys.executable, ROOT / "tools" / "promtool.py"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def alerts() -> list[str]:
    """The names of all alerts."""
    return re.findall(r"^ *- alert: (\w+)$", RULES.read_text(), re.MULTILINE)


def expressions() -> list[str]:
    """The expression of each."""
    return re.findall(r"^ +expr: (?:>-\n)?(.*?)\n +for:", RULES.read_text(), re.DOTALL | re.MULTILINE)


def test_the_rules_are_well_formed(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", RULES.name], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_and_is_quiet_where_it_should_be(promtool: str) -> None:
    done = subprocess.run([promtool, "test", "rules", TESTS.name], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", alerts())
def test_an_alert_has_a_test_of_each_kind(alert: str) -> None:
    expected = re.findall(rf"alertname: {alert}\n +exp_alerts:( \[\])?", TESTS.read_text())
    assert "" in expected, "it never fires"
    assert " []" in expected, "it is never quiet"


def test_a_rule_that_is_broken_is_found(promtool: str, tmp_path: Path) -> None:
    text = RULES.read_text()
    assert "harvest_shard_ready == 0" in text
    (tmp_path / RULES.name).write_text(text.replace("harvest_shard_ready == 0", "harvest_shard_ready == 2"))
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    done = subprocess.run([promtool, "test", "rules", TESTS.name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0


def test_they_are_on_metrics_that_there_are() -> None:
    known = set()
    for metric in CATALOGUE.values():
        name = prometheus_name(metric.name, metric.unit)
        suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}[metric.kind]
        known |= {name + suffix for suffix in suffixes}
    assert len(expressions()) == len(alerts())
    used = {name for expression in expressions() for name in re.findall(r"harvest_\w+", expression)}
    assert used - known == set()


def test_the_page_names_every_alert_and_every_starter_that_is_left_out() -> None:
    page = (FOLDER / "README.md").read_text()
    there = {name.removeprefix("harvest_") for name in alerts()}
    for name in there - {"activity_retry_storm_critical"}:
        assert f"`harvest_{name}`" in page, name
    assert there <= STARTERS
    left_out = page.partition("## Not yet")[2]
    for name in STARTERS - there:
        assert f"`{name}`" in left_out or ("`replication_*`" in left_out and name.startswith("replication_")), name
