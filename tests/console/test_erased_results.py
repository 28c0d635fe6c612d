"""Results and answers that were erased, over the API, the command line and pages: gone, and not given as a value."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from msgspec import Raw

from harvest.history.data import UpdateAdmitted, UpdateCompleted, WorkflowCompleted, WorkflowStarted
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations import erasing
from harvest.operations.actor import in_process
from harvest.shards import Shards
from harvest.store.appends import UPDATE_KEY
from tests.console.conftest import API, Client, settings
from tests.console.erasable import SECRET
from tests.console.serving import served
from tests.console.test_erasure_cli import Harvest, harvest_at
from tests.operations.population import Happened, Run, add, add_history

UPDATE = "6c1f8b5e-6d5c-4b0a-9f0e-2f8f3b1f7a41"
TEXT = f'"{SECRET}"'.encode()
ONE, BY_KEY = "/workflows/{run}", "/workflows/by-id/order_flow/o-1"


@pytest.fixture
async def harvest(urls: dict[int, str], shards: Shards) -> AsyncIterator[Harvest]:
    """The command line of a console over two shards."""
    async with served(settings(urls)) as address:
        yield harvest_at(address)


@pytest.fixture
async def run(shards: Shards) -> UUID:
    """A run on shard 1 that has answered an update, has completed and was erased."""
    execution_id = await add(shards, 1, Run(workflow_id="o-1", state=State.COMPLETED, input=TEXT, result=TEXT))
    text = Raw(TEXT)
    history = [
        Happened(EventKind.WORKFLOW_STARTED, 0, 0, WorkflowStarted("order_flow", "o-1", 1, 1, input=text)),
        Happened(EventKind.UPDATE_ADMITTED, 1, 0, UpdateAdmitted(update_id=UPDATE, name="note", input=text)),
        Happened(EventKind.UPDATE_COMPLETED, 2, 2, UpdateCompleted(UPDATE, text)),
        Happened(EventKind.WORKFLOW_COMPLETED, 3, 0, WorkflowCompleted(output=text)),
    ]
    await add_history(shards, execution_id, history)
    await shards.store(1).write.write(
        "insert into harvest_dedupe (execution_id, kind, key, written_to, event_id) values ($1, $2, $3, $1, 2)",
        execution_id,
        UPDATE_KEY,
        UPDATE,
    )
    await erasing.erase_payloads(shards, in_process("test"), execution_id, reason="asked by the subject")
    return execution_id


@pytest.mark.parametrize("way", [ONE, BY_KEY])
async def test_an_erased_result_is_answered_as_gone(console: Client, run: UUID, way: str) -> None:
    response = await console.api("GET", f"{way.format(run=run)}/result?wait=5s")
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (response.status_code, problem["code"], problem["slug"]) == (410, "HVT-116", "payloads_erased")
    assert (problem["execution_id"], problem["state"]) == (str(run), "COMPLETED")


@pytest.mark.parametrize("way", [ONE, BY_KEY])
async def test_an_erased_answer_of_an_update_is_answered_as_gone(console: Client, run: UUID, way: str) -> None:
    response = await console.api("GET", f"{way.format(run=run)}/update/{UPDATE}/result")
    problem = response.json()
    assert (response.status_code, problem["slug"], problem["update_id"]) == (410, "payloads_erased", UPDATE)


async def test_the_command_line_says_that_it_was_erased(harvest: Harvest, run: UUID) -> None:
    for asked in (("result", str(run)), ("update-result", str(run), UPDATE)):
        answer = await harvest("workflow", *asked)
        assert (answer.exit_code, answer.stdout) == (1, "")
        assert "was erased" in answer.stderr


async def test_the_page_of_an_erased_answer_shows_that_it_was(console: Client, shards: Shards, run: UUID) -> None:
    await console.sign_in(shards)
    page = await console("GET", f"/w/{run}/updates/{UPDATE}")
    assert page.status_code == 200
    assert '<span class="state erased">erased</span>' in page.text
    assert "event 3" in page.text
    assert SECRET not in page.text


async def test_the_page_of_the_run_shows_its_result_as_erased(console: Client, shards: Shards, run: UUID) -> None:
    await console.sign_in(shards)
    page = await console("GET", f"/w/{run}")
    assert page.status_code == 200
    assert '<span class="state erased">erased</span>' in page.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("get", "/workflows/{execution_id}/result"),
        ("get", "/workflows/by-id/{workflow_name}/{workflow_id}/result"),
        ("post", "/workflows/{execution_id}/update/{update_name}"),
        ("get", "/workflows/{execution_id}/update/{update_id}/result"),
        ("post", "/workflows/{workflow_name}/update-with-start"),
    ],
)
async def test_what_is_gone_is_described_where_it_may_be_answered(console: Client, method: str, path: str) -> None:
    paths: dict[str, Any] = (await console("GET", f"{API}/openapi.json")).json()["paths"]
    assert "410" in paths[API + path][method]["responses"]
