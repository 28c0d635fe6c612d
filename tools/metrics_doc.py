"""Write docs/operations/metrics.md from the catalogue of metrics: `python tools/metrics_doc.py`."""

from __future__ import annotations

import inspect
import re
from enum import StrEnum
from pathlib import Path

from harvest.store.decisions import ColdReason, DecisionOutcome
from harvest.store.measures import CATALOGUE, PREFIX
from harvest_console.api.metrics import prometheus_name

PAGE = Path(__file__).parent.parent / "docs" / "operations" / "metrics.md"
INTRODUCTION = """\
# Metrics

Made from the code by `python tools/metrics_doc.py`; a test holds the two equal.

Every worker writes what it has measured to each of its shards, every five seconds. `GET /metrics` of the console (also
`/api/harvest/admin/metrics`; with the console's bearer token) adds that up for the whole fleet, in Prometheus' format.
Its counters begin when it is first asked.

`harvest worker APP --metrics-port 9400` serves one process's own metrics, at `--metrics-host` (127.0.0.1), with those
that workflow code makes (`ctx.metrics`: `harvest.user.…`), and how its queues do on the shards that it works on, which
it looks at every 15 seconds. With `--processes`, each process has a port of its own, one after the other. Where
`OTEL_EXPORTER_OTLP_ENDPOINT` or its like is set, a worker sends metrics and spans by OTLP over HTTP; that needs
`pip install 'harvest-workflows[otlp]'`. The span of a decision is `workflow.execute`; its `harvest.replay` tells
whether the run was replayed. A program that embeds workers sets its own providers before they start.

Labels are a closed set: never an execution, a workflow id, or a worker. In Prometheus, dots are underscores, and
counters end in `_total`.
"""


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION, "| metric | kind | labels | in Prometheus | meaning |", "| --- " * 5 + "|"]
    for metric in CATALOGUE.values():
        told = prometheus_name(metric.name, metric.unit) + ("_total" if metric.kind == "counter" else "")
        labels = ", ".join(metric.labels)
        lines.append(f"| `{PREFIX}{metric.name}` | {metric.kind} | {labels} | `{told}` | {metric.about} |")
    lines += ["", "## Outcomes of an attempt to decide", "", *_words(DecisionOutcome)]
    lines += ["", "## Why an attempt was no hit", "", *_words(ColdReason)]
    return "\n".join(lines) + "\n"


def _words(kind: type[StrEnum]) -> list[str]:
    """Each word with the text that follows it in the code."""
    found = re.findall(r'= "(\w+)"\n\s+"""(.+?)"""', inspect.getsource(kind), re.DOTALL)
    return [f"- `{word}`: {' '.join(about.split())}" for word, about in found]


if __name__ == "__main__":
    PAGE.write_text(page())
