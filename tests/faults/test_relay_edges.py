"""The relay dies after each of its four edges, for every child: one end of each, nothing left (issue 5, Must show 4).

Whoever dies has written what it delivers on the other shard, and has not settled it on its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest

from harvest import ChildPlacement, ExternalWorkflowError, Harvest, WorkflowContext, clock
from harvest.history.deliveries import DeliveryKind
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import Shards
from harvest.store.deliveries import Delivery
from harvest.store.store import Store
from harvest.worker import deliverer
from harvest.worker import shard as shard_workers
from harvest.worker.courier import Courier, Delivered
from harvest.worker.deliverer import Deliverer
from harvest.worker.metrics import Measures
from harvest.worker.options import Counters
from harvest.worker.worker import Worker
from tests.scale import scale
from tests.support import FAST, check_invariants, eventually, history_of

app = Harvest()
FAMILIES: Final = scale(7, 167)
AT_ONCE: Final = 25
K = DeliveryKind
ENDS_OF_CHILDREN: Final = (EventKind.CHILD_WORKFLOW_COMPLETED, EventKind.CHILD_WORKFLOW_FAILED)
ELSEWHERE: Final = ChildPlacement.Shard(1)


@app.workflow
async def answers(ctx: WorkflowContext, number: int) -> int:
    return number


@app.workflow
async def endures(ctx: WorkflowContext) -> None:
    await ctx.wait_for_signal("never")


@app.workflow
async def family(ctx: WorkflowContext, number: int) -> int:
    """A child that completes, one that is asked to end, and one that is left behind."""
    completing = await ctx.start_child_workflow(
        answers.with_options(placement=ELSEWHERE, workflow_id=f"completes-{number}"), number
    )
    cancelled = await ctx.start_child_workflow(
        endures.with_options(placement=ELSEWHERE, workflow_id=f"cancelled-{number}", close_policy="abandon")
    )
    await ctx.start_child_workflow(
        endures.with_options(
            placement=ELSEWHERE,
            workflow_id=f"left-{number}",
            close_policy="terminate" if number % 2 else "request_cancel",
        )
    )
    result = await completing
    cancelled.cancel()
    with contextlib.suppress(ExternalWorkflowError):
        await ctx.await_external_workflow(cancelled.execution_id)
    return result


class Died(BaseException):
    """The process ends here: nothing after it happens, and nothing of it is remembered."""


class MortalCourier(Courier):
    """Dies once for each delivery to another shard, when it is written there and not yet settled."""

    deaths: Counter[str]
    seen: set[tuple[int, int]]

    async def beyond(self, store: Store, found: list[Delivery], targets: Mapping[int, UUID | None]) -> Delivered:
        self.on_step = lambda name: self._step(name, found)
        return await super().beyond(store, found, targets)

    def _step(self, name: str, found: list[Delivery]) -> None:
        if name != "ended":
            return
        edges = [each for each in found if not each.is_await]
        fresh = {(self._store.shard_id, each.delivery_id) for each in edges} - self.seen
        if fresh:
            self.seen |= fresh
            self.deaths.update({DeliveryKind(each.kind).word for each in edges})
            raise Died


class MortalDeliverer(Deliverer):
    """Begins anew after each death, with nothing in memory."""

    deaths: Counter[str] = Counter()
    seen: set[tuple[int, int]] = set()

    def __init__(self, shards: Shards, store: Store, counters: Counters, measures: Measures | None = None) -> None:
        self._given = (shards, store, counters, measures)
        self._died = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        super().__init__(*self._given)
        shards, store, *_ = self._given
        self.courier = MortalCourier(shards, store)
        self.courier.deaths, self.courier.seen = self.deaths, self.seen
        self.courier.on_told = self.kick
        self._died.clear()

    async def _until_made(self, place: int, group: list[Delivery], making: Coroutine[Any, Any, bool]) -> None:
        try:
            await super()._until_made(place, group, making)
        except Died:
            self._died.set()

    async def run(self) -> None:
        while True:
            life = asyncio.create_task(super().run())
            dying = asyncio.create_task(self._died.wait())
            try:
                await asyncio.wait((life, dying), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (life, dying):
                    task.cancel()
                await asyncio.gather(life, dying, return_exceptions=True)
            self._begin()


@pytest.fixture(params=["one by one", "many at once"])
async def two(
    request: pytest.FixtureRequest, new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Shards]:
    """Two shards, and a worker on both whose relays die: after each delivery, or after as many as are made at once."""
    if request.param == "one by one":
        monkeypatch.setattr(deliverer, "BATCH", 1)
    MortalDeliverer.deaths.clear()
    MortalDeliverer.seen.clear()
    monkeypatch.setattr(shard_workers, "Deliverer", MortalDeliverer)
    urls = {number: new_database(f"edges_{number}") for number in range(2)}
    await app.connect(urls)
    shards = await Shards.open(urls)
    worker = Worker(app.registry, shards, FAST)
    await worker.start()
    try:
        yield shards
        assert not worker.lost.is_set(), "only relays have died"
    finally:
        await worker.stop()
        await shards.close()
        await app.close()


async def nothing_is_left(shards: Shards) -> bool:
    """Whether every run has ended and no row of the relay is left on either shard."""
    for store in shards.stores.values():
        row = await store.read.fetch_row(
            "select (select count(*) from harvest_executions where closed_at is null), "
            "(select count(*) from harvest_deliveries), (select count(*) from harvest_children), "
            "(select count(*) from harvest_cross_shard_children)"
        )
        if row is None or any(row.values()):
            return False
    return True


async def check_children(shards: Shards) -> None:
    """Each child began once, on the other shard, and ended once, as it was told to."""
    rows = await shards.store(1).read.fetch("select workflow_id, state from harvest_executions")
    found = {row["workflow_id"]: State(row["state"]) for row in rows}
    assert len(rows) == len(found) == 3 * FAMILIES
    for number in range(FAMILIES):
        assert found[f"completes-{number}"] is State.COMPLETED
        assert found[f"cancelled-{number}"] is State.CANCELLED
        assert found[f"left-{number}"] is (State.TERMINATED if number % 2 else State.CANCELLED)
    asked = await shards.store(1).read.fetch(
        "select execution_id from harvest_events where kind = $1 group by 1 having count(*) > 1",
        int(EventKind.WORKFLOW_CANCEL_REQUESTED),
    )
    assert not asked


@pytest.mark.slow
@pytest.mark.prove_shards
@pytest.mark.timeout(scale(120, 900))
async def test_a_relay_that_dies_after_each_edge_leaves_one_end_of_each_child_and_no_row(
    two: Shards, proof: Callable[..., None]
) -> None:
    began = clock.monotonic()
    room = asyncio.Semaphore(AT_ONCE)

    async def run(number: int) -> Any:
        async with room:
            handle = await app.start(family, number, shard_id=0)
            assert await handle.result(timedelta(seconds=scale(90, 600))) == number
            return handle.execution_id

    parents = await asyncio.gather(*(run(number) for number in range(FAMILIES)))
    await eventually(lambda: nothing_is_left(two), within=90.0)
    await check_children(two)
    await check_invariants(two)
    for parent in parents:
        ends = Counter(event.seq for event in await history_of(two, parent) if event.kind in ENDS_OF_CHILDREN)
        assert ends[1] == 1
        assert all(count == 1 for count in ends.values())
    deaths = dict(MortalDeliverer.deaths)
    assert set(deaths) == {kind.word for kind in (K.CHILD_START, K.CHILD_CANCEL, K.CHILD_CLOSED, K.CLOSE_POLICY)}
    # A start, a cancellation, a close and three ends for each family: each was written and lost once.
    assert len(MortalDeliverer.seen) >= 5 * FAMILIES
    proof(
        "relay edges", children=3 * FAMILIES, deliveries=len(MortalDeliverer.seen), seconds=clock.monotonic() - began,
        **deaths,
    )  # fmt: skip
