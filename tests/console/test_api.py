"""The management API: shapes, exact numbers, refusals that name what was wrong, and shards that are missing."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import pytest

from harvest.history.data import SignalReceived
from harvest.history.events import encode_data
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.limits import REQUEST_BYTES
from harvest.history.states import State
from harvest.shards import Shards
from tests.console.conftest import Client
from tests.operations.population import Run, add, add_events, started

BIG = b'{"cents": 123456789012345678901234567890, "price": 1.10}'


async def start(console: Client, **body: Any) -> dict[str, Any]:
    response = await console.api("POST", "/workflows/any_flow/start", json=body)
    assert response.status_code in (200, 201), response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_start_answers_201_and_the_same_key_again_200(console: Client) -> None:
    body = {"workflow_id": "o-1", "input": {"cents": 5}, "idempotency_key": "k-1"}
    first = await console.api("POST", "/workflows/order_flow/start", json=body)
    assert first.status_code == 201
    answer = first.json()
    assert set(answer) == {
        "execution_id",
        "workflow_name",
        "workflow_id",
        "state",
        "started_fresh",
        "deduplicated",
    }
    assert (answer["workflow_id"], answer["state"], answer["started_fresh"]) == ("o-1", "RUNNING", True)
    again = await console.api("POST", "/workflows/order_flow/start", json=body)
    assert again.status_code == 200
    assert (again.json()["execution_id"], again.json()["deduplicated"]) == (answer["execution_id"], True)


async def test_the_key_of_the_header_wins_and_an_empty_one_is_refused(console: Client) -> None:
    path = "/workflows/any_flow/start"
    first = await console.api("POST", path, json={"idempotency_key": "a"}, headers={"idempotency-key": "b"})
    again = await console.api("POST", path, json={"idempotency_key": "b"})
    assert again.json()["execution_id"] == first.json()["execution_id"]
    for refused in (
        await console.api("POST", path, json={}, headers={"idempotency-key": ""}),
        await console.api("POST", path, json={"idempotency_key": ""}),
    ):
        assert refused.status_code == 400


async def test_inputs_and_payloads_are_kept_to_the_digit(console: Client, shards: Shards) -> None:
    response = await console.api("POST", "/workflows/any_flow/start", content=b'{"memo": 1.10, "input": ' + BIG + b"}")
    execution_id = response.json()["execution_id"]
    assert (await console.api("POST", f"/workflows/{execution_id}/signal/approved", content=BIG)).status_code == 202
    detail = await console.api("GET", f"/workflows/{execution_id}")
    assert BIG in detail.content
    assert b'"memo":1.10' in detail.content
    history = await console.api("GET", f"/workflows/{execution_id}/history")
    assert history.content.count(BIG) == 2
    whole = await console.api("GET", f"/workflows/{execution_id}/payload/input")
    assert whole.content == BIG
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith("attachment")


async def test_an_input_that_does_not_fit_is_refused_with_pointers(console: Client) -> None:
    response = await console.api("POST", "/workflows/order_flow/start", json={"input": {"cents": 0}})
    assert response.status_code == 400
    problem = response.json()
    assert (problem["code"], problem["slug"]) == ("HVT-201", "input_invalid")
    assert problem["problems"][0]["pointer"] == "/cents"


async def test_an_unregistered_type_is_404_and_names_the_nearest(console: Client) -> None:
    response = await console.api("POST", "/workflows/order_flwo/start", json={})
    assert (response.status_code, response.json()["code"]) == (404, "HVT-301")
    assert "order_flow" in response.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/workflows/any_flow/start", b'{"inptu": 1}', "inptu"),
        ("POST", "/workflows/any_flow/start", b'{"reuse_policy": "maybe"}', "reuse_policy"),
        ("POST", "/workflows/any_flow/start", b'{"priority": "high"}', "priority"),
        ("POST", "/workflows/any_flow/start", b'{"execution_timeout_secs": 0}', "execution_timeout_secs"),
        ("POST", "/workflows/any_flow/start", b'{"workflow_id": ""}', "workflow_id"),
        ("POST", "/workflows/any_flow/start", b'{"workflow_id": " \\t"}', "white space"),
        ("POST", "/workflows/any_flow/start", b"[]", "object"),
        ("POST", "/workflows/00000000-0000-8000-8000-000000000000/signal/", b"", "signal's name is missing"),
        ("POST", "/workflows/by-id/any_flow/a/signal/", b"", "signal's name is missing"),
        ("GET", "/workflows?blocked=perhaps", b"", "blocked"),
        ("POST", "/workflows/any_flow/start", b"{", "body"),
        ("POST", "/workflows/any_flow/start", b'{"input": "\xff"}', "UTF-8"),
        ("POST", "/workflows/any_flow/start", b'{"input": NaN}', "body"),
        ("POST", "/workflows/any_flow/start?dry_run=1", b"{}", "dry_run"),
        ("GET", "/workflows?stat=RUNNING", b"", "stat"),
        ("GET", "/workflows?state=SLEEPING", b"", "SLEEPING"),
        ("GET", "/workflows?page_size=0", b"", "page_size"),
        ("GET", "/workflows?page_size=x", b"", "page_size"),
        ("GET", "/workflows?order=up", b"", "order"),
        ("GET", "/workflows?order=asc&order=desc", b"", "twice"),
        ("GET", "/workflows?started_after=yesterday", b"", "started_after"),
        ("GET", "/workflows?started_after=2026-05-01T10:00:00", b"", "started_after"),
        ("GET", "/workflows?workflow_name=%GG", b"", "hexadecimal"),
        ("GET", "/workflows?workflow_name=%FF", b"", "query"),
        ("GET", "/workflows?cursor=abc", b"", "damaged"),
        ("GET", "/workflows/not-an-id", b"", "not an execution id"),
        ("GET", "/workflows/by-id/order_flow", b"", "workflow id must follow"),
        ("GET", "/workflows/00000000-0000-8000-8000-000000000000/history?limit=5000", b"", "limit"),
        ("GET", "/workflows/00000000-0000-8000-8000-000000000000/history/x/payload", b"", "event id"),
        ("GET", "/workflows/00000000-0000-8000-8000-000000000000/payload/secret", b"", "input, result, memo"),
        ("GET", "/workflows/00000000-0000-8000-8000-000000000000/result?wait=long", b"", "wait"),
        ("GET", "/admin/audit?status=maybe", b"", "status"),
    ],
)
async def test_what_is_wrong_is_400_and_named(
    refusing_console: Client, method: str, path: str, body: bytes, said: str
) -> None:
    response = await refusing_console.api(method, path, content=body)
    assert response.status_code == 400, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert {"type", "title", "status", "code", "slug", "detail", "request_id"} <= set(problem)
    assert said in problem["detail"]


async def test_deeply_nested_bodies_and_bodies_that_are_too_large_are_refused(refusing_console: Client) -> None:
    deep = b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert (await refusing_console.api("POST", "/workflows/any_flow/start", content=deep)).status_code == 400
    large = b'{"input": "' + b"x" * REQUEST_BYTES + b'"}'
    response = await refusing_console.api("POST", "/workflows/any_flow/start", content=large)
    assert (response.status_code, response.headers["content-type"]) == (413, "application/problem+json")
    assert response.json()["code"] == "HTTP-413"  # refused while it came, not after it was read


async def test_a_signal_is_delivered_once_for_its_key(console: Client) -> None:
    execution_id = (await start(console))["execution_id"]
    path = f"/workflows/{execution_id}/signal/approved"
    first = await console.api("POST", path, json={"by": "me"}, headers={"idempotency-key": "s-1"})
    assert first.status_code == 202
    assert first.json() == {
        "ok": True,
        "execution_id": execution_id,
        "signal_delivered": True,
        "deduplicated": False,
    }
    again = await console.api("POST", f"{path}?idempotency_key=s-1", json={"by": "me"})
    assert (again.status_code, again.json()["deduplicated"]) == (202, True)
    events = (await console.api("GET", f"/workflows/{execution_id}/history")).json()["events"]
    assert [event["type"] for event in events].count("SignalReceived") == 1


async def test_cancel_and_terminate_say_whether_they_were_the_first(console: Client) -> None:
    execution_id = (await start(console))["execution_id"]
    first = await console.api("POST", f"/workflows/{execution_id}/cancel", json={"reason": "wrong order"})
    assert (first.status_code, first.json()["newly_cancelled"], first.json()["reason"]) == (200, True, "wrong order")
    again = await console.api("POST", f"/workflows/{execution_id}/cancel", json={"reason": "wrong order"})
    assert (again.status_code, again.json()["newly_cancelled"]) == (200, False)
    ended = await console.api("POST", f"/workflows/{execution_id}/terminate", content=b"")
    assert (ended.status_code, ended.json()["newly_terminated"], ended.json()["state"]) == (202, True, "TERMINATED")
    assert (await console.api("POST", f"/workflows/{execution_id}/terminate")).json()["newly_terminated"] is False
    late = await console.api("POST", f"/workflows/{execution_id}/signal/approved", json=None)
    assert (late.status_code, late.json()["code"]) == (409, "HVT-311")


async def test_every_change_is_in_the_audit_log_with_its_source(console: Client) -> None:
    headers = {"x-harvest-source": "cli", "x-request-id": "r-7", "x-harvest-actor": "ada"}
    response = await console.api("POST", "/workflows/any_flow/start", json={}, headers=headers)
    execution_id = response.json()["execution_id"]
    entries = (await console.api("GET", f"/admin/audit?target_id={execution_id}")).json()["entries"]
    (entry,) = entries
    assert (entry["operation"], entry["actor"], entry["on_behalf_of"]) == ("workflow.start", "token:admin", "ada")
    assert (entry["source"], entry["request_id"], entry["status"]) == ("cli", "r-7", "succeeded")
    assert entry["route_or_command"] == "POST /api/harvest/workflows/{workflow_name}/start"


async def test_get_has_the_fields_of_an_execution(console: Client, shards: Shards) -> None:
    execution_id = await add(shards, 1, Run(waiting="signal approved", input=b"7"))
    answer = (await console.api("GET", f"/workflows/{execution_id}")).json()
    assert set(answer) == {
        *("execution_id", "workflow_name", "workflow_id", "version", "state", "shard_id", "partition", "queue"),
        *("build", "parent_id", "root_id", "first_execution_id", "previous_execution_id", "started_at", "closed_at"),
        *("deadline_at", "history_events", "waiting", "blocked", "input", "result", "failure", "memo", "pending"),
        *("queue_served", "definition_served", "cancel_requested_at", "next_execution_id", "paused", "current_details"),
        *("search_attributes", "await_mode", "parent_close_policy", "owner", "severity", "note"),
    }
    assert (answer["state"], answer["shard_id"], answer["waiting"], answer["input"]) == (
        "RUNNING",
        1,
        "signal approved",
        7,
    )
    missing = await console.api("GET", f"/workflows/{mint_execution_id(0)}")
    assert (missing.status_code, missing.json()["code"]) == (404, "HVT-300")


async def test_history_is_paged_by_event_id(console: Client, shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    signals = [(int(EventKind.SIGNAL_RECEIVED), encode_data(SignalReceived(name=f"s{n}"))) for n in range(4)]
    await add_events(shards, execution_id, [started(), *signals])
    path = f"/workflows/{execution_id}/history?limit=3"
    first = (await console.api("GET", path)).json()
    assert ([event["event_id"] for event in first["events"]], first["next_cursor"]) == ([1, 2, 3], 3)
    assert (first["last_event_id"], first["total_events"]) == (5, 5)
    rest = (await console.api("GET", f"{path}&after={first['next_cursor']}")).json()
    assert ([event["event_id"] for event in rest["events"]], rest["next_cursor"]) == ([4, 5], None)
    newest = (await console.api("GET", f"{path}&order=desc")).json()
    assert ([event["event_id"] for event in newest["events"]], newest["next_cursor"]) == ([5, 4, 3], 3)


async def test_a_result_is_200_or_not_yet_204(console: Client, shards: Shards) -> None:
    running = await add(shards, 0, Run(workflow_id="a"))
    waiting = await console.api("GET", f"/workflows/{running}/result?wait=0.2s")
    assert (waiting.status_code, waiting.headers["retry-after"], waiting.content) == (204, "1", b"")
    done = await add(shards, 0, Run(workflow_id="b", state=State.COMPLETED, result=b"1.10"))
    answer = await console.api("GET", f"/workflows/{done}/result")
    assert answer.status_code == 200
    assert b'"output":1.10' in answer.content
    assert set(answer.json()) == {"execution_id", "state", "output", "error", "completed_at"}


@pytest.mark.parametrize("workflow_id", ["o-1", "a/b", "a%2Fb", "ü ?#&=+", "..", "x" * 500, "count"])
async def test_by_id_takes_any_id_and_names_the_execution(console: Client, shards: Shards, workflow_id: str) -> None:
    from urllib.parse import quote

    run = Run(workflow_name="order_flow", workflow_id=workflow_id, state=State.COMPLETED, result=b"1")
    execution_id = await add(shards, 0, run)
    path = f"/workflows/by-id/order_flow/{quote(workflow_id, safe='')}"
    if workflow_id == "..":
        path = "/workflows/by-id/order_flow/%2E%2E"
    for suffix in ("", "/result"):
        response = await console.api("GET", path + suffix)
        assert response.status_code == 200, response.text
        assert response.headers["x-harvest-execution-id"] == str(execution_id)


async def test_a_signal_by_id_reaches_the_open_run(console: Client) -> None:
    execution_id = (await start(console, workflow_id="a/b"))["execution_id"]
    response = await console.api("POST", "/workflows/by-id/any_flow/a%2Fb/signal/go%2Fnow", json=1)
    assert (response.status_code, response.json()["execution_id"]) == (202, execution_id)
    events = (await console.api("GET", f"/workflows/{execution_id}/history")).json()["events"]
    assert events[-1]["data"]["name"] == "go/now"


async def test_the_list_is_merged_filtered_and_paged(console: Client, shards: Shards) -> None:
    for n in range(6):
        state = State.RUNNING if n % 2 else State.FAILED
        await add(shards, n % 2, Run(workflow_id=f"o-{n}", age=n, state=state))
    page = (await console.api("GET", "/workflows?page_size=4")).json()
    assert [row["workflow_id"] for row in page["workflows"]] == ["o-0", "o-1", "o-2", "o-3"]
    assert (page["status"], page["unavailable_shards"], page["previous_cursor"]) == ("complete", [], None)
    rest = (await console.api("GET", f"/workflows?page_size=4&cursor={page['next_cursor']}")).json()
    assert [row["workflow_id"] for row in rest["workflows"]] == ["o-4", "o-5"]
    assert rest["next_cursor"] is None
    failed = (await console.api("GET", "/workflows?state=failed&state=completed")).json()
    assert {row["state"] for row in failed["workflows"]} == {"FAILED"}
    counted = (await console.api("GET", "/workflows/count?state=RUNNING,FAILED")).json()
    assert (counted["count"], counted["capped"], counted["status"]) == (6, False, "complete")


async def test_registered_types_and_their_schemas(console: Client) -> None:
    registered = (await console.api("GET", "/workflows/registered")).json()
    assert [each["name"] for each in registered["workflows"]] == ["any_flow", "order_flow"]
    schema = (await console.api("GET", "/workflows/registered/order_flow/schema")).json()
    assert schema["input_schema"]["required"] == ["cents"]
    assert "approved" in schema["signals"]
    assert (await console.api("GET", "/workflows/registered/nope/schema")).status_code == 404


async def test_a_missing_shard_is_named_and_what_lives_there_is_unknown(half_console: Client, shards: Shards) -> None:
    here = await add(shards, 0, Run(workflow_id="here"))
    there = mint_execution_id(1)
    gone = [{"shard_id": 1, "reason": "connection refused"}]
    page = (await half_console.api("GET", "/workflows")).json()
    assert [row["execution_id"] for row in page["workflows"]] == [str(here)]
    assert (page["status"], page["unavailable_shards"]) == ("partial", gone)
    counted = (await half_console.api("GET", "/workflows/count")).json()
    assert (counted["count"], counted["status"], counted["unavailable_shards"]) == (1, "partial", gone)
    assert (await half_console.api("GET", "/workflows/registered")).json()["unavailable_shards"] == gone
    assert (await half_console.api("GET", "/admin/audit")).json()["unavailable_shards"] == gone
    assert (await half_console.api("GET", f"/workflows/{here}")).status_code == 200
    assert (await half_console.api("GET", f"/workflows/{mint_execution_id(0)}")).status_code == 404
    for path in (f"/workflows/{there}", f"/workflows/{there}/history", f"/workflows/{there}/result"):
        unknown = await half_console.api("GET", path)
        assert (unknown.status_code, unknown.json()["code"], unknown.json()["shard_id"]) == (503, "HVT-400", 1)
        assert unknown.headers["retry-after"] == "1"
    by_id = await half_console.api("GET", "/workflows/by-id/order_flow/nowhere")
    assert (by_id.status_code, by_id.json()["code"], by_id.json()["unavailable_shards"]) == (503, "HVT-401", gone)
    signalled = await half_console.api("POST", f"/workflows/{there}/signal/approved", json=1)
    assert signalled.status_code == 503


async def test_with_no_shard_at_all_the_list_says_so(half_console: Client) -> None:
    state = half_console.inner.app.state
    dead = state.shards.stores[1]
    state.shards.stores[0], kept = dead, state.shards.stores[0]
    try:
        page = (await half_console.api("GET", "/workflows")).json()
        assert (page["workflows"], page["status"]) == ([], "unavailable")
    finally:
        state.shards.stores[0] = kept


async def test_unknown_paths_and_methods_are_problems_too(console: Client) -> None:
    nowhere = await console.api("GET", "/nowhere/at/all")
    assert (nowhere.status_code, nowhere.headers["content-type"]) == (404, "application/problem+json")
    wrong = await console.api("DELETE", "/workflows")
    assert wrong.status_code == 405
    assert "GET" in wrong.headers["allow"]


async def test_an_unexpected_error_tells_the_caller_nothing_but_where_to_look(
    console: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("harvest_console.api.lists.listing.list_executions", broken)
    caplog.set_level(logging.WARNING, "httpx")  # what asks here tells of its addresses
    response = await console.api("GET", "/workflows?workflow_name=private", headers={"x-request-id": "r-9"})
    assert (response.status_code, response.json()["slug"]) == (500, "internal_error")
    assert "hunter2" not in response.text
    assert "r-9" in response.text
    assert "r-9" in caplog.text
    assert "private" not in caplog.text


async def test_a_lost_answer_names_the_key_to_repeat_with(console: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from harvest.errors import OutcomeUnknownError

    keys: list[str] = []

    async def lost(shards: Shards, actor: Any, wanted: Any, **_: Any) -> None:
        keys.append(wanted.idempotency_key)
        raise OutcomeUnknownError("the answer was lost", shard_id=0)

    monkeypatch.setattr("harvest_console.api.starts.start_one", lost)
    response = await console.api("POST", "/workflows/any_flow/start", json={})
    assert (response.status_code, response.json()["slug"]) == (503, "outcome_unknown")
    assert response.json()["idempotency_key"] == keys[0]
    assert "retry-after" not in response.headers


async def test_the_console_works_below_a_base_path(urls: dict[int, str], shards: Shards) -> None:
    from litestar.testing import AsyncTestClient

    from harvest_console.app import create_app
    from tests.console.conftest import ADDRESS, BEARER, settings

    large = await add(shards, 0, Run(input=b'"' + b"x" * 100_000 + b'"'))
    async with AsyncTestClient(create_app(settings(urls, base_path="/hv")), base_url=ADDRESS) as inner:
        answer = await inner.get(f"/hv/api/harvest/workflows/{large}", headers=BEARER)
        href = answer.json()["input"]["href"]
        assert href == f"/hv/api/harvest/workflows/{large}/payload/input"
        assert len((await inner.get(href, headers=BEARER)).content) == 100_002
        assert UUID(answer.json()["execution_id"]) == large
