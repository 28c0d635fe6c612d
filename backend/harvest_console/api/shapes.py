"""The bodies and queries that the API reads, and the answers it gives: what the OpenAPI document describes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from harvest.history.limits import NAME_BYTES, REASON_CHARACTERS, WORKFLOW_ID_BYTES
from harvest.history.states import State
from harvest.operations.auditing import MOST_ENTRIES, AuditView
from harvest.operations.definitions import Definition
from harvest.operations.listing import MOST_ROWS
from harvest.operations.reading import MOST_EVENTS
from harvest.operations.views import ExecutionView
from harvest_console.api.answers import UnavailableShard

Instant = Annotated[datetime, Meta(tz=True)]
Key = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES)]
Cursor = Annotated[str, Meta(max_length=500)]
# For readers of the document; a word that is no state is refused by the operation, which names those there are.
_STATES = "^({0})(,({0}))*$".format("|".join(State.__members__))
Availability = Literal["complete", "partial", "unavailable"]


class StartBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to start a workflow with. The header Idempotency-Key wins over the field."""

    workflow_id: Annotated[str, Meta(min_length=1, max_length=WORKFLOW_ID_BYTES)] | None = None
    input: Raw | UnsetType = UNSET
    queue: Annotated[str, Meta(min_length=1, max_length=NAME_BYTES)] | None = None
    priority: Annotated[int, Meta(ge=-32768, le=32767)] = 0
    memo: Raw | UnsetType = UNSET
    search_attrs: dict[str, Any] | None = None
    execution_timeout_secs: Annotated[float, Meta(gt=0)] | None = None
    reuse_policy: Literal[
        "allow_duplicate", "reject_duplicate", "allow_duplicate_failed_only", "terminate_if_running"
    ] = "allow_duplicate"
    conflict_policy: Literal["unspecified", "fail", "use_existing", "terminate_existing"] = "unspecified"
    idempotency_key: Key | None = None


class StartAnswer(Struct, frozen=True):
    """201 for a run that this request began, 200 for one that was there."""

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    state: str
    shard_id: int
    started_fresh: bool
    deduplicated: bool


class SignalQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The header Idempotency-Key wins over the parameter."""

    idempotency_key: Key | None = None


class SignalAnswer(Struct, frozen=True, kw_only=True):
    """The signal is in the run's history, from this request or from an earlier one with the same key."""

    ok: bool = True
    execution_id: UUID
    signal_delivered: bool
    deduplicated: bool


class ReasonBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why; it is in the history and the audit log."""

    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)] = ""


class CancelAnswer(Struct, frozen=True, kw_only=True):
    """The run was asked to end in its own time; `newly_cancelled` is false when it had been asked before."""

    ok: bool = True
    execution_id: UUID
    state: str
    newly_cancelled: bool
    reason: str


class TerminateAnswer(Struct, frozen=True, kw_only=True):
    """The run has ended; `newly_terminated` is false when it had been terminated before."""

    ok: bool = True
    execution_id: UUID
    state: str
    newly_terminated: bool


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameter is known here."""


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A window of a history; `after` and `before` are event ids and exclusive."""

    after: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    before: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = 100
    order: Literal["asc", "desc"] = "asc"


class ResultQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How many seconds to wait for the end, 30 at most; `10` or `10s`."""

    wait: Annotated[str, Meta(pattern=r"^\d{1,6}(\.\d{1,6})?s?$")] = "0"

    @property
    def seconds(self) -> float:
        """The wait as a number."""
        return float(self.wait.removesuffix("s"))


class FilterQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which executions; `state` takes several words with commas between them, `blocked=true` those that stand still."""

    state: Annotated[str, Meta(max_length=200, extra_json_schema={"pattern": _STATES})] | None = None
    blocked: bool = False
    workflow_name: Annotated[str, Meta(max_length=NAME_BYTES)] | None = None
    workflow_id: Annotated[str, Meta(max_length=WORKFLOW_ID_BYTES)] | None = None
    started_after: Instant | None = None
    started_before: Instant | None = None


class ListQuery(FilterQuery, frozen=True, forbid_unknown_fields=True):
    """A page of the list."""

    order: Literal["asc", "desc"] = "desc"
    page_size: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 50
    cursor: Cursor | None = None


class ListAnswer(Struct, frozen=True, kw_only=True):
    """One page of executions."""

    workflows: list[ExecutionView]
    next_cursor: str | None
    previous_cursor: str | None
    status: Availability
    unavailable_shards: list[UnavailableShard]


class CountAnswer(Struct, frozen=True, kw_only=True):
    """How many there are on the shards that answered; `capped` when there are more than that."""

    count: int
    capped: bool
    status: Availability
    unavailable_shards: list[UnavailableShard]


class RegisteredAnswer(Struct, frozen=True, kw_only=True):
    """The types that workers have registered in the last seven days."""

    workflows: list[Definition]
    activities: list[Definition]
    status: Availability
    unavailable_shards: list[UnavailableShard]


class SchemaAnswer(Struct, frozen=True, kw_only=True):
    """The JSON Schemas of one workflow type: its input, its output, and each signal that it declares."""

    workflow_name: str
    version: int
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    signals: dict[str, dict[str, Any]]


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which acts; `until` is exclusive."""

    actor: Annotated[str, Meta(max_length=NAME_BYTES)] | None = None
    operation: Annotated[str, Meta(max_length=NAME_BYTES)] | None = None
    target_id: Annotated[str, Meta(max_length=WORKFLOW_ID_BYTES)] | None = None
    status: Literal["succeeded", "failed"] | None = None
    source: Literal["api", "cli", "ui"] | None = None
    since: Instant | None = None
    until: Instant | None = None
    cursor: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ENTRIES)] = 50


class AuditAnswer(Struct, frozen=True, kw_only=True):
    """One page of the audit log, newest first."""

    entries: list[AuditView]
    next_cursor: str | None
    previous_cursor: str | None
    status: Availability
    unavailable_shards: list[UnavailableShard]
