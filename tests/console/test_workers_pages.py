"""The workers of the fleet on pages: how each does, what it is set to, and what is asked before an act on one."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from harvest import clock
from harvest.history.ids import ExecutionId
from harvest.operations import auditing, starting, workers
from harvest.shards import Shards
from harvest.store.audit import AuditFilter
from harvest_console.pages.worker_acts import deadline
from tests.console.conftest import Client
from tests.console.fleet import Decided, Member, join, measured
from tests.operations.population import register
from tests.pages.acting import ACTOR, HTML, words

A, B, C, D = (UUID(int=number) for number in (10, 11, 12, 13))


@pytest.fixture
async def fleet(console: Client, shards: Shards) -> str:
    """An active, a draining, a stale and a stopped worker; answers the CSRF token of who has signed in."""
    for shard_id in (0, 1):
        await shards.store(shard_id).write.write("delete from harvest_workers")
    now = {"runs_held": 3, "activities_running": 2, "residents": 41, "resident_bytes": 123_000, "lacks": ["old_flow/2"]}
    counters = {"passed": 1_234, "activities_retried": 5, "definitions_unavailable": 7, "odd_one": 2, "now": now}
    config = (
        {"name": "lease_ttl_ms", "value": 5_000, "origin": "argument"},
        {"name": "build", "value": "", "origin": "default"},
    )
    await join(shards, Member(worker=A, name="alpha", counters=counters, config=config))
    await join(shards, Member(worker=B, name="beta", queues=("mail", "default"), draining=True))
    await join(shards, Member(worker=C, name="gamma", stale=True, seen_ago=30, queues=("mail",)))
    await join(shards, Member(worker=D, name="delta", status="stopped", seen_ago=90, report={"completed": 12}))
    await measured(shards, 0, A, 20, Decided(count=300), Decided(count=100, outcome="cold", reason="other_worker"))
    return await console.sign_in(shards)


async def text(console: Client, path: str) -> str:
    """A page's words."""
    response = await console("GET", path, headers=HTML)
    assert response.status_code == 200, response.text
    return words(response)


async def begin(shards: Shards, workflow_name: str) -> ExecutionId:
    """Start a run that waits for a worker; the input has what each type wants."""
    started = await starting.start(shards, ACTOR, workflow_name=workflow_name, workflow_id=None, input=b'{"cents":1}')
    return ExecutionId(int=started.execution_id.int)


def _row(page: str, worker: UUID) -> str:
    found = re.search(rf'<tr id="w{worker}">.*?</tr>', page, re.S)
    assert found is not None
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", found[0]))


async def test_each_worker_says_its_status_health_and_warmth(console: Client, fleet: str) -> None:
    page = (await console("GET", "/workers", headers=HTML)).text
    assert "Active Healthy" in _row(page, A)
    assert "75.0 %" in _row(page, A)
    assert "1.3" in _row(page, A)
    assert "Draining Healthy" in _row(page, B)
    assert "Active Stale" in _row(page, C)
    assert "Stopped" in _row(page, D)
    assert "Healthy" not in _row(page, D)
    for look in ("running", "paused", "terminated", "completed", "blocked"):
        assert f'class="state {look}"' in page
    assert f'href="/workers/{A}/drain"' in page
    assert f'href="/workers/{D}/drain"' not in page
    assert "1 worker let the lease run out." in re.sub(r"<[^>]+>", "", page)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("status=draining", {"beta"}),
        ("health=stale", {"gamma"}),
        ("queue=mail", {"beta", "gamma"}),
        ("queue=mail&health=healthy", {"beta"}),
        ("shard=1&status=stopped", {"delta"}),
        ("status=asleep", {"alpha", "beta", "gamma", "delta"}),
    ],
)
async def test_the_address_filters_the_list(console: Client, fleet: str, query: str, names: set[str]) -> None:
    for path in ("/workers", "/_f/workers"):
        page = (await console("GET", f"{path}?{query}", headers=HTML)).text
        assert {name for name in ("alpha", "beta", "gamma", "delta") if f">{name}</a>" in page} == names
    assert ("It was left out." in await text(console, f"/workers?{query}")) == ("asleep" in query)


