"""A business key means the open run, else the newest; absence is said only when every shard answered."""

from __future__ import annotations

import pytest

from harvest.errors import ExecutionNotFoundError, LimitError, UnknownExecutionError
from harvest.history.states import State
from harvest.operations.resolving import resolve
from harvest.shards import Shards
from tests.operations.population import Run, add


async def test_the_open_run_wins_over_newer_closed_ones(shards: Shards) -> None:
    open_run = await add(shards, 0, Run(age=100))
    await add(shards, 1, Run(age=1, state=State.COMPLETED))
    assert await resolve(shards, "order_flow", "o-1") == open_run


async def test_without_an_open_run_the_newest_is_meant(shards: Shards) -> None:
    await add(shards, 0, Run(age=100, state=State.COMPLETED))
    newest = await add(shards, 1, Run(age=1, state=State.FAILED))
    assert await resolve(shards, "order_flow", "o-1") == newest


async def test_not_found_needs_every_shard(shards: Shards) -> None:
    with pytest.raises(ExecutionNotFoundError):
        await resolve(shards, "order_flow", "o-1")
    half = await Shards.open({0: shards.store(0).url, 1: "postgresql://postgres@/x?host=/nonexistent"})
    try:
        with pytest.raises(UnknownExecutionError) as caught:
            await resolve(half, "order_flow", "o-1")
        assert caught.value.fields["unavailable_shards"] == [{"shard_id": 1, "reason": "connection refused"}]
        closed = await add(shards, 0, Run(age=9, state=State.COMPLETED))
        with pytest.raises(UnknownExecutionError):  # the missing shard may have an open one
            await resolve(half, "order_flow", "o-1")
        assert await resolve(shards, "order_flow", "o-1") == closed
        open_run = await add(shards, 0, Run())
        assert await resolve(half, "order_flow", "o-1") == open_run
    finally:
        await half.close()


async def test_a_name_that_cannot_be_is_refused(shards: Shards) -> None:
    with pytest.raises(LimitError):
        await resolve(shards, "order_flow", "x" * 3000)
    with pytest.raises(LimitError):
        await resolve(shards, "a\x00b", "o-1")
