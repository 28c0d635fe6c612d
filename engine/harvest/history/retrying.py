"""When a failed attempt is tried again, for activities and for whole runs (reference 2.15)."""

from __future__ import annotations

import random

from harvest.history.data import Failure, RetryPolicy


def retry_delay(policy: RetryPolicy, failure: Failure, tries: int, key: str) -> float | None:
    """Seconds until the next try after `tries` failed ones, or None when this was the last (reference 2.15)."""
    if failure.non_retryable or failure.type in policy.non_retryable or tries >= policy.max_attempts:
        return None
    try:
        delay = min(policy.initial_interval * policy.coefficient ** (tries - 1), policy.max_interval)
    except OverflowError:
        delay = policy.max_interval
    if policy.jitter == "none":
        return delay
    chance = random.Random(f"{key}/{tries}").random()
    return delay * chance if policy.jitter == "full" else delay * (0.5 + chance / 2)
