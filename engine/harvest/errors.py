"""The one tree of errors. Each class has a stable code, a slug, and says whether trying again can help.

`docs/errors.md` and the console's problem+json answers are made from this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar


class HarvestError(Exception):
    """Base of every error that Harvest raises on purpose.

    `fields` are the named facts of this occurrence; they travel to the API answer as they are.
    """

    code: ClassVar[str] = "HVT-000"
    slug: ClassVar[str] = "harvest_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class DefinitionError(HarvestError):
    """A workflow or activity is declared in a way that cannot work; raised while the module is imported."""

    code, slug = "HVT-100", "definition_invalid"


class PayloadError(HarvestError):
    """A value cannot be stored exactly: not strict JSON, too deep, or text that is not UTF-8."""

    code, slug, status = "HVT-110", "payload_invalid", 400


class PayloadTooLargeError(PayloadError):
    """A payload is over the limit of bytes."""

    code, slug, status = "HVT-111", "payload_too_large", 413


class PayloadDecodeError(HarvestError):
    """Recorded bytes do not fit the type that today's code declares."""

    code, slug = "HVT-112", "payload_undecodable"


class ResultTypeError(HarvestError):
    """A function returned what its declared return type cannot hold; trying again cannot help."""

    code, slug = "HVT-113", "result_type"
    non_retryable: ClassVar[bool] = True


class HistoryDocumentError(HarvestError):
    """A file is no exported history, is damaged, or was exported by a newer release in a form of its own."""

    code, slug, status = "HVT-114", "history_document_invalid", 400


class ExportTooLargeError(HarvestError):
    """The exported history would have more bytes than the request allows."""

    code, slug, status = "HVT-115", "export_too_large", 413


class PayloadsErasedError(HarvestError):
    """What was asked for was erased with its run, for ever; the run's receipt says by whom, when and why."""

    code, slug, status = "HVT-116", "payloads_erased", 410


class LimitError(HarvestError):
    """A name, key or id is longer than its limit, or too many operations are pending."""

    code, slug, status = "HVT-120", "limit_exceeded", 400


class BatchTooLargeError(LimitError):
    """A batch start has more items or more bytes than one request may carry."""

    code, slug, status = "HVT-121", "batch_too_large", 413


class TooManyGroupsError(LimitError):
    """A usage report would have more groups than one answer carries: group by what has fewer values."""

    code, slug, status = "HVT-122", "too_many_groups", 413


class InvalidRequestError(HarvestError):
    """A request is malformed; the message names the field and what would be right."""

    code, slug, status = "HVT-200", "invalid_request", 400


class InputInvalidError(InvalidRequestError):
    """A workflow input or signal payload does not fit the declared schema."""

    code, slug = "HVT-201", "input_invalid"


class CursorError(InvalidRequestError):
    """A page cursor is damaged, or belongs to another filter."""

    code, slug = "HVT-202", "cursor_invalid"


class PlacementError(InvalidRequestError):
    """A run cannot be placed where it was asked to be. `reason` says why; the log has what is configured."""

    code, slug = "HVT-203", "placement_refused"


class FilterError(InvalidRequestError):
    """A filter cannot be read, or no index could answer it. `column` is where in its text, and `remedy` what helps."""

    code, slug = "HVT-204", "filter_invalid"


class UnauthenticatedError(HarvestError):
    """Nobody is signed in, or the token is unknown."""

    code, slug, status = "HVT-210", "unauthenticated", 401


class ForbiddenError(HarvestError):
    """The caller is known and lacks the right."""

    code, slug, status = "HVT-211", "forbidden", 403


class SigninLinkError(HarvestError):
    """A sign-in link is unknown, spent or expired."""

    code, slug, status = "HVT-212", "signin_link_invalid", 403


class ExecutionNotFoundError(HarvestError):
    """Every expected shard answered, and none has the execution."""

    code, slug, status = "HVT-300", "execution_not_found", 404


class WorkflowNotRegisteredError(HarvestError):
    """No worker has registered a workflow type of that name in the last seven days."""

    code, slug, status = "HVT-301", "workflow_not_registered", 404


class UpdateNotFoundError(HarvestError):
    """The run, and every other of its chain, has admitted no update of that id."""

    code, slug, status = "HVT-302", "update_not_found", 404


class WorkerNotFoundError(HarvestError):
    """No shard that answers knows a worker of that id; those that ended long ago are forgotten."""

    code, slug, status = "HVT-303", "worker_not_found", 404


class SavedViewNotFoundError(HarvestError):
    """There is no saved view of that id."""

    code, slug, status = "HVT-306", "saved_view_not_found", 404


