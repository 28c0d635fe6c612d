"""What changes executions over the API: updates, pauses, starts of every kind, by execution id and by business key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest

from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.payload import PAYLOAD_BYTES
from harvest.shards import Shards
from tests.console.conftest import BEARER, Client, settings
from tests.console.serving import served
from tests.console.test_openapi import validator
from tests.operations.population import register
from tests.operations.rotating import events_of, worker_on
from tests.support import eventually

HEADER = "x-harvest-execution-id"
BIG = b"123456789012345678901234567890.10"
KEY = "/workflows/by-id/any_flow/a%2Fb"


async def begin(console: Client, workflow_id: str = "a/b") -> str:
    response = await console.api("POST", "/workflows/any_flow/start", json={"workflow_id": workflow_id})
    assert response.status_code == 201, response.text
    found: str = response.json()["execution_id"]
    return found


def admitted(shards: Shards, run: str, beyond: int = 1) -> Callable[[], Awaitable[bool]]:
    """Whether the run has more events than so many, and the last of them is an update."""

    async def look() -> bool:
        events = await events_of(shards, UUID(run))
        return len(events) > beyond and events[-1][0] is EventKind.UPDATE_ADMITTED

    return look


@pytest.fixture
async def live(urls: dict[int, str], shards: Shards) -> AsyncIterator[Client]:
    """A console on a socket: a request to it may wait while the test goes on."""
    async with (
        served(settings(urls)) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as inner,
    ):
        yield Client(inner)


async def answered(live: Client, shards: Shards, path: str, output: bytes, **more: Any) -> httpx.Response:
    """Send an update, and have the run answer it."""
    run = (await live.api("GET", KEY)).json()["execution_id"]
    before = len(await events_of(shards, UUID(run)))
    sending = asyncio.create_task(live.api("POST", path, **more))
    await eventually(admitted(shards, run, before))
    events = await events_of(shards, UUID(run))
    worker = await worker_on(shards, shards.store_of(UUID(run)).shard_id)
    update_id = events[-1][1]["update_id"]
    await worker.answer(UUID(run), admitted=len(events), update_id=update_id, output=output)
    return await sending


async def test_an_update_is_sent_answered_and_its_result_asked_for(live: Client, shards: Shards) -> None:
    run = await begin(live)
    for path in (f"/workflows/{run}/update/set", f"{KEY}/update/set"):
        done = await answered(live, shards, path, BIG, content=b'{"input": ' + BIG + b"}")
        assert (done.status_code, done.headers[HEADER]) == (200, run)
        body = done.json()
        assert set(body) == {"ok", "execution_id", "update_id", "stage", "result", "deduplicated"}
        assert BIG in done.content
        for of in (f"/workflows/{run}", KEY):
            result = await live.api("GET", f"{of}/update/{body['update_id']}/result")
            assert (result.status_code, result.json()["stage"], BIG in result.content) == (200, "completed", True)
    history = await live.api("GET", f"/workflows/{run}/history")
    assert history.content.count(b'"input":' + BIG) == 2


async def test_an_admitted_update_is_202_and_a_late_one_504_with_its_id(console: Client, shards: Shards) -> None:
    run = await begin(console)
    sent = await console.api("POST", f"/workflows/{run}/update/set?wait=admitted", content=b"")
    assert (sent.status_code, sent.json()["stage"], sent.json()["result"]) == (202, "admitted", None)
    path = f"/workflows/{run}/update/{sent.json()['update_id']}/result"
    assert (await console.api("GET", path)).status_code == 202
    late = await console.api("POST", f"/workflows/{run}/update/set?timeout_secs=0.05", headers={"idempotency-key": "k"})
    assert (late.status_code, late.json()["slug"]) == (504, "update_timeout")
    again = await console.api("POST", f"/workflows/{run}/update/set?wait=admitted&idempotency_key=k")
    assert (again.json()["update_id"], again.json()["deduplicated"]) == (late.json()["update_id"], True)
    missing = await console.api("GET", f"/workflows/{run}/update/nothing/result")
    assert (missing.status_code, missing.json()["code"]) == (404, "HVT-302")


@pytest.mark.parametrize(("rejected", "status"), [(True, 422), (False, 409)])
async def test_a_refused_update_is_422_and_a_failed_one_409(
    console: Client, shards: Shards, rejected: bool, status: int
) -> None:
    run = await begin(console)
    sent = (await console.api("POST", f"/workflows/{run}/update/set?wait=admitted")).json()
    worker = await worker_on(shards, shards.store_of(UUID(run)).shard_id)
    await worker.refuse(UUID(run), admitted=2, update_id=sent["update_id"], rejected=rejected)
    problem = await console.api("GET", f"/workflows/{run}/update/{sent['update_id']}/result")
    assert (problem.status_code, problem.json()["failure_type"]) == (status, "Declined")
    assert problem.headers["content-type"] == "application/problem+json"


async def test_a_large_answer_is_a_reference_to_its_event(live: Client, shards: Shards) -> None:
    await begin(live)
    large = b'"' + b"x" * 100_000 + b'"'
    done = await answered(live, shards, f"{KEY}/update/set", large)
    href = done.json()["result"]["href"]
    assert large in (await live("GET", href, headers=BEARER)).content


async def test_pause_and_resume_by_id_and_by_key(console: Client) -> None:
    run = await begin(console)
    for of in (f"/workflows/{run}", KEY):
        held = await console.api("POST", f"{of}/pause", json={"reason": "a look"})
        assert (held.status_code, held.headers[HEADER]) == (200, run)
        body = held.json()
        assert (body["newly_paused"], body["reason"], body["actor"], body["state"]) == (
            True,
            "a look",
            "token:admin",
            "PAUSED",
        )
        again = (await console.api("POST", f"{of}/pause")).json()
        assert (again["newly_paused"], again["paused_at"]) == (False, body["paused_at"])
        let_go = await console.api("POST", f"{of}/resume")
        assert (let_go.status_code, let_go.json()["newly_resumed"]) == (200, True)
        assert let_go.json()["pause_duration_secs"] >= 0
        assert (await console.api("POST", f"{of}/resume", json={})).json()["newly_resumed"] is False
    long = await console.api("POST", f"/workflows/{run}/pause", json={"reason": "x" * 501})
    assert long.status_code == 400
    await console.api("POST", f"/workflows/{run}/terminate")
    refused = await console.api("POST", f"{KEY}/pause")
    assert (refused.status_code, refused.json()["code"], refused.headers[HEADER]) == (409, "HVT-311", run)


async def test_cancel_and_terminate_by_key(console: Client) -> None:
    run = await begin(console)
    asked = await console.api("POST", f"{KEY}/cancel", json={"reason": "r"})
    assert (asked.status_code, asked.json()["newly_cancelled"], asked.headers[HEADER]) == (200, True, run)
    ended = await console.api("POST", f"{KEY}/terminate")
    assert (ended.status_code, ended.json()["newly_terminated"], ended.headers[HEADER]) == (202, True, run)
    assert (await console.api("POST", "/workflows/by-id/any_flow/none/cancel")).status_code == 404


async def test_what_is_sent_to_a_run_that_went_on_says_where_it_went(console: Client, shards: Shards) -> None:
    first = await begin(console)
    worker = await worker_on(shards, shards.store_of(UUID(first)).shard_id)
    live = str(await worker.rotate(UUID(first)))
    for path in ("signal/go", "update/set?wait=admitted", "cancel", "pause", "resume", "terminate"):
        response = await console.api("POST", f"/workflows/{first}/{path}")
        assert response.status_code in (200, 202), response.text
        assert response.json()["routed_execution_id"] == response.json()["execution_id"] == live
        assert response.headers[HEADER] == live


async def test_a_signal_with_start_answers_201_then_200(console: Client) -> None:
    body = {"workflow_id": "o-1", "signal_name": "go", "signal_payload": 1, "start_input": {"a": 1}}
    first = await console.api("POST", "/workflows/any_flow/signal-with-start", json=body)
    assert (first.status_code, first.json()["started_fresh"], first.json()["signal_delivered"]) == (201, True, True)
    again = await console.api("POST", "/workflows/any_flow/signal-with-start", json=body)
    assert (again.status_code, again.json()["started_fresh"]) == (200, False)
    assert again.json()["execution_id"] == first.json()["execution_id"] == again.headers[HEADER]
    keyed = [
        await console.api("POST", "/workflows/any_flow/signal-with-start", json=body | {"idempotency_key": "k"})
        for _ in range(2)
    ]
    assert [each.json()["signal_delivered"] for each in keyed] == [True, False]
    refused = await console.api(
        "POST", "/workflows/any_flow/signal-with-start", json=body | {"id_reuse_policy": "reject_duplicate"}
    )
    assert (refused.status_code, refused.json()["existing_state"]) == (409, "RUNNING")


async def test_an_update_with_start_waits_or_not(live: Client, shards: Shards) -> None:
    path, body = "/workflows/any_flow/update-with-start", {"workflow_id": "a/b", "update_name": "set"}
    sent = await live.api("POST", path, json=body | {"wait_for_stage": "admitted"})
    assert (sent.status_code, sent.json()["stage"], sent.json()["started_fresh"]) == (201, "admitted", True)
    done = await answered(live, shards, path, b"7", json=body | {"update_args": [1]})
    assert (done.status_code, done.json()["result"], done.json()["started_fresh"]) == (200, 7, False)
    late = await live.api("POST", path, json=body | {"timeout_secs": 0.05})
    assert (late.status_code, late.json()["execution_id"]) == (504, done.json()["execution_id"])
    await live.api("POST", f"{KEY}/pause")
    paused = await live.api("POST", path, json=body)
    assert (paused.status_code, paused.json()["slug"]) == (409, "execution_paused")


async def test_a_batch_start_has_an_answer_for_each_item(console: Client) -> None:
    items = [
        {"workflow_name": "order_flow", "workflow_id": "b-1", "input": {"cents": 1}},
        {"workflow_name": "order_flow", "workflow_id": "b-2", "input": {"cents": 0}},
        {"workflow_name": "any_flow", "search_attributes": {"a": 1}, "idempotency_key": "k"},
    ]
    response = await console.api("POST", "/workflows/batch_start", json={"items": items, "atomic": False})
    assert response.status_code == 200
    body = response.json()
    assert (body["started"], body["found"], body["failed"]) == (2, 0, 1)
    good, bad, _ = body["items"]
    assert (good["started_fresh"], good["workflow_id"], good["error"]) == (True, "b-1", None)
    assert (bad["execution_id"], bad["error"]["slug"]) == (None, "input_invalid")
    assert bad["error"]["problems"][0]["pointer"] == "/cents"
    again = await console.api("POST", "/workflows/batch_start", json={"items": items[2:], "atomic": True})
    assert (again.json()["found"], again.json()["items"][0]["deduplicated"]) == (1, True)
    refused = await console.api("POST", "/workflows/batch_start", json={"items": items[:2], "atomic": True})
    assert (refused.status_code, refused.json()["slug"]) in {(409, "batch_refused"), (400, "invalid_request")}


async def test_a_batch_over_its_limits_is_413(console: Client) -> None:
    items = [{"workflow_name": "any_flow"}] * 1001
    response = await console.api("POST", "/workflows/batch_start", json={"items": items, "atomic": False})
    assert (response.status_code, response.json()["code"]) == (413, "HVT-121")
    assert response.json()["max_items_per_batch"] == 1000


async def test_a_start_takes_version_chain_timeout_and_retry(console: Client, shards: Shards) -> None:
    await register(shards, 0, "any_flow", version=2, input_schema=b"{}", build="b2")
    body = {"version": 1, "chain_execution_timeout_secs": 60, "retry": {"max_attempts": 2, "jitter": "full"}}
    response = await console.api("POST", "/workflows/any_flow/start", json=body)
    assert response.status_code == 201, response.text
    run = response.json()["execution_id"]
    (_, started), *_ = await events_of(shards, UUID(run))
    assert (started["version"], started["retry"]["max_attempts"]) == (1, 2)
    assert (await console.api("GET", f"/workflows/{run}")).json()["deadline_at"] is not None
    assert (await console.api("POST", "/workflows/any_flow/start", json={})).status_code == 201
    unknown = await console.api("POST", "/workflows/any_flow/start", json={"version": 7})
    assert (unknown.status_code, unknown.json()["versions"]) == (404, [1, 2])


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/workflows/any_flow/start", b'{"version": 0}', "version"),
        ("/workflows/any_flow/start", b'{"retry": {"max_attempts": 0}}', "retry.max_attempts"),
        ("/workflows/any_flow/start", b'{"chain_execution_timeout_secs": -1}', "chain_execution_timeout_secs"),
        ("/workflows/any_flow/signal-with-start", b'{"signal_name": "go"}', "workflow_id"),
        ("/workflows/any_flow/signal-with-start", b'{"workflow_id": "a"}', "signal_name"),
        ("/workflows/any_flow/signal-with-start", b'{"workflow_id": " ", "signal_name": "go"}', "white space"),
        ("/workflows/any_flow/update-with-start", b'{"workflow_id": "a", "update_name": ""}', "update_name"),
        (
            "/workflows/any_flow/update-with-start",
            b'{"workflow_id": "a", "update_name": "b", "timeout_secs": 99}',
            "timeout",
        ),
        ("/workflows/batch_start", b'{"items": []}', "atomic"),
        ("/workflows/batch_start", b'{"items": [], "atomic": true}', "empty"),
        ("/workflows/batch_start", b'{"items": [{"workflow": "a"}], "atomic": true}', "workflow"),
        ("/workflows/00000000-0000-8000-8000-000000000000/update/", b"", "update's name is missing"),
        ("/workflows/00000000-0000-8000-8000-000000000000/update/a?wait=never", b"", "wait"),
        ("/workflows/00000000-0000-8000-8000-000000000000/update/a", b'{"args": 1}', "args"),
        ("/workflows/00000000-0000-8000-8000-000000000000/resume", b'{"reason": "x"}', "reason"),
    ],
)
async def test_what_is_wrong_is_400_and_named(refusing_console: Client, path: str, body: bytes, said: str) -> None:
    response = await refusing_console.api("POST", path, content=body)
    assert (response.status_code, response.headers["content-type"]) == (400, "application/problem+json")
    assert said in response.json()["detail"]


async def test_a_payload_over_the_limit_is_413_and_an_unknown_run_404(refusing_console: Client) -> None:
    large = b'{"input": "' + b"x" * PAYLOAD_BYTES + b'"}'
    missing = f"/workflows/{mint_execution_id(0)}"
    assert (await refusing_console.api("POST", f"{missing}/update/set", content=large)).status_code == 413
    for verb in ("pause", "resume", "update/set"):
        assert (await refusing_console.api("POST", f"{missing}/{verb}")).status_code == 404
    keyless = f"/workflows/by-id/any_flow/{quote('gone/way', safe='')}/pause"
    assert (await refusing_console.api("POST", keyless)).status_code == 404


async def test_the_answers_fit_the_document(console: Client) -> None:
    document = (await console.api("GET", "/openapi.json")).json()
    run = await begin(console)
    update = (await console.api("POST", f"/workflows/{run}/update/set?wait=admitted")).json()["update_id"]
    start = {"workflow_id": "x", "signal_name": "go"}
    requests: list[tuple[str, str, Any]] = [
        ("POST", "/workflows/{execution_id}/update/{update_name}", None),
        ("GET", "/workflows/{execution_id}/update/{update_id}/result", None),
        ("POST", "/workflows/{execution_id}/pause", {}),
        ("POST", "/workflows/{execution_id}/resume", {}),
        ("POST", "/workflows/{workflow_name}/signal-with-start", start),
        ("POST", "/workflows/{workflow_name}/update-with-start", {"workflow_id": "y", "update_name": "u"}),
        (
            "POST",
            "/workflows/batch_start",
            {"items": [{"workflow_name": "any_flow"}, {"workflow_name": "no"}], "atomic": False},
        ),
        ("POST", "/workflows/by-id/{workflow_name}/{workflow_id}/pause", {}),
        ("POST", "/workflows/by-id/{workflow_name}/{workflow_id}/resume", {}),
        ("POST", "/workflows/by-id/{workflow_name}/{workflow_id}/cancel", {}),
        ("POST", "/workflows/by-id/{workflow_name}/{workflow_id}/terminate", {}),
    ]
    values = {
        "execution_id": run,
        "update_name": "set",
        "update_id": update,
        "workflow_name": "any_flow",
        "workflow_id": "a%2Fb",
    }
    for method, template, body in requests:
        query = "?timeout_secs=0" if template.endswith("{update_name}") else ""
        more = {} if body is None else {"json": body | ({"timeout_secs": 0} if "update-with" in template else {})}
        response = await console.api(method, template.format(**values) + query, **more)
        described = document["paths"]["/api/harvest" + template][method.lower()]["responses"]
        told = described.get(str(response.status_code), described["default"])
        schema = told["content"][response.headers["content-type"]]["schema"]
        validator(document, schema).validate(response.json())
