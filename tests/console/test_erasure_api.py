"""Erasing payloads, receipts and legal holds over the API: what is done, what is refused, what the log keeps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from harvest import clock
from harvest.history.states import State
from harvest.operations import erasing
from harvest.shards import Shards
from tests.console.conftest import ADDRESS, API, Client
from tests.console.erasable import SECRET, ended, tamper, under_way
from tests.console.test_openapi import validator
from tests.operations.population import Run, add

ERASURES = "/admin/erasures"
NOBODY = UUID("00010000-0000-8000-8000-000000000000")
WHY = {"reason": "request 7 of the subject"}


async def erase(console: Client, execution_id: UUID) -> dict[str, Any]:
    """Erase a run; the answer."""
    response = await console.api("POST", f"/workflows/{execution_id}/erase-payloads", json=WHY)
    assert response.status_code == 200, response.text
    done: dict[str, Any] = response.json()
    return done


async def acts(console: Client, execution_id: UUID | str) -> list[tuple[str, str]]:
    """What was done to a run or a receipt, the newest first, and how it ended."""
    entries = (await console.api("GET", f"/admin/audit?target_id={execution_id}")).json()["entries"]
    return [(entry["operation"], entry["status"]) for entry in entries]


# Erasing


async def test_payloads_of_an_ended_run_are_gone_and_the_answer_is_its_receipt(console: Client, shards: Shards) -> None:
    run = await ended(shards, 1)
    assert SECRET in (await console.api("GET", f"/workflows/{run}/history")).text
    done = await erase(console, run)
    assert (done["execution_id"], done["newly_erased"], done["execution_row_scrubbed"]) == (str(run), True, True)
    assert (done["events_scrubbed"], done["children"], done["skipped_children"]) == (2, [], [])
    assert done["fields_tombstoned"] >= 2
    assert done["digest_before"] != done["digest_after"]
    for path in ("", "/history", "/history/export"):
        response = await console.api("GET", f"/workflows/{run}{path}")
        assert SECRET not in response.text
        assert response.status_code == 200
    assert (await acts(console, run))[0] == ("workflow.erase_payloads", "succeeded")
    entry = (await console.api("GET", f"/admin/audit?target_id={run}")).json()["entries"][0]
    assert (entry["reason"], entry["actor"], entry["source"]) == (WHY["reason"], "token:admin", "api")


async def test_erased_again_it_answers_the_same_receipt(console: Client, shards: Shards) -> None:
    run = await ended(shards)
    first = await erase(console, run)
    again = await erase(console, run)
    assert len(bytes.fromhex(first["digest_key"])) == 32
    assert again == first | {"newly_erased": False, "digest_key": ""}
    assert len(await acts(console, run)) == 2
    assert [each["receipt"] for each in (await console.api("GET", ERASURES)).json()["erasures"]] == [first["receipt"]]


async def test_ended_children_go_with_it_and_the_others_are_named_with_the_reason(
    console: Client, shards: Shards
) -> None:
    run = await ended(shards)
    child = await ended(shards, parent=run, workflow_id="child")
    open_child = await add(shards, 0, Run(workflow_id="open", parent_id=run))
    done = await erase(console, run)
    assert [(each["execution_id"], each["newly_erased"]) for each in done["children"]] == [(str(child), True)]
    assert [(each["execution_id"], each["reason"]) for each in done["skipped_children"]] == [(str(open_child), "open")]
    receipt = (await console.api("GET", f"{ERASURES}/{done['children'][0]['receipt']}")).json()
    assert receipt["parent_receipt"] == done["receipt"]


async def test_what_was_not_looked_at_below_an_erased_run_is_told_with_its_receipt(
    console: Client, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await ended(shards)
    await ended(shards, parent=run, workflow_id="child")
    with monkeypatch.context() as patch:
        patch.setattr(erasing, "MOST_SECONDS", 0.0)
        first = await erase(console, run)
    assert (first["newly_erased"], first["children"], "repeat" in first["incomplete"]) == (True, [], True)
    again = await erase(console, run)
    assert (again["receipt"], len(again["children"]), again["incomplete"]) == (first["receipt"], 1, "")


async def test_a_plan_says_what_would_go_and_changes_nothing(console: Client, shards: Shards) -> None:
    run = await ended(shards)
    await ended(shards, parent=run, workflow_id="child")
    before = (await console.api("GET", f"/workflows/{run}/history")).content
    plan = (await console.api("GET", f"/workflows/{run}/erasure")).json()
    assert (plan["execution_id"], plan["state"], plan["events"], plan["children"]) == (str(run), "COMPLETED", 2, 1)
    assert (plan["blockers"], plan["hold"], plan["erased"]) == ([], None, None)
    assert (await console.api("GET", f"/workflows/{run}/history")).content == before
    assert await acts(console, run) == []
    done = await erase(console, run)
    plan = (await console.api("GET", f"/workflows/{run}/erasure")).json()
    assert (plan["blockers"], plan["erased"]["receipt"]) == (["already_erased"], done["receipt"])


async def test_an_open_run_is_not_erased(console: Client, shards: Shards) -> None:
    run = await add(shards, 1, Run(input=f'"{SECRET}"'.encode()))
    response = await console.api("POST", f"/workflows/{run}/erase-payloads", json=WHY)
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (response.status_code, problem["code"], problem["slug"]) == (409, "HVT-317", "execution_open")
    assert SECRET in (await console.api("GET", f"/workflows/{run}")).text
    assert await acts(console, run) == [("workflow.erase_payloads", "failed")]
    assert (await console.api("GET", f"/workflows/{run}/erasure")).json()["blockers"] == ["open"]


async def test_a_held_run_is_not_erased_until_it_is_released(console: Client, shards: Shards) -> None:
    run = await ended(shards)
    await console.api("POST", f"/workflows/{run}/legal-hold", json={"reason": "case 12"})
    refused = await console.api("POST", f"/workflows/{run}/erase-payloads", json=WHY)
    assert (refused.status_code, refused.json()["code"], refused.json()["slug"]) == (409, "HVT-318", "legal_hold")
    plan = (await console.api("GET", f"/workflows/{run}/erasure")).json()
    assert (plan["blockers"], plan["hold"]["reason"]) == (["legal_hold"], "case 12")
    await console.api("POST", f"/workflows/{run}/legal-hold/release")
    assert (await erase(console, run))["newly_erased"] is True


async def test_a_run_whose_deliveries_are_under_way_is_not_erased(console: Client, shards: Shards) -> None:
    run = await ended(shards)
    await under_way(shards, run)
    refused = await console.api("POST", f"/workflows/{run}/erase-payloads", json=WHY)
    assert (refused.status_code, refused.json()["code"], refused.json()["slug"]) == (409, "HVT-319", "under_way")
    assert (await console.api("GET", f"/workflows/{run}/erasure")).json()["blockers"] == ["under_way"]


@pytest.mark.parametrize(
    "body", [{}, {"reason": ""}, {"reason": "  "}, {"reason": "r" * 501}, {"reason": "r", "yes": 1}]
)
async def test_an_erasure_needs_a_reason_and_nothing_else(refusing_console: Client, body: dict[str, Any]) -> None:
    response = await refusing_console.api("POST", f"/workflows/{NOBODY}/erase-payloads", json=body)
    assert (response.status_code, response.json()["code"]) == (400, "HVT-200")


# Receipts


async def test_receipts_are_listed_newest_first_over_the_shards_page_by_page(console: Client, shards: Shards) -> None:
    made = [(await erase(console, await ended(shards, n % 2, workflow_id=f"o-{n}")))["receipt"] for n in range(5)]
    seen: list[str] = []
    cursor = ""
    for _ in range(3):
        page = (await console.api("GET", f"{ERASURES}?limit=2{cursor}")).json()
        assert page["status"] == "complete"
        seen += [each["receipt"] for each in page["erasures"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert page["next_cursor"] is None
    assert seen == made[::-1]
    back = (await console.api("GET", f"{ERASURES}?limit=2&cursor={page['previous_cursor']}")).json()
    assert [each["receipt"] for each in back["erasures"]] == seen[2:4]


async def test_a_receipt_says_by_whom_when_and_why(console: Client, shards: Shards) -> None:
    run = await ended(shards, 1)
    done = await erase(console, run)
    receipt = (await console.api("GET", f"{ERASURES}/{done['receipt']}")).json()
    assert {name: receipt[name] for name in ("execution_id", "workflow_id", "actor", "reason", "shard_id")} == {
        "execution_id": str(run),
        "workflow_id": "o-1",
        "actor": "token:admin",
        "reason": WHY["reason"],
        "shard_id": 1,
    }
    assert (receipt["digest_after"], receipt["parent_receipt"]) == (done["digest_after"], None)


async def test_a_receipt_is_checked_against_what_is_stored_now(console: Client, shards: Shards) -> None:
    run = await ended(shards)
    receipt = (await erase(console, run))["receipt"]
    path = f"{ERASURES}/{receipt}/verify"
    good = (await console.api("POST", path)).json()
    assert (good["matches"], good["differs_at"], good["digest"]) == (True, "", good["expected"])
    await tamper(shards, run)
    bad = (await console.api("POST", path)).json()
    assert (bad["matches"], bad["differs_at"], bad["digest"] == bad["expected"]) == (False, "event 1", False)
    entries = (await console.api("GET", "/admin/audit?operation=workflow.erasure_verify")).json()["entries"]
    assert len(entries) == 2


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", f"{ERASURES}/{NOBODY}", 404, "HVT-307"),
        ("POST", f"{ERASURES}/{NOBODY}/verify", 404, "HVT-307"),
        ("GET", f"{ERASURES}/seven", 400, "HVT-200"),
        ("POST", f"{ERASURES}/seven/verify", 400, "HVT-200"),
        ("GET", f"{ERASURES}?limit=0", 400, "HVT-200"),
        ("GET", f"{ERASURES}?limit=201", 400, "HVT-200"),
        ("GET", f"{ERASURES}?actor=a", 400, "HVT-200"),
        ("GET", f"{ERASURES}?cursor=wrong", 400, "HVT-202"),
        ("GET", f"/workflows/{NOBODY}/erasure", 404, "HVT-300"),
        ("GET", f"/workflows/{NOBODY}/legal-hold", 404, "HVT-300"),
        ("GET", "/workflows/seven/erasure", 400, "HVT-200"),
    ],
)
async def test_what_is_not_there_or_malformed_is_a_problem(
    refusing_console: Client, method: str, path: str, status: int, code: str
) -> None:
    response = await refusing_console.api(method, path)
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, response.json()["code"]) == (status, code)


# Legal holds


async def test_a_run_is_held_and_released_and_each_is_audited(console: Client, shards: Shards) -> None:
    run = await add(shards, 1, Run(state=State.RUNNING))
    path = f"/workflows/{run}/legal-hold"
    until = (clock.now() + timedelta(days=1)).isoformat()
    held = (await console.api("POST", path, json={"reason": "case 12", "hold_until": until})).json()
    assert (held["execution_id"], held["held"], held["newly_held"]) == (str(run), True, True)
    assert (held["legal_hold_reason"], held["legal_hold_actor"]) == ("case 12", "token:admin")
    again = (await console.api("POST", path, json={"reason": "another"})).json()
    assert again == held | {"newly_held": False}
    shown = (await console.api("GET", path)).json()
    assert shown == {name: held[name] for name in held if name not in ("ok", "newly_held")}
    released = await console.api("POST", f"{path}/release", json={"reason": "closed"})
    assert released.json() == {"ok": True, "execution_id": str(run), "released": True}
    assert (await console.api("POST", f"{path}/release")).json()["released"] is False
    shown = (await console.api("GET", path)).json()
    assert (shown["held"], shown["legal_hold_reason"]) == (False, None)
    operations = [operation for operation, status in await acts(console, run) if status == "succeeded"]
    assert operations[-1] == "legal_hold.set"
    assert "legal_hold.release" in operations


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"reason": ""},
        {"reason": "r", "hold_until": "2020-01-01T00:00:00Z"},
        {"reason": "r", "hold_until": "2999-01-01T00:00:00"},
        {"reason": "r", "hold_until": "tomorrow"},
        {"reason": "r", "until": "2999-01-01T00:00:00Z"},
    ],
)
async def test_a_hold_that_cannot_be_is_refused(refusing_console: Client, body: dict[str, Any]) -> None:
    response = await refusing_console.api("POST", f"/workflows/{NOBODY}/legal-hold", json=body)
    assert (response.status_code, response.json()["code"]) == (400, "HVT-200")


# All of them

CHANGES = [
    ("/workflows/{id}/erase-payloads", WHY),
    ("/workflows/{id}/legal-hold", WHY),
    ("/workflows/{id}/legal-hold/release", {}),
]


@pytest.mark.parametrize(("path", "body"), [*CHANGES, (f"{ERASURES}/{{id}}/verify", {})])
async def test_nobody_changes_anything_without_token_or_from_another_site(
    console: Client, shards: Shards, path: str, body: dict[str, str]
) -> None:
    run = await ended(shards)
    whole = API + path.format(id=run)
    assert (await console("POST", whole, json=body)).status_code == 401
    csrf = await console.sign_in(shards)
    assert (await console("POST", whole, json=body)).status_code == 403
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        foreign = await console("POST", whole, json=body, headers={"x-csrf-token": csrf, **headers})
        assert (foreign.status_code, foreign.headers["content-type"]) == (403, "application/problem+json")
    assert SECRET in (await console("GET", f"{API}/workflows/{run}")).text
    done = await console("POST", whole, json=body, headers={"x-csrf-token": csrf, "origin": ADDRESS})
    assert done.status_code == (404 if "erasures" in path else 200)


@pytest.mark.parametrize("path", [ERASURES, f"{ERASURES}/{NOBODY}"])
async def test_nobody_reads_receipts_without_token(refusing_console: Client, path: str) -> None:
    assert (await refusing_console("GET", API + path)).status_code == 401


@pytest.mark.parametrize(("path", "body"), CHANGES)
async def test_a_run_that_is_not_there_is_a_404(refusing_console: Client, path: str, body: dict[str, str]) -> None:
    response = await refusing_console.api("POST", path.format(id=NOBODY), json=body)
    assert (response.status_code, response.json()["code"]) == (404, "HVT-300")


async def test_receipts_of_the_shards_that_answer_are_listed_and_the_missing_one_is_named(
    console: Client, half_console: Client, shards: Shards
) -> None:
    here, there = await ended(shards, 0), await ended(shards, 1)
    near, far = [(await erase(console, run))["receipt"] for run in (here, there)]
    page = (await half_console.api("GET", ERASURES)).json()
    assert ([each["receipt"] for each in page["erasures"]], page["status"]) == ([near], "partial")
    assert [each["shard_id"] for each in page["unavailable_shards"]] == [1]
    assert (await half_console.api("GET", f"{ERASURES}/{near}")).status_code == 200
    for method, path, body in [
        ("GET", f"{ERASURES}/{far}", None),
        ("POST", f"{ERASURES}/{far}/verify", {}),
        ("GET", f"/workflows/{there}/erasure", None),
        ("GET", f"/workflows/{there}/legal-hold", None),
        *(("POST", path.format(id=there), body) for path, body in CHANGES),
    ]:
        response = await half_console.api(method, path, **({"json": body} if body is not None else {}))
        assert (response.status_code, response.json()["shard_id"]) == (503, 1), path


async def test_the_answers_fit_what_is_said_of_them(console: Client, shards: Shards) -> None:
    document = (await console("GET", f"{API}/openapi.json")).json()
    run = await ended(shards)
    await add(shards, 0, Run(workflow_id="open", parent_id=run))
    held = "/workflows/{execution_id}/legal-hold"
    asked: list[tuple[str, str, Any]] = [
        ("POST", held, WHY),
        ("GET", held, None),
        ("GET", "/workflows/{execution_id}/erasure", None),
        ("POST", "/workflows/{execution_id}/erase-payloads", WHY),
        ("POST", f"{held}/release", {}),
        ("GET", held, None),
        ("POST", "/workflows/{execution_id}/erase-payloads", WHY),
        ("GET", "/workflows/{execution_id}/erasure", None),
        ("GET", ERASURES, None),
        ("GET", f"{ERASURES}/{{receipt}}", None),
        ("POST", f"{ERASURES}/{{receipt}}/verify", {}),
    ]
    receipt = ""
    for method, template, body in asked:
        path = template.format(execution_id=run, receipt=receipt)
        response = await console.api(method, path, **({"json": body} if body is not None else {}))
        receipt = response.json().get("receipt", receipt)
        answers = document["paths"][API + template][method.lower()]["responses"]
        described = answers[str(response.status_code)]
        schema = described["content"][response.headers["content-type"]]["schema"]
        validator(document, schema).validate(response.json())
