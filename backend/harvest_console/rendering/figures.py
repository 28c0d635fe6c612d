"""Shares, rates and short spans as people read them."""

from __future__ import annotations

from math import floor

from harvest_console.rendering.times import span_text


def share_text(share: float) -> str:
    """`99.62 %`, `81.3 %`, `0.31 %`, `0 %`: a share of 1. Only all is 100 %, and only none is 0 %."""
    percent = share * 100
    if percent in (0.0, 100.0):
        return f"{percent:.0f} %"
    if percent >= 99:
        return f"{floor(min(percent, 99.99) * 100 + 1e-6) / 100:.2f} %"
    if percent < 0.01:
        return "< 0.01 %"
    return f"{percent:.2f} %" if percent < 1 else f"{percent:.1f} %"


def rate_text(a_second: float) -> str:
    """How often in a second: `2,914`, `51`, `4.2`, `0.03`, `0`."""
    if a_second == 0:
        return "0"
    if a_second >= 9.95:
        return f"{a_second:,.0f}"
    return f"{a_second:.1f}" if a_second >= 0.095 else f"{max(a_second, 0.01):.2f}"


def short_span_text(seconds: float) -> str:
    """As `span_text`, with parts of a millisecond below ten."""
    if 0 < seconds < 0.01:
        return f"{seconds * 1000:.2f} ms"
    return span_text(seconds)
