"""Metrics of a workflow's own, through OpenTelemetry's API: nothing is measured unless the process has a provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from harvest.errors import InvalidRequestError

if TYPE_CHECKING:
    from harvest.replay.run import Run

Attributes = Mapping[str, str | bool | int | float]
PREFIX: Final = "harvest.user."
_instruments: dict[tuple[str, str], Any] = {}


class WorkflowMetrics:
    """Counts and records while the code is live, with the workflow's type as an attribute."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def count(self, name: str, amount: int | float = 1, attributes: Attributes | None = None) -> None:
        """Add to the counter `harvest.user.{name}`; a negative amount raises InvalidRequestError."""
        if amount < 0:
            raise InvalidRequestError(f"metric {name!r} is given {amount}; a counter only rises")
        if self._speaks():
            _instrument("counter", name).add(amount, self._attributes(attributes))

    def record(self, name: str, value: int | float, attributes: Attributes | None = None) -> None:
        """Record a value in the histogram `harvest.user.{name}`."""
        if self._speaks():
            _instrument("histogram", name).record(value, self._attributes(attributes))

    def _speaks(self) -> bool:
        self._run.check_may_act()
        return not self._run.replaying

    def _attributes(self, attributes: Attributes | None) -> dict[str, Any]:
        return {"workflow": self._run.identity.workflow_name, **(attributes or {})}


def _instrument(kind: str, name: str) -> Any:
    found = _instruments.get((kind, name))
    if found is None:
        from opentelemetry.metrics import get_meter

        meter = get_meter("harvest.user")
        make = meter.create_counter if kind == "counter" else meter.create_histogram
        found = _instruments[kind, name] = make(PREFIX + name)
    return found
