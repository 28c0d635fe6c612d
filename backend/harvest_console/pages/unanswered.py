"""Why a run's code does not answer, in plain words, with what to do about it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from harvest.errors import ExecutionClosedError, HarvestError, NoWorkerError, QueryFailedError, RequestTimeoutError

# What is told on the page that asked; anything else is an error page.
UNANSWERED: Final = (NoWorkerError, RequestTimeoutError, ExecutionClosedError, QueryFailedError)
NOT_BEGUN: Final = "NotBegun"


class Unanswered(Struct, frozen=True, kw_only=True):
    """A heading, what to do, and whether asking again can help. `detail` is the error's own message."""

    status: int
    code: str
    heading: str
    remedy: str
    detail: str
    again: bool


def is_silent(error: QueryFailedError) -> bool:
    """Whether the code could not be asked at all; else it was, and its handler failed."""
    return bool(error.fields.get("blocked")) or error.fields.get("type") == NOT_BEGUN


def unanswered(error: HarvestError) -> Unanswered:
    """The text of one of the errors `UNANSWERED`."""
    heading, remedy, again = _text(error)
    return Unanswered(
        status=error.status, code=error.slug, heading=heading, remedy=remedy, detail=error.message, again=again
    )


def _text(error: HarvestError) -> tuple[str, str, bool]:
    if isinstance(error, NoWorkerError):
        return (
            "No worker can answer for it now.",
            "Start a worker that has this workflow type and version, then ask again. Nothing is lost meanwhile.",
            True,
        )
    if isinstance(error, RequestTimeoutError):
        return (
            "Its workers did not answer in time.",
            "They may be busy, or just gone: ask again. If it stays so, look at the workers on the overview.",
            True,
        )
    if isinstance(error, ExecutionClosedError):
        return (
            "It has ended; its code answers no more.",
            "What it left is on its page: its result or failure, and its whole history.",
            False,
        )
    if error.fields.get("blocked"):
        return (
            "It is blocked, and its code cannot answer.",
            "Its page says what blocks it and how that is mended.",
            True,
        )
    if error.fields.get("type") == NOT_BEGUN:
        return (
            "Its code has not begun.",
            "It answers as soon as its first step is decided: ask again in a moment.",
            True,
        )
    return ("Its code could not answer.", "The message says why.", True)
