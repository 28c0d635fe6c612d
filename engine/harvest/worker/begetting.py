"""Children that begin: from what their parent asked for to the rows of a run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.history.data import RetryPolicy
from harvest.history.deliveries import CLOSE_POLICIES, ChildStart, DeliveryKind
from harvest.history.states import FIRST_CLOSED
from harvest.store import deliveries, starts
from harvest.store.pool import Connection
from harvest.store.starts import NewExecution, new_execution
from harvest.store.store import Store
from harvest.worker import delivering
from harvest.worker.delivering import Step

FRESH_SECONDS: Final = 2.0


class Declared(Struct, frozen=True):
    """What workers have registered of one workflow type: its latest version, and the options of each."""

    latest: int = 1
    options: dict[int, dict[str, Any]] = {}


class Begetter:
    """Inserts children. Their ids are given, so that one that is there already is left alone."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[float, Declared]] = {}

    async def beget(self, connection: Connection, store: Store, steps: Iterable[Step]) -> None:
        """Begin the children of steps that start one.

        Where no shard takes the child, or the business key is taken, the step is a rejection.
        """
        starting: dict[UUID, Step] = {}
        for step in steps:
            if step.delivery.kind == DeliveryKind.CHILD_START:
                if step.data.refused:
                    delivering.refuse(step)
                else:
                    starting[step.delivery.target_execution_id] = step
        if not starting:
            return
        declared = await self._declared(connection, store, {step.data.workflow_name for step in starting.values()})
        chained = any(
            "chain_execution_timeout" in options for each in declared.values() for options in each.options.values()
        )
        # Of a shard that this worker does not work on it has no estimate of the clock.
        now = await starts.now_on(connection) if chained else None
        new = [_child(store, step, declared[step.data.workflow_name], now) for step in starting.values()]
        begun = await starts.start_many_on(connection, new)
        for each in new:
            if each.execution_id in begun:
                store.hints.touch(each.partition)
        if begun:
            store.waker.wake(None)
        left = {each.execution_id: each.business_key for each in new if each.execution_id not in begun}
        if left:
            await _explain(connection, starting, left)

    async def _declared(self, connection: Connection, store: Store, names: Iterable[str]) -> dict[str, Declared]:
        now = clock.monotonic()
        found = {name: self._known[store.shard_id, name] for name in names if (store.shard_id, name) in self._known}
        answer = {name: declared for name, (at, declared) in found.items() if now - at < FRESH_SECONDS}
        missing = [name for name in names if name not in answer]
        if missing:
            options: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in missing}
            for row in await deliveries.declared(connection, missing):
                options[row["name"]][row["version"]] = msgspec.json.decode(row["options"] or b"{}")
            for name, versions in options.items():
                answer[name] = Declared(max(versions, default=1), versions)
                self._known[store.shard_id, name] = (now, answer[name])
        return answer


async def _explain(connection: Connection, starting: dict[UUID, Step], left: dict[UUID, UUID]) -> None:
    """Why children did not begin: they had before, their key is taken, or whoever had it has just ended."""
    there = await deliveries.runs(connection, left)
    holders = await deliveries.by_keys(connection, {key for child, key in left.items() if child not in there})
    for child, key in left.items():
        if child in there:
            continue
        holder = holders.get(key)
        if holder is not None and holder["state"] < FIRST_CLOSED:
            delivering.reject(starting[child], holder["execution_id"])
        else:
            starting[child].undecided = True


def _child(store: Store, step: Step, declared: Declared, now: datetime | None) -> NewExecution:
    """What the parent did not say is as the child's code declares it. `now` is by its shard's clock, where needed."""
    data: ChildStart = step.data
    version = data.version or declared.latest
    options = declared.options.get(version, {})
    chain_timeout = options.get("chain_execution_timeout")
    memo = bytes(data.memo)
    return new_execution(
        store.shard_id,
        execution_id=step.delivery.target_execution_id,
        workflow_name=data.workflow_name,
        workflow_id=data.workflow_id,
        version=version,
        input=bytes(data.input),
        queue=data.queue or options.get("queue") or "default",
        tenant=data.tenant,
        priority=data.priority,
        memo=None if memo == b"null" else memo,
        execution_timeout=data.execution_timeout or options.get("execution_timeout"),
        chain_deadline=now + timedelta(seconds=chain_timeout) if now and chain_timeout else None,
        retry=_retry(data.retry, options),
        parent_id=UUID(data.parent_id),
        root_id=UUID(data.root_id),
        reports=data.reports,
        awaited=data.awaited if data.reports else None,
        close_policy=CLOSE_POLICIES.index(data.close_policy),
    )


def _retry(asked: RetryPolicy | None, options: dict[str, Any]) -> RetryPolicy | None:
    """The policy of the child; None where one attempt is all it has."""
    declared = options.get("retry")
    policy = msgspec.convert(declared, RetryPolicy) if asked is None and declared is not None else asked
    return None if policy is None or policy.max_attempts <= 1 else policy
