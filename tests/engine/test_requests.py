"""A worker answers questions to running code: up to date, without a decision, and without harm to the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import Struct

from harvest import Harvest, WorkflowContext, WorkflowHandle
from harvest.errors import (
    ExecutionClosedError,
    InputInvalidError,
    QueryFailedError,
    QueryNotFoundError,
)
from harvest.operations import requesting, stacks
from harvest.operations.actor import in_process
from harvest.shards import Shards
from harvest.store import requests
from harvest.store.requests import Standing
from harvest.worker import watch
from harvest.worker.requests import _knows
from harvest.worker.work import Result, Work
from harvest.worker.worker import Worker
from tests.support import FAST, at_work, eventually, history_of

ACTOR = in_process("test")


class Basket:
    """What the activities of a test wait for."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()


class Item(Struct):
    name: str
    cents: int


def application(basket: Basket) -> Harvest:
    app = Harvest()

    @app.activity
    async def pack() -> str:
        basket.begun.set()
        await basket.go_on.wait()
        return "packed"

    @app.workflow
    async def basket_flow(ctx: WorkflowContext) -> list[str]:
        items: list[Item] = []

        def total(currency: str, factor: int = 1) -> str:
            return f"{sum(item.cents for item in items) * factor} {currency}"

        def broken() -> None:
            raise ValueError("no such thing")

        def acts() -> None:
            ctx.set_current_details("asked")

        def spins() -> None:
            while True:
                pass

        ctx.register_query_handler("items", lambda: items)
        ctx.register_query_handler("total", total)
        ctx.register_query_handler("broken", broken)
        ctx.register_query_handler("acts", acts)
        ctx.register_query_handler("spins", spins)
        ctx.register_query_handler("large", lambda: "x" * (8 * 1024 * 1024))
        while (item := await ctx.wait_for_signal("add", Item)).name != "done":
            items.append(item)
        return [await ctx.execute_activity(pack), *(item.name for item in items)]

    @app.workflow(queue="nobodys")
    async def left_alone(ctx: WorkflowContext) -> None:
        heard: list[str] = []
        ctx.register_query_handler("heard", lambda: heard)
        while True:
            heard.append(await ctx.wait_for_signal("say", str))

    @app.workflow
    async def rotates(ctx: WorkflowContext, rounds: int) -> None:
        ctx.register_query_handler("rounds", lambda: rounds)
        await ctx.wait_for_signal("turn")
        ctx.continue_as_new(rounds + 1)

    return app


class Site:
    """A worker at work, and one open run of the basket."""

    def __init__(self, app: Harvest, worker: Worker, shards: Shards, handle: WorkflowHandle[Any]) -> None:
        self.app = app
        self.worker = worker
        self.shards = shards
        self.handle = handle

    async def ask(self, name: str, args: bytes = b"null") -> bytes:
        return await requesting.query(self.shards, ACTOR, self.handle.execution_id, name, args)

    async def add(self, name: str, cents: int = 100) -> None:
        await self.handle.signal("add", Item(name, cents))

    async def parked(self) -> None:
        """Wait until the run is at rest in this worker's memory and knows all that was sent to it."""
        execution_id = self.handle.execution_id

        async def is_at_rest() -> bool:
            stands = (await requests.standing(self.shards.store(0), [execution_id]))[execution_id]
            work = self.worker.residents.find(execution_id)
            return work is not None and _knows(work, stands.seen_through)

        await eventually(is_at_rest)

    async def rows(self, sql: str, *values: Any) -> list[Any]:
        return await self.shards.store(0).write.write(sql, *values)


@pytest.fixture
def basket() -> Basket:
    return Basket()


@pytest.fixture
async def site(basket: Basket, new_database: Callable[[str], str]) -> AsyncIterator[Site]:
    app = application(basket)
    async with at_work(app, new_database("requests")) as (worker, shards):
        yield Site(app, worker, shards, await app.start(app.registry.workflows["basket_flow", 1]))
        basket.go_on.set()


async def test_a_query_sees_every_signal_that_was_sent_before_it(site: Site) -> None:
    for number in range(1, 11):
        await site.add("pear")
        assert await site.ask("total", b'["EUR"]') == f'"{number * 100} EUR"'.encode()


async def test_a_parked_run_answers_from_memory_and_nothing_is_decided_or_written(site: Site) -> None:
    await site.add("pear")
    assert await site.ask("items") == b'[{"name":"pear","cents":100}]'
    await site.parked()
    before, events = site.worker.counters.passed, await history_of(site.shards, site.handle.execution_id)
    warm = site.worker.counters.requests_warm
    assert await site.ask("total", b'["EUR",2]') == b'"200 EUR"'
    assert site.worker.counters.requests_warm == warm + 1
    assert site.worker.counters.passed == before
    assert await history_of(site.shards, site.handle.execution_id) == events


