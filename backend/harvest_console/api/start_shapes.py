"""The bodies and answers of what starts executions."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from harvest.history.data import RetryPolicy
from harvest.history.ids import RESERVED_SHARD
from harvest.operations.preparing import LONGEST_TIMEOUT
from harvest.operations.updating import DEFAULT_WAIT
from harvest.operations.views import Payload
from harvest.shards.placement import KEY_CHARACTERS
from harvest_console.api.shapes import Key, WaitSeconds, WorkflowId

# For readers of the document: what is outside is refused by the placement, in the words of all its refusals.
_SHARDS: Final = {"minimum": 0, "maximum": RESERVED_SHARD - 1}
_KEYS: Final = {"minLength": 1, "maxLength": KEY_CHARACTERS}
ReusePolicy = Literal["allow_duplicate", "reject_duplicate", "allow_duplicate_failed_only", "terminate_if_running"]


class RetryBody(Struct, frozen=True, forbid_unknown_fields=True):
    """How often and how soon a run that failed is tried again; one attempt switches off what the type declares."""

    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] = 3
    initial_interval_secs: Annotated[float, Meta(ge=0, le=LONGEST_TIMEOUT)] = 1.0
    coefficient: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    max_interval_secs: Annotated[float, Meta(ge=0, le=LONGEST_TIMEOUT)] = 300.0
    non_retryable: list[Key] = []
    jitter: Literal["none", "full", "equal"] = "none"

    def policy(self) -> RetryPolicy:
        """The policy as history records it."""
        return RetryPolicy(
            max_attempts=self.max_attempts,
            initial_interval=self.initial_interval_secs,
            coefficient=self.coefficient,
            max_interval=self.max_interval_secs,
            non_retryable=tuple(self.non_retryable),
            jitter=self.jitter,
        )


class RunBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What every start may say of the run. The header Idempotency-Key wins over the field.

    Without `version` the latest one that is registered is started. `chain_execution_timeout_secs` bounds the run and
    all that follow it, as new or as a retry.
    """

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    queue: Key | None = None
    priority: Annotated[int, Meta(ge=-32768, le=32767)] = 0
    memo: Raw | UnsetType = UNSET
    search_attrs: dict[str, Any] | None = None
    execution_timeout_secs: Annotated[float, Meta(gt=0)] | None = None
    chain_execution_timeout_secs: Annotated[float, Meta(gt=0)] | None = None
    retry: RetryBody | None = None
    idempotency_key: Key | None = None


class StartBody(RunBody, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to start a workflow with. `shard_id` or `residency_key` places it; else its id decides where it lives."""

    workflow_id: WorkflowId | None = None
    input: Raw | UnsetType = UNSET
    reuse_policy: ReusePolicy = "allow_duplicate"
    conflict_policy: Literal["unspecified", "fail", "use_existing", "terminate_existing"] = "unspecified"
    shard_id: Annotated[int, Meta(extra_json_schema=_SHARDS)] | None = None
    residency_key: Annotated[str, Meta(extra_json_schema=_KEYS)] | None = None


class RunAnswer(Struct, frozen=True, kw_only=True):
    """The run that a start led to."""

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    state: str
    started_fresh: bool
    deduplicated: bool


class StartAnswer(RunAnswer, frozen=True, kw_only=True):
    """201 for a run that this request began, 200 for one that was there; `shard_id` where a placement was asked for."""

    shard_id: int | UnsetType = UNSET


class SignalWithStartBody(RunBody, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The signal, and what the run is started with where there is none."""

    workflow_id: WorkflowId
    signal_name: Key
    signal_payload: Raw | UnsetType = UNSET
    start_input: Raw | UnsetType = UNSET
    id_reuse_policy: ReusePolicy = "allow_duplicate"


class SignalWithStartAnswer(RunAnswer, frozen=True, kw_only=True):
    """201 where the run began with the signal; `signal_delivered` is false only for a repeated key."""

    signal_delivered: bool


class UpdateWithStartBody(RunBody, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The update, and what the run is started with where there is none; how long to wait for the answer."""

    workflow_id: WorkflowId
    update_name: Key
    update_args: Raw | UnsetType = UNSET
    start_input: Raw | UnsetType = UNSET
    id_reuse_policy: ReusePolicy = "allow_duplicate"
    wait_for_stage: Literal["admitted", "completed"] = "completed"
    timeout_secs: WaitSeconds = DEFAULT_WAIT


class UpdateWithStartAnswer(RunAnswer, frozen=True, kw_only=True):
    """201 where the run began with the update; `result` is null while the update is only admitted."""

    update_id: str
    stage: Literal["admitted", "completed"]
    result: Payload | None


class BatchItemBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One run of a batch."""

    workflow_name: Key
    workflow_id: WorkflowId | None = None
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    input: Raw | UnsetType = UNSET
    queue: Key | None = None
    priority: Annotated[int, Meta(ge=-32768, le=32767)] = 0
    memo: Raw | UnsetType = UNSET
    search_attributes: dict[str, Any] | None = None
    idempotency_key: Key | None = None


class BatchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Up to 1,000 runs; `atomic` starts all of them or none."""

    items: list[BatchItemBody]
    atomic: bool


class ItemProblem(Struct, frozen=True, kw_only=True):
    """Why an item of a batch has no run."""

    code: str
    slug: str
    detail: str
    retryable: bool
    problems: list[dict[str, str]] = []


class BatchItemAnswer(Struct, frozen=True, kw_only=True):
    """What became of one item: its run, or the reason in `error`."""

    index: int
    workflow_name: str
    workflow_id: str | None
    execution_id: UUID | None = None
    state: str | None = None
    shard_id: int | None = None
    started_fresh: bool = False
    deduplicated: bool = False
    error: ItemProblem | None = None


class BatchAnswer(Struct, frozen=True, kw_only=True):
    """Every item in its place, and how many began, were found, and failed."""

    items: list[BatchItemAnswer]
    started: int
    found: int
    failed: int
