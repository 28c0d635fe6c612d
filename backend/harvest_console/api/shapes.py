"""The bodies and queries that the API reads, and the answers it gives: what the OpenAPI document describes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from harvest.history.ids import ID_DIGITS
from harvest.history.limits import NAME_BYTES, REASON_CHARACTERS, WORKFLOW_ID_BYTES
from harvest.history.states import State
from harvest.operations.auditing import MOST_ENTRIES, AuditView
from harvest.operations.counting import MOST_GROUPS, CountGroup
from harvest.operations.definitions import Definition
from harvest.operations.facets import MOST_VALUES, AttributeKey, FacetValue
from harvest.operations.filter_language import MOST_BYTES
from harvest.operations.listing import MOST_ROWS
from harvest.operations.reading import MOST_EVENTS
from harvest.operations.updating import DEFAULT_WAIT
from harvest.operations.views import ExecutionView, Payload
from harvest_console.api.answers import UnavailableShard

Instant = Annotated[datetime, Meta(tz=True)]
Key = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES)]
Cursor = Annotated[str, Meta(max_length=500)]
WorkflowId = Annotated[str, Meta(min_length=1, max_length=WORKFLOW_ID_BYTES)]
WaitText = Annotated[str, Meta(pattern=r"^\d{1,6}(\.\d{1,6})?s?$")]
WaitSeconds = Annotated[float, Meta(ge=0, le=DEFAULT_WAIT)]
Condition = Annotated[str, Meta(min_length=1, max_length=MOST_BYTES)]
Severity = Literal["sev1", "sev2", "sev3", "sev4"]
# For readers of the document; a word that is no state is refused by the operation, which names those there are.
STATES = "^({0})(,({0}))*$".format("|".join(State.__members__))
Availability = Literal["complete", "partial", "unavailable"]
# For readers of the document, too; the operation says what an id looks like.
ID_PREFIX = "^[0-9A-Fa-f-]*$"
_ID_CHARACTERS = ID_DIGITS + 4


class SignalQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The header Idempotency-Key wins over the parameter."""

    idempotency_key: Key | None = None


class SignalAnswer(Struct, frozen=True, kw_only=True):
    """The signal is in the run's history, from this request or from an earlier one with the same key."""

    ok: bool = True
    execution_id: UUID
    signal_delivered: bool
    deduplicated: bool
    routed_execution_id: UUID | UnsetType = UNSET


class UpdateQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How far to wait, and for how many seconds. The header Idempotency-Key wins over the parameter."""

    wait: Literal["admitted", "completed"] = "completed"
    timeout_secs: WaitSeconds = DEFAULT_WAIT
    idempotency_key: Key | None = None


class UpdateBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What the handler is given; null if left out."""

    input: Raw | UnsetType = UNSET


class UpdateResultQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How many seconds to wait for the answer, 30 at most; `10` or `10s`."""

    wait: WaitText = "0"

    @property
    def seconds(self) -> float:
        """The wait as a number."""
        return min(float(self.wait.removesuffix("s")), DEFAULT_WAIT)


class UpdateAnswer(Struct, frozen=True, kw_only=True):
    """An update that is in the run's history; `result` is what its handler returned, null while it is only admitted."""

    ok: bool = True
    execution_id: UUID
    update_id: str
    stage: Literal["admitted", "completed"]
    result: Payload | None
    deduplicated: bool
    routed_execution_id: UUID | UnsetType = UNSET


class ReasonBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why; it is in the history and the audit log."""

    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)] = ""


class EmptyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing is asked for beside the act itself."""


class CancelAnswer(Struct, frozen=True, kw_only=True):
    """The run was asked to end in its own time; `newly_cancelled` is false when it had been asked before.

    `routed_execution_id` is the run that was reached, where another of its chain was asked for; so in the other
    answers.
    """

    ok: bool = True
    execution_id: UUID
    state: str
    newly_cancelled: bool
    reason: str
    routed_execution_id: UUID | UnsetType = UNSET


class TerminateAnswer(Struct, frozen=True, kw_only=True):
    """The run has ended; `newly_terminated` is false when it had been terminated before."""

    ok: bool = True
    execution_id: UUID
    state: str
    newly_terminated: bool
    routed_execution_id: UUID | UnsetType = UNSET


