"""What is not a run's fault blocks it, with its reason and a next try, and never its neighbours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct
from msgspec.structs import replace

from harvest import Harvest, WorkflowContext, WorkflowFailedError
from harvest.operations import reading
from harvest.shards import Shards
from harvest.store.store import Store
from harvest.worker.deciding import blocked_delay
from harvest.worker.worker import Worker
from tests.support import FAST, at_work, check_invariants, eventually, history_of

SOON = timedelta(seconds=60)
Database = Callable[[str], str]


async def work_a(n: int) -> str:
    return f"a{n}"


async def work_b(n: int) -> str:
    return f"b{n}"


async def started_with_a(ctx: WorkflowContext, n: int) -> str:
    first = await ctx.execute_activity("a", n)
    await ctx.wait_for_signal("go")
    return f"{first}, {await ctx.execute_activity('a', n + 1)}"


async def started_with_b(ctx: WorkflowContext, n: int) -> str:
    first = await ctx.execute_activity("b", n)
    await ctx.wait_for_signal("go")
    return f"{first}, {await ctx.execute_activity('a', n + 1)}"


async def steady(ctx: WorkflowContext, n: int) -> str:
    await ctx.wait_for_signal("go")
    return str(await ctx.execute_activity("a", n))


def application(flow: Callable[..., Awaitable[str]] | None, *, version: int = 1) -> Harvest:
    """A build of the application: the same activities and the given code of `flow`."""
    app = Harvest()
    app.activity(name="a")(work_a)
    app.activity(name="b")(work_b)
    app.workflow(name="steady")(steady)
    if flow is not None:
        app.workflow(name="flow", version=version)(flow)
    return app


async def at_rest(shards: Shards, execution_id: UUID) -> None:
    async def rests() -> bool:
        rows = await _store(shards).read.fetch(
            "select state from harvest_workflow_tasks where execution_id = $1", execution_id
        )
        return [row["state"] for row in rows] == [2]

    await eventually(rests)


def _store(shards: Shards) -> Store:
    return shards.stores[0]


async def deferred(shards: Shards, worker: Worker, execution_id: UUID) -> None:
    """The worker was given a task that it has no code for, and nobody holds it any more."""

    async def is_free() -> bool:
        rows = await _store(shards).read.fetch(
            "select state, worker from harvest_workflow_tasks where execution_id = $1", execution_id
        )
        return bool(worker.counters.definitions_unavailable) and [(r["state"], r["worker"]) for r in rows] == [
            (0, None)
        ]

    await eventually(is_free)


async def blocked(shards: Shards, execution_id: UUID, *, at_least: int = 1) -> Any:
    """What blocks the run, once it has been tried so many times."""

    async def holds() -> bool:
        view = await reading.get(shards, execution_id)
        return view.blocked is not None and view.blocked.count is not None and view.blocked.count >= at_least

    await eventually(holds)
    view = await reading.get(shards, execution_id)
    assert view.state == "RUNNING"
    return view.blocked


def test_the_waits_between_tries_double_up_to_a_minute() -> None:
    assert [blocked_delay(n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 1000)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


async def test_changed_code_blocks_the_run_until_fixed_code_comes(new_database: Database) -> None:
    url = new_database("blocking")
    app = application(started_with_a)
    async with at_work(app, url) as (_, shards):
        run = (await app.start(app.registry.workflows["flow", 1], 1)).execution_id
        other = (await app.start(app.registry.workflows["steady", 1], 7)).execution_id
        await at_rest(shards, run)
        await at_rest(shards, other)
    changed = application(started_with_b)
    async with at_work(changed, url) as (worker, shards):
        before = await history_of(shards, run)
        for execution_id in (run, other):
            await (await changed.handle(execution_id)).signal("go")
        assert await (await changed.handle(other)).result(SOON) == "a7"
        first = await blocked(shards, run)
        assert first.code == "non_determinism"
        assert "activity 'a' (number 1)" in first.message
        assert "activity 'b' (number 1)" in first.message
        assert f", at {__file__}:" in first.message
        assert timedelta(seconds=0) < first.next_try_at - first.since < timedelta(seconds=2.5)
        second = await blocked(shards, run, at_least=2)
        assert second.since == first.since
        assert second.next_try_at - first.next_try_at > timedelta(seconds=1.5)
        assert len(await history_of(shards, run)) == len(before) + 1
        assert worker.counters.blocked >= 2
        waiting = await reading.get(shards, run)
        assert waiting.blocked is not None
    fixed = application(started_with_a)
    async with at_work(fixed, url) as (_, shards):
        assert await (await fixed.handle(run)).result(timedelta(seconds=30)) == "a1, a2"
        assert (await reading.get(shards, run)).blocked is None
        await check_invariants(shards)


async def test_a_definition_or_version_that_a_worker_lacks_is_left_to_one_that_has_it(new_database: Database) -> None:
    url = new_database("missing")
    app = application(started_with_a, version=2)
    async with at_work(app, url) as (_, shards):
        run = (await app.start(app.registry.workflows["flow", 2], 1)).execution_id
        await at_rest(shards, run)
    for lacking in (application(None), application(started_with_a, version=1)):
        async with at_work(lacking, url) as (worker, shards):
            handle = await lacking.handle(run)
            await handle.signal("go")
            await deferred(shards, worker, run)
            view = await reading.get(shards, run)
            assert (view.state, view.blocked, view.definition_served) == ("RUNNING", None, False)
            assert view.waiting == "a worker: no worker has workflow 'flow' version 2 now"
            other = await lacking.start(lacking.registry.workflows["steady", 1], 7)
            await other.signal("go")
            assert await other.result(SOON) == "a7", "its neighbours are not held up"
            assert worker.counters.definitions_unavailable == 1, "it is asked for once, not again and again"
    found = application(started_with_a, version=2)
    async with at_work(found, url):
        assert await (await found.handle(run)).result(SOON) == "a1, a2"


class Old(Struct):
    name: str


class New(Struct):
    name: int


async def takes_new(ctx: WorkflowContext, value: New) -> str:
    return str(value.name)


async def takes_old(ctx: WorkflowContext, value: Old) -> str:
    return value.name


async def test_input_that_the_code_cannot_read_blocks(new_database: Database) -> None:
    url = new_database("input")
    app = Harvest()
    old = app.workflow(name="flow", queue="later")(takes_old)
    async with at_work(app, url) as (_, shards):
        handle = await app.start(old, Old("text"), queue="default", workflow_id="x")
        assert await handle.result(SOON) == "text"
        run = (await app.start(old, Old("text"))).execution_id
    later = replace(FAST, queues=("later",))
    wrong = Harvest()
    wrong.workflow(name="flow")(takes_new)
    async with at_work(wrong, url, later) as (_, shards):
        why = await blocked(shards, run)
        assert why.code == "payload_undecodable"
        assert "argument 'value' of workflow 'flow'" in why.message
    right = Harvest()
    right.workflow(name="flow")(takes_old)
    async with at_work(right, url, later) as (_, shards):
        assert await (await right.handle(run)).result(SOON) == "text"


async def typed_signal(ctx: WorkflowContext) -> int:
    return await ctx.wait_for_signal("n", int)


async def any_signal(ctx: WorkflowContext) -> int:
    return len(str(await ctx.wait_for_signal("n")))


async def test_a_signal_that_the_code_cannot_read_blocks_and_nothing_of_the_step_is_kept(
    new_database: Database,
) -> None:
    url = new_database("signal")
    app = Harvest()
    flow = app.workflow(name="flow")(typed_signal)
    async with at_work(app, url) as (_, shards):
        run = await app.start(flow)
        await at_rest(shards, run.execution_id)
        await run.signal("n", "not a number")
        why = await blocked(shards, run.execution_id)
        assert why.code == "payload_undecodable"
        assert "signal 'n'" in why.message
    tolerant = Harvest()
    tolerant.workflow(name="flow")(any_signal)
    async with at_work(tolerant, url) as (_, shards):
        assert await (await tolerant.handle(run.execution_id)).result(SOON) == 12
        await check_invariants(shards)


async def test_an_event_of_an_unknown_kind_blocks(new_database: Database) -> None:
    app = application(started_with_a)
    async with at_work(app, new_database("kind")) as (_, shards):
        handle = await app.start(app.registry.workflows["steady", 1], 1)
        await at_rest(shards, handle.execution_id)
        await _store(shards).write.write(
            """with e as (update harvest_executions set next_event_id = next_event_id + 1 where execution_id = $1
                          returning next_event_id - 1 as id)
               insert into harvest_events (execution_id, event_id, kind, payload) select $1, id, 999, '{}' from e""",
            handle.execution_id,
        )
        await handle.signal("go")
        assert (await blocked(shards, handle.execution_id)).code == "unknown_event"


_POISON = """
create function refuse_poison() returns trigger language plpgsql as $$
begin
    if position('poison' in convert_from(new.payload, 'UTF8')) > 0 and new.kind = 2 then
        raise exception 'this database takes no poison';
    end if;
    return new;
