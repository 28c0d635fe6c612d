"""How much a heavy test does: `HARVEST_SCALE=full` for the size that claims are made for, a quick one otherwise."""

from __future__ import annotations

import os


def scale(ci: int, full: int) -> int:
    """The number that fits the scale of this run."""
    return full if os.environ.get("HARVEST_SCALE") == "full" else ci
