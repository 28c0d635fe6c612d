"""Replays recorded cases in a process of its own: `python -m tests.replay.cold_side FILE` prints what differs."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import msgspec

from harvest.history.events import Event
from harvest.replay.state import Identity
from tests.replay.differential import Case, fingerprint_of
from tests.replay.recording import let_go_of_all


def main(file: str) -> None:
    """The seed of each case that comes to something else here, a line each; then how many were replayed."""
    cases = msgspec.json.decode(Path(file).read_bytes(), type=list[Case])
    for case in cases:
        events = [
            Event(event_id, kind, seq, datetime.fromisoformat(at), data.encode())
            for event_id, kind, seq, at, data in case.events
        ]
        identity = Identity(case.execution_id, case.workflow_name, "w-1", "default")
        found = fingerprint_of(case.workflow_name, identity, events, case.decided_through)
        if found != case.fingerprint:
            print(f"seed {case.seed}: {found} is not {case.fingerprint}")
        let_go_of_all()
    print(len(cases))


if __name__ == "__main__":
    main(sys.argv[1])
