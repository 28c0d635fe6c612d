"""The runs of a chain: continued as new, or tried again by a workflow-level retry (reference 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from harvest.errors import ExecutionNotFoundError, InvalidRequestError
from harvest.history.states import State
from harvest.operations.asking import ask
from harvest.operations.views import state_word
from harvest.shards import Shards
from harvest.store import families

MOST_RUNS: Final = 1_000


class ChainRun(Struct, frozen=True, kw_only=True):
    """One run of a chain; `sequence` counts from 1. `run_id` is the same as `exec_id`: each run has an id of its own.

    `outcome` is null while the run is open, `continued_as_new` or `retried` where another went on, else its state in
    lower case.
    """

    exec_id: UUID
    run_id: UUID
    sequence: int
    workflow_name: str
    workflow_id: str
    version: int
    state: str
    started_at: datetime
    completed_at: datetime | None
    outcome: str | None
    continued_to_exec_id: UUID | None


class RunChain(Struct, frozen=True, kw_only=True):
    """A window of a chain, oldest first; without a `before`, of its newest runs.

    `next_cursor` is the `before` of the window of older runs. `head_unknown` tells that the first run is not there any
    more: sequences then count from the oldest that is.
    """

    execution_id: UUID
    workflow_id: str
    first_execution_id: UUID
    head_unknown: bool
    total_runs: int
    runs: list[ChainRun]
    next_cursor: int | None


async def run_chain(shards: Shards, execution_id: UUID, *, before: int | None = None, limit: int = 100) -> RunChain:
    """The runs of an execution's chain with sequences below `before`, the newest `limit` of them (1 to 1,000).

    A chain stays on one shard. Raises ExecutionNotFoundError, and ShardUnavailableError.
    """
    if not 1 <= limit <= MOST_RUNS:
        raise InvalidRequestError(f"limit is {limit}; it must be 1 to {MOST_RUNS}", field="limit")
    shard_id = shards.store_of(execution_id).shard_id
    found = await ask(shards, shard_id, lambda store: families.chain(store, execution_id, before=before, limit=limit))
    if found is None:
        raise ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=execution_id)
    newest = found.total if before is None else min(found.total, before - 1)
    following = found.newer
    runs = []
    for sequence, row in zip(range(newest, 0, -1), found.runs, strict=False):
        runs.append(_run(row, sequence, following))
        following = row
    oldest = runs[-1].sequence if runs else 1
    return RunChain(
        execution_id=execution_id,
        workflow_id=found.workflow_id,
        first_execution_id=found.first_execution_id,
        head_unknown=not found.head_known,
        total_runs=found.total,
        runs=runs[::-1],
        next_cursor=oldest if oldest > 1 else None,
    )


def _run(row: Mapping[str, Any], sequence: int, following: Mapping[str, Any] | None) -> ChainRun:
    goes_on = following is not None and following["previous_execution_id"] == row["execution_id"]
    return ChainRun(
        exec_id=row["execution_id"],
        run_id=row["execution_id"],
        sequence=sequence,
        workflow_name=row["workflow_name"],
        workflow_id=row["workflow_id"],
        version=row["version"],
        state=state_word(row["state"]),
        started_at=row["started_at"],
        completed_at=row["closed_at"],
        outcome=_outcome(row["state"], goes_on),
        continued_to_exec_id=following["execution_id"] if following is not None and goes_on else None,
    )


def _outcome(state: int, goes_on: bool) -> str | None:
    if state < State.COMPLETED:
        return None
    if state == State.CONTINUED_AS_NEW or not goes_on:
        return state_word(state).lower()
    return "retried"
