"""Workers as they are operated: back-off, drain, eviction, leases, options, what they tell of themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from harvest import Harvest, WorkflowContext, clock
from harvest.errors import ConfigurationError, WorkerNotFoundError, WorkerStoppedError
from harvest.operations import auditing, configuration, workers
from harvest.operations.actor import in_process
from harvest.operations.workers import WorkerFilter
from harvest.shards import Shards
from harvest.store import fleet
from harvest.worker.effective import effective, resolve
from harvest.worker.main import keep_working
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.supervisor import FIRST_PAUSE, LONGEST_PAUSE, Backoff
from tests.support import FAST, at_work, check_invariants, eventually

SOON = timedelta(seconds=60)
ME = in_process("test")
Database = Callable[[str], str]


class Gate:
    """An activity that runs until it is let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()

    async def pass_through(self) -> str:
        """Wait for the gate."""
        self.begun.set()
        await self.let_go.wait()
        return "through"


def application(gate: Gate | None = None) -> Harvest:
    """Runs that wait for a signal, and runs of an activity that waits at a gate."""
    app = Harvest()
    passes = app.activity(name="pass")((gate or Gate()).pass_through)

    @app.workflow
    async def gated(ctx: WorkflowContext) -> str:
        return await ctx.execute_activity(passes)

    @app.workflow
    async def patient(ctx: WorkflowContext) -> str:
        return await ctx.wait_for_signal("go", str)

    return app


async def parked(shards: Shards, count: int) -> None:
    async def all_parked() -> bool:
        rows = await shards.store(0).read.fetch("select count(*) as n from harvest_workflow_tasks where state = 2")
        return int(rows[0]["n"]) == count

    await eventually(all_parked)


async def row_of(shards: Shards, worker: UUID) -> Any:
    rows = await shards.store(0).read.fetch("select * from harvest_workers where worker = $1", worker)
    return rows[0]


# Back-off