async def test_an_empty_list_says_why(console: Client, shards: Shards, fleet: str) -> None:
    assert "Nothing matches" in await text(console, "/workers?queue=nobody")
    for shard_id in (0, 1):
        await shards.store(shard_id).write.write("delete from harvest_workers")
    page = await text(console, "/workers")
    assert "No worker yet" in page
    assert "No worker is alive." in page


async def test_code_that_no_worker_has_is_named_with_the_runs_that_need_it(
    console: Client, shards: Shards, fleet: str
) -> None:
    for shard_id in (0, 1):
        gone = await register(shards, shard_id, "lonely_flow", input_schema=b"{}")
        await shards.store(shard_id).write.write("delete from harvest_workers where worker = $1", gone)
    run = await begin(shards, "lonely_flow")
    page = await text(console, "/workers")
    assert "No worker has the code" in page
    assert "workflow lonely_flow version 1" in page
    assert f'href="/w/{run}"' in (await console("GET", "/workers", headers=HTML)).text


async def test_a_worker_tells_its_figures_options_and_what_it_lacks(console: Client, fleet: str) -> None:
    page = await text(console, f"/workers/{A}")
    for told in (
        "lease_ttl_ms 5,000 argument",
        "build none default",
        "order_flow/1",
        "Lacks",
        "old_flow/2",
        "odd one 2",
    ):
        assert told in page, told
    for told in ("Left for want of code 7", "To be tried again 5", "In flight 5", "41 123 kB", "host-a, process 4711"):
        assert told in page, told
    assert "None at this moment." in page


async def test_a_worker_that_has_ended_shows_its_report(console: Client, fleet: str) -> None:
    page = await text(console, f"/workers/{D}")
    assert "its report is below" in page
    assert '"completed": 12' in page
    assert "/drain" not in (await console("GET", f"/workers/{D}", headers=HTML)).text
    assert "ended already" in await text(console, f"/workers/{D}/drain")


async def test_runs_that_are_kept_for_it_are_listed(console: Client, shards: Shards, fleet: str) -> None:
    run = await begin(shards, "order_flow")
    await shards.store_of(run).write.write(
        "update harvest_workflow_tasks set sticky_worker = $2, sticky_until = clock_timestamp() + interval '1 hour' "
        "where execution_id = $1",
        run,
        A,
    )
    assert f'href="/w/{run}"' in (await console("GET", f"/workers/{A}", headers=HTML)).text


async def test_an_unknown_worker_is_not_found(console: Client, fleet: str) -> None:
    response = await console("GET", f"/workers/{uuid4()}", headers=HTML)
    assert (response.status_code, "There is no such worker" in response.text) == (404, True)
    assert (await console("GET", "/workers/nobody", headers=HTML)).status_code == 400


async def test_a_drain_is_told_before_and_needs_a_reason_and_the_word(
    console: Client, shards: Shards, fleet: str
) -> None:
    before = await text(console, f"/workers/{A}/drain")
    for told in ("3 runs held, 2 activities running", "41 runs in its memory", "Type drain to confirm"):
        assert told in before, told
    missing = await console("POST", f"/workers/{A}/drain", data={"csrf": fleet}, headers=HTML)
    assert (missing.status_code, "Not done yet." in missing.text) == (422, True)
    form = {"csrf": fleet, "reason": "a new build", "phrase": "drain"}
    done = await console("POST", f"/workers/{A}/drain", data=form, headers=HTML)
    assert (done.status_code, done.headers["location"]) == (303, f"/workers/{A}?did=draining")
    after = await text(console, done.headers["location"])
    assert "It takes on nothing new" in after
    assert "It drains since" in after
    assert await _acts(shards, A) == ["worker.drain", "worker.drain"]
    again = await console("POST", f"/workers/{A}/drain", data=form, headers=HTML)
    assert again.headers["location"].endswith("did=already_draining")


@pytest.mark.parametrize(
    ("typed", "seconds"), [("300", 300), ("0.5", 0.5), ("2026-11-29T14:00", 3_600), ("2026-11-29T14:00Z", 7_200)]
)
def test_a_deadline_is_seconds_from_now_or_a_time_in_the_zone_of_the_page(typed: str, seconds: float) -> None:
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    assert deadline(typed, "Europe/Berlin", now) == now + timedelta(seconds=seconds)
    assert deadline("", "Europe/Berlin", now) is None


