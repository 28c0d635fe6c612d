"""The list as its HTML: owners, facets, what is completed, and what each says where shards are missing."""

from __future__ import annotations

import html
import re

from harvest.history.states import State
from harvest.shards import Shards
from tests.console.conftest import Client
from tests.operations.population import Run, add

HTML = {"accept": "text/html"}
ACME, BETA = '{"tenant":"acme","n":1}', '{"tenant":"beta","n":2}'


async def get(console: Client, path: str) -> str:
    """A page or a region."""
    response = await console("GET", path, headers=HTML)
    assert response.status_code == 200, response.text
    return response.text


def words(page: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


def ids(page: str) -> list[str]:
    return re.findall(r'<a class="id ends"[^>]*>([^<]*)</a>', page)


def link(page: str, text: str) -> str:
    """The address of the link with this text."""
    found = re.search(
        rf'<a [^>]*href="([^"]*)"[^>]*>\s*(?:<span[^>]*>)?{re.escape(html.escape(text))}\s*(?:</span>\s*)?</a>', page
    )
    assert found is not None, text
    return html.unescape(found[1])


async def four_runs(console: Client, shards: Shards) -> str:
    """Two runs on each shard; answers the id of the first."""
    first = await add(shards, 0, Run(workflow_id="a", age=1, search_attributes=ACME))
    await add(shards, 1, Run(workflow_id="b", age=2, search_attributes=ACME, state=State.FAILED))
    await add(shards, 0, Run(workflow_id="c", age=3, search_attributes=BETA, state=State.FAILED))
    await add(shards, 1, Run(workflow_id="d", age=4))
    await console.sign_in(shards)
    return str(first)


async def test_owner_and_severity_are_columns_conditions_and_facets(console: Client, shards: Shards) -> None:
    run = await four_runs(console, shards)
    changed = await console.api(
        "PATCH", f"/workflows/{run}/triage", json={"owner": "payments & <b>co</b>", "severity": "sev2"}
    )
    assert changed.status_code == 200, changed.text
    page = await get(console, "/workflows?columns=owner&columns=severity")
    assert ids(await get(console, link(page, "payments & <b>co</b>"))) == ["a"]
    assert ids(await get(console, link(page, "sev2"))) == ["a"]
    assert page.count('<span class="state sev2">sev2</span>') == 2, "a chip and a cell"
    facets = await get(console, "/_f/workflows/facets?facet=owner&severity=sev2")
    url = link(facets, "payments & <b>co</b>")
    assert ids(await get(console, url)) == ["a"]
    assert "severity=sev2" in url


async def test_a_severity_is_asked_for_and_left_by_its_chip(console: Client, shards: Shards) -> None:
    run = await four_runs(console, shards)
    await console.api("PATCH", f"/workflows/{run}/triage", json={"severity": "sev4"})
    asked = await get(console, link(await get(console, "/workflows?state=RUNNING"), "sev4"))
    assert ids(asked) == ["a"]
    assert ids(await get(console, link(asked, "sev3"))) == []
    assert link(asked, "sev4") == "/workflows?state=RUNNING"
    facets = await get(console, "/_f/workflows/facets?facet=severity")
    assert '<span class="state sev4">sev4</span>' in facets


async def test_a_facet_replaces_what_is_asked_of_its_field_and_keeps_the_rest(console: Client, shards: Shards) -> None:
    await four_runs(console, shards)
    facets = await get(
        console, "/_f/workflows/facets?facet=attrs.tenant&state=FAILED&filter=attrs.tenant%20%3D%20'acme'"
    )
    assert ids(await get(console, link(facets, "beta"))) == ["c"]
    facets = await get(console, "/_f/workflows/facets?facet=state&state=RUNNING&filter=attrs.tenant%20exists")
    assert ids(await get(console, link(facets, "Failed"))) == ["b", "c"]


async def test_what_cannot_be_counted_is_told_in_its_place(console: Client, shards: Shards) -> None:
    await four_runs(console, shards)
    for facet in ("started_at", "nonsense", "attrs.", "attrs.a = 1"):
        page = await get(console, f"/workflows?facet={facet}")
        assert 'class="pad err" role="alert"' in page, facet
        assert ids(page) == ["a", "b", "c", "d"]


async def test_facets_name_the_shard_that_they_do_without(half_console: Client, shards: Shards) -> None:
    await add(shards, 0, Run(search_attributes=ACME))
    await add(shards, 1, Run(search_attributes=ACME))
    await half_console.sign_in(shards)
    said = words(await get(half_console, "/_f/workflows/facets?facet=attrs.tenant"))
    assert "Counted among 1 run that match" in said
    assert "Shard 1 did not answer." in said


async def test_fields_and_values_are_completed_from_what_there_is(console: Client, shards: Shards) -> None:
    await four_runs(console, shards)

    async def offered(head: str) -> list[tuple[str, str]]:
        region = await console("GET", "/_f/workflows/completions", params={"head": head}, headers=HTML)
        found = re.findall(r'data-insert="([^"]*)" data-start="(\d+)"', region.text)
        return [(html.unescape(insert), start) for insert, start in found]

    assert await offered("te") == [("attrs.tenant ", "0")]
    assert await offered("attrs.tenant = ") == [("'acme' ", "15"), ("'beta' ", "15")]
    assert await offered("attrs.n in (1, ") == [("1", "15"), ("2", "15")]
    assert await offered("type = 'or") == [("'order_flow' ", "7")]
    assert await offered("attrs.x = '🎁' an") == [("AND ", "15")]
    assert await offered("nonsense ~ ") == []


async def test_what_cannot_be_filtered_by_lists_nothing_and_counts_nothing(console: Client, shards: Shards) -> None:
    await four_runs(console, shards)
    for expression in ("attrs.tenant", "state = 'x'", "attrs.a = 1 or state = 'FAILED'", "(", "attrs.a = 1 " * 300):
        response = await console("GET", "/workflows", params={"filter": expression}, headers=HTML)
        assert response.status_code == 200, expression
        assert "Nothing is listed" in response.text, expression
        assert ids(response.text) == []
        assert "4 runs" not in words(response.text)


async def test_a_long_filter_does_not_make_a_large_page(console: Client, shards: Shards) -> None:
    for age in range(50):
        await add(shards, age % 2, Run(workflow_id=f"run-{age}", age=age, search_attributes=ACME))
    await console.sign_in(shards)
    expression = f"attrs.tenant in ('acme', '{'x' * 1_900}')"
    columns = ["attrs.tenant", "attrs.n", "owner"]
    page = await console("GET", "/workflows", params={"filter": expression, "columns": columns}, headers=HTML)
    assert len(ids(page.text)) == 50
    assert len(page.content) < 150_000
    assert "Only this" not in page.text
    assert "Only this" in await get(console, "/workflows?filter=attrs.tenant%20exists")