async def test_idle_pauses_double_to_the_poll_interval_and_begin_anew_with_work(monkeypatch: Any) -> None:
    waited = waits_of(monkeypatch)
    counters = Counters()
    backoff, wake = Backoff(counters, poll_interval=1.0), asyncio.Event()
    for _ in range(8):
        await backoff.idle(wake)
    assert waited == [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.worked()
    await backoff.idle(wake, at_most=0.01)
    await backoff.idle(wake)
    assert waited[-2:] == [0.01, 0.05]
    assert (counters.idle_polls, counters.backoffs, counters.infrastructure_errors) == (10, 10, 0)


async def test_failing_pauses_double_to_five_seconds(monkeypatch: Any) -> None:
    waited = waits_of(monkeypatch)
    counters = Counters()
    backoff, wake = Backoff(counters, poll_interval=1.0), asyncio.Event()
    for _ in range(10):
        await backoff.failed(wake)
    assert [round(seconds + FIRST_PAUSE, 3) for seconds in waited] == [
        *(0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
        *(LONGEST_PAUSE, LONGEST_PAUSE),
    ]
    assert counters.infrastructure_errors == 10


async def test_a_wake_cuts_a_pause_short_and_the_next_is_the_first_again(monkeypatch: Any) -> None:
    waited = waits_of(monkeypatch)
    backoff, wake = Backoff(Counters(), poll_interval=1.0), asyncio.Event()
    for _ in range(5):
        await backoff.idle(wake)
    wake.set()
    await backoff.idle(wake)
    wake.clear()
    await backoff.idle(wake)
    assert waited[-1] == FIRST_PAUSE


def waits_of(monkeypatch: Any) -> list[float]:
    """The pauses that are asked for from now on; none is waited for."""
    waited: list[float] = []

    async def wait_event(event: asyncio.Event, seconds: float) -> bool:
        waited.append(round(seconds, 3))
        return event.is_set()

    async def sleep(seconds: float) -> None:
        assert seconds == FIRST_PAUSE

    monkeypatch.setattr(clock, "wait_event", wait_event)
    monkeypatch.setattr(clock, "sleep", sleep)
    monkeypatch.setattr(clock, "jittered", lambda seconds: seconds)
    return waited


# Draining


async def test_a_drained_worker_finishes_what_runs_reports_and_is_not_started_again(
    new_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    url = new_database("drained")
    gate = Gate()
    app = application(gate)
    await app.connect(url)
    shards = await Shards.open({0: url})
    begun, stop = asyncio.Event(), asyncio.Event()
    slow = replace(FAST, name="slow", owner_lease_ttl=30.0, drain_timeout=0.1)
    caplog.set_level(logging.INFO, "harvest.worker")
    working = asyncio.create_task(keep_working(app.registry, {0: url}, options=slow, stop=stop, on_start=begun.set))
    try:
        await begun.wait()
        run = await app.start(app.registry.workflows["gated", 1])
        await gate.begun.wait()
        (seen,) = (await workers.list_workers(shards)).rows
        drained = await workers.drain(
            shards, ME, seen.worker_id, deadline_at=clock.now() + timedelta(hours=1), reason="deploy"
        )
        assert (drained.outcome, drained.shard_ids) == ("draining", [0])

        async def drains() -> bool:
            return bool((await row_of(shards, seen.worker_id))["status"] == "draining")

        # Its lease is renewed each nine seconds only: it hears of it by a wake.
        await eventually(drains, within=5.0)
        again = await workers.drain(shards, ME, seen.worker_id, deadline_at=drained.drain_deadline_at)
        assert again.outcome == "already_draining"
        later = await app.start(app.registry.workflows["patient", 1])
        gate.let_go.set()
        assert await asyncio.wait_for(working, 30) == "drained"
        assert not stop.is_set()
        row = await row_of(shards, seen.worker_id)
        assert row["status"] == "stopped"
        report = msgspec.json.decode(row["report"])
        assert (report["ended"], report["completed"], report["name"]) == ("drained", 2, "slow")
        assert report["cycles_started"] >= 2
        assert report["active_cycles"] == 0
        assert report["peak_active_cycles"] >= 1
        last = [record.message for record in caplog.records if record.name == "harvest.worker"][-1]
        assert msgspec.json.decode(last[last.index("{") :]) == report
        with pytest.raises(WorkerStoppedError):
            await workers.drain(shards, ME, seen.worker_id)
        states = await shards.store(0).read.fetch("select execution_id, worker from harvest_workflow_tasks")
        assert {row["execution_id"]: row["worker"] for row in states}[later.execution_id] is None
        acts = (await auditing.list_audit(shards)).rows.rows
        assert [(act.status, act.reason) for act in acts if act.operation == "worker.drain"] == [
            ("failed", None),
            ("succeeded", ""),
            ("succeeded", "deploy"),
        ]
    finally:
        stop.set()
        gate.let_go.set()
        await asyncio.gather(working, return_exceptions=True)
        await shards.close()
        await app.close()
    async with at_work(app, url):
        assert await (await app.handle(run.execution_id)).result(SOON) == "through"
        later = await app.handle(later.execution_id)
        await later.signal("go", "x")
        assert await (await app.handle(later.execution_id)).result(SOON) == "x"


async def test_the_deadline_of_a_drain_ends_what_still_runs_and_others_take_it_up(new_database: Database) -> None:
    url = new_database("deadline")
    gate = Gate()
    app = application(gate)
    patient = replace(FAST, drain_timeout=3600.0)
    async with at_work(app, url, patient) as (worker, shards):
        run = await app.start(app.registry.workflows["gated", 1])
        await gate.begun.wait()
        await workers.drain(shards, ME, worker.id, deadline_at=clock.now() + timedelta(seconds=0.2))
        await asyncio.wait_for(worker.drain_asked.wait(), 10)
        await asyncio.wait_for(worker.stop(), 30)
        assert worker.report is not None
        assert worker.report.ended == "drained"
        rows = await shards.store(0).read.fetch("select state, strikes from harvest_activity_tasks")
        assert [tuple(row.values()) for row in rows] == [(0, 0)], "handed back without a strike"
    gate.let_go.set()
    async with at_work(app, url) as (_, shards):
        assert await (await app.handle(run.execution_id)).result(SOON) == "through"
        await check_invariants(shards)


async def test_pins_are_free_when_a_drain_begins(new_database: Database) -> None:
    url = new_database("unpinned")
    app = application()
    async with at_work(app, url) as (worker, shards):
        store = shards.store(0)
        await app.start(app.registry.workflows["patient", 1])
        await parked(shards, 1)
        await store.write.write(
            "update harvest_workflow_tasks set state = 0, due = 'infinity', sticky_until = 'infinity'"
        )
        (pinned,) = (await workers.pinned(shards, worker.id)).rows
        assert (pinned.workflow_name, pinned.shard_id, pinned.queue) == ("patient", 0, "default")
        await fleet.drain(store, worker.id)
        assert (await workers.pinned(shards, worker.id)).rows == []
        rows = await store.read.fetch("select sticky_worker, sticky_until from harvest_workflow_tasks")
        assert [tuple(row.values()) for row in rows] == [(None, None)]


# Eviction


async def test_an_evicted_worker_lets_go_of_its_parked_runs_once(new_database: Database) -> None:
    url = new_database("evicted")
    app = application()
    lazy = replace(FAST, owner_lease_ttl=30.0)
    async with at_work(app, url, lazy) as (worker, shards):
        runs = [await app.start(app.registry.workflows["patient", 1]) for _ in range(5)]
        await parked(shards, 5)

        async def resident() -> bool:
            return len(worker.residents) == 5

        await eventually(resident)
        done = await workers.evict(shards, ME, worker.id, reason="memory")
        assert (done.outcome, done.shard_ids) == ("requested", [0])

        async def gone() -> bool:
            return len(worker.residents) == 0

        await eventually(gone, within=5.0)
        cold = worker.counters.decisions_cold
        for run in runs:
            await run.signal("go", "x")
        for run in runs:
            assert await run.result(SOON) == "x"
        assert worker.counters.decisions_cold == cold + 5
        again = await app.start(app.registry.workflows["patient", 1])
        await parked(shards, 1)
        worker._obey(0, await fleet.orders(shards.store(0), worker.id))
        await again.signal("go", "y")
        assert await again.result(SOON) == "y"
        assert worker.counters.decisions_cold == cold + 6, "a request that was heard is not heard again"


async def test_nobody_can_be_told_who_is_not_there(new_database: Database) -> None:
    shards = await Shards.open({0: new_database("nobody")})
    for tell in (workers.drain, workers.evict):
        with pytest.raises(WorkerNotFoundError):
            await tell(shards, ME, UUID(int=7))  # type: ignore[operator]
    await shards.close()


# What a worker tells


async def test_a_worker_tells_of_its_definitions_options_and_figures(new_database: Database) -> None:
    url = new_database("tells")
    app = application()
    options = resolve({"HARVEST_WORKER_POLL_INTERVAL": "0.2"}, name="teller", workflow_slots=7, owner_lease_ttl=1.0)
    async with at_work(app, url, options) as (worker, shards):
        await app.start(app.registry.workflows["patient", 1])
        await parked(shards, 1)

        async def told() -> bool:
            return (await workers.get(shards, worker.id)).now.residents == 1

        await eventually(told)
        seen = await workers.get(shards, worker.id)
        assert (seen.name, seen.status, seen.health, seen.shard_ids) == ("teller", "active", "healthy", [0])
        assert (seen.workflow_slots, seen.activity_slots) == (7, 400)
        assert seen.workflow_types == ["gated/1", "patient/1"]
        assert seen.activity_types == ["pass"]
        assert msgspec.json.decode(seen.counters)["passed"] >= 1
        config = {option.name: (option.value, option.origin) for option in seen.config}
        assert config["name"] == ("teller", "argument")
        assert config["poll_interval_ms"] == (200, "environment")
        assert config["owner_lease_ttl_ms"] == (1000, "argument")
        assert config["drain_timeout_ms"] == (5000, "default")
        assert config["resident_workflows"] == (True, "default")
        (listed,) = (await configuration.worker_configs(shards)).rows
        assert listed.options == seen.config
        assert seen.report == msgspec.Raw(b"null")


async def test_workers_are_filtered_and_their_health_counted(new_database: Database) -> None:
    url = new_database("fleet")
    app = application()
    async with at_work(app, url) as (worker, shards):
        await shards.store(0).write.write(
            "insert into harvest_workers (worker, name, host, pid, queues, lease_until, slots, status) values "
            "($1, 'late', 'h', 1, '{far}', clock_timestamp() - interval '1 minute', 1, 'draining'), "
            "($2, 'ended', 'h', 1, '{far}', clock_timestamp(), 1, 'stopped')",
            UUID(int=1),
            UUID(int=2),
        )
        await shards.store(0).write.write("update harvest_workers set lease_until = 'infinity' where name = 'late'")

        async def names(**wanted: Any) -> list[str]:
            found = await workers.list_workers(shards, WorkerFilter(**wanted))
            return [each.name for each in found.rows]

        mine = worker.options.display_name
        assert await names() == ["late", mine, "ended"]
        assert await names(status="active") == [mine]
        assert await names(queue="far") == ["late", "ended"]
        assert await names(shard_id=1) == []
        (health,) = (await workers.fleet_health(shards)).rows
        assert (health.healthy, health.stale, health.draining) == (2, 0, 1)
        assert [(each.shard_id, each.healthy, each.draining) for each in health.by_shard] == [(0, 2, 1)]
        assert [each.queue for each in health.by_queue] == ["default", "far"]
        (preview,) = (await workers.drain_preview(shards, worker.id)).rows
        assert preview.queues_left == ["default"]
        assert preview.types_left == ["gated/1", "pass", "patient/1"]


async def test_what_open_work_needs_and_no_living_worker_has_is_told(new_database: Database) -> None:
    url = new_database("uncovered")
    app = application()
    async with at_work(app, url) as (worker, shards):
        runs = [await app.start(app.registry.workflows["patient", 1]) for _ in range(2)]
        await parked(shards, 2)
        assert (await workers.uncovered_definitions(shards)).rows == []
    other = Harvest()

    @other.workflow
    async def another(ctx: WorkflowContext) -> None: ...

    async with at_work(other, url) as (worker, shards):
        (found,) = (await workers.uncovered_definitions(shards)).rows
        assert (found.kind, found.name, found.version, found.open) == ("workflow", "patient", 1, 2)
        assert set(found.execution_ids) == {run.execution_id for run in runs}
        await (await other.handle(runs[0].execution_id)).signal("go", "x")

        async def deferred() -> bool:
            return worker.counters.definitions_unavailable == 1

        await eventually(deferred)

        async def told() -> bool:
            (health,) = (await workers.fleet_health(shards)).rows
            return [each.waiting for each in health.uncovered_definitions] == [1]

        await eventually(told)
    async with at_work(app, url):
        assert await (await app.handle(runs[0].execution_id)).result(SOON) == "x"


async def test_a_task_that_one_worker_lacks_the_code_for_goes_on_at_another(new_database: Database) -> None:
    url = new_database("deferred")
    gate = Gate()
    gate.let_go.set()
    app, lacking = application(gate), Harvest()

    @lacking.workflow(name="other")
    async def other(ctx: WorkflowContext) -> str:
        return "done"

    async with at_work(app, url):
        pass  # its types are registered now
    slow = replace(FAST, poll_interval=60.0)
    async with at_work(lacking, url, slow) as (without, shards):
        await app.connect(url)
        run = (await app.start(app.registry.workflows["gated", 1])).execution_id
        await app.close()

        async def deferred() -> bool:
            return without.counters.definitions_unavailable == 1

        await eventually(deferred)
        async with at_work(app, url, slow):
            assert await (await app.handle(run)).result(SOON) == "through"
        assert await (await lacking.start(other)).result(SOON) == "done"
        assert without.counters.definitions_unavailable == 1
        assert without.counters.blocked == 0
        await check_invariants(shards)


# Leases and options


def test_a_lease_is_renewed_at_least_three_times_in_its_length() -> None:
    for seconds in (1.0, 10.0, 60.0):
        options = WorkerOptions(owner_lease_ttl=seconds)
        assert 0 < options.renew_interval <= seconds / 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"owner_lease_ttl": 0.5}, "owner_lease_ttl is 0.5 s; it must be 1 or more"),
        ({"lease_ttl": -1}, "lease_ttl is -1; it must be 0 or more"),
        ({"workflow_slots": -1}, "workflow_slots is -1; it must be 0 or more"),
        ({"queues": ()}, "a worker needs at least one queue"),
        ({"poll_interval": 0}, "poll_interval and scan_interval must be more than 0"),
        ({"drain_timeout": float("inf")}, "drain_timeout is inf; it must be a finite number"),
    ],
)
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WorkerOptions(**wrong)
    assert caught.value.message == message


