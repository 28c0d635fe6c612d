"""Checks a range of programs in a process of its own: `python -m tests.replay.batch FIRST COUNT FILE`.

The histories go to FILE, for other processes to replay; what was found is printed as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.replay import differential


class Batch(Struct):
    """What came of a range of programs. `failed` are seeds with what differed; `kinds` counts the events of each."""

    decisions: int = 0
    events: int = 0
    replays: int = 0
    runs: int = 0
    answers: int = 0
    failed: dict[int, str] = {}
    kinds: dict[int, int] = {}


MOST_FAILURES = 3


def main(first: int, count: int, file: str) -> None:
    """Check programs of the seeds from `first` on."""
    batch = Batch()
    cases: list[differential.Case] = []
    for seed in range(first, first + count):
        try:
            recording = differential.check(seed)
        except Exception as error:
            batch.failed[seed] = f"{type(error).__name__}: {error}"
            if len(batch.failed) == MOST_FAILURES:
                break
            continue
        cases += differential.cases_of(seed, recording)
        for run in recording.chain:
            batch.runs += 1
            batch.decisions += len(run.decisions)
            batch.events += len(run.events)
            batch.replays += len(run.states) + len(run.decisions)
            batch.answers += sum(state.answer is not None for state in run.states)
            for event in run.events:
                batch.kinds[event.kind] = batch.kinds.get(event.kind, 0) + 1
    Path(file).write_bytes(msgspec.json.encode(cases))
    print(msgspec.json.encode(batch).decode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
