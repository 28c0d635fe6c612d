"""Where a key lives: what each shard answered, which run the key means and why, and where a new one would go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from harvest.history.ids import pick_shard
from harvest.history.states import State
from harvest.operations.resolving import placed_at
from harvest.shards import ShardRouter, Shards
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, BEARER, DEAD, Client, settings
from tests.operations.population import Run, add
from tests.pages.acting import HTML, words

PAGE = "/shards/key?workflow_name=order_flow&workflow_id=o-1"
ASKED = "/admin/resolve?workflow_name=order_flow&workflow_id=o-1"


async def resolved(console: Client) -> dict[str, Any]:
    response = await console.api("GET", ASKED)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def text(console: Client, shards: Shards, path: str = PAGE) -> str:
    await console.sign_in(shards)
    response = await console("GET", path, headers=HTML)
    assert response.status_code == 200, response.text
    return words(response)


async def test_of_an_open_and_a_newer_ended_run_the_open_one_is_meant(console: Client, shards: Shards) -> None:
    run = await add(shards, 1, Run(age=100))
    stale = await add(shards, 0, Run(age=1, state=State.COMPLETED))
    found = await resolved(console)
    assert (found["rule"], found["execution_id"], found["shard_id"]) == ("only_open", str(run), 1)
    assert [[each["execution_id"] for each in shard["runs"]] for shard in found["shards"]] == [[str(stale)], [str(run)]]
    assert [[each["meant"] for each in shard["runs"]] for shard in found["shards"]] == [[False], [True]]
    page = await text(console, shards)
    assert "It is the only open run of the key." in page
    assert f"{run} on shard 1" in page
    assert "Completed" in page


async def test_of_two_open_runs_the_newest_is_meant_and_the_page_says_how_that_came(
    console: Client, shards: Shards
) -> None:
    await add(shards, 0, Run(age=100))
    newest = await add(shards, 1, Run(age=1))
    found = await resolved(console)
    assert (found["rule"], found["execution_id"], found["open_runs"]) == ("newest_open", str(newest), 2)
    page = await text(console, shards)
    assert "Several runs of the key are open: it is the newest of them." in page
    assert "pinned and unpinned starts of this one were mixed" in page


async def test_without_an_open_run_the_newest_is_meant_and_each_shard_lists_newest_first(
    console: Client, shards: Shards
) -> None:
    runs = [await add(shards, 0, Run(age=age, state=State.FAILED)) for age in (300, 20, 100)]
    found = await resolved(console)
    assert (found["rule"], found["execution_id"]) == ("newest_ended", str(runs[1]))
    assert [run["execution_id"] for run in found["shards"][0]["runs"]] == [str(runs[n]) for n in (1, 2, 0)]
    assert "No run of the key is open: it is the newest that has ended." in await text(console, shards)


async def test_more_runs_than_a_page_has_room_for_are_said_to_be_there(console: Client, shards: Shards) -> None:
    for n in range(12):
        await add(shards, 0, Run(age=100 + n, state=State.COMPLETED))
    found = await resolved(console)
    assert (len(found["shards"][0]["runs"]), found["shards"][0]["more"]) == (10, True)
    assert "It has older ones, too" in await text(console, shards)


async def test_a_key_that_nobody_has_is_said_to_be_nowhere(console: Client, shards: Shards) -> None:
    found = await resolved(console)
    assert (found["rule"], found["execution_id"], found["status"]) == ("none", None, "complete")
    page = await text(console, shards)
    assert "Every shard answered, and none has a run of this key." in page
    assert page.count("No run of this key.") == 2


async def test_a_shard_that_does_not_answer_leaves_it_open_which_run_is_meant(
    half_console: Client, shards: Shards
) -> None:
    await add(shards, 0, Run(state=State.COMPLETED))
    found = await resolved(half_console)
    assert (found["rule"], found["execution_id"], found["status"]) == ("unknown", None, "partial")
    assert found["shards"][1]["inspected"] is False
    assert found["shards"][1]["reason"] == "connection refused"
    page = await text(half_console, shards)
    assert "No open run was found, but not every shard was looked at" in page
    assert "Not inspected connection refused" in page
    assert "Shard 1 did not answer." in page


async def test_an_open_run_is_meant_though_a_shard_does_not_answer(half_console: Client, shards: Shards) -> None:
    run = await add(shards, 0, Run())
    found = await resolved(half_console)
    assert (found["rule"], found["execution_id"], found["status"]) == ("only_open", str(run), "partial")
    assert "A shard that was not looked at may have another open one." in await text(half_console, shards)


@pytest.fixture
async def narrow(urls: dict[int, str], shards: Shards) -> AsyncIterator[Client]:
    """A console whose router knows a shard that has no database here, and one that drains, and one that is reserved."""
    router = ShardRouter(readable=(0, 1, 2), writable=(0,), default=0, reserved=(2,))
    async with AsyncTestClient(create_app(settings(urls, router=router)), base_url=ADDRESS) as inner:
        yield Client(inner)


async def test_a_shard_without_a_database_here_was_not_looked_at(narrow: Client, shards: Shards) -> None:
    found = await resolved(narrow)
    assert found["rule"] == "unknown"
    marks = [(each["inspected"], each["has_database"], each["writable"], each["reserved"]) for each in found["shards"]]
    assert marks == [(True, True, True, False), (True, True, False, False), (False, False, False, True)]
    page = await text(narrow, shards)
    assert "Not inspected no database is configured here" in page
    assert "Shard 1 readable only" in page
    assert "Shard 2 readable only, reserved" in page


async def test_with_no_shard_at_all_the_page_says_that_nobody_could_be_asked() -> None:
    urls = {0: DEAD, 1: f"{DEAD}-too"}
    async with AsyncTestClient(create_app(settings(urls)), base_url=ADDRESS) as inner:
        client = Client(inner)
        found = await resolved(client)
        assert (found["rule"], found["status"]) == ("unknown", "unavailable")
        page = await client("GET", PAGE, headers={**HTML, **BEARER})
        assert page.status_code == 200
        assert "No shard answered" in words(page)


def key_hashed_to(router: ShardRouter, shard_id: int) -> str:
    return next(f"o-{n}" for n in range(10_000) if pick_shard(router.shared, "order_flow", f"o-{n}") == shard_id)


def test_where_a_new_run_would_go_follows_the_hash_the_drain_and_the_reservations() -> None:
    router = ShardRouter(readable=(0, 1, 2, 3), writable=(0, 2, 3), default=0, reserved=(3,))
    straight = placed_at(router, "order_flow", key_hashed_to(router, 2), {})
    assert (straight.shard_id, straight.why, straight.hashed_shard_id) == (2, "hash", 2)
    again = placed_at(router, "order_flow", key_hashed_to(router, 1), {})
    assert (again.shard_id in (0, 2), again.why, again.hashed_shard_id) == (True, "draining", 1)
    assert again.has_database is False
    drained = ShardRouter(readable=(0, 1), writable=(), default=0)
    assert placed_at(drained, "order_flow", "o-1", {}).why == "no_writable_shard"


async def test_the_page_says_where_a_new_run_would_go_and_why(narrow: Client, shards: Shards) -> None:
    router = ShardRouter(readable=(0, 1, 2), writable=(0,), default=0, reserved=(2,))
    drained = key_hashed_to(router, 1)
    page = await text(narrow, shards, f"/shards/key?workflow_name=order_flow&workflow_id={drained}")
    assert "would go to shard 0. Its hash leads to shard 1, which takes no new runs" in page


async def test_without_a_key_the_page_asks_for_one(console: Client, shards: Shards) -> None:
    page = await text(console, shards, "/shards/key")
    assert "Name a workflow type and an id" in page


@pytest.mark.parametrize(
    "query",
    ["workflow_name=order_flow&workflow_id=", "workflow_name=&workflow_id=x", "workflow_name=a%00&workflow_id=x"],
)
async def test_what_cannot_be_a_key_is_refused_beside_what_was_typed(
    console: Client, shards: Shards, query: str
) -> None:
    await console.sign_in(shards)
    response = await console("GET", f"/shards/key?{query}", headers=HTML)
    assert response.status_code == 400
    assert 'id="problem" role="alert"' in response.text
    assert 'aria-describedby="problem"' in response.text
    assert (await console.api("GET", f"/admin/resolve?{query}")).status_code == 400


async def test_a_hostile_key_is_shown_as_text(console: Client, shards: Shards) -> None:
    await console.sign_in(shards)
    hostile = "%3Cscript%3Ealert(1)%3C/script%3E%22%27"
    response = await console("GET", f"/shards/key?workflow_name=order_flow&workflow_id={hostile}", headers=HTML)
    assert response.status_code == 200
    assert "<script>alert" not in response.text


async def test_an_execution_leads_to_the_page_of_its_key(console: Client, shards: Shards) -> None:
    run = await add(shards, 0, Run())
    await console.sign_in(shards)
    response = await console("GET", f"/w/{run}", headers=HTML)
    assert "/shards/key?workflow_name=order_flow&amp;workflow_id=o-1" in response.text
