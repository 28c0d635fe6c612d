"""Why an open run stands still, in plain words, with what mends it (issue 2, build 5)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class BlockText(Struct, frozen=True):
    """A heading and what to do about it."""

    heading: str
    remedy: str


_TEXTS: Final = {
    "non_determinism": BlockText(
        "Its code no longer matches its history.",
        "deploy code that asks for what history records; it goes on by itself",
    ),
    "definition_missing": BlockText(
        "No worker has the code of this workflow type and version.",
        "start a worker that registers it; it goes on by itself",
    ),
    "payload_undecodable": BlockText(
        "A recorded payload does not fit the type that today's code declares.",
        "deploy a type that reads what was recorded; it goes on by itself",
    ),
    "step_too_long": BlockText(
        "One step of its code held the worker for too long.",
        "move the work into an activity and deploy; it goes on by itself",
    ),
    "unknown_event": BlockText(
        "Its history holds an event that this release does not know.",
        "upgrade the workers to the release that wrote it",
    ),
    "commit_refused": BlockText(
        "The database refuses what its decision writes.",
        "read the message, mend the cause; it is tried again by itself",
    ),
    "decision_failed": BlockText(
        "Deciding it failed in the engine, not in its code.",
        "read the message and the worker's log; it is tried again by itself",
    ),
    "quarantined": BlockText(
        "It was set aside after its worker died three times at this step.",
        "find out what kills the worker, then deploy a new build",
    ),
}


def block_text(code: str) -> BlockText:
    """The text of a code; a code that is not known is shown as it is stored."""
    return _TEXTS.get(code, BlockText(f"It is blocked: {code}.", "read the message; it is tried again by itself"))
