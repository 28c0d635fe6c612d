"""Refused requests in the audit log, at a pace that a flood of them cannot use to fill it."""

from __future__ import annotations

import logging
from typing import Final

from harvest import clock
from harvest.errors import HarvestError
from harvest.operations import auditing
from harvest.operations.actor import Actor
from harvest.shards import Shards

_BURST: Final = 20.0
_PER_SECOND: Final = 0.5
_log = logging.getLogger("harvest.console")


class Denials:
    """Writes `authz.deny` rows; those beyond the pace are counted and told by the next row that is written."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._allowance = _BURST
        self._at = clock.monotonic()
        self._untold = 0

    async def record(self, actor: Actor, target: str, error: HarvestError) -> None:
        """Note that `actor` was refused `target`. A database that does not take the row is logged, not raised."""
        now = clock.monotonic()
        self._allowance = min(_BURST, self._allowance + (now - self._at) * _PER_SECOND)
        self._at = now
        if self._allowance < 1.0:
            self._untold += 1
            return
        self._allowance -= 1.0
        summary = f"{error.code} {error.message}"
        if self._untold:
            summary += f" (and {self._untold} more refusals before this one)"
        try:
            await auditing.record(self._shards, actor, "authz.deny", "route", target, "failed", summary)
        except HarvestError as failure:
            _log.warning("a refusal could not be audited: %s", failure)
        else:
            self._untold = 0