class ReceiptNotFoundError(HarvestError):
    """There is no receipt of an erasure with that id."""

    code, slug, status = "HVT-307", "receipt_not_found", 404


class ExecutionExistsError(HarvestError):
    """The business key is taken, and the policies of the start forbid what would follow."""

    code, slug, status = "HVT-310", "execution_exists", 409


class ExecutionClosedError(HarvestError):
    """The run has ended; it takes no signals and cannot be ended again."""

    code, slug, status = "HVT-311", "execution_closed", 409


class IdempotencyConflictError(HarvestError):
    """An idempotency key was used before for another request."""

    code, slug, status = "HVT-312", "idempotency_conflict", 409


class ExecutionPausedError(HarvestError):
    """The run is paused, and what was asked for needs it to go on: resume it first."""

    code, slug, status = "HVT-313", "execution_paused", 409


class BatchRefusedError(HarvestError):
    """An atomic batch start was refused as a whole, and nothing was started; the items at fault are in the fields."""

    code, slug, status = "HVT-314", "batch_refused", 409


class WorkerStoppedError(HarvestError):
    """The worker has ended, and can be told nothing any more."""

    code, slug, status = "HVT-315", "worker_stopped", 409


class SavedViewExistsError(HarvestError):
    """A saved view of another filter has that name."""

    code, slug, status = "HVT-316", "saved_view_exists", 409


class RunNotClosedError(HarvestError):
    """The run has not ended, and only what has ended can be erased."""

    code, slug, status = "HVT-317", "execution_open", 409


class LegalHoldError(HarvestError):
    """The run is under a legal hold: it cannot be erased before that is released or has run out."""

    code, slug, status = "HVT-318", "legal_hold", 409


class DeliveriesUnderWayError(HarvestError):
    """The run has ended, but what it tells others is still under way, and would be lost: erase it a little later."""

    code, slug, status, retryable = "HVT-319", "under_way", 409, True


class OwnerModeRefusedError(HarvestError):
    """Owner mode cannot be turned on with the workers that live now; each reason is in `fields['blockers']`."""

    code, slug, status = "HVT-320", "owner_mode_refused", 409


class OwnerModeBusyError(HarvestError):
    """The tasks of a shard were too busy to turn owner mode on or off in its time; nothing was changed."""

    code, slug, status, retryable = "HVT-321", "owner_mode_busy", 503, True


class NotTableOwnerError(HarvestError):
    """Owner mode is turned on and off by the database user that owns the tables, and this one does not."""

    code, slug, status = "HVT-322", "not_table_owner", 409


class RunBusyError(HarvestError):
    """Something else keeps the run locked, such as an erasure that is under way; nothing was changed: try again."""

    code, slug, status, retryable = "HVT-323", "run_busy", 409, True


class ShardUnavailableError(HarvestError):
    """A shard did not answer in its deadline; what lives there is unknown, not absent."""

    code, slug, status, retryable = "HVT-400", "shard_unavailable", 503, True


class UnknownExecutionError(ShardUnavailableError):
    """Nothing was found, but not every expected shard answered."""

    code, slug = "HVT-401", "execution_unknown"


class OutcomeUnknownError(ShardUnavailableError):
    """The answer of a write was lost: it may or may not have happened. Repeat it with the same idempotency key."""

    code, slug = "HVT-402", "outcome_unknown"


class NoWritableShardError(ShardUnavailableError):
    """Every shard is being drained: none takes new workflows now."""

    code, slug = "HVT-403", "no_writable_shard"


class SchemaLevelError(HarvestError):
    """A database has another schema level or event format than this code reads."""

    code, slug = "HVT-410", "schema_level"


class ConfigurationError(HarvestError):
    """Settings that contradict each other or the deployment."""

    code, slug = "HVT-420", "configuration_invalid"


class WrongShardError(ConfigurationError):
    """A database says that it is another shard than the one that it is configured as."""

    code, slug = "HVT-411", "wrong_shard"


class NonDeterminismError(HarvestError):
    """Workflow code asked for something else than its history records; both sides are in the fields."""

    code, slug = "HVT-500", "non_determinism"


class DefinitionMissingError(HarvestError):
    """This worker has no code for the recorded workflow type and version."""

    code, slug = "HVT-501", "definition_missing"


class StepTooLongError(HarvestError):
    """One step of workflow code held the loop longer than the limit."""

    code, slug = "HVT-502", "step_too_long"


class UnknownEventError(HarvestError):
    """History holds an event kind that this release does not know."""

    code, slug = "HVT-503", "unknown_event"


