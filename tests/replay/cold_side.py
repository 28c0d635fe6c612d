"""Replays recorded cases in a process of its own: `python -m tests.replay.cold_side FILE` prints what they come to."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import msgspec

from harvest.history.events import Event
from tests.replay.differential import Case, fingerprint
from tests.replay.oracle import fresh, let_go_of_all
from tests.replay.player import PLAY


def main(file: str) -> None:
    """One number for each case, a line each."""
    for case in msgspec.json.decode(Path(file).read_bytes(), type=list[Case]):
        events = [
            Event(event_id, kind, seq, datetime.fromisoformat(at), data.encode())
            for event_id, kind, seq, at, data in case.events
        ]
        run, trace = fresh(PLAY)
        run.replay(events, case.decided_through)
        print(fingerprint(run, trace))
        let_go_of_all()


if __name__ == "__main__":
    main(sys.argv[1])