class PauseAnswer(Struct, frozen=True, kw_only=True):
    """The run is held, since when, why and by whom; `newly_paused` is false when it was held before."""

    ok: bool = True
    execution_id: UUID
    state: str
    newly_paused: bool
    paused_at: datetime | None
    reason: str
    actor: str
    routed_execution_id: UUID | UnsetType = UNSET


class ResumeAnswer(Struct, frozen=True, kw_only=True):
    """The run goes on; `newly_resumed` is false when it was not held. How long the pause was, in seconds."""

    ok: bool = True
    execution_id: UUID
    state: str
    newly_resumed: bool
    pause_duration_secs: float
    routed_execution_id: UUID | UnsetType = UNSET


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

    wait: WaitText = "0"

    @property
    def seconds(self) -> float:
        """The wait as a number."""
        return float(self.wait.removesuffix("s"))


class FilterQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which executions; `state` takes several words with commas between them, `blocked=true` those that stand still.

    `exec_id_prefix` is how the execution id begins, in hexadecimal digits. `search_attr` is `key:value`,
    `search_attr_filter` is `key:op:value`; both may be given several times, `filter` is an expression. All must hold.
    """

    state: Annotated[str, Meta(max_length=200, extra_json_schema={"pattern": STATES})] | None = None
    blocked: bool = False
    workflow_name: Annotated[str, Meta(max_length=NAME_BYTES)] | None = None
    workflow_id: Annotated[str, Meta(max_length=WORKFLOW_ID_BYTES)] | None = None
    exec_id_prefix: Annotated[str, Meta(max_length=_ID_CHARACTERS, extra_json_schema={"pattern": ID_PREFIX})] | None = (
        None
    )
    started_after: Instant | None = None
    started_before: Instant | None = None
    owner: Annotated[str, Meta(max_length=NAME_BYTES)] | None = None
    severity: Severity | None = None
    search_attr: list[Condition] = []
    search_attr_filter: list[Condition] = []
    filter: Annotated[str, Meta(max_length=MOST_BYTES)] = ""


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


class CountQuery(FilterQuery, frozen=True, forbid_unknown_fields=True):
    """What to count, and by what; `limit_groups` are told apart, the rest is one group."""

    group_by: Literal["state", "workflow_name", "state,workflow_name"] | None = None
    limit_groups: Annotated[int, Meta(ge=1, le=MOST_GROUPS)] = 50


class CountAnswer(Struct, frozen=True, kw_only=True):
    """How many there are on the shards that answered; `capped` when there are more than that.

    `groups` is empty where nothing was asked to be grouped by; `truncated` tells that the last of them, `other`, stands
    for several. `total` is the sum of the groups, else the same as `count`.
    """

    count: int
    total: int
    capped: bool
    groups: list[CountGroup]
    truncated: bool
    as_of: datetime
    status: Availability
    unavailable_shards: list[UnavailableShard]


class FacetsQuery(FilterQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values of which field, among the executions that the filter finds but for what it asks of that field."""

    field: Annotated[str, Meta(min_length=1, max_length=MOST_BYTES)]
    limit: Annotated[int, Meta(ge=1, le=MOST_VALUES)] = 20


class FacetsAnswer(Struct, frozen=True, kw_only=True):
    """The frequent values of a field, among the newest executions of each shard: `rows` of them altogether.

    `capped` when there are more executions than were looked at, `truncated` when there are more values. `condition` is
    what a `filter` asks for a value with.
    """

    field: str
    values: list[FacetValue]
    rows: int
    capped: bool
    truncated: bool
    as_of: datetime
    status: Availability
    unavailable_shards: list[UnavailableShard]


class AttributeKeysAnswer(Struct, frozen=True, kw_only=True):
    """The search attributes that the newest executions of each shard have, the most frequent first."""

    keys: list[AttributeKey]
    rows: int
    status: Availability
    unavailable_shards: list[UnavailableShard]


class TriageAnswer(Struct, frozen=True, kw_only=True):
    """Who looks after the run, how bad it is, and the note; `changed_fields` are others than before."""

    ok: bool = True
    execution_id: UUID
    changed_fields: tuple[str, ...]
    owner: str | None
    severity: str | None
    note: str | None


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
