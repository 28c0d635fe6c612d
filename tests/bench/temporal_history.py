"""Writes the history of a run as temporalio's Replayer reads it: sequential activities, as a server records them.

    python -m tests.bench.temporal_history ACTIVITIES FILE

Standard library only: neither a server nor temporalio is needed.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tests.bench.payload import TEXT

WORKFLOW: Final = "many_steps"
ACTIVITY: Final = "echo"
QUEUE: Final = {"name": "bench", "kind": "TASK_QUEUE_KIND_NORMAL"}
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
RUN_ID: Final = "01910000-0000-7000-8000-000000000000"
WORKER: Final = "bench@host"


def payloads(*values: object) -> dict[str, Any]:
    """Values as the default converter encodes them."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return {
        "payloads": [
            {
                "metadata": {"encoding": encoded(b"json/plain")},
                "data": encoded(json.dumps(value, separators=(",", ":")).encode()),
            }
            for value in values
        ]
    }


class History:
    """Events with dense numbers, ten milliseconds apart."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, kind: str, **attributes: Any) -> str:
        """Append an event of this kind, in camel case; returns its number as JSON has it."""
        number = str(len(self.events) + 1)
        snake = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in kind)
        at = BEGAN + timedelta(milliseconds=10 * len(self.events))
        self.events.append(
            {
                "eventId": number,
                "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "eventType": f"EVENT_TYPE_{snake}",
                "taskId": number,
                f"{kind}EventAttributes": attributes,
            }
        )
        return number

    def decided(self) -> str:
        """A workflow task from its scheduling to its completion; returns the number of the latter."""
        scheduled = self.add("workflowTaskScheduled", taskQueue=QUEUE, startToCloseTimeout="10s", attempt=1)
        started = self.add("workflowTaskStarted", scheduledEventId=scheduled, identity=WORKER, requestId=RUN_ID)
        return self.add("workflowTaskCompleted", scheduledEventId=scheduled, startedEventId=started, identity=WORKER)


def history(activities: int) -> dict[str, Any]:
    """A run of `activities` sequential activities that has completed."""
    log = History()
    log.add(
        "workflowExecutionStarted",
        workflowType={"name": WORKFLOW},
        taskQueue=QUEUE,
        input=payloads(activities, TEXT),
        workflowExecutionTimeout="0s",
        workflowRunTimeout="0s",
        workflowTaskTimeout="10s",
        originalExecutionRunId=RUN_ID,
        firstExecutionRunId=RUN_ID,
        workflowId="bench",
        identity=WORKER,
        attempt=1,
    )
    decided = log.decided()
    for number in range(1, activities + 1):
        scheduled = log.add(
            "activityTaskScheduled",
            activityId=str(number),
            activityType={"name": ACTIVITY},
            taskQueue=QUEUE,
            input=payloads(TEXT),
            scheduleToCloseTimeout="0s",
            scheduleToStartTimeout="0s",
            startToCloseTimeout="30s",
            heartbeatTimeout="0s",
            workflowTaskCompletedEventId=decided,
        )
        started = log.add(
            "activityTaskStarted", scheduledEventId=scheduled, identity=WORKER, requestId=RUN_ID, attempt=1
        )
        log.add(
            "activityTaskCompleted",
            result=payloads(TEXT),
            scheduledEventId=scheduled,
            startedEventId=started,
            identity=WORKER,
        )
        decided = log.decided()
    log.add("workflowExecutionCompleted", result=payloads(TEXT), workflowTaskCompletedEventId=decided)
    return {"events": log.events}


def main() -> None:
    """Write the file that the command line names."""
    activities, path = sys.argv[1:]
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(history(int(activities))))
    print(json.dumps({"events": 5 + 6 * int(activities)}))


if __name__ == "__main__":
    main()
