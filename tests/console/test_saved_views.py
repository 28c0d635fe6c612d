"""Saved views: filters of the list under a name, over the API and on their pages."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from harvest.operations.saved_views import MOST_VIEWS, checked_query
from harvest.shards import Shards
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, DEAD, Client, settings
from tests.console.test_openapi import validator

VIEWS = "/admin/views"
HTML = {"accept": "text/html"}
FAILED = "state=FAILED&type=order_flow"


@pytest.fixture
async def blind_console(urls: dict[int, str], shards: Shards) -> AsyncIterator[Client]:
    """A console whose default shard is gone."""
    async with AsyncTestClient(create_app(settings({0: DEAD, 1: urls[1]})), base_url=ADDRESS) as inner:
        yield Client(inner)


async def save(console: Client, name: str, query: str = FAILED) -> dict[str, Any]:
    """Save a view; answers it."""
    saved = await console.api("POST", VIEWS, json={"name": name, "query": query})
    assert saved.status_code == 201, saved.text
    view: dict[str, Any] = saved.json()["view"]
    return view


async def names(console: Client) -> list[str]:
    return [view["name"] for view in (await console.api("GET", VIEWS)).json()["views"]]


async def acts(console: Client) -> list[tuple[str, str]]:
    entries = (await console.api("GET", "/admin/audit")).json()["entries"]
    return [(act["operation"], act["target_id"]) for act in entries if act["target_type"] == "saved_view"]


async def test_a_view_is_saved_listed_renamed_and_deleted_and_each_is_audited(console: Client) -> None:
    view = await save(console, "  Failing orders ")
    assert (view["name"], view["query"], view["actor"]) == ("Failing orders", FAILED, "token:admin")
    await save(console, "all", "")
    assert await names(console) == ["all", "Failing orders"]
    path = f"{VIEWS}/{view['view_id']}"
    renamed = await console.api("PATCH", path, json={"name": "Broken orders"})
    assert (renamed.status_code, renamed.json()["name"], renamed.json()["query"]) == (200, "Broken orders", FAILED)
    assert (await console.api("DELETE", path)).json()["name"] == "Broken orders"
    assert await names(console) == ["all"]
    assert [act for act, target in await acts(console) if target == view["view_id"]] == [
        "saved_view.delete",
        "saved_view.rename",
        "saved_view.save",
    ]


async def test_the_same_saved_twice_is_there_once(console: Client) -> None:
    first = await save(console, "mine")
    again = await console.api("POST", VIEWS, json={"name": "mine", "query": "type=order_flow&state=FAILED"})
    assert (again.status_code, again.json()["newly_saved"]) == (200, False)
    assert again.json()["view"] == first
    assert len(await acts(console)) == 1


async def test_a_name_is_of_one_view(console: Client) -> None:
    await save(console, "mine")
    taken = await console.api("POST", VIEWS, json={"name": "mine", "query": "state=PAUSED"})
    assert (taken.status_code, taken.json()["code"], taken.json()["field"]) == (409, "HVT-316", "name")
    other = await save(console, "other")
    renamed = await console.api("PATCH", f"{VIEWS}/{other['view_id']}", json={"name": "mine"})
    assert (renamed.status_code, renamed.json()["code"]) == (409, "HVT-316")
    assert (await console.api("PATCH", f"{VIEWS}/{other['view_id']}", json={"name": "other"})).status_code == 200


async def test_saved_at_once_a_name_is_still_of_one_view(console: Client) -> None:
    bodies = [{"name": "mine", "query": f"id={n}"} for n in range(6)]
    answers = await asyncio.gather(*(console.api("POST", VIEWS, json=body) for body in bodies))
    assert sorted(each.status_code for each in answers) == [201, 409, 409, 409, 409, 409]


async def test_there_are_200_at_most(console: Client, shards: Shards) -> None:
    await shards.store(0).write.write(
        "insert into harvest_saved_views (view_id, name, query, actor) "
        "select gen_random_uuid(), 'view ' || n, '', 'x' from generate_series(2, $1::int) n",
        MOST_VIEWS,
    )
    await save(console, "the last")
    more = await console.api("POST", VIEWS, json={"name": "one too many", "query": ""})
    assert (more.status_code, more.json()["slug"]) == (400, "limit_exceeded")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "", "query": ""}, "name"),
        ({"name": "   ", "query": ""}, "name"),
        ({"name": "x" * 81, "query": ""}, "name"),
        ({"name": "a\nb", "query": ""}, "name"),
        ({"name": "a\x00b", "query": ""}, "name"),
        ({"name": "a", "query": "cursor=abc"}, "query"),
        ({"name": "a", "query": "nonsense=1"}, "query"),
        ({"name": "a", "query": "state"}, "query"),
        ({"name": "a", "query": "id=%00"}, "query"),
        ({"name": "a", "query": "id=%ff"}, "query"),
        ({"name": "a", "query": "id=" + "x" * 9_000}, "query"),
    ],
)
async def test_what_is_no_view_is_refused_by_its_field(
    refusing_console: Client, body: dict[str, str], field: str
) -> None:
    refused = await refusing_console.api("POST", VIEWS, json=body)
    assert (refused.status_code, refused.json()["field"]) == (400, field)


async def test_one_that_is_not_there_is_named(refusing_console: Client) -> None:
    path = f"{VIEWS}/00000000-0000-4000-8000-000000000000"
    for method, body in (("DELETE", None), ("PATCH", {"name": "x"})):
        refused = await refusing_console.api(method, path, **({"json": body} if body else {}))
        assert (refused.status_code, refused.json()["code"]) == (404, "HVT-306")
    assert (await refusing_console.api("DELETE", f"{VIEWS}/abc")).json()["field"] == "view_id"


async def test_answers_fit_the_document(console: Client) -> None:
    document = (await console("GET", "/api/harvest/openapi.json")).json()
    await save(console, "mine")
    told = document["paths"]["/api/harvest/admin/views"]["get"]["responses"]["200"]["content"]["application/json"]
    validator(document, told["schema"]).validate((await console.api("GET", VIEWS)).json())


def test_equal_filters_are_equal_texts() -> None:
    assert (
        checked_query("?size=25&filter=attrs.a+%3D+1&state=FAILED&id=")
        == "state=FAILED&filter=attrs.a%20%3D%201&size=25"
    )
    assert checked_query("") == ""


async def test_without_the_default_shard_views_cannot_be_read_and_the_list_works(
    blind_console: Client, shards: Shards
) -> None:
    listed = (await blind_console.api("GET", VIEWS)).json()
    assert (listed["views"], listed["status"]) == ([], "unavailable")
    assert (await blind_console.api("POST", VIEWS, json={"name": "a", "query": ""})).status_code == 503
    csrf = await blind_console.sign_in(shards)
    page = await blind_console("GET", "/workflows", headers=HTML)
    assert page.status_code == 200
    assert "Saved views cannot be read: shard 0 does not answer." in page.text
    assert "not an empty list" in (await blind_console("GET", "/views", headers=HTML)).text
    unsaved = await blind_console("POST", "/views", headers=HTML, data={"csrf": csrf, "name": "a", "query": ""})
    assert unsaved.status_code == 503


async def test_a_filter_is_saved_from_the_list_and_opened_again(console: Client, shards: Shards) -> None:
    csrf = await console.sign_in(shards)
    page = (await console("GET", "/workflows?type=order_flow&state=failed&cursor=x", headers=HTML)).text
    found = re.search(r'href="(/views/new\?query=[^"]*)"', page)
    assert found is not None
    form = (await console("GET", html.unescape(found[1]), headers=HTML)).text
    kept = re.search(r'name="query" value="([^"]*)"', form)
    assert kept is not None
    assert html.unescape(kept[1]) == FAILED
    data = {"csrf": csrf, "name": "<b>Failing</b> 🎁", "query": html.unescape(kept[1])}
    saved = await console("POST", "/views", data=data, headers=HTML)
    assert (saved.status_code, saved.headers["location"]) == (303, f"/workflows?{FAILED}")
    page = (await console("GET", saved.headers["location"], headers=HTML)).text
    assert "&lt;b&gt;Failing&lt;/b&gt; 🎁" in page
    assert "<b>Failing" not in page
    assert 'aria-current="true">&lt;b&gt;Failing' in page
    assert "/views/new" not in page
    again = await console("POST", "/views", data={**data, "query": "state=PAUSED"}, headers=HTML)
    assert again.status_code == 409
    assert 'value="&lt;b&gt;Failing&lt;/b&gt; 🎁"' in again.text


async def test_pages_rename_and_delete_a_view(console: Client, shards: Shards) -> None:
    csrf = await console.sign_in(shards)
    view = await save(console, "mine")
    path = f"/views/{view['view_id']}"
    assert "state = &#39;FAILED&#39;" in (await console("GET", path, headers=HTML)).text
    empty = await console("POST", f"{path}/rename", data={"csrf": csrf, "name": " "}, headers=HTML)
    assert (empty.status_code, "a view&#39;s has 1 to 80" in empty.text) == (400, True)
    renamed = await console("POST", f"{path}/rename", data={"csrf": csrf, "name": "ours"}, headers=HTML)
    assert (renamed.status_code, await names(console)) == (303, ["ours"])
    for _ in range(2):
        deleted = await console("POST", f"{path}/delete", data={"csrf": csrf}, headers=HTML)
        assert (deleted.status_code, deleted.headers["location"]) == (303, "/views?did=deleted")
    assert await names(console) == []
    assert (await console("GET", path, headers=HTML)).status_code == 404
    assert "No view is saved yet" in (await console("GET", "/views", headers=HTML)).text


async def test_without_the_token_of_the_session_nothing_is_saved(console: Client, shards: Shards) -> None:
    await console.sign_in(shards)
    assert (await console("POST", "/views", data={"name": "a", "query": ""}, headers=HTML)).status_code == 403
    assert (await console("POST", f"/api/harvest{VIEWS}", json={"name": "a", "query": ""})).status_code == 403
    assert await names(console) == []
