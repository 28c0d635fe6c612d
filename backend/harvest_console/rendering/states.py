"""States as pages show them: a word, and the class that gives it its colour and shape."""

from __future__ import annotations

from typing import Final

# A state that is not here is shown as it is stored, with the broken ring (console 5.10, R59).
STATES: Final = {
    "RUNNING": ("running", "Running"),
    "PAUSED": ("paused", "Paused"),
    "BLOCKED": ("blocked", "Blocked"),
    "QUARANTINED": ("quarantined", "Quarantined"),
    "MIGRATING": ("migrating", "Migrating"),
    "MIGRATED": ("migrated", "Migrated"),
    "COMPLETED": ("completed", "Completed"),
    "FAILED": ("failed", "Failed"),
    "CANCELLED": ("cancelled", "Cancelled"),
    "TERMINATED": ("terminated", "Terminated"),
    "TIMED_OUT": ("timed_out", "Timed out"),
    "CONTINUED_AS_NEW": ("continued", "Continued"),
}
# A bar more for each step that it is worse.
_SEVERITIES: Final = ("sev1", "sev2", "sev3", "sev4")
_POLICIES: Final = {"terminate": "it is terminated", "request_cancel": "it is asked to cancel", "abandon": "it goes on"}
_CLOSES: Final = {
    "terminate": "terminated with its parent",
    "request_cancel": "cancelled with its parent",
    "abandon": "outlives its parent",
}


def state_class(state: str) -> str:
    """The class of a state, empty for one that this console does not know."""
    return STATES.get(state, ("", ""))[0]


def state_text(state: str) -> str:
    """The word of a state."""
    return STATES.get(state, ("", state))[1]


def severity_class(severity: str) -> str:
    """The class of a severity, empty for one that this console does not know; its word is its name."""
    return severity if severity in _SEVERITIES else ""


def policy_text(policy: str) -> str:
    """What a parent close policy makes of a child; a policy that is not known is its own word."""
    return _POLICIES.get(policy, policy)


def close_text(policy: str) -> str:
    """The same in short, of the child."""
    return _CLOSES.get(policy, policy)


def shown_state(state: str, blocked_code: str | None) -> str:
    """What a run's state is shown as: an open run that cannot go on is blocked or quarantined."""
    if blocked_code is None or state not in ("RUNNING", "PAUSED"):
        return state
    return "QUARANTINED" if blocked_code == "quarantined" else "BLOCKED"