def test_arguments_come_before_the_environment_and_that_before_the_defaults() -> None:
    environment = {
        "HARVEST_WORKER_QUEUES": "a, b",
        "HARVEST_WORKER_ACTIVITY_SLOTS": "5",
        "HARVEST_WORKER_RESIDENT_WORKFLOWS": "false",
        "HARVEST_WORKER_LEASE_TTL": "2.5",
        "HARVEST_WORKER_THREADS": "",
        "HARVEST_DATABASE_URL": "postgresql://secret",
    }
    options = resolve(environment, activity_slots=9, threads=None)
    assert options.queues == ("a", "b")
    assert (options.activity_slots, options.lease_ttl, options.resident_workflows) == (9, 2.5, False)
    shown = {option.name: (option.value, option.origin) for option in effective(options)}
    assert shown["activity_slots"] == (9, "argument")
    assert shown["lease_ttl_ms"] == (2500, "environment")
    assert shown["threads"] == (32, "default")
    assert "secret" not in str(shown)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HARVEST_WORKER_THREADS": "many"}, "HARVEST_WORKER_THREADS is 'many'; it must be a whole number"),
        ({"HARVEST_WORKER_TREADS": "3"}, "HARVEST_WORKER_TREADS names no option of a worker"),
    ],
)
def test_a_variable_that_is_wrong_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resolve(environment)


def test_no_pins_means_no_residents_in_the_effective_configuration() -> None:
    shown = {option.name: option.value for option in effective(WorkerOptions(lease_ttl=0))}
    assert (shown["lease_ttl_ms"], shown["resident_workflows"]) == (0, False)


async def test_a_worker_without_workflow_slots_decides_nothing(new_database: Database) -> None:
    url = new_database("slotless")
    gate = Gate()
    gate.let_go.set()
    app = application(gate)
    async with at_work(app, url, replace(FAST, workflow_slots=0, name="hands")) as (hands, shards):
        run = await app.start(app.registry.workflows["gated", 1])
        other = application(gate)
        async with at_work(other, url, replace(FAST, activity_slots=1, name="head")) as (head, _):
            assert await run.result(SOON) == "through"
            assert hands.counters.passed == 0
            assert head.counters.passed >= 1
        await check_invariants(shards)
