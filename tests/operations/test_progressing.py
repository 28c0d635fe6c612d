"""Progress of a run for those who look on: from now on, in order, to the end, and kept for a minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import UUID

import pytest

from harvest.errors import ExecutionNotFoundError, ShardUnavailableError
from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.operations.progressing import Ended, follow
from harvest.shards import Shards
from harvest.store import progress, upkeep
from harvest.store.progress import MOST_CHUNKS, Chunk, ProgressWriter
from harvest.store.store import Store
from tests.operations.population import Run, add
from tests.support import eventually

Told = AsyncGenerator[Chunk | Ended | None, None]


async def closed(store: Store, run: UUID) -> None:
    await store.write.write(
        "update harvest_executions set state = 10, closed_at = clock_timestamp() where execution_id = $1", run
    )


async def data_of(told: Told, count: int) -> list[bytes]:
    """The next chunks."""
    found = [await anext(told) for _ in range(count)]
    return [each.data for each in found if isinstance(each, Chunk)]


async def test_one_who_looks_on_hears_what_comes_from_then_on_and_the_end(shards: Shards) -> None:
    store = shards.store(0)
    run, other = await add(shards, 0, Run()), await add(shards, 0, Run(workflow_id="o-2"))
    await progress.publish(store, [(run, b'"before"')])
    async with aclosing(await follow(shards, run)) as told:
        await progress.publish(store, [(run, b"1"), (other, b'"not mine"'), (run, b"2")])
        first, second = await anext(told), await anext(told)
        assert isinstance(first, Chunk)
        assert isinstance(second, Chunk)
        assert (first.data, second.data) == (b"1", b"2")
        assert first.seq < second.seq
        await closed(store, run)
        await progress.publish(store, [(run, b'"last"')])
        assert await data_of(told, 1) == [b'"last"']
        assert await anext(told) == Ended(run, "COMPLETED")
        with pytest.raises(StopAsyncIteration):
            await anext(told)


async def test_one_who_comes_back_misses_nothing_that_is_kept(shards: Shards) -> None:
    store = shards.store(0)
    run = await add(shards, 0, Run())
    await progress.publish(store, [(run, b"%d" % number) for number in range(250)])
    kept = (await progress.after(store, {run: 0}))[run]
    async with aclosing(await follow(shards, run, last_seen=kept[0].seq)) as told:
        assert await data_of(told, 249) == [b"%d" % number for number in range(1, 250)]
    # A number that the table has never had: it was emptied meanwhile.
    async with aclosing(await follow(shards, run, last_seen=10**15)) as told:
        await progress.publish(store, [(run, b'"new"')])
        assert await data_of(told, 1) == [b'"new"']


async def test_several_look_on_each_from_where_it_came(shards: Shards) -> None:
    store = shards.store(0)
    run = await add(shards, 0, Run())
    async with aclosing(await follow(shards, run)) as early:
        await progress.publish(store, [(run, b"1")])
        async with aclosing(await follow(shards, run)) as late:
            await progress.publish(store, [(run, b"2")])
            assert await data_of(late, 1) == [b"2"]
        assert await data_of(early, 2) == [b"1", b"2"]


async def test_silence_is_told_and_a_closed_run_ends_at_once(shards: Shards) -> None:
    run = await add(shards, 0, Run())
    async with aclosing(await follow(shards, run, quiet=0.05)) as told:
        assert await anext(told) is None
    ended = await add(shards, 0, Run(state=State.FAILED, workflow_id="o-2"))
    async with aclosing(await follow(shards, ended)) as told:
        assert await anext(told) == Ended(ended, "FAILED")


async def test_a_run_that_is_not_there_and_a_shard_that_is_not(shards: Shards) -> None:
    with pytest.raises(ExecutionNotFoundError):
        await follow(shards, mint_execution_id(0))
    half = await Shards.open({0: "postgresql://postgres@/x?host=/nonexistent"})
    with pytest.raises(ShardUnavailableError):
        await follow(half, mint_execution_id(0))
    await half.close()


async def test_chunks_live_for_a_minute(shards: Shards) -> None:
    store = shards.store(0)
    run = await add(shards, 0, Run())
    await progress.publish(store, [(run, b"1"), (run, b"2")])
    await store.write.write(
        "update harvest_progress set at = clock_timestamp() - interval '61 seconds' where chunk = '1'"
    )
    await upkeep.sweep(store)
    assert [chunk.data for chunk in (await progress.after(store, {run: 0}))[run]] == [b"2"]


async def test_a_worker_publishes_in_order_and_drops_the_oldest_when_it_has_too_many(shards: Shards) -> None:
    store = shards.store(0)
    run = await add(shards, 0, Run())
    writer = ProgressWriter(store)
    async with aclosing(await follow(shards, run)) as told:
        writer.add(run, [b"%d" % number for number in range(MOST_CHUNKS + 50)])
        assert await data_of(told, MOST_CHUNKS) == [b"%d" % number for number in range(50, MOST_CHUNKS + 50)]
        writer.add(run, [b'"more"'])
        assert await data_of(told, 1) == [b'"more"']
    await writer.close()


async def test_a_database_that_is_away_costs_chunks_and_nothing_else(
    shards: Shards, caplog: pytest.LogCaptureFixture
) -> None:
    half = await Shards.open({0: "postgresql://postgres@/x?host=/nonexistent"})
    writer = ProgressWriter(half.store(0))
    writer.add(mint_execution_id(0), [b"1"])

    async def said() -> bool:
        return "1 chunks of progress are lost" in caplog.text

    await eventually(said)
    await asyncio.wait_for(writer.close(), 10)
    await half.close()
