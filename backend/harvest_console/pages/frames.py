"""The frame of every page of one run: its head, and the tabs that lead from each of them to the others."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from harvest.operations.legal_holds import LegalHold
from harvest.operations.views import ExecutionDetail, is_open
from harvest_console.rendering.states import shown_state


class Tab(Struct, frozen=True):
    """One page of a run: its key, the word on its tab, and what follows `/w/{execution_id}` in its address."""

    key: str
    word: str
    path: str


TABS: Final = (
    Tab("run", "Run", ""),
    Tab("history", "History", "/history"),
    Tab("timeline", "Timeline", "/timeline"),
    Tab("tree", "Tree", "/tree"),
    Tab("chain", "Runs", "/runs"),
    Tab("stack", "Stack", "/stack"),
    Tab("decisions", "Decisions", "/decisions"),
)


def frame(run: ExecutionDetail, tab: str, hold: LegalHold | None = None, *, hold_known: bool = True) -> dict[str, Any]:
    """What `run_page.html` needs beside what a tab's own template does.

    `hold` is told in the head of the first tab, and so is that it is not known whether there is one.
    """
    return {
        "run": run,
        "hold": hold,
        "hold_known": hold_known,
        "is_open": is_open(run.state),
        "shown": shown_state(run.state, run.blocked.code if run.blocked else None),
        "tabs": TABS,
        "tab": tab,
        "section": "workflows",
        "topics": f"run:{run.shard_id}.{run.partition}" if is_open(run.state) else "",
    }
