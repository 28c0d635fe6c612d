"""Entries of the audit log as rows: the act in a word, and a link to what it was done to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.operations.auditing import AuditView
from harvest_console.rendering import build_url

EXECUTION: Final = "execution"


class ActRow(Struct, frozen=True, kw_only=True):
    """One act and the address of its target, if that has a page."""

    view: AuditView
    target_url: str | None


def act_rows(entries: Iterable[AuditView], base: str) -> list[ActRow]:
    """Rows in the order of `entries`."""
    return [ActRow(view=entry, target_url=_target_url(entry, base)) for entry in entries]


def _target_url(entry: AuditView, base: str) -> str | None:
    try:
        return build_url(base, f"/w/{UUID(entry.target_id)}")
    except ValueError:
        return None
