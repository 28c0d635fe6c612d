"""What a workflow shows to people while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from harvest.errors import InvalidRequestError, LimitError
from harvest.history import payload
from harvest.history.limits import check_text
from harvest.replay.context.base import ContextBase
from harvest.replay.context.metrics import WorkflowMetrics

DETAILS_BYTES: Final = 64 * 1024
PROGRESS_BYTES: Final = 64 * 1024
ATTRIBUTES_BYTES: Final = 32 * 1024


class VisibilityCalls(ContextBase):
    """The part of the context that speaks to people. It writes no event: only the latest state is kept."""

    __slots__ = ()

    def set_current_details(self, details: Any) -> None:
        """What is going on now, as text or JSON of at most 64 KiB; pages show it until it is set again."""
        self._run.check_may_act()
        data = _bounded(payload.encode(details, what="current details"), DETAILS_BYTES, "current details")
        if not self._run.replaying:
            self._run.details = data

    def upsert_search_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes that lists can be filtered by: text, numbers, booleans, lists of text; None removes one."""
        self._run.check_may_act()
        for name, value in attributes.items():
            check_text(name, what="search attribute")
            if not _is_searchable(value):
                raise InvalidRequestError(
                    f"search attribute {name!r} is a {type(value).__name__}; it must be text, a number, a boolean, "
                    "a list of text, or None",
                    field=name,
                )
        data = _bounded(payload.encode(dict(attributes), what="search attributes"), ATTRIBUTES_BYTES, "attributes")
        if b"\\u0000" in data:
            raise InvalidRequestError("search attributes hold a NUL character, which cannot be searched")
        if not self._run.replaying:
            self._run.upserts = {**self._run.upserts, **attributes}

    def publish_progress(self, chunk: Any) -> None:
        """Send a piece of JSON to whoever watches the run at this moment. It is kept nowhere."""
        self._run.check_may_act()
        data = _bounded(payload.encode(chunk, what="progress"), PROGRESS_BYTES, "a piece of progress")
        if not self._run.replaying:
            self._run.progress.append(data)

    @property
    def metrics(self) -> WorkflowMetrics:
        """Counters and histograms of your own, silent while history is replayed."""
        return WorkflowMetrics(self._run)


def _is_searchable(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(item, str) for item in value)
    return value is None or isinstance(value, str | bool | int | float)


def _bounded(data: bytes, most: int, what: str) -> bytes:
    if len(data) > most:
        raise LimitError(f"{what} has {len(data):,} bytes; at most {most:,} are allowed", size=len(data), limit=most)
    return data