class CommitRefusedError(HarvestError):
    """The database refuses what a decision writes, alone as well as in its batch."""

    code, slug = "HVT-504", "commit_refused"


class DecisionFailedError(HarvestError):
    """Harvest itself failed while it decided a run; a bug, whose stack is in the worker's log."""

    code, slug = "HVT-505", "decision_failed"


class VersionUnsupportedError(HarvestError):
    """History records a version of a change that the code's `ctx.version(…)` no longer, or not yet, covers."""

    code, slug = "HVT-506", "version_unsupported"


class WorkflowBugError(HarvestError):
    """The workflow raised one of the exceptions of its `block_on`: a bug to be mended, not an end of the run."""

    code, slug = "HVT-507", "workflow_bug"


class ForbiddenInWorkflowError(HarvestError):
    """Workflow code did what cannot be replayed (I/O, clocks, threads); the message says what to use instead."""

    code, slug = "HVT-510", "forbidden_in_workflow"


class ActivityError(HarvestError):
    """An activity failed for good; `__cause__` is the recorded failure. Raised in workflow code."""

    code, slug = "HVT-600", "activity_failed"


class ActivityTimeoutError(ActivityError, TimeoutError):
    """An activity ran into one of its four timeouts, named in `fields['timeout_type']`."""

    code, slug = "HVT-601", "activity_timed_out"


class ActivityCancelledError(ActivityError):
    """An activity ended as cancelled without the workflow asking for it."""

    code, slug = "HVT-602", "activity_cancelled"


class ChildWorkflowError(HarvestError):
    """A child did not complete; `__cause__` is its failure, `fields['state']` how it ended. Raised in workflow code."""

    code, slug = "HVT-603", "child_workflow_failed"


class ExternalWorkflowError(HarvestError):
    """Another run could not be signalled, cancelled or awaited: target_unknown, target_terminal or not_running."""

    code, slug = "HVT-604", "external_workflow_failed"


class SessionBrokenError(HarvestError):
    """A worker session ended before its workflow was done with it; another one can be made. `reason` says why."""

    code, slug = "HVT-605", "session_broken"


class SessionTimeoutError(SessionBrokenError, TimeoutError):
    """No worker had room for a session in the time that it was given to open."""

    code, slug = "HVT-606", "session_timed_out"


class ApplicationError(HarvestError):
    """Raised by user code to fail with a type of its own, and perhaps without retry."""

    code, slug = "HVT-610", "application_error"

    def __init__(
        self, message: str, *, type: str = "ApplicationError", non_retryable: bool = False, **fields: Any
    ) -> None:
        super().__init__(message, **fields)
        self.type = type
        self.non_retryable = non_retryable


class WorkflowFailedError(HarvestError):
    """The awaited execution did not complete; state and recorded failure are in the fields."""

    code, slug, status = "HVT-620", "workflow_failed", 409


class ResultTimeoutError(HarvestError, TimeoutError):
    """The execution was still open when the wait for its result ended."""

    code, slug, status = "HVT-621", "result_timeout", 408


class UpdateRejectedError(HarvestError):
    """The workflow's validator refused the update, or it has no such handler; nothing was done."""

    code, slug, status = "HVT-630", "update_rejected", 422


class UpdateFailedError(HarvestError):
    """The handler of the update raised, or the run ended before it answered; the failure is in the fields."""

    code, slug, status = "HVT-631", "update_failed", 409


class UpdateTimeoutError(HarvestError, TimeoutError):
    """The update was admitted and has not been answered in the time of the wait: ask for its result later."""

    code, slug, status = "HVT-636", "update_timeout", 504


class QueryNotFoundError(HarvestError):
    """The run has no query handler of that name; the names that it has are in the fields."""

    code, slug, status = "HVT-632", "query_not_found", 404


class QueryFailedError(HarvestError):
    """A query handler raised, or tried what only the workflow itself may do; the failure is in the fields."""

    code, slug, status = "HVT-633", "query_failed", 422


class NoWorkerError(HarvestError):
    """No living worker has the code of the run's workflow type and version, so nobody can answer for it."""

    code, slug, status, retryable = "HVT-634", "no_worker", 503, True


class RequestTimeoutError(HarvestError, TimeoutError):
    """A question to a run's code was not answered in its time; the workers of its type may be busy."""

    code, slug, status, retryable = "HVT-635", "request_timeout", 408, True


def every_error(root: type[HarvestError] = HarvestError) -> Iterator[type[HarvestError]]:
    """Walk the tree, parents first."""
    yield root
    for child in root.__subclasses__():
        yield from every_error(child)
