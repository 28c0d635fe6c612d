"""What the words of decisions mean to people; a word that is not here is shown as it is stored."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Outcome(Struct, frozen=True):
    """How a decision found its run: the word, and the class that gives it its colour and shape."""

    word: str
    look: str


OUTCOMES: Final = {
    "hit": Outcome("warm", "warm"),
    "cold": Outcome("cold", "cold"),
    "declined": Outcome("declined", "declined"),
    "blocked": Outcome("blocked", "blocked"),
}
REASONS: Final = {
    "first": "first decision of a run",
    "evicted": "let go of by its worker",
    "other_worker": "another worker had it",
    "taken_over": "its worker ended or gave it up",
    "residents_off": "no parked code is kept here",
    "blocked": "was put aside before",
    "gap": "did not continue its parked code",
    "overtaken": "overtaken, then replayed",
    "unknown_commit": "the answer of a commit was lost",
}
SOURCES: Final = {
    "resident": "parked code",
    "memory": "history in memory",
    "postgres": "whole history",
}
ANSWERS: Final = {
    "passed": "committed",
    "overtaken": "others wrote first",
    "fenced": "not its worker any more",
    "unknown": "answer lost",
    "blocked": "put aside",
}


def outcome_word(outcome: str) -> Outcome:
    """The word and the look of an outcome."""
    return OUTCOMES.get(outcome) or Outcome(outcome.replace("_", " "), "")


def reason_word(reason: str) -> str:
    """A reason in a few words."""
    return REASONS.get(reason, reason.replace("_", " "))
