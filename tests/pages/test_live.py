"""Hints reach the tabs that they concern, in order, and a tab that missed some reads again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest

from harvest import clock
from harvest.errors import InvalidRequestError
from harvest.shards import Shards
from harvest.store import live as store_live
from harvest.store.store import Store
from harvest.store.wakes import LIVE_CHANNEL
from harvest_console.live import Hub
from harvest_console.live.hub import QUEUE_SIZE, RING_SIZE
from harvest_console.live.topics import Topics, parse_topics

RUN = Topics(runs=frozenset({(0, 7)}))
LIST = Topics(everything=True)


@pytest.fixture
async def shards(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """One migrated shard."""
    opened = await Shards.open({0: new_database("live")})
    yield opened
    await opened.close()


@pytest.fixture
async def hub(shards: Shards) -> AsyncIterator[Hub]:
    """A hub that listens to it."""
    started = Hub(shards)
    await started.start()
    yield started
    await started.close()


async def _next(stream: AsyncIterator[bytes]) -> tuple[str, str]:
    """Event and id of the next frame."""
    async with asyncio.timeout(30):
        frame = (await anext(stream)).decode()
    fields = dict(line.split(": ", 1) for line in frame.strip().split("\n"))
    return fields["event"], fields["id"]


async def _until(stream: AsyncIterator[bytes], event: str) -> str:
    while True:
        found, number = await _next(stream)
        if found == event:
            return number


async def _notify(store: Store, *partitions: int) -> None:
    touched = sum(1 << partition for partition in partitions)
    await store.write.write("select pg_notify($1, $2)", LIVE_CHANNEL, f"{touched:0128x}")


async def test_a_hint_reaches_the_run_of_its_partition_and_every_list(hub: Hub, shards: Shards) -> None:
    async with aclosing(hub.stream("a", RUN, None)) as run, aclosing(hub.stream("b", LIST, None)) as everything:
        assert (await _next(run))[0] == "hello"
        assert (await _next(everything))[0] == "hello"
        await _until(run, "resync")  # LISTEN is in force by now
        await _notify(shards.store(0), 8)
        await _notify(shards.store(0), 7, 500)
        await _until(everything, "list")
        first = await _until(run, "run")
        await _notify(shards.store(0), 7)
        second = await _until(run, "run")
        assert first.split("-")[0] == second.split("-")[0]
        assert int(first.split("-")[1]) < int(second.split("-")[1])


async def test_a_tab_that_comes_back_gets_what_it_missed(hub: Hub) -> None:
    hub._tell(0, 1 << 7)
    seen = hub._frame("run").decode().split("\n")[0].removeprefix("id: ")
    hub._tell(0, 1 << 8)
    hub._tell(0, 1 << 7)
    async with aclosing(hub.stream("a", RUN, seen)) as stream:
        assert (await _next(stream))[0] == "hello"
        assert (await _next(stream))[0] == "run"


@pytest.mark.parametrize("last", ["other-5", "x", "-1", "{boot}-999999", "{boot}-\u0661"])
async def test_an_id_that_is_not_known_means_reading_again(hub: Hub, last: str) -> None:
    async with aclosing(hub.stream("a", RUN, last.replace("{boot}", hub._boot))) as stream:
        assert (await _next(stream))[0] == "resync"


async def test_more_than_the_ring_keeps_means_reading_again(hub: Hub) -> None:
    for _ in range(RING_SIZE + 2):
        hub._tell(0, 1 << 7)
    async with aclosing(hub.stream("a", RUN, f"{hub._boot}-1")) as stream:
        assert (await _next(stream))[0] == "resync"


async def test_a_slow_tab_is_told_once_to_read_again(hub: Hub) -> None:
    async with aclosing(hub.stream("a", RUN, None)) as stream:
        assert (await _next(stream))[0] == "hello"
        for _ in range(QUEUE_SIZE + 1):
            hub._tell(0, 1 << 7)
        assert (await _next(stream))[0] == "resync"


async def test_the_fifth_stream_of_a_session_is_told_to_poll_and_ends(hub: Hub) -> None:
    streams = [hub.stream("one", RUN, None) for _ in range(4)]
    for stream in streams:
        assert (await _next(stream))[0] == "hello"
    fifth = hub.stream("one", RUN, None)
    assert (await _next(fifth))[0] == "poll"
    with pytest.raises(StopAsyncIteration):
        await anext(fifth)
    other = hub.stream("two", RUN, None)
    assert (await _next(other))[0] == "hello"
    for stream in (*streams, other):
        await stream.aclose()


async def test_closing_the_hub_ends_every_stream(hub: Hub) -> None:
    stream = hub.stream("a", RUN, None)
    assert (await _next(stream))[0] == "hello"
    waiting = asyncio.create_task(_drained(stream))
    await hub.close()
    async with asyncio.timeout(30):
        await waiting


async def _drained(stream: AsyncIterator[bytes]) -> None:
    async for _ in stream:
        pass


async def test_writers_are_asked_for_hints_while_a_tab_listens(hub: Hub, shards: Shards) -> None:
    store = shards.store(0)

    async def watched() -> bool:
        row = await store.read.fetch_row("select watched_until > clock_timestamp() as ahead from harvest_meta")
        return row is not None and row["ahead"]

    assert not await watched()
    async with aclosing(hub.stream("a", RUN, None)) as stream:
        await _next(stream)
        assert await clock.until(watched, within=30)
        # Until a writer has noticed, its changes are caught by one more re-read.
        await _until(stream, "resync")


async def test_after_a_lost_connection_every_tab_reads_again(hub: Hub, shards: Shards) -> None:
    async with aclosing(hub.stream("a", RUN, None)) as stream:
        await _next(stream)
        await _until(stream, "resync")
        await shards.store(0).write.write(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'harvest-listen-harvest_live' and datname = current_database()"
        )
        await _until(stream, "resync")  # it is lost
        await _until(stream, "resync")  # it is back
        await _notify(shards.store(0), 7)
        await _until(stream, "run")


@pytest.mark.parametrize("text", ["run:0", "run:0.512", "run:x.1", "run:0.-1", "all", "run:0.1,run:a.b", "list," * 17])
def test_topics_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_topics(text)


def test_a_damaged_hint_means_that_anything_may_have_changed() -> None:
    assert Topics(runs=frozenset({(0, 511)})).events(0, store_live.touched_partitions("zz")) == ["run"]
    assert parse_topics("run:0.7,list").events(0, 1 << 7) == ["run", "list"]
    assert parse_topics("run:0.7,list").events(1, 1 << 7) == ["list"]