async def test_a_run_that_is_not_in_memory_is_replayed_for_the_answer_and_let_go(site: Site, basket: Basket) -> None:
    await site.add("pear")
    await site.ask("items")
    await site.parked()
    site.worker.let_go_residents()
    cold, decisions = site.worker.counters.requests_cold, site.worker.counters.decisions_cold
    assert await site.ask("items") == b'[{"name":"pear","cents":100}]'
    assert site.worker.counters.requests_cold == cold + 1
    assert site.worker.counters.decisions_cold == decisions
    assert len(site.worker.residents) == 0
    basket.go_on.set()
    await site.add("done")
    assert await site.handle.result() == ["packed", "pear"]


async def test_a_run_whose_activity_is_under_way_answers(site: Site, basket: Basket) -> None:
    await site.add("pear")
    await site.add("done")
    await basket.begun.wait()
    assert await site.ask("total", b'["EUR"]') == b'"100 EUR"'
    told = await stacks.stack(site.shards, site.handle.execution_id)
    assert [frame.code for frame in told.tasks[0].frames] == [
        "return [await ctx.execute_activity(pack), *(item.name for item in items)]"
    ]
    basket.go_on.set()
    assert await site.handle.result() == ["packed", "pear"]


async def test_what_goes_wrong_in_a_handler_is_told_to_the_asker_and_the_run_goes_on(
    site: Site, basket: Basket
) -> None:
    with pytest.raises(QueryFailedError) as failed:
        await site.ask("broken")
    assert failed.value.fields["failure"]["type"] == "ValueError"
    assert failed.value.fields["failure"]["message"] == "no such thing"
    with pytest.raises(QueryFailedError, match="only look"):
        await site.ask("acts")
    with pytest.raises(QueryNotFoundError) as unknown:
        await site.ask("nothing")
    assert "items" in unknown.value.fields["known"]
    for args in (b"null", b"[1]", b"[]", b'["EUR","two"]'):
        with pytest.raises(InputInvalidError):
            await site.ask("total", args)
    with pytest.raises(QueryFailedError, match="PayloadTooLargeError"):
        await site.ask("large")
    basket.go_on.set()
    await site.add("done")
    assert await site.handle.result() == ["packed"]


