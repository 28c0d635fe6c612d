"""Addresses of filtered pages: what is typed in a form, and the address of the same page with one thing changed."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from harvest.errors import InvalidRequestError
from harvest_console.rendering.times import known_zones, zone_named


def read_instant(text: str, zone_name: str, field: str) -> datetime | None:
    """An instant as an address carries it: ISO 8601, with an offset or in the zone that the address names.

    Raises InvalidRequestError.
    """
    if not text:
        return None
    if zone_name and zone_name not in known_zones():
        raise InvalidRequestError(f"{zone_name[:40]!r} is no time zone; write UTC or a name like Europe/Berlin")
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequestError(
            f"{text[:40]!r} is no time for {field!r}; write it like 2026-11-29T14:00", field=field
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=zone_named(zone_name or "UTC"))


def input_text(at: datetime | None, zone: tzinfo) -> str:
    """An instant as an `<input type=datetime-local>` shows it in the reader's zone."""
    return "" if at is None else at.astimezone(zone).strftime("%Y-%m-%dT%H:%M")


def link_text(at: datetime | None) -> str | None:
    """An instant as links carry it: in UTC, so that it means the same to everybody."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
