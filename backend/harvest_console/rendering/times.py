"""Instants and spans of time as people read them: one zone a page, and the zone is always named (console 2)."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

DEFAULT_ZONE = "UTC"


@cache
def known_zones() -> frozenset[str]:
    """Names of the zones that may be chosen."""
    return frozenset(available_timezones())


def zone_named(name: str) -> tzinfo:
    """The zone of that name, UTC for a name that nobody knows."""
    return ZoneInfo(name) if name in known_zones() else UTC


def instant_text(at: datetime, zone: tzinfo, now: datetime, *, millis: bool = False) -> str:
    """`14:21:58` today, `Nov 28, 22:41:09` in this year, `Nov 28, 2025, 22:41:09` else."""
    local, today = at.astimezone(zone), now.astimezone(zone)
    clock = local.strftime("%H:%M:%S")
    if millis:
        clock += f".{local.microsecond // 1000:03d}"
    if local.date() == today.date():
        return clock
    day = f"{local:%b} {local.day}"
    return f"{day}, {clock}" if local.year == today.year else f"{day}, {local.year}, {clock}"


def iso_text(at: datetime) -> str:
    """ISO 8601 in UTC to the millisecond, as `<time datetime>` carries it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_millis(at: datetime) -> int:
    """Milliseconds since 1970."""
    return int(at.timestamp() * 1000)


def span_text(seconds: float) -> str:
    """`117 ms`, `2.1 s`, `40 s`, `2 min 7 s`, `24 min`, `5 h 10 min`, `3 d 4 h`; a negative span says why it can be."""
    if seconds < 0:
        return f"\N{MINUS SIGN}{span_text(-seconds)}, clocks differ" if seconds <= -0.001 else "0 ms"
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    return whole_span_text(int(seconds))


def whole_span_text(seconds: int) -> str:
    """As `span_text`, in whole seconds: what ticks in the browser too (`span` in page.js)."""
    minutes, hours, days = seconds // 60 % 60, seconds // 3600 % 24, seconds // 86400
    if days:
        return f"{days} d {hours} h" if hours and days < 10 else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    if minutes >= 10:
        return f"{minutes} min"
    if minutes:
        return f"{minutes} min {seconds % 60} s" if seconds % 60 else f"{minutes} min"
    return f"{seconds} s"
