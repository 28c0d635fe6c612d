"""Replays exported histories elsewhere: `python -m tests.replay.cold_documents FOLDER` prints what differs.

Each file is one execution: its history, and what its code has noted whenever it ran.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import msgspec
from msgspec import Struct

from harvest.history.document import HistoryDocument, decode_document
from harvest.history.kinds import TERMINAL
from harvest.replay.verifier import verify
from tests.replay import differential, performing
from tests.replay.noting import Trace


class Exported(Struct):
    """One execution: its document, and the notes of each time that its code ran."""

    document: str
    notes: list[Trace]


def main(folder: str) -> None:
    """What differs, a line each; then how many histories were replayed."""
    chains: dict[str, list[tuple[HistoryDocument, Trace]]] = defaultdict(list)
    files = sorted(Path(folder).iterdir())
    for file in files:
        exported = msgspec.json.decode(file.read_bytes(), type=Exported)
        document = decode_document(exported.document.encode())
        name = f"{document.workflow_name} {document.workflow_id} ({document.execution_id})"
        verdict = verify(document, performing.app.registry)
        if not verdict.is_clean:
            print(f"{name} is {verdict.verdict}: {verdict.message}")
        trace = _noted(document)
        if trace is not None:
            through = len(document.events) if _closed_itself(document) else document.decided_through
            if not any([note for note in warm if note[0] <= through] == trace for warm in exported.notes):
                print(f"{name} notes otherwise: {trace[-3:]}, not {[warm[-3:] for warm in exported.notes]}")
            chains[str(document.first_execution_id or document.execution_id)].append((document, trace))
    for first, runs in chains.items():
        runs.sort(key=lambda run: run[0].started_at)
        try:
            notes = [note for _, trace in runs for note in trace]
            differential.nothing_is_wrong(notes)
            differential.signals_come_once_and_in_order(notes)
        except AssertionError as error:
            print(f"chain {first}: {error}")
    print(len(files))


def _noted(document: HistoryDocument) -> Trace | None:
    """What the code has noted in the replay just done; None where it is no program."""
    found = performing.notes.get(str(document.execution_id))
    return found[-1] if found else None


def _closed_itself(document: HistoryDocument) -> bool:
    return document.events[-1].kind in TERMINAL and document.state not in ("TERMINATED", "TIMED_OUT")


if __name__ == "__main__":
    main(sys.argv[1])
