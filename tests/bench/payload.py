"""What every contestant carries. Standard library only: the DBOS interpreter imports it too."""

from __future__ import annotations

from typing import Final

PAYLOAD_BYTES: Final = 250
TEXT: Final = "x" * (PAYLOAD_BYTES - 2)
"""Encodes to exactly PAYLOAD_BYTES of JSON, the quotes included."""