end $$;
create trigger refuse_poison before insert on harvest_events for each row execute function refuse_poison();
"""


async def says(ctx: WorkflowContext, word: str) -> str:
    await ctx.wait_for_signal("go")
    return word


async def test_a_commit_that_the_database_refuses_blocks_that_run_alone(new_database: Database) -> None:
    app = Harvest()
    flow = app.workflow(name="flow")(says)
    async with at_work(app, new_database("refused")) as (worker, shards):
        store = _store(shards)
        async with store.write.connection() as connection:
            await connection.execute(_POISON)
        words = [f"good {n}" for n in range(20)]
        words[7] = "poison"
        handles = [await app.start(flow, word) for word in words]
        for handle in handles:
            await at_rest(shards, handle.execution_id)
        for handle in handles:
            await handle.signal("go")
        for word, handle in zip(words, handles, strict=True):
            if word != "poison":
                assert await handle.result(SOON) == word
        why = await blocked(shards, handles[7].execution_id)
        assert why.code == "commit_refused"
        assert "takes no poison" in why.message
        async with store.write.connection() as connection:
            await connection.execute("drop trigger refuse_poison on harvest_events")
        assert await handles[7].result(SOON) == "poison"
        await check_invariants(shards)
        assert worker.counters.blocked >= 1


async def test_a_blocked_run_can_be_cancelled_later_and_terminated_now(new_database: Database) -> None:
    url = new_database("ends")
    app = application(started_with_a)
    async with at_work(app, url) as (_, shards):
        runs = [(await app.start(app.registry.workflows["flow", 1], n)).execution_id for n in range(2)]
        for run in runs:
            await at_rest(shards, run)
    async with at_work(application(started_with_b), url) as (_, shards):
        client = await Harvest().connect(url)
        for run in runs:
            await (await client.handle(run)).signal("go")
            await blocked(shards, run)
        assert await (await client.handle(runs[0])).terminate("enough")
        assert (await reading.get(shards, runs[0])).blocked is None
        assert await (await client.handle(runs[1])).cancel("in its time")
        assert (await reading.get(shards, runs[1])).state == "RUNNING"
        await client.close()
    async with at_work(application(started_with_a), url) as (_, shards):

        async def ended() -> bool:
            return (await reading.get(shards, runs[1])).state == "CANCELLED"

        await eventually(ended)
        await check_invariants(shards)


async def test_progress_clears_what_blocked_and_the_count_begins_anew(new_database: Database) -> None:
    app = Harvest()
    flow = app.workflow(name="flow")(says)
    async with at_work(app, new_database("anew")) as (_, shards):
        async with _store(shards).write.connection() as connection:
            await connection.execute(_POISON)
        handle = await app.start(flow, "poison")
        await at_rest(shards, handle.execution_id)
        await handle.signal("go")
        assert (await blocked(shards, handle.execution_id)).count >= 1
        await handle.signal("more")
        assert (await reading.get(shards, handle.execution_id)).blocked is not None
        async with _store(shards).write.connection() as connection:
            await connection.execute("alter table harvest_events disable trigger refuse_poison")
        assert await handle.result(SOON) == "poison"
        assert (await reading.get(shards, handle.execution_id)).blocked is None


class Unheard(BaseException):
    """Passes every `except Exception`."""


async def breaks_out(ctx: WorkflowContext) -> str:
    def condition() -> bool:
        if ctx.info.history_events > 1:
            raise Unheard("from a condition")
        return False

    await ctx.wait_condition(condition)
    return "never"


async def test_no_exception_of_a_step_ends_the_loop_that_others_live_by(new_database: Database) -> None:
    app = Harvest()
    flow, good = app.workflow(name="flow")(breaks_out), app.workflow(name="says")(says)
    async with at_work(app, new_database("loop")) as (_, shards):
        bad = await app.start(flow)
        await at_rest(shards, bad.execution_id)
        await bad.signal("wake")
        handles = [await app.start(good, str(n)) for n in range(5)]
        for n, handle in enumerate(handles):
            await handle.signal("go")
            assert await handle.result(SOON) == str(n)
        with pytest.raises(WorkflowFailedError, match="Unheard: from a condition"):
            await bad.result(SOON)
