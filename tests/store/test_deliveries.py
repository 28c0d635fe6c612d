"""The order of deliveries, locks, what cannot be made, and the loop that makes them (design 4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from harvest import clock
from harvest.history.deliveries import (
    ANYWHERE,
    Cancel,
    ClosePolicy,
)
from harvest.history.ids import business_key, mint_execution_id
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.store import starts
from harvest.store.store import Store
from tests.store.kin import (
    a_deliverer,
    a_delivery,
    a_member,
    are_dense,
    by_name,
    deliver,
    rows_of,
    told,
)
from tests.store.sites import K, Site, a_signal, a_start, do_to


@asynccontextmanager
async def locked(store: Store, run: UUID, table: str = "harvest_executions") -> AsyncIterator[None]:
    other: Any = await asyncpg.connect(store.url)
    try:
        async with other.transaction():
            assert await other.fetch(f"select 1 from {table} where execution_id = $1 for update", run)
            yield
    finally:
        await other.close()


@asynccontextmanager
async def without_the_far_shard(site: Site) -> AsyncIterator[Shards]:
    """The same shards, but nobody answers for the second."""
    broken = await Shards.open({0: site.near.url, 1: f"{site.far.url.rpartition('/')[0]}/absent"})
    try:
        yield broken
    finally:
        await broken.close()


# Order


async def test_deliveries_of_a_pair_are_made_in_their_order(site: Site) -> None:
    source = await a_member(site.near)
    targets = [await a_member(site.far) for _ in range(2)]
    for seq in range(1, 251):
        await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, targets[seq % 2], a_signal(str(seq)), seq=seq)
    await site.deliver()
    for n, target in enumerate(targets):
        names = [int(data.name) for *_, data in await told(site.far, target)]
        assert names == [seq for seq in range(1, 251) if seq % 2 == n]


async def test_one_that_is_put_off_holds_up_those_behind_it_and_no_other(site: Site) -> None:
    source = await a_member(site.near)
    first, other = await a_member(site.far), await a_member(site.far)
    late = await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, first, a_signal("1"), seq=1)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, first, a_signal("2"), seq=2)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, other, a_signal("3"), seq=3)
    await site.near.scan.write(
        "update harvest_deliveries set due = clock_timestamp() + interval '1 hour' where delivery_id = $1", late
    )
    await site.deliver(until=2)
    assert (len(await told(site.far, first)), len(await told(site.far, other))) == (0, 1)
    await site.near.scan.write("update harvest_deliveries set due = clock_timestamp()")
    await site.deliver()
    assert [data.name for *_, data in await told(site.far, first)] == ["1", "2"]


async def test_who_waits_for_an_end_holds_up_nobody(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, target, do_to(K.EXTERNAL_AWAIT), seq=1)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=2)
    await site.deliver(until=1)
    assert len(await told(site.far, target)) == 1


async def test_a_child_is_signalled_and_cancelled_after_it_has_begun(site: Site) -> None:
    parent, child = await a_member(site.near), mint_execution_id(site.far.shard_id)
    await a_delivery(site.near, K.CHILD_START, parent, child, a_start(parent), seq=1)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, parent, child, a_signal(), seq=2)
    await a_delivery(site.near, K.CHILD_CANCEL, parent, child, Cancel(), seq=1)
    await site.deliver()
    assert [kind for kind, *_ in await told(site.far, child)] == [
        EventKind.SIGNAL_RECEIVED, EventKind.WORKFLOW_CANCEL_REQUESTED,
    ]  # fmt: skip


async def test_what_follows_a_child_that_could_not_begin_yet_waits_for_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had the child's id has ended between two statements: the child is tried again, before its signal."""
    parent, child = await a_member(site.near), mint_execution_id(site.far.shard_id)
    await a_delivery(site.near, K.CHILD_START, parent, child, a_start(parent), seq=1)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, parent, child, a_signal(), seq=2)
    real = starts.start_many_on

    async def not_yet(*_: Any) -> set[UUID]:
        monkeypatch.setattr(starts, "start_many_on", real)
        return set()

    monkeypatch.setattr(starts, "start_many_on", not_yet)
    await site.deliver()
    assert [kind for kind, *_ in await told(site.far, child)] == [EventKind.SIGNAL_RECEIVED]
    assert [kind for kind, *_ in await told(site.near, parent)] == [EventKind.EXTERNAL_SIGNAL_DELIVERED]


async def test_a_signal_before_a_terminate_is_in_the_history(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=1)
    await a_delivery(site.near, K.CLOSE_POLICY, source, target, ClosePolicy(action="terminate"), seq=2)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=3)
    await site.deliver()
    assert [kind for kind, *_ in await told(site.far, target)] == [
        EventKind.SIGNAL_RECEIVED, EventKind.WORKFLOW_TERMINATED,
    ]  # fmt: skip
    assert [kind for kind, *_ in await told(site.near, source)] == [
        EventKind.EXTERNAL_SIGNAL_DELIVERED, EventKind.EXTERNAL_SIGNAL_FAILED,
    ]  # fmt: skip


