"""Entries of the audit log as rows: the act in a word, and a link to what it was done to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.operations.auditing import AuditView
from harvest_console.rendering import build_url

EXECUTION: Final = "execution"
WORKER: Final = "worker"
_PLACES: Final = {EXECUTION: "w", WORKER: "workers", "saved_view": "views"}


class ActRow(Struct, frozen=True, kw_only=True):
    """One act, the address of its target, if that has a page, and the word for how it went."""

    view: AuditView
    target_url: str | None
    outcome: str


def act_rows(entries: Iterable[AuditView], base: str) -> list[ActRow]:
    """Rows in the order of `entries`."""
    return [ActRow(view=entry, target_url=_target_url(entry, base), outcome=_outcome(entry)) for entry in entries]


def _outcome(entry: AuditView) -> str:
    if entry.status != "succeeded":
        return "Failed"
    # What the code answers comes later, and is in the history.
    return "Admitted" if entry.operation == "workflow.update" else "Done"


def _target_url(entry: AuditView, base: str) -> str | None:
    try:
        return build_url(base, f"/{_PLACES.get(entry.target_type, 'w')}/{UUID(entry.target_id)}")
    except ValueError:
        return None
