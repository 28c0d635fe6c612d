"""Claimed activities as attempts to run, and what becomes of one that cannot be read."""

from __future__ import annotations

from typing import Final

import msgspec

from harvest.history.data import ActivityFailed, ActivityScheduled, Failure
from harvest.history.events import encode_data
from harvest.history.ids import ExecutionId
from harvest.history.kinds import EventKind
from harvest.store.activity_claims import ClaimedActivity
from harvest.worker.activities import Attempt, Ended

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError)


def scheduled_data(data: bytes) -> ActivityScheduled:
    """The options that history froze for an activity; raises one of `UNREADABLE`."""
    return msgspec.json.decode(data, type=ActivityScheduled)


def attempt_of(shard_id: int, claimed: ClaimedActivity) -> Attempt:
    """The attempt that a worker has claimed; raises one of `UNREADABLE`."""
    return _attempt(shard_id, claimed, scheduled_data(claimed.scheduled))


def unreadable(shard_id: int, claimed: ClaimedActivity, error: Exception) -> tuple[Attempt, Ended]:
    """An attempt of which nothing is known but that it failed, and must not be tried again."""
    failure = Failure(
        type="PayloadError",
        message=f"what history says of this activity cannot be read: {error}",
        non_retryable=True,
    )
    data = encode_data(ActivityFailed(failure=failure, attempt=claimed.attempt))
    attempt = _attempt(shard_id, claimed, ActivityScheduled(name="", digest=""))
    return attempt, Ended(EventKind.ACTIVITY_FAILED, data)


def _attempt(shard_id: int, claimed: ClaimedActivity, data: ActivityScheduled) -> Attempt:
    return Attempt(
        shard_id=shard_id,
        execution_id=ExecutionId(int=claimed.execution_id.int),
        seq=claimed.seq,
        attempt=claimed.attempt,
        workflow_name=claimed.workflow_name,
        workflow_id=claimed.workflow_id,
        name=data.name,
        input=bytes(data.input),
        start_to_close=data.start_to_close,
        heartbeat=data.heartbeat,
        retry=data.retry,
        eager=False,
        strikes=claimed.strikes,
        last_details=claimed.last_details,
    )