async def test_a_handler_that_holds_the_worker_is_broken_into(
    site: Site, basket: Basket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LONG_STEP", 0.2)
    with pytest.raises(QueryFailedError, match="held the worker"):
        await site.ask("spins")
    basket.go_on.set()
    await site.add("done")
    assert await site.handle.result() == ["packed"]


async def test_a_blocked_run_is_shown_as_its_last_decision_left_it(site: Site) -> None:
    await site.add("pear")
    await site.ask("items")
    # Past the check that a declared signal has: what cannot be decoded blocks the run.
    await site.handle.signal("add", {"name": 7})

    async def blocked() -> bool:
        return bool(await site.rows("select from harvest_executions where blocked is not null"))

    await eventually(blocked)
    assert await site.ask("items") == b'[{"name":"pear","cents":100}]'
    told = await stacks.stack(site.shards, site.handle.execution_id)
    assert told.blocked is not None
    assert [task.task for task in told.tasks] == ["main"]


async def test_a_run_that_nobody_decides_answers_from_all_of_its_history(site: Site) -> None:
    handle = await site.app.start(site.app.registry.workflows["left_alone", 1])
    await handle.signal("say", "hello")
    assert await requesting.query(site.shards, ACTOR, handle.execution_id, "heard") == b'["hello"]'
    # It was asked, not decided.
    assert len(await history_of(site.shards, handle.execution_id)) == 2


async def test_a_paused_run_answers_from_where_it_was_held(site: Site, basket: Basket) -> None:
    await site.add("pear")
    await site.ask("items")
    await site.parked()
    await site.handle.pause()
    await site.add("plum")
    for _ in range(2):
        assert await site.ask("items") == b'[{"name":"pear","cents":100}]'
        site.worker.let_go_residents()
    await site.handle.resume()
    assert await site.ask("total", b'["EUR"]') == b'"200 EUR"'
    basket.go_on.set()
    await site.add("done")
    assert await site.handle.result() == ["packed", "pear", "plum"]


async def test_a_run_is_asked_by_its_key_while_it_goes_on_as_new_ones(site: Site) -> None:
    flow = site.app.registry.workflows["rotates", 1]
    handle = await site.app.start(flow, 0, workflow_id="r-1")

    async def ask(execution_id: UUID) -> bytes:
        return await requesting.query(site.shards, ACTOR, execution_id, "rounds")

    told = [0]

    async def look() -> int:
        told.append(int((await requesting.of_key(site.shards, "rotates", "r-1", ask))[1]))
        return told[-1]

    for _ in range(5):
        await handle.signal("turn")
        await look()

    async def turned() -> bool:
        return await look() == 5

    await eventually(turned)
    assert told == sorted(told)


async def test_another_worker_answers_for_one_that_is_silent(site: Site) -> None:
    await site.add("pear")
    await site.ask("items")
    await site.parked()
    ghost = uuid4()
    await site.rows(
        "insert into harvest_workers (worker, name, host, pid, queues, lease_until, slots) "
        "values ($1, 'g', 'h', 1, '{default}', clock_timestamp() + interval '1 hour', 1)",
        ghost,
    )
    await site.rows(
        "update harvest_workflow_tasks set state = 1, worker = $2 where execution_id = $1 and state = 2",
        site.handle.execution_id,
        ghost,
    )
    assert await site.ask("items") == b'[{"name":"pear","cents":100}]'


async def test_a_run_that_ends_before_it_is_asked_refuses(site: Site, basket: Basket) -> None:
    basket.go_on.set()
    await site.add("done")
    await site.handle.result()
    with pytest.raises(ExecutionClosedError) as refused:
        await site.ask("items")
    assert refused.value.fields["state"] == "COMPLETED"
    told = await stacks.stack(site.shards, site.handle.execution_id)
    assert (told.is_terminal, told.tasks) == (True, [])


async def test_two_workers_answer_questions_to_runs_of_each(site: Site, new_database: Callable[[str], str]) -> None:
    other_shards = await Shards.open({0: site.shards.store(0).url})
    other = Worker(site.app.registry, other_shards, FAST)
    await other.start()
    try:
        flow = site.app.registry.workflows["basket_flow", 1]
        handles = [await site.app.start(flow) for _ in range(6)]
        for number, handle in enumerate(handles):
            await handle.signal("add", Item("pear", number))
        told = await asyncio.gather(
            *(requesting.query(site.shards, ACTOR, handle.execution_id, "total", b'["EUR"]') for handle in handles)
        )
        assert told == [f'"{number} EUR"'.encode() for number in range(6)]
    finally:
        await other.stop()
        await other_shards.close()


async def test_handlers_and_their_schemas_are_told(site: Site) -> None:
    told = await requesting.handlers(site.shards, site.handle.execution_id)
    assert sorted(told.queries) == ["acts", "broken", "items", "large", "spins", "total"]
    assert told.queries["total"]["x-parameters"] == ["currency", "factor"]
    assert (told.signals, told.updates) == ({}, {})


async def test_what_the_code_waits_for_is_listed_with_its_times(site: Site, basket: Basket) -> None:
    waiting = await stacks.awaitables(site.shards, site.handle.execution_id)
    assert waiting.wait_set == "replayed"
    assert [(each.kind, each.name) for each in waiting.awaitables] == [("signal", "add")]
    await site.add("done")
    await basket.begun.wait()
    (packing,) = (await stacks.awaitables(site.shards, site.handle.execution_id)).awaitables
    assert (packing.kind, packing.name, packing.seq) == ("activity", "pack", 1)
    assert packing.since is not None
    assert packing.deadline is not None
    basket.go_on.set()
    await site.handle.result()
    assert (await stacks.awaitables(site.shards, site.handle.execution_id)).wait_set == "terminal"


# When a run that is here may answer


class _AtRest:
    blocked = None


def work(next_event_id: int) -> Work:
    made = Work(uuid4(), partition=0, workflow_name="w", workflow_id="w", version=1, queue="default", deadline_at=None)
    made.next_event_id = next_event_id
    made.run = _AtRest()  # type: ignore[assignment]
    return made


def standing(**fields: Any) -> Standing:
    known: dict[str, Any] = {
        "execution_id": UUID(int=1), "workflow_name": "w", "workflow_id": "w", "version": 1, "queue": "default",
        "state": 0, "next_event_id": 9, "decided_through": 4, "blocked": False, "news_at": 0, "struck": False,
        "under_way": True,
    }  # fmt: skip
    return Standing(**(known | fields))


def test_a_run_must_have_come_through_all_that_wakes_code_and_that_others_decided() -> None:
    assert _knows(work(5), standing().seen_through)
    assert not _knows(work(4), standing().seen_through), "another worker has decided since"
    assert not _knows(work(5), standing(news_at=7).seen_through), "a signal has come"
    assert _knows(work(8), standing(news_at=7).seen_through)
    assert _knows(work(5), standing(news_at=7, state=1).seen_through), "a paused run does not see what has come"
    assert _knows(work(5), standing(news_at=7, blocked=True).seen_through)


def test_code_runs_for_a_question_no_further_than_it_does_no_harm() -> None:
    assert standing(news_at=7).known_good == 8
    for stopped in ({"blocked": True}, {"state": 1}, {"struck": True}):
        assert standing(news_at=7, **stopped).known_good == 4


def test_a_run_on_ground_that_is_not_confirmed_does_not_answer() -> None:
    deciding, betting, let_go = work(5), work(5), work(5)
    deciding.busy = True
    betting.consumed.append((Result(1, 1, 7, b"{}"), None))  # type: ignore[arg-type]
    let_go.run = None
    assert not any(_knows(each, 4) for each in (deciding, betting, let_go))