async def test_a_drain_has_the_deadline_that_was_typed(console: Client, shards: Shards, fleet: str) -> None:
    assert 'name="tz" value="UTC"' in (await console("GET", f"/workers/{A}/drain", headers=HTML)).text
    form = {"csrf": fleet, "reason": "a new build", "phrase": "drain", "deadline": " 600 ", "tz": "UTC"}
    before = clock.now()
    assert (await console("POST", f"/workers/{A}/drain", data=form, headers=HTML)).status_code == 303
    told = (await workers.get(shards, A)).drain_deadline_at
    assert told is not None
    assert timedelta(seconds=600) <= told - before < timedelta(seconds=660)
    assert "it ends in" in await text(console, f"/workers/{A}")
    later = {**form, "deadline": (clock.now() + timedelta(hours=2)).isoformat()}
    assert (await console("POST", f"/workers/{A}/drain", data=later, headers=HTML)).status_code == 303
    again = (await workers.get(shards, A)).drain_deadline_at
    assert again is not None
    assert again - told > timedelta(hours=1)
    assert (
        await console("POST", f"/workers/{A}/drain", data={**form, "deadline": ""}, headers=HTML)
    ).status_code == 303
    assert (await workers.get(shards, A)).drain_deadline_at == again


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("soon", "is neither seconds, like 300, nor a time, like 2026-11-29T14:00"),
        ("-5", "is neither seconds"),
        ("nan", "is neither seconds"),
        ("0", "is not ahead"),
        ("2020-01-01", "is not ahead"),
        ("604801", "is more than 7 days from now: 604,800 seconds"),
        ("9" * 400, "is more than 7 days from now"),
    ],
)
async def test_a_deadline_that_cannot_be_is_told_beside_its_field(
    console: Client, shards: Shards, fleet: str, typed: str, told: str
) -> None:
    form = {"csrf": fleet, "reason": "a new build", "phrase": "drain", "deadline": typed, "tz": "UTC"}
    answer = await console("POST", f"/workers/{A}/drain", data=form, headers=HTML)
    assert answer.status_code == 422
    assert words(answer).count(told) == 2
    (field,) = re.findall(r'<input id="deadline"[^>]*>', answer.text)
    assert f'value="{typed}"' in field
    assert 'aria-invalid="true"' in field
    assert await _acts(shards, A) == []


async def test_what_only_this_worker_serves_is_named_before_a_drain(console: Client, fleet: str) -> None:
    page = await text(console, f"/workers/{A}/drain")
    assert "Nobody else serves all that this worker does." not in page
    assert "Nobody else serves all that this worker does." in await text(console, f"/workers/{B}/drain")


async def test_parked_runs_are_let_go_with_a_reason(console: Client, shards: Shards, fleet: str) -> None:
    assert "No run is lost or changed" in await text(console, f"/workers/{A}/evict")
    form = {"csrf": fleet, "reason": "memory"}
    done = await console("POST", f"/workers/{A}/evict", data=form, headers=HTML)
    assert (done.status_code, done.headers["location"]) == (303, f"/workers/{A}?did=requested")
    assert set(await _acts(shards, A)) == {"worker.evict"}
    page = (await console("GET", "/audit", headers=HTML)).text
    assert f'href="/workers/{A}"' in page
    gone = await console("POST", f"/workers/{D}/evict", data=form, headers=HTML)
    assert (gone.status_code, "ended already" in gone.text) == (409, True)
    assert (await console("POST", f"/workers/{A}/evict", data={**form, "csrf": "x"}, headers=HTML)).status_code == 403


async def _acts(shards: Shards, worker: UUID) -> list[str]:
    found = (await auditing.list_audit(shards, AuditFilter(target_id=str(worker)))).rows.rows
    return [act.operation for act in found]


async def test_a_list_without_a_shard_says_so(half_console: Client, shards: Shards) -> None:
    await half_console.sign_in(shards)
    await join(shards, Member(worker=A, name="alpha"), 0)
    page = await text(half_console, "/workers")
    assert "Shard 1 did not answer." in page
    assert "alpha" in page
    one = await text(half_console, f"/workers/{A}")
    assert "What is there of this worker is not on this page." in one
    assert "Not every shard answered." in await text(half_console, f"/workers/{A}/drain")
