"""Payloads that are allowed and too large to be wise (answers 15)."""

from __future__ import annotations

import logging

from harvest.history.limits import PAYLOAD_WARN_BYTES

_log = logging.getLogger("harvest.payload")


def warn_if_large(data: bytes, what: str) -> None:
    """Log a warning for a payload from 512 KiB on: each reader of the run's history will load it."""
    if len(data) >= PAYLOAD_WARN_BYTES:
        _log.warning(
            "%s has %d bytes; from %d on, keep the data elsewhere and pass a reference",
            what,
            len(data),
            PAYLOAD_WARN_BYTES,
        )
