"""temporalio's side of bench (e): its Replayer over a history from a file, in an interpreter that has temporalio.

    python -m tests.bench.temporal_side FILE ACTIVITIES ROUNDS (sandboxed|plain)

Prints one line of JSON: the activities replayed a second in each round, after one to warm up.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta
from pathlib import Path

from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner


@workflow.defn(name="many_steps")
class ManySteps:
    """Sequential activities."""

    @workflow.run
    async def run(self, count: int, text: str) -> str:
        """The same program as `many_steps` of our side."""
        for _ in range(count):
            text = await workflow.execute_activity(
                "echo", text, result_type=str, start_to_close_timeout=timedelta(seconds=30)
            )
        return text


async def replay(path: str, activities: int, rounds: int, runner: str) -> list[float]:
    """Activities a second, round by round; raises what the Replayer raises on a mismatch."""
    history = WorkflowHistory.from_json("bench", Path(path).read_text())
    replayer = Replayer(
        workflows=[ManySteps],
        workflow_runner=UnsandboxedWorkflowRunner() if runner == "plain" else SandboxedWorkflowRunner(),
        debug_mode=True,  # no watch on the time of a step: it would only cost, or end a replay on a busy machine
    )
    rates = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        result = await replayer.replay_workflow(history)
        rates.append(activities / (time.perf_counter() - began))
        if result.replay_failure is not None:
            raise result.replay_failure
    return rates[1:]


def main() -> None:
    """Run what the command line names."""
    path, activities, rounds, runner = sys.argv[1:]
    print(json.dumps({"rates": asyncio.run(replay(path, int(activities), int(rounds), runner))}))


if __name__ == "__main__":
    main()
