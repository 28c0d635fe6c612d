"""Names of the workflows that are part of the engine."""

from __future__ import annotations

from typing import Final

CANARY: Final = "harvest.canary"
"""The liveness probe: a run that ends with its first decision. It is in no list of types."""
