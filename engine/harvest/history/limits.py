"""Limits of what is stored (answers 15, design 3), in bytes of UTF-8 unless another unit is named."""

from __future__ import annotations

from typing import Final

from harvest.errors import LimitError

PAYLOAD_BYTES: Final = 8 * 1024 * 1024
PAYLOAD_WARN_BYTES: Final = 512 * 1024
REQUEST_BYTES: Final = 16 * 1024 * 1024
NESTING: Final = 200
WORKFLOW_ID_BYTES: Final = 2048
NAME_BYTES: Final = 255
REASON_CHARACTERS: Final = 500
PENDING_OF_A_KIND: Final = 2_000
HISTORY_EVENTS_SOFT: Final = 10_000
HISTORY_EVENTS_HARD: Final = 50_000
HISTORY_BYTES_SOFT: Final = 10 * 1024 * 1024
HISTORY_BYTES_HARD: Final = 50 * 1024 * 1024
STRIKES: Final = 3


def check_text(value: str, *, what: str, most: int = NAME_BYTES, empty: bool = False) -> str:
    """Return `value` if PostgreSQL can keep it and it is no longer than `most` bytes; else raise LimitError."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise LimitError(f"{what} holds a lone surrogate; it must be valid Unicode text", field=what) from None
    if not value and not empty:
        raise LimitError(f"{what} must not be empty", field=what)
    if size > most:
        raise LimitError(f"{what} has {size} bytes; at most {most} are allowed", field=what, size=size, limit=most)
    if "\x00" in value:
        raise LimitError(f"{what} holds a NUL character, which text columns cannot keep", field=what)
    return value
