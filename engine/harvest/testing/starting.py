"""Starting runs in an environment, by the rules of a start (reference 2.8)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid5

import msgspec
from msgspec import Raw, Struct

from harvest.definitions.options import Retry
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import ExecutionExistsError, InvalidRequestError, WorkflowNotRegisteredError
from harvest.history import payload
from harvest.history.data import WorkflowStarted
from harvest.history.events import encode_data
from harvest.history.ids import business_key, derive_execution_id
from harvest.history.kinds import EventKind
from harvest.history.limits import WORKFLOW_ID_BYTES, check_text
from harvest.history.states import State
from harvest.shards import Placement
from harvest.testing.execution import Execution
from harvest.testing.world import World

_ROOT: Final = UUID("5f9b3c5e-0b1d-5d43-9a52-3c9e3f2f7d11")
_FAILED: Final = frozenset({State.FAILED, State.CANCELLED, State.TIMED_OUT})
_MAKES_WAY: Final = {
    "allow_duplicate": frozenset(State),
    "reject_duplicate": frozenset[State](),
    "allow_duplicate_failed_only": _FAILED,
    "terminate_if_running": frozenset(State),
}
_CONFLICTS: Final = ("unspecified", "fail", "use_existing", "terminate_existing")


class StartOptions(Struct, frozen=True, kw_only=True):
    """What a start may say, as `Harvest.start` takes it."""

    workflow_id: str | None = None
    version: int | None = None
    idempotency_key: str | None = None
    queue: str | None = None
    priority: int = 0
    execution_timeout: timedelta | None = None
    chain_execution_timeout: timedelta | None = None
    retry: Retry | None = None
    reuse_policy: str = "allow_duplicate"
    conflict_policy: str = "unspecified"
    memo: Any = None
    search_attributes: Mapping[str, Any] | None = None
    shard_id: int | None = None
    residency_key: str | None = None

    def __post_init__(self) -> None:
        # There is one world and no shard in it: what no deployment could grant is refused, all else is taken as given.
        Placement(self.shard_id, self.residency_key).check()
        if self.reuse_policy not in _MAKES_WAY or self.conflict_policy not in _CONFLICTS:
            raise InvalidRequestError(
                f"reuse_policy is {self.reuse_policy!r} and conflict_policy {self.conflict_policy!r}; they must be of "
                f"{', '.join(_MAKES_WAY)} and of {', '.join(_CONFLICTS)}"
            )


class Starter:
    """Makes the runs that a test starts. Their ids and seeds follow from `seed` and their order."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._root = uuid5(_ROOT, str(seed))
        self._count = 0
        self._keys: dict[str, UUID] = {}

    def next_id(self) -> UUID:
        """An id that no other has, the same in each run of a test."""
        self._count += 1
        now = int(self._world.clock.now.timestamp() * 1000)
        return derive_execution_id(0, self._root, self._count, now)

    def start(
        self,
        workflow: WorkflowDefinition[..., Any],
        args: tuple[Any, ...],
        options: StartOptions,
        carried: tuple[EventKind, Struct] | None = None,
    ) -> tuple[Execution, bool]:
        """A new run, or the one that stands for it; tells whether it is new. `carried` comes with a new one."""
        registry, version = self._world.registry, options.version
        declared = registry.workflow(workflow.name, version) if version else registry.latest(workflow.name)
        if declared is None:
            raise WorkflowNotRegisteredError(
                f"the application of this environment declares no workflow {workflow.name!r}"
                + (f" of version {version}" if version else ""),
                workflow_name=workflow.name,
            )
        data = workflow.signature.encode(args, {})
        workflow.signature.decode(data)
        key = None if options.idempotency_key is None else f"{workflow.name}/{options.idempotency_key}"
        if key is not None and key in self._keys:
            return self._world.executions[self._keys[key]], False
        execution_id = self.next_id()
        workflow_id = options.workflow_id or options.idempotency_key or str(execution_id)
        check_text(workflow_id, what="workflow_id", most=WORKFLOW_ID_BYTES)
        prior = self._world.newest(business_key("default", workflow.name, workflow_id))
        found = None if prior is None else self._by_policy(prior, options, with_message=carried is not None)
        if found is None:
            found = self._create(declared, execution_id, workflow_id, data, options, carried)
        if key is not None:
            self._keys[key] = found.execution_id
        return found, found is not prior

    def _by_policy(self, prior: Execution, options: StartOptions, *, with_message: bool) -> Execution | None:
        """The prior run where it stands for the start, None where it makes way; else ExecutionExistsError."""
        reuse, conflict = options.reuse_policy, options.conflict_policy
        if prior.state.is_open:
            verdict = {"fail": "refuse", "use_existing": "attach", "terminate_existing": "end"}.get(conflict) or {
                "reject_duplicate": "refuse",
                "terminate_if_running": "end",
            }.get(reuse, "attach")
            if verdict == "attach":
                return prior
            if verdict == "end":
                self._world.deliveries.terminate(prior, "replaced by a new start", "test")
                return None
        elif (
            prior.state is State.TERMINATED
            or prior.state in _MAKES_WAY[reuse]
            or (with_message and reuse != "reject_duplicate")
        ):
            return None
        raise ExecutionExistsError(
            f"{prior.title} exists ({prior.state.name}), and reuse_policy {reuse!r} with conflict_policy {conflict!r} "
            "does not allow another run",
            existing_execution_id=str(prior.execution_id),
            existing_state=prior.state.name,
        )

    def _create(
        self,
        workflow: WorkflowDefinition[..., Any],
        execution_id: UUID,
        workflow_id: str,
        data: bytes,
        options: StartOptions,
        carried: tuple[EventKind, Struct] | None,
    ) -> Execution:
        declared = workflow.options
        timeout, chain = options.execution_timeout, options.chain_execution_timeout
        chain_seconds = chain.total_seconds() if chain is not None else declared.chain_execution_timeout
        retry = options.retry.policy() if options.retry is not None else declared.retry
        started = WorkflowStarted(
            workflow_name=workflow.name,
            workflow_id=workflow_id,
            version=workflow.version,
            seed=execution_id.int & ((1 << 61) - 1),
            input=Raw(data),
            queue=options.queue or declared.queue,
            carried=0 if carried is None else 1,
            execution_timeout_seconds=timeout.total_seconds() if timeout is not None else declared.execution_timeout,
            priority=options.priority,
            retry=None if retry is None or retry.max_attempts <= 1 else retry,
            chain_deadline=(
                None if chain_seconds is None else self._world.clock.now + timedelta(seconds=chain_seconds)
            ),
        )
        rows = [] if carried is None else [(int(carried[0]), encode_data(carried[1]))]
        memo = None if options.memo is None else payload.encode(options.memo, what="memo")
        execution = self._world.create(execution_id, started, rows, memo=memo)
        execution.search_attributes = dict(options.search_attributes or {})
        return execution


def start_options(options: dict[str, Any]) -> StartOptions:
    """Check the options of a start; raises TypeError for one that there is not."""
    unknown = set(options) - set(StartOptions.__struct_fields__)
    if unknown:
        raise TypeError(f"an environment's start takes no {sorted(unknown)[0]!r}")
    return msgspec.structs.replace(StartOptions(), **options)
