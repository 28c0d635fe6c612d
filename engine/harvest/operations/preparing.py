"""What a start asks for, checked and made into the rows of a run, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

import msgspec
from msgspec import Struct

from harvest.errors import InvalidRequestError
from harvest.history import payload
from harvest.history.data import RetryPolicy
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.large import warn_if_large
from harvest.history.limits import WORKFLOW_ID_BYTES, check_text
from harvest.operations import definitions
from harvest.operations.actor import Actor
from harvest.operations.definitions import Definition
from harvest.operations.inputs import check_input, search_attributes, with_defaults
from harvest.shards import AUTOMATIC, Placement, ShardRouter, Shards
from harvest.store import starts
from harvest.store.starts import NewExecution, new_execution
from harvest.store.store import Store

LONGEST_TIMEOUT: Final = 10 * 365 * 86_400.0


class StartRequest(Struct, frozen=True, kw_only=True):
    """A run that is asked for. Times in seconds; what is left out is taken from what the workflow's code declares.

    `version` 0 is the latest that is registered. A retry policy of one attempt switches off the one that is declared.
    `placement` is for starts alone: what comes with a signal or an update goes to the open run of the id, whichever
    shard that is on, and begins a run where the id leads.
    """

    workflow_name: str
    workflow_id: str | None = None
    version: int = 0
    input: bytes = payload.NULL
    queue: str | None = None
    priority: int = 0
    memo: bytes | None = None
    search_attrs: Mapping[str, Any] | None = None
    execution_timeout_secs: float | None = None
    chain_execution_timeout_secs: float | None = None
    retry: RetryPolicy | None = None
    idempotency_key: str | None = None
    placement: Placement = AUTOMATIC

    def chosen_id(self, router: ShardRouter) -> str:
        """The workflow id. Without one the key stands in for it, so that a repeated request finds the same shard.

        That of a placed run leads to its shard by itself. Raises PlacementError.
        """
        if self.workflow_id:
            return self.workflow_id
        ids = (self._made_id(number) for number in count())
        if self.placement.is_automatic:
            return next(ids)
        return router.id_for(self.workflow_name, self.shard(router), ids)

    def _made_id(self, number: int) -> str:
        """No two keys make the same id: the number is before the key, which may end in one."""
        if self.idempotency_key is None:
            return str(mint_execution_id(0))
        return f"key{number or ''}-{self.idempotency_key}"

    def shard(self, router: ShardRouter) -> int:
        """Where the run is to live. With a key it may live already, on a shard that takes no new ones.

        Raises PlacementError and NoWritableShardError.
        """
        repeats = self.idempotency_key is not None
        return router.place(self.workflow_name, self.workflow_id or "", self.placement, repeats=repeats)


class Prepared(Struct, frozen=True):
    """A run that may be inserted, where it is to live, and the type that it is of."""

    store: Store
    new: NewExecution
    definition: Definition


def checked(request: StartRequest, router: ShardRouter) -> StartRequest:
    """The request with an id, refused where it could never be right, or lives where nothing may begin.

    Raises InvalidRequestError, LimitError, PlacementError and NoWritableShardError.
    """
    check_text(request.workflow_name, what="workflow_name")
    if request.idempotency_key is not None:
        check_text(request.idempotency_key, what="idempotency_key")
    if request.workflow_id and not request.workflow_id.strip():
        raise InvalidRequestError(
            "workflow_id holds nothing but white space: name the run, or leave it out", field="workflow_id"
        )
    if request.workflow_id:
        check_text(request.workflow_id, what="workflow_id", most=WORKFLOW_ID_BYTES)
    if request.version < 0:
        raise InvalidRequestError(f"version is {request.version}; versions start at 1", field="version")
    for name in ("execution_timeout_secs", "chain_execution_timeout_secs"):
        seconds = getattr(request, name)
        if seconds is not None and not 0 < seconds <= LONGEST_TIMEOUT:
            raise InvalidRequestError(f"{name} must be above 0 and at most ten years", field=name)
    if not -32_768 <= request.priority <= 32_767:
        raise InvalidRequestError(f"priority is {request.priority}; it must be -32768 to 32767", field="priority")
    request.placement.check()
    named = msgspec.structs.replace(request, workflow_id=request.chosen_id(router))
    named.shard(router)
    return named


async def prepare(
    shards: Shards,
    actor: Actor,
    request: StartRequest,
    *,
    carried: tuple[EventKind, Struct] | None = None,
    shard_id: int | None = None,
) -> Prepared:
    """Make a run of a checked request; `carried` is an event that is written with its start.

    With `shard_id` it is to live there, wherever its id or its placement leads.

    Raises WorkflowNotRegisteredError, InputInvalidError, PayloadError, LimitError, and the errors of an unreachable
    shard.
    """
    name, workflow_id = request.workflow_name, request.workflow_id or ""
    definition = await definitions.find(shards, name, request.version or None)
    what = f"the input of workflow {name!r}"
    input = with_defaults(request.input, definition.input_schema)
    check_input(input, definition.input_schema, what=what)
    warn_if_large(input, what)
    declared = definition.input_schema.get("x-options", {})
    store = shards.store(request.shard(shards.router) if shard_id is None else shard_id)
    chain_timeout = request.chain_execution_timeout_secs or declared.get("chain_execution_timeout")
    new = new_execution(
        store.shard_id,
        workflow_name=name,
        workflow_id=workflow_id,
        version=definition.version,
        input=input,
        queue=check_text(request.queue or declared.get("queue", "default"), what="queue"),
        tenant=actor.tenant,
        priority=request.priority,
        memo=None if request.memo is None else payload.check_text(request.memo, what="memo"),
        search_attributes=None if request.search_attrs is None else search_attributes(request.search_attrs),
        execution_timeout=request.execution_timeout_secs or declared.get("execution_timeout"),
        chain_deadline=None if not chain_timeout else await starts.instant_in(store, chain_timeout),
        retry=retry_of(request.retry, declared),
        carried=carried,
    )
    return Prepared(store, new, definition)


def retry_of(asked: RetryPolicy | None, declared: Mapping[str, Any]) -> RetryPolicy | None:
    """The policy of the run; None where one attempt is all it has."""
    policy = asked
    if policy is None and declared.get("retry") is not None:
        policy = msgspec.convert(declared["retry"], RetryPolicy)
    return None if policy is None or policy.max_attempts <= 1 else policy


def target_of(request: StartRequest) -> str:
    """How the audit log names a run that did not begin."""
    return f"{request.workflow_name}/{request.workflow_id or ''}"[:500]
