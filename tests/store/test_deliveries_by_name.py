"""Runs that are known by name are found by looking at every shard (seed `sharding.md`, business-key addressing).

An open one comes before all others, and "there is none" is never said for a shard that could not be looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.history.deliveries import ANYWHERE, DeliveryKind, ExternalAwait, ExternalCancel
from harvest.history.ids import business_key
from harvest.history.kinds import EventKind
from harvest.shards import ShardRouter, Shards
from harvest.store.deliveries import Delivery
from harvest.store.store import Store
from harvest.worker.courier import Delivered
from harvest.worker.deliverer import Deliverer
from harvest.worker.delivering import LOOK_AGAIN
from harvest.worker.options import Counters
from harvest.worker.seeking import AWAY_SECONDS, Ask, Sought
from tests.faults.kinship import mortal, one_life
from tests.faults.proxy import proxied
from tests.store.kin import a_delivery, a_member, by_name, deliver, rounds, rows_of, told
from tests.store.sites import K, Site, a_signal, do_to

NAME = "name"
KEY = business_key("default", "w", NAME)
DELIVERED = {
    K.EXTERNAL_SIGNAL: EventKind.EXTERNAL_SIGNAL_DELIVERED,
    K.EXTERNAL_CANCEL: EventKind.EXTERNAL_CANCEL_DELIVERED,
}
FAILED = {K.EXTERNAL_SIGNAL: EventKind.EXTERNAL_SIGNAL_FAILED, K.EXTERNAL_CANCEL: EventKind.EXTERNAL_CANCEL_FAILED}
CANCEL_REQUESTED = EventKind.WORKFLOW_CANCEL_REQUESTED
INDETERMINATE, OVER_INCOMPLETE = (
    "external_signal.by_id_indeterminate_shard",
    "external_signal.by_id_found_over_incomplete_fanout",
)


class Half:
    """The first of two shards with its deliverer; the other is expected and not to be had."""

    def __init__(self, shards: Shards) -> None:
        self.near = shards.stores[0]
        self.deliverer = Deliverer(shards, self.near, Counters())

    def counted(self, name: str, *labels: str) -> float:
        return self.deliverer.seeker._measures.fresh.counters.get((name, *labels), 0)


@asynccontextmanager
async def half(site: Site, how: str) -> AsyncIterator[Half]:
    """`no_pool`: it has no database here; `no_answer`: nobody listens there."""
    urls = {0: site.near.url}
    if how == "no_answer":
        urls[1] = "postgresql://postgres@/x?host=/nonexistent"
    shards = await Shards.open(urls, ShardRouter.of((0, 1)))
    try:
        yield Half(shards)
    finally:
        await shards.close()


async def by_key(store: Store, kind: DeliveryKind, source: UUID, name: str = NAME, *, seq: int = 1) -> int:
    data = a_signal(target=by_name(name)) if kind is K.EXTERNAL_SIGNAL else do_to(kind)
    return await a_delivery(store, kind, source, business_key("default", "w", name), data, seq=seq, shard=ANYWHERE)


async def overdue(store: Store) -> None:
    await store.scan.write("update harvest_deliveries set due = clock_timestamp() - interval '1 second'")


async def ended(store: Store, run: UUID, state: int = 12) -> None:
    await store.scan.write(
        "update harvest_executions set state = $2, closed_at = clock_timestamp() where execution_id = $1", run, state
    )
    await store.scan.write("delete from harvest_workflow_tasks where execution_id = $1", run)


# The open run wins


@pytest.mark.parametrize("live", ["near", "far"])
@pytest.mark.parametrize("first", ["the live one", "the stale one"])
async def test_a_live_run_wins_over_an_ended_one_whatever_the_order(two: Site, live: str, first: str) -> None:
    here, there = (two.near, two.far) if live == "near" else (two.far, two.near)
    source = await a_member(two.near)
    if first == "the stale one":
        await a_member(there, workflow_id=NAME, state=10)
    run = await a_member(here, workflow_id=NAME)
    if first == "the live one":
        await a_member(there, workflow_id=NAME, state=10)
    await by_key(two.near, K.EXTERNAL_SIGNAL, source)
    await two.deliver()
    assert [kind for kind, *_ in await told(here, run)] == [EventKind.SIGNAL_RECEIVED]
    ((kind, _, data),) = await told(two.near, source)
    assert (kind, data.execution_id) == (EventKind.EXTERNAL_SIGNAL_DELIVERED, str(run))


async def test_the_newest_ended_run_of_all_shards_is_the_one_that_is_awaited(two: Site) -> None:
    source = await a_member(two.near)
    await a_member(two.far, workflow_id=NAME, state=10, result=b'"old"')
    await a_member(two.near, workflow_id=NAME, state=10, result=b'"new"')
    await a_delivery(two.near, K.EXTERNAL_AWAIT, source, KEY, ExternalAwait(by_name(NAME)), shard=ANYWHERE)
    await two.deliver()
    ((kind, _, data),) = await told(two.near, source)
    assert (kind, bytes(data.output)) == (EventKind.EXTERNAL_AWAIT_RESOLVED, b'"new"')


# What could not be looked at


@pytest.mark.parametrize("how", ["no_pool", "no_answer"])
@pytest.mark.parametrize("kind", DELIVERED)
@pytest.mark.parametrize("there", ["nothing", "an ended run"])
async def test_nothing_is_said_while_a_shard_could_not_be_looked_at(
    two: Site, kind: DeliveryKind, how: str, there: str
) -> None:
    source = await a_member(two.near)
    if there == "an ended run":
        await a_member(two.near, workflow_id=NAME, state=10)
    await by_key(two.near, kind, source)
    async with half(two, how) as part:
        await rounds(part.deliverer)
        assert await told(two.near, source) == []
        (row,) = await rows_of(two.near, "harvest_deliveries")
        assert row["last_error"].startswith("shard 1: ")
        assert (row["attempts"], row["target_shard"]) == (1, ANYWHERE)
        assert part.counted(INDETERMINATE, "1", how) == 1
        assert part.counted(OVER_INCOMPLETE) == 0
    await overdue(two.near)
    await two.deliver()
    ((answer, _, data),) = await told(two.near, source)
    assert (answer, data.reason_code) == (
        FAILED[kind], "target_terminal" if there == "an ended run" else "target_unknown")  # fmt: skip


@pytest.mark.parametrize("how", ["no_pool", "no_answer"])
async def test_a_signal_reaches_a_live_run_that_was_found_without_all_shards(two: Site, how: str) -> None:
    source, run = await a_member(two.near), await a_member(two.near, workflow_id=NAME)
    await by_key(two.near, K.EXTERNAL_SIGNAL, source)
    async with half(two, how) as part:
        await rounds(part.deliverer)
        assert part.counted(OVER_INCOMPLETE) == 1
        assert part.counted(INDETERMINATE, "1", how) == 0
    ((kind, *_),) = await told(two.near, source)
    assert kind is EventKind.EXTERNAL_SIGNAL_DELIVERED
    assert len(await told(two.near, run)) == 1


async def test_a_cancel_asks_a_live_run_without_all_shards_and_reports_when_all_were_looked_at(two: Site) -> None:
    source, run = await a_member(two.near), await a_member(two.near, workflow_id=NAME)
    await by_key(two.near, K.EXTERNAL_CANCEL, source)
    async with half(two, "no_answer") as part:
        for _ in range(3):
            await rounds(part.deliverer)
            await overdue(two.near)
        assert part.counted(OVER_INCOMPLETE) == 1
    assert [kind for kind, *_ in await told(two.near, run)] == [CANCEL_REQUESTED]
    assert await told(two.near, source) == []
    await ended(two.near, run)
    await two.deliver()
    ((kind, _, data),) = await told(two.near, source)
    assert (kind, data.execution_id) == (EventKind.EXTERNAL_CANCEL_DELIVERED, str(run))


async def test_what_waits_for_a_shard_tells_for_how_long(two: Site) -> None:
    source = await a_member(two.near)
    await by_key(two.near, K.EXTERNAL_SIGNAL, source)
    await two.near.scan.write("update harvest_deliveries set created_at = clock_timestamp() - interval '100 seconds'")
    async with half(two, "no_answer") as part:
        age = ("external_signal.by_id_oldest_pending_indeterminate_age", "0")
        await part.deliverer.seeker.look_at_age()
        assert dict(part.deliverer.seeker.ages())[age] == 0, "it has not been tried yet"
        await rounds(part.deliverer)
        await part.deliverer.seeker.look_at_age()
        ages = dict(part.deliverer.seeker.ages())
        assert 100 <= ages[age] < 160
        assert ages["external_cancel.by_id_oldest_pending_indeterminate_age", "0"] == 0
    await overdue(two.near)
    await two.deliver()
    await part.deliverer.seeker.look_at_age()
    assert dict(part.deliverer.seeker.ages())[age] == 0


async def test_a_backlog_pays_an_unreachable_shard_once_and_not_once_a_row(two: Site) -> None:
    source = await a_member(two.near)
    for n in range(450):
        await by_key(two.near, K.EXTERNAL_SIGNAL, source, f"name-{n}", seq=n)
    async with proxied(two.far.url) as proxy:
        proxy.stall()
        shards = await Shards.open({0: two.near.url, 1: proxy.url})
        deliverer = Deliverer(shards, two.near, Counters())
        began = clock.monotonic()
        try:
            await deliver(deliverer, until=450, within=1)
            await rounds(deliverer, 4)
        finally:
            await shards.close()
        took = clock.monotonic() - began
        assert proxy.accepted <= took / AWAY_SECONDS + 1, "one look at it, then none for a while"
    rows = await rows_of(two.near, "harvest_deliveries", "attempts, last_error")
    assert {row["attempts"] for row in rows} == {1}
    assert {row["last_error"] for row in rows} == {"shard 1: no answer in time"}
    assert took < 15


async def test_deliveries_by_id_do_not_wait_for_the_look_at_a_stalled_shard(two: Site) -> None:
    source, target = await a_member(two.near), await a_member(two.near)
    await by_key(two.near, K.EXTERNAL_SIGNAL, source, "elsewhere")
    await a_delivery(two.near, K.EXTERNAL_SIGNAL, source, target, a_signal(), seq=2)
    async with proxied(two.far.url) as proxy:
        proxy.stall()
        shards = await Shards.open({0: two.near.url, 1: proxy.url})
        deliverer = Deliverer(shards, two.near, Counters())
        try:
            deliverer.kick(source)
            began = clock.monotonic()
            await deliverer.tick()
            assert clock.monotonic() - began < 1
            assert len(await told(two.near, target)) == 1
            await asyncio.gather(*deliverer._beyond.values())
        finally:
            await shards.close()


# Cancels report from a later look


async def test_a_run_that_starts_while_the_shards_are_looked_at_is_asked_by_the_next_look(
    two: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, first = await a_member(two.near), await a_member(two.far, workflow_id=NAME)
    await by_key(two.near, K.EXTERNAL_CANCEL, source)
    deliverer = a_deliverer_of(two)
    seeker, late = deliverer.seeker, list[UUID]()
    near_read, read = asyncio.Event(), seeker._read

    async def in_order(store: Store, named: list) -> object:  # type: ignore[type-arg]
        """The far shard is read when the near one has been, and a run of the name has begun there since."""
        if store is two.near:
            look = await read(store, named)
            near_read.set()
            return look
        await near_read.wait()
        if not late:
            late.append(await a_member(two.near, workflow_id=NAME))
        return await read(store, named)

    monkeypatch.setattr(seeker, "_read", in_order)
    await rounds(deliverer)
    (second,) = late
    assert [kind for kind, *_ in await told(two.far, first)] == [CANCEL_REQUESTED]
    assert (await told(two.near, second), await told(two.near, source)) == ([], []), (
        "it has asked, and says nothing yet"
    )
    await ended(two.far, first)
    await overdue(two.near)
    await rounds(deliverer)
    assert [kind for kind, *_ in await told(two.near, second)] == [CANCEL_REQUESTED]
    assert await told(two.near, source) == []
    await overdue(two.near)
    await rounds(deliverer)
    ((kind, seq, data),) = await told(two.near, source)
    assert (kind, seq) == (EventKind.EXTERNAL_CANCEL_DELIVERED, 1)
    assert data.execution_id in (str(first), str(second))
    assert len(await told(two.far, first)) == len(await told(two.near, second)) == 1
    assert await rows_of(two.near, "harvest_deliveries") == []


async def test_two_live_runs_of_a_name_are_asked_one_with_each_look(two: Site) -> None:
    source = await a_member(two.near)
    runs = {two.near: await a_member(two.near, workflow_id=NAME), two.far: await a_member(two.far, workflow_id=NAME)}
    await by_key(two.near, K.EXTERNAL_CANCEL, source)
    deliverer, asked = a_deliverer_of(two), list[int]()
    for _ in range(3):
        await rounds(deliverer)
        asked.append(sum([len(await told(store, run)) for store, run in runs.items()]))
        await overdue(two.near)
    assert asked == [1, 2, 2]
    assert len(await told(two.near, source)) == 1


async def test_a_cancel_of_the_only_run_reports_within_a_moment(two: Site) -> None:
    source, run = await a_member(two.near), await a_member(two.far, workflow_id=NAME)
    await by_key(two.near, K.EXTERNAL_CANCEL, source)
    deliverer = a_deliverer_of(two)
    await rounds(deliverer)
    (row,) = await rows_of(
        two.near, "harvest_deliveries", "extract(epoch from due - clock_timestamp())::float8 as left"
    )
    assert row["left"] <= LOOK_AGAIN
    await deliver(deliverer)
    ((kind, _, data),) = await told(two.near, source)
    assert (kind, data.execution_id) == (EventKind.EXTERNAL_CANCEL_DELIVERED, str(run))


@pytest.mark.parametrize("case", ["ended", "asked", "unknown"])
async def test_a_cancel_that_changes_nothing_reports_at_once(two: Site, case: str) -> None:
    source = await a_member(two.near)
    if case == "ended":
        await a_member(two.far, workflow_id=NAME, state=10)
    elif case == "asked":
        run = await a_member(two.far, workflow_id=NAME)
        await two.far.scan.write("insert into harvest_dedupe values ($1, 3, 'WorkflowCancelRequested')", run)
    await by_key(two.near, K.EXTERNAL_CANCEL, source)
    await rounds(a_deliverer_of(two))
    ((kind, _, data),) = await told(two.near, source)
    if case == "asked":
        assert (kind, data.execution_id) == (EventKind.EXTERNAL_CANCEL_DELIVERED, str(run))
        assert await told(two.far, run) == []
    else:
        assert kind is EventKind.EXTERNAL_CANCEL_FAILED
        assert data.reason_code == ("target_terminal" if case == "ended" else "target_unknown")


async def test_with_one_shard_a_cancel_by_name_reports_with_its_request(two: Site) -> None:
    source, run = await a_member(two.near), await a_member(two.near, workflow_id=NAME)
    await by_key(two.near, K.EXTERNAL_CANCEL, source)
    alone = await Shards.open({0: two.near.url})
    try:
        await rounds(Deliverer(alone, alone.stores[0], Counters()))
    finally:
        await alone.close()
    assert len(await told(two.near, run)) == len(await told(two.near, source)) == 1


async def test_a_cancel_by_id_reports_with_its_request(two: Site) -> None:
    source, run = await a_member(two.near), await a_member(two.far)
    await a_delivery(two.near, K.EXTERNAL_CANCEL, source, run, ExternalCancel(by_name("any")))
    await rounds(a_deliverer_of(two))
    assert len(await told(two.far, run)) == len(await told(two.near, source)) == 1


@pytest.mark.parametrize("where", ["near", "far"])
@pytest.mark.parametrize("then", ["it is open", "it has ended"])
async def test_a_death_after_the_request_leaves_one_request_and_one_report(two: Site, where: str, then: str) -> None:
    target = getattr(two, where)
    source, run = await a_member(two.near), await a_member(target, workflow_id=NAME)
    await by_key(two.near, K.EXTERNAL_CANCEL, source)
    assert await one_life(mortal(two.shards, two.near, lambda step: step == "asked"))
    assert await told(two.near, source) == []
    if then == "it has ended":
        await ended(target, run)
    await deliver(a_deliverer_of(two))
    assert [kind for kind, *_ in await told(target, run)] == [CANCEL_REQUESTED]
    ((kind, _, data),) = await told(two.near, source)
    assert (kind, data.execution_id) == (EventKind.EXTERNAL_CANCEL_DELIVERED, str(run))


async def test_a_cancel_does_not_look_again_and_again_while_its_request_is_under_way(
    two: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, run = await a_member(two.near), await a_member(two.far, workflow_id=NAME)
    await by_key(two.near, K.EXTERNAL_CANCEL, source)
    deliverer, looks, answer = a_deliverer_of(two), list[int](), asyncio.Event()
    seek, ask = deliverer.seeker.seek, deliverer.courier.ask

    async def counted(named: list[Delivery]) -> Sought:
        looks.append(len(named))
        return await seek(named)

    async def held(store: Store, asks: list[Ask]) -> Delivered:
        await answer.wait()
        return await ask(store, asks)

    async def spins() -> bool:
        return len(looks) > 5

    async def is_reported() -> bool:
        return bool(await told(two.near, source))

    monkeypatch.setattr(deliverer.seeker, "seek", counted)
    monkeypatch.setattr(deliverer.courier, "ask", held)
    task = asyncio.create_task(deliverer.run())
    try:
        deliverer.kick(source)
        assert not await clock.until(spins, within=0.7, every=0.01), "whoever asks looks again by itself"
        assert looks
        answer.set()
        assert await clock.until(is_reported, within=10, every=0.05)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [kind for kind, *_ in await told(two.far, run)] == [CANCEL_REQUESTED]


async def test_a_metric_that_cannot_be_read_holds_up_no_delivery(
    two: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = await a_member(two.near), await a_member(two.near)
    await a_delivery(two.near, K.EXTERNAL_SIGNAL, source, target, a_signal())
    deliverer = a_deliverer_of(two)

    async def broken() -> None:
        raise OSError("no metric")

    monkeypatch.setattr(deliverer.seeker, "look_at_age", broken)
    deliverer.kick()
    await deliverer.tick()
    assert len(await told(two.near, target)) == 1
    assert "the age of waiting deliveries was not read: no metric" in caplog.text


# Order, and once


async def test_a_signal_that_was_made_is_not_made_again_on_another_shard(two: Site) -> None:
    source, first = await a_member(two.near), await a_member(two.far, workflow_id=NAME)
    await by_key(two.near, K.EXTERNAL_SIGNAL, source)
    assert await one_life(mortal(two.shards, two.near, lambda step: step == "applied"))
    await ended(two.far, first)
    second = await a_member(two.near, workflow_id=NAME)
    await deliver(a_deliverer_of(two))
    assert (len(await told(two.far, first)), await told(two.near, second)) == (1, [])
    ((kind, _, data),) = await told(two.near, source)
    assert (kind, data.execution_id) == (EventKind.EXTERNAL_SIGNAL_DELIVERED, str(first))


async def test_a_signal_whose_answer_was_lost_waits_for_the_shard_that_may_have_it(two: Site) -> None:
    source, first = await a_member(two.near), await a_member(two.far, workflow_id=NAME)
    await by_key(two.near, K.EXTERNAL_SIGNAL, source)
    losing = a_deliverer_of(two)

    def lost(step: str) -> None:
        if step == "applied":
            raise ShardUnavailableError("the answer was lost", shard_id=1)

    losing.courier.on_step = lost
    await rounds(losing)
    assert (len(await told(two.far, first)), await told(two.near, source)) == (1, [])
    second = await a_member(two.near, workflow_id=NAME)
    await overdue(two.near)
    async with half(two, "no_answer") as part:
        await rounds(part.deliverer)
        assert part.counted(INDETERMINATE, "1", "no_answer") == 1
    assert await told(two.near, second) == []
    await overdue(two.near)
    await two.deliver()
    assert (len(await told(two.far, first)), await told(two.near, second)) == (1, [])
    ((kind, _, data),) = await told(two.near, source)
    assert (kind, data.execution_id) == (EventKind.EXTERNAL_SIGNAL_DELIVERED, str(first))


async def test_signals_and_cancels_to_one_name_come_in_their_order(two: Site) -> None:
    source, run = await a_member(two.near), await a_member(two.far, workflow_id=NAME)
    for seq, kind in enumerate([K.EXTERNAL_SIGNAL, K.EXTERNAL_CANCEL, K.EXTERNAL_SIGNAL], 1):
        await by_key(two.near, kind, source, seq=seq)
    await deliver(a_deliverer_of(two))
    signal, cancel = EventKind.SIGNAL_RECEIVED, CANCEL_REQUESTED
    assert [kind for kind, *_ in await told(two.far, run)] == [signal, cancel, signal]
    assert [seq for _, seq, _ in await told(two.near, source)] == [1, 2, 3]


async def test_many_names_are_found_in_few_looks(two: Site) -> None:
    source, runs = await a_member(two.near), []
    for n in range(250):
        name = f"many-{n}-{uuid4().hex}"
        runs.append((two.far if n % 2 else two.near, await a_member(two.far if n % 2 else two.near, workflow_id=name)))
        await by_key(two.near, K.EXTERNAL_SIGNAL, source, name, seq=n)
    await deliver(a_deliverer_of(two))
    assert len(await told(two.near, source)) == 250
    assert all([len(await told(store, run)) == 1 for store, run in runs])


def a_deliverer_of(site: Site) -> Deliverer:
    return Deliverer(site.shards, site.near, Counters())