# Locks


@pytest.mark.parametrize("whose", ["target", "target's task", "source", "source's task"])
async def test_a_lock_holds_up_one_delivery_and_no_other(site: Site, whose: str) -> None:
    sources = [await a_member(site.near) for _ in range(3)]
    targets = [await a_member(site.far) for _ in range(3)]
    for source, target in zip(sources, targets, strict=True):
        await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal())
    store, run = (site.far, targets[1]) if whose.startswith("target") else (site.near, sources[1])
    table = "harvest_workflow_tasks" if whose.endswith("task") else "harvest_executions"
    async with locked(store, run, table):
        async with asyncio.timeout(20):
            await site.deliver(until=1)
        assert [len(await told(site.near, source)) for source in sources] == [1, 0, 1]
    await site.deliver()
    assert [len(await told(site.near, source)) for source in sources] == [1, 1, 1]
    assert [len(await told(site.far, target)) for target in targets] == [1, 1, 1], "none is made twice"


async def test_two_that_deliver_at_once_make_each_delivery_once(site: Site) -> None:
    sources = [await a_member(site.near) for _ in range(10)]
    target = await a_member(site.far)
    for seq in range(200):
        await a_delivery(site.near, K.EXTERNAL_SIGNAL, sources[seq % 10], target, a_signal(str(seq)), seq=seq)
    deliverers = [a_deliverer(site.shards, site.near) for _ in range(3)]
    await asyncio.gather(*(deliver(deliverer) for deliverer in deliverers))
    names = [int(data.name) for *_, data in await told(site.far, target)]
    assert sorted(names) == list(range(200))
    for source in sources:
        assert len(await told(site.near, source)) == 20
    await are_dense(site.stores)


# What cannot be made


async def test_one_that_cannot_be_read_is_put_off_with_its_error_and_the_others_are_made(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    bad = await a_delivery(
        site.near, K.EXTERNAL_SIGNAL, source, mint_execution_id(site.far.shard_id), a_signal(), seq=1
    )
    await site.near.scan.write("update harvest_deliveries set payload = 'no json' where delivery_id = $1", bad)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=2)
    await site.deliver(until=1)
    (row,) = await rows_of(
        site.near, "harvest_deliveries", "delivery_id, last_error, attempts, due > clock_timestamp()"
    )
    assert (row["delivery_id"], row["attempts"], row["?column?"]) == (bad, 1, True)
    assert "JSON" in row["last_error"]


async def test_a_shard_that_does_not_answer_holds_up_what_is_meant_for_it_alone(two: Site) -> None:
    source, near, far = await a_member(two.near), await a_member(two.near), await a_member(two.far)
    nowhere = mint_execution_id(7)
    for seq, target in enumerate((far, nowhere, near)):
        await a_delivery(two.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=seq)
    broken = await Shards.open({0: two.near.url, 1: two.far.url.replace(str(two.far.url.rpartition("/")[2]), "absent")})
    try:
        await deliver(a_deliverer(broken, broken.stores[0]), until=2)
    finally:
        await broken.close()
    assert len(await told(two.near, near)) == 1
    rows = await rows_of(
        two.near, "harvest_deliveries", "*, extract(epoch from due - clock_timestamp())::float8 as wait"
    )
    assert all(0 < row["wait"] <= 5 and row["attempts"] == 1 and row["last_error"] for row in rows)


async def test_a_name_is_not_unknown_while_a_shard_is_missing(two: Site) -> None:
    source = await a_member(two.near)
    await a_member(two.near, workflow_id="here")
    for seq, name in enumerate(("here", "elsewhere")):
        key = business_key("default", "w", name)
        await a_delivery(
            two.near, K.EXTERNAL_SIGNAL, source, key, a_signal(target=by_name(name)), seq=seq, shard=ANYWHERE
        )
    broken = await Shards.open({0: two.near.url, 1: two.far.url.replace(str(two.far.url.rpartition("/")[2]), "absent")})
    try:
        await deliver(a_deliverer(broken, broken.stores[0]), until=1)
    finally:
        await broken.close()
    assert [seq for _, seq, _ in await told(two.near, source)] == [0], "an open run was found without the other shard"
    assert "shard 1" in (await rows_of(two.near, "harvest_deliveries"))[0]["last_error"]


# The loop


async def test_what_nobody_has_told_of_is_found_by_looking(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    deliverer = a_deliverer(site.shards, site.near)
    running = asyncio.create_task(deliverer.run())
    try:
        await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal())

        async def is_there() -> bool:
            return bool(await told(site.near, source))

        assert await clock.until(is_there, within=10)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
