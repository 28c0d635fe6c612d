"""Work that was on a lost worker twice is tried alone, so that at the third time nobody else is struck (answers 15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from harvest import clock
from harvest.history.limits import STRIKES
from harvest.worker.activities import ActivityRunner

SUSPECTS_SECONDS: Final = 1.0
"""So often a loop looks for work that is to be tried."""
TRIAL_SECONDS: Final = 5.0
"""An activity that has run for so long is taken for innocent, and the next may be tried."""


class Trial:
    """One run or one activity at a time on trial, over all shards of a worker process.

    Of two that were tried at once, one would be blamed for what the other does.
    """

    def __init__(self, runner: ActivityRunner) -> None:
        self._runner = runner
        self._is_claiming = False
        self._is_deciding: Callable[[], bool] = lambda: False

    def begin(self) -> bool:
        """Begin to claim something that is to be tried, unless something is; `end` or `decides` must follow."""
        if self._is_claiming or self._is_deciding() or self._is_running():
            return False
        self._is_claiming = True
        return True

    def decides(self, is_deciding: Callable[[], bool]) -> None:
        """A run was claimed: it is on trial while this is true of it."""
        self._is_claiming = False
        self._is_deciding = is_deciding

    def end(self) -> None:
        """Nothing was claimed, or an activity that has begun since."""
        self._is_claiming = False

    def _is_running(self) -> bool:
        recently = clock.monotonic() - TRIAL_SECONDS
        return any(
            each.strikes >= STRIKES - 1 and each.began > recently for each in list(self._runner.running.values())
        )
