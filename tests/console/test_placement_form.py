"""The start form's part that says where the run is to live, and shows it before anything is started."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

from harvest.history.ids import partition_of
from harvest.operations import placing
from harvest.shards import Placement, ShardRouter, Shards
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, Client, settings
from tests.pages.acting import HTML, hidden, words

ROUTER = ShardRouter(
    readable=(0, 1, 2, 3), writable=(0, 1, 3), default=0, reserved=(3,), residency={"eu": 0, "us": 1, "a:b": 0}
)


class Form:
    """The form of `any_flow` as one signed-in browser sends it."""

    def __init__(self, client: Client, csrf: str) -> None:
        self.client = client
        self._csrf = csrf

    async def get(self) -> httpx.Response:
        """The empty form."""
        return await self.client("GET", "/workflows/start?type=any_flow", headers=HTML)

    async def post(self, key: str = "ui-0123456789", **fields: str) -> httpx.Response:
        """The form, filled in."""
        data = {"csrf": self._csrf, "type": "any_flow", "key": key, "tab": "raw", "raw": "null", **fields}
        return await self.client("POST", "/workflows/start", headers=HTML, data=data)

    async def look(self, **query: Any) -> httpx.Response:
        """Where the run would live, as the page asks for it while people type."""
        return await self.client(
            "GET", "/_f/workflows/start/placement", params={"type": "any_flow", **query}, headers=HTML
        )


@pytest.fixture
async def form(urls: dict[int, str], shards: Shards, new_database: Callable[[str], str]) -> AsyncIterator[Form]:
    """A console over three databases; shard 2 drains, shard 3 is a cell without a database here."""
    found = settings({**urls, 2: new_database("drains")}, router=ROUTER)
    async with AsyncTestClient(create_app(found), base_url=ADDRESS) as inner:
        client = Client(inner)
        yield Form(client, await client.sign_in(shards))


async def runs(shards: Shards) -> dict[str, int]:
    """The workflow ids that there are, each with its shard."""
    found = {}
    for store in shards.stores.values():
        for row in await store.read.fetch("select workflow_id from harvest_executions"):
            found[row["workflow_id"]] = store.shard_id
    return found


async def test_the_choices_are_those_of_the_router_with_their_states(form: Form) -> None:
    page = await form.get()
    options = re.findall(r'<option value="((?:shard|residency):[^"]*)"[^>]*>([^<]*)<', page.text)
    assert options == [
        ("residency:a:b", "a:b, on shard 0"),
        ("residency:eu", "eu, on shard 0"),
        ("residency:us", "us, on shard 1"),
        ("shard:0", "Shard 0"),
        ("shard:1", "Shard 1"),
        ("shard:2", "Shard 2, readable only"),
        ("shard:3", "Shard 3, reserved, no database here"),
    ]
    assert '<option value="">By its id</option>' in page.text


async def test_the_form_shows_the_shard_before_anything_is_typed_and_the_run_goes_there(
    form: Form, shards: Shards
) -> None:
    page = await form.get()
    key = hidden(page, "key")
    made = f"any_flow-{key[-8:]}"
    target = placing.preview(await _with_router(shards), "any_flow", Placement(), iter([made]))
    assert target.shard is not None
    said = words(page)
    assert f"It would run on shard {target.shard.shard_id}" in said
    assert f"As {made} , partition {partition_of(made)}." in said
    assert (await form.post(key=key)).status_code == 303
    assert await runs(shards) == {made: target.shard.shard_id}


async def _with_router(shards: Shards) -> Shards:
    return Shards({shard: store.url for shard, store in shards.stores.items()}, ROUTER)


async def test_a_placed_run_without_an_id_gets_one_that_leads_to_its_shard(form: Form, shards: Shards) -> None:
    for number in range(6):
        key = f"ui-{number:010}"
        seen = words(await form.look(placement="residency:us", key=key))
        assert "It would run on shard 1 (residency us) Writable" in seen
        assert "By itself this id leads" not in seen
        assert (await form.post(key=key, placement="residency:us")).status_code == 303
    begun = await runs(shards)
    assert set(begun.values()) == {1}
    assert {ROUTER.pick("any_flow", workflow_id) for workflow_id in begun} == {1}


async def test_the_same_form_sent_twice_starts_one_placed_run(form: Form, shards: Shards) -> None:
    first = await form.post(placement="shard:1")
    again = await form.post(placement="shard:1")
    assert first.headers["location"].endswith("did=started")
    assert again.headers["location"] == first.headers["location"].replace("did=started", "did=repeated")
    assert len(await runs(shards)) == 1


async def test_an_id_that_leads_elsewhere_is_told(form: Form) -> None:
    home = ROUTER.pick("any_flow", "mine")
    seen = words(await form.look(placement=f"shard:{1 - home}", workflow_id=" mine "))
    assert f"By itself this id leads to shard {home}" in seen
    assert "always, or never" in seen
    assert "By itself" not in words(await form.look(placement=f"shard:{home}", workflow_id="mine"))


REFUSED = {
    "shard:2": "shard 2 is not currently accepting new workflows; it is being drained",
    "shard:3": "shard 3 has no database configured here",
    "shard:9": "shard 9 is not a placeable shard for this deployment",
    "shard:65535": "shard_id is 65535; shards are numbered 0 to 65534",
    "residency:mars": "residency key 'mars' is not declared for this deployment",
    "residency:": "residency key must not be blank",
    "shard:x": "placement is 'shard:x'; it must be shard:NUMBER, residency:KEY or empty",
    "<b>": "placement is '<b>'; it must be",
}


@pytest.mark.parametrize("placement", REFUSED)
async def test_why_it_would_be_refused_is_told_before_and_beside_the_field_after(
    form: Form, shards: Shards, placement: str
) -> None:
    said = REFUSED[placement].lower()
    ahead = words(await form.look(placement=placement)).lower()
    assert f"it would be refused. {said}" in ahead
    answer = await form.post(placement=placement, workflow_id="kept-id", raw='{"kept": 1.10}')
    assert answer.status_code == (503 if placement == "shard:3" else 422)
    shown = words(answer).lower()
    assert f"it was refused. {said}" in shown
    assert f"it would be refused. {said}" in shown
    assert 'aria-invalid="true" aria-describedby="placement-h start-target"' in answer.text
    assert 'value="kept-id"' in answer.text
    assert "&#34;kept&#34;: 1.10" in answer.text
    chosen = re.findall(r'<option value="([^"]*)" selected', answer.text.partition('id="placement"')[2])
    assert [each.replace("&lt;", "<").replace("&gt;", ">") for each in chosen] == [placement]
    assert "<b>" not in answer.text.partition("<main")[2].replace("<body", "")
    assert await runs(shards) == {}


async def test_the_refusal_of_a_shard_that_is_readable_only_says_that_it_may_be_a_new_one(form: Form) -> None:
    told = "So is a shard that is being added"
    assert told in words(await form.look(placement="shard:2"))
    assert told not in words(await form.look(placement="shard:9"))


async def test_without_scripts_a_button_shows_where_it_would_run(form: Form, shards: Shards) -> None:
    page = await form.get()
    assert '<button class="btn small" name="look" value="placement" formnovalidate>' in page.text
    drawn = await form.post(placement="residency:us", workflow_id="a", look="placement", raw="{")
    assert drawn.status_code == 200
    assert "It would run on shard 1" in words(drawn)
    assert '<option value="residency:us" selected>' in drawn.text
    assert await runs(shards) == {}


async def test_only_who_is_signed_in_sees_the_map(form: Form) -> None:
    form.client.inner.cookies.clear()
    for path in ("/workflows/start?type=any_flow", "/_f/workflows/start/placement?type=any_flow"):
        shown = await form.client("GET", path, headers=HTML)
        assert shown.status_code in (303, 401)
        assert "shard" not in shown.text.lower() or shown.status_code == 303


async def test_a_single_shard_has_the_same_form(urls: dict[int, str], shards: Shards) -> None:
    async with AsyncTestClient(create_app(settings({0: urls[0]})), base_url=ADDRESS) as inner:
        client = Client(inner)
        await client.sign_in(shards)
        page = await client("GET", "/workflows/start?type=order_flow", headers=HTML)
        assert page.status_code == 200
        assert "It would run on shard 0 Writable" in words(page)
        assert "By a residency key" not in page.text
