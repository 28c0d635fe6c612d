"""The runs of a chain: numbered from the first, linked, in windows."""

from __future__ import annotations

from uuid import UUID

import pytest

from harvest.errors import ExecutionNotFoundError, InvalidRequestError
from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.operations import reading
from harvest.operations.chains import RunChain, run_chain
from harvest.shards import Shards
from tests.operations.population import EPOCH, Run, add


async def chain(
    shards: Shards, length: int, *, last: State = State.RUNNING, link: State = State.CONTINUED_AS_NEW
) -> list[UUID]:
    """Runs that each went on as the next."""
    runs: list[UUID] = []
    for n in range(length):
        state = last if n == length - 1 else link
        run = Run(
            state=state,
            age=-n,
            first_execution_id=runs[0] if runs else None,
            previous_execution_id=runs[-1] if runs else None,
        )
        runs.append(await add(shards, 1, run))
    return runs


def sequences(found: RunChain) -> list[int]:
    return [run.sequence for run in found.runs]


async def test_a_chain_is_the_same_from_each_of_its_runs(shards: Shards) -> None:
    runs = await chain(shards, 4)
    for run in runs:
        found = await run_chain(shards, run)
        assert [each.exec_id for each in found.runs] == runs
        assert (sequences(found), found.total_runs, found.next_cursor) == ([1, 2, 3, 4], 4, None)
        assert (found.execution_id, found.first_execution_id, found.head_unknown) == (run, runs[0], False)


async def test_a_run_says_how_it_went_on(shards: Shards) -> None:
    runs = await chain(shards, 3, last=State.COMPLETED)
    shown = (await run_chain(shards, runs[0])).runs
    assert [run.outcome for run in shown] == ["continued_as_new", "continued_as_new", "completed"]
    assert [run.continued_to_exec_id for run in shown] == [runs[1], runs[2], None]
    assert (shown[0].started_at, shown[2].state, shown[2].completed_at is not None) == (EPOCH, "COMPLETED", True)


async def test_a_failed_run_that_was_tried_again_is_told_from_one_that_was_not(shards: Shards) -> None:
    runs = await chain(shards, 3, last=State.FAILED, link=State.FAILED)
    assert [run.outcome for run in (await run_chain(shards, runs[0])).runs] == ["retried", "retried", "failed"]
    open_runs = await chain(shards, 2, link=State.TIMED_OUT)
    assert [run.outcome for run in (await run_chain(shards, open_runs[1])).runs] == ["retried", None]


async def test_a_run_alone_is_a_chain_of_one(shards: Shards) -> None:
    alone = await add(shards, 0, Run(workflow_id="o-7"))
    found = await run_chain(shards, alone)
    assert ([run.exec_id for run in found.runs], found.workflow_id, found.total_runs) == ([alone], "o-7", 1)


async def test_a_long_chain_comes_in_windows_from_the_newest_to_the_first(shards: Shards) -> None:
    runs = await chain(shards, 7)
    newest = await run_chain(shards, runs[3], limit=3)
    assert (sequences(newest), newest.next_cursor) == ([5, 6, 7], 5)
    middle = await run_chain(shards, runs[3], limit=3, before=newest.next_cursor)
    assert (sequences(middle), middle.next_cursor) == ([2, 3, 4], 2)
    assert [run.exec_id for run in middle.runs] == runs[1:4]
    # The link over the edge of a window is there too.
    assert middle.runs[-1].continued_to_exec_id == runs[4]
    first = await run_chain(shards, runs[3], limit=3, before=middle.next_cursor)
    assert (sequences(first), first.next_cursor) == ([1], None)
    assert (first.runs[0].exec_id, first.runs[0].continued_to_exec_id) == (runs[0], runs[1])
    assert (await run_chain(shards, runs[3], before=1)).runs == []
    assert sequences(await run_chain(shards, runs[3], before=99)) == [1, 2, 3, 4, 5, 6, 7]


async def test_a_chain_whose_first_run_is_gone_says_so(shards: Shards) -> None:
    runs = await chain(shards, 3)
    await shards.store(1).write.write("delete from harvest_executions where execution_id = $1", runs[0])
    found = await run_chain(shards, runs[2])
    assert ([run.exec_id for run in found.runs], found.head_unknown) == (runs[1:], True)
    assert (sequences(found), found.total_runs) == ([1, 2], 2)


async def test_unknown_runs_and_bounds(shards: Shards) -> None:
    with pytest.raises(ExecutionNotFoundError):
        await run_chain(shards, mint_execution_id(0))
    with pytest.raises(InvalidRequestError, match="limit"):
        await run_chain(shards, mint_execution_id(0), limit=0)


async def test_a_run_links_to_the_one_that_it_went_on_as(shards: Shards) -> None:
    runs = await chain(shards, 3)
    assert [(await reading.get(shards, run)).next_execution_id for run in runs] == [runs[1], runs[2], None]
