"""The usage report as text: CSV that a spreadsheet may open, and a table for a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

# The fields of a group in the API's answer, and how a terminal heads them.
HEADS: Final = {
    "group": "group",
    "workflow_starts": "starts",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "timed_out": "timed out",
    "activity_executions": "activities",
    "activity_executions_failed": "act. failed",
    "activity_compute_seconds": "compute s",
    "llm_calls": "LLM calls",
    "llm_input_tokens": "tokens in",
    "llm_output_tokens": "tokens out",
    "llm_cost_usd_micros": "cost USD",
    "llm_unpriced_calls": "unpriced",
    "llm_latency_ms": "LLM s",
}
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")


def usage_csv(report: Mapping[str, Any]) -> str:
    """The answer of `/admin/usage` by RFC 4180. Each row says which window it is of, and which shards are not in it.

    A text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    missing = " ".join(str(shard["shard_id"]) for shard in report["unavailable_shards"])
    about = [report["from"], report["to"], report["group_by"], report["status"], missing]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow([*HEADS, "from", "to", "group_by", "status", "unavailable_shards"])
    for group in report["groups"]:
        writer.writerow([_cell(value) for value in (*(group[name] for name in HEADS), *about)])
    return file.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def shards_named(missing: Sequence[Mapping[str, Any]]) -> str:
    """The shards that an answer is without: `shard 1`, `shards 1 and 2`, `shards 1, 2 and 3`."""
    *others, last = [str(shard["shard_id"]) for shard in missing]
    return f"shards {', '.join(others)} and {last}" if others else f"shard {last}"


def usage_table(groups: Sequence[Mapping[str, Any]]) -> str:
    """Groups of the answer in aligned columns with their sums; what nobody has reported of language models is left out.

    Names are shown without what a terminal would obey.
    """
    sums = {name: sum(group[name] for group in groups) for name in HEADS if name != "group"}
    names = [name for name in HEADS if sums.get("llm_calls") or not name.startswith("llm_")]
    lines = [
        [HEADS[name] for name in names],
        *([_shown(name, group[name]) for name in names] for group in groups),
        ["sum", *(_shown(name, sums[name]) for name in names[1:])],
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


def _shown(name: str, value: Any) -> str:
    if name == "group":
        return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in value)
    if name == "activity_compute_seconds":
        return f"{value:,.1f}"
    if name == "llm_cost_usd_micros":
        return f"{value / 1_000_000:,.4f}"
    return f"{value / 1000:,.1f}" if name == "llm_latency_ms" else f"{value:,}"
