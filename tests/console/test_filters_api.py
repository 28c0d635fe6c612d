"""Filters, facets and triage over the API and by the command line: what is asked, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from click.testing import CliRunner, Result

from harvest.history.ids import mint_execution_id
from harvest.shards import Shards
from harvest_console.cli.root import root
from tests.console.conftest import API, BEARER, TOKEN, Client, settings
from tests.console.serving import served
from tests.operations.population import Run, add


async def populate(shards: Shards) -> None:
    """Four runs over both shards with a tenant and an amount each; the last one has none."""
    for n, tenant in enumerate(["acme", "acme", "o'hara", "5"]):
        attributes = msgspec.json.encode({"tenant": tenant, "amount": n, "urn:key": tenant}).decode()
        await add(shards, n % 2, Run(workflow_id=f"o-{n}", age=n, search_attributes=attributes))
    await add(shards, 0, Run(workflow_id="o-4", age=4))


async def ids(console: Client, query: str) -> list[str]:
    response = await console.api("GET", f"/workflows?{query}")
    assert response.status_code == 200, response.text
    return [row["workflow_id"] for row in response.json()["workflows"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("search_attr=tenant:acme", ["o-0", "o-1"]),
        ("search_attr=tenant:acme&search_attr=amount:1", ["o-1"]),
        ("search_attr=tenant:5", []),
        ('search_attr=tenant:"5"', ["o-3"]),
        ("search_attr_filter=amount:gte:2", ["o-2", "o-3"]),
        ("search_attr_filter=amount:gte:1&search_attr_filter=amount:lt:3", ["o-1", "o-2"]),
        ("search_attr_filter=tenant:ne:acme", ["o-2", "o-3"]),
        ("search_attr_filter=tenant:in:acme,o'hara", ["o-0", "o-1", "o-2"]),
        ("search_attr_filter=tenant:exists&order=asc", ["o-3", "o-2", "o-1", "o-0"]),
        ("filter=attrs.tenant%20%3D%20'acme'%20OR%20attrs.amount%20%3E%202", ["o-0", "o-1", "o-3"]),
        ("filter=attrs.tenant%3D'o''hara'&search_attr=amount:2&state=RUNNING", ["o-2"]),
        ("owner=nobody", []),
    ],
)
async def test_a_list_is_filtered_by_all_that_is_asked(
    console: Client, shards: Shards, query: str, expected: list[str]
) -> None:
    await populate(shards)
    assert await ids(console, query) == expected
    counted = await console.api("GET", f"/workflows/count?{query.partition('&order')[0]}")
    assert counted.json()["count"] == len(expected)


@pytest.mark.parametrize(
    ("query", "field", "column"),
    [
        ("filter=attrs.a%20%3D%20b", "filter", 11),
        ("filter=owner%20%3D%20'a'%20OR%20attrs.a%20%3D%201", "filter", 1),
        ("search_attr_filter=a:is:5", "search_attr_filter", 3),
        ("search_attr=a", "search_attr", 2),
        ("filter=attrs.a%20%3D%20'%00'", "filter", 12),
        ("search_attr_filter=a:eq:1e99999", "search_attr_filter", 6),
    ],
)
async def test_a_filter_that_cannot_be_is_refused_with_column_and_remedy(
    console: Client, query: str, field: str, column: int
) -> None:
    for path in ("/workflows", "/workflows/count", "/workflows/facets?field=state&"):
        response = await console.api("GET", f"{path}{'' if '?' in path else '?'}{query}")
        assert response.status_code == 400
        problem = response.json()
        assert (problem["code"], problem["field"], problem["column"]) == ("HVT-204", field, column)
        assert problem["remedy"]


async def test_a_list_and_a_count_take_the_beginning_of_an_id(console: Client, shards: Shards) -> None:
    await populate(shards)
    rows = (await console.api("GET", "/workflows")).json()["workflows"]
    for length in (36, 32):
        prefix = rows[1]["execution_id"].replace("-", "" if length == 32 else "-")[:length]
        assert await ids(console, f"exec_id_prefix={prefix}") == ["o-1"]
    assert await ids(console, "exec_id_prefix=0001") == ["o-1", "o-3"]
    assert (await console.api("GET", "/workflows/count?exec_id_prefix=0000")).json()["count"] == 3
    assert (await console.api("GET", "/workflows/facets?field=state&exec_id_prefix=0000")).json()["rows"] == 3


@pytest.mark.parametrize("path", ["/workflows?", "/workflows/count?", "/workflows/facets?field=state&"])
@pytest.mark.parametrize("prefix", ["00zz", "0000-1", "%00", "0" * 37])
async def test_what_is_no_beginning_of_an_id_is_refused_by_its_parameter(
    console: Client, path: str, prefix: str
) -> None:
    response = await console.api("GET", f"{path}exec_id_prefix={prefix}")
    problem = response.json()
    assert (response.status_code, problem["code"], problem["field"]) == (400, "HVT-200", "exec_id_prefix")


@pytest.mark.parametrize(
    "query",
    [
        "filter=%zz",
        "search_attr=%ff",
        "search_attr_filter=%E9:exists",
        "filter=attrs.a=1&filter=attrs.b=2",
        "severity=sev9",
        "filter=" + "a" * 2049,
        "order=sideways",
        "facets=1",
    ],
)
async def test_a_malformed_query_is_a_400(console: Client, query: str) -> None:
    response = await console.api("GET", f"/workflows?{query}")
    assert response.status_code == 400, response.text


@pytest.mark.parametrize(
    "text", ["'", '"', "%", "\\", "$1", "; --", "\u2028", "🦆", "a" * 1900, "{}", "1e400", "[" * 500]
)
async def test_hostile_text_is_looked_for_and_nothing_else(console: Client, shards: Shards, text: str) -> None:
    await populate(shards)
    assert await ids(console, f"search_attr={quote('tenant:' + text)}") == []
    assert await ids(console, f"owner={quote(text[:200])}") == []
    whole = "attrs.tenant = '" + text.replace("'", "''") + "'"
    assert await ids(console, f"filter={quote(whole)}") == []


async def test_facets_tell_values_counts_and_the_condition(console: Client, shards: Shards) -> None:
    await populate(shards)
    found = (await console.api("GET", "/workflows/facets?field=attrs.tenant&limit=1")).json()
    assert found["values"] == [{"value": "acme", "count": 2, "condition": "attrs.tenant = 'acme'"}]
    assert (found["field"], found["rows"], found["capped"], found["truncated"]) == ("attrs.tenant", 5, False, True)
    assert (await console.api("GET", "/workflows/facets?field=color")).status_code == 400
    keys = (await console.api("GET", "/workflows/search-attributes")).json()
    assert [each["key"] for each in keys["keys"]] == ["amount", "tenant", "urn:key"]


async def test_triage_is_changed_by_patch(console: Client, shards: Shards) -> None:
    run = await add(shards, 1, Run())
    changed = await console.api("PATCH", f"/workflows/{run}/triage", json={"owner": "payments", "severity": "sev1"})
    assert changed.status_code == 200, changed.text
    assert changed.json()["changed_fields"] == ["owner", "severity"]
    cleared = await console.api("PATCH", f"/workflows/{run}/triage", json={"owner": None})
    assert (cleared.json()["owner"], cleared.json()["severity"]) == (None, "sev1")
    assert await ids(console, "severity=sev1") == ["o-1"]
    row = (await console.api("GET", f"/workflows/{run}")).json()
    assert (row["owner"], row["severity"], row["note"]) == (None, "sev1", None)


@pytest.mark.parametrize(
    ("body", "status"), [({}, 400), ({"severity": "sev9"}, 400), ({"owners": "x"}, 400), ({"owner": 5}, 400)]
)
async def test_triage_that_cannot_be_is_refused(
    console: Client, shards: Shards, body: dict[str, Any], status: int
) -> None:
    run = await add(shards, 1, Run())
    assert (await console.api("PATCH", f"/workflows/{run}/triage", json=body)).status_code == status
    missing = f"/workflows/{mint_execution_id(0)}/triage"
    assert (await console.api("PATCH", missing, json={"owner": "a"})).status_code == 404


async def test_nobody_triages_without_the_token(console: Client, shards: Shards) -> None:
    run = await add(shards, 1, Run())
    assert (await console("PATCH", f"{API}/workflows/{run}/triage", json={"owner": "a"})).status_code == 401
    response = await console("PATCH", f"{API}/workflows/{run}/triage", json={"note": "n"}, headers=BEARER)
    assert response.status_code == 200


async def test_the_command_line_filters_alike(urls: dict[int, str], shards: Shards) -> None:
    await populate(shards)

    async def run(*arguments: str) -> Result:
        environment = {"HARVEST_URL": f"{address}/api/harvest", "HARVEST_TOKEN": TOKEN}
        return await asyncio.to_thread(CliRunner().invoke, root, ["workflow", *arguments], env=environment)

    async def listed(*arguments: str) -> list[str]:
        result = await run("list", *arguments)
        assert result.exit_code == 0, result.output
        return [row["workflow_id"] for row in msgspec.json.decode(result.stdout)["workflows"]]

    async with served(settings(urls)) as address:
        assert await listed("--search-attr", "tenant=acme", "--search-attr", "amount=1") == ["o-1"]
        assert await listed("--search-attr", "urn:key=acme") == ["o-0", "o-1"]
        assert await listed("--search-attr-filter", "amount:gte:1", "--search-attr-filter", "amount:lt:3") == [
            "o-1",
            "o-2",
        ]
        assert await listed("--filter", "attrs.tenant = 'o''hara' OR attrs.amount = 3") == ["o-2", "o-3"]
        assert await listed("--owner", "nobody") == []
        assert await listed("--exec-id-prefix", "0001", "--order", "asc") == ["o-3", "o-1"]
        unlike = await run("list", "--exec-id-prefix", "xyz")
        assert (unlike.exit_code, "exec_id_prefix" in unlike.stderr) == (1, True)
        counted = await run("count", "--search-attr", "tenant=acme", "--group-by", "state")
        assert msgspec.json.decode(counted.stdout)["total"] == 2
        wrong = await run("list", "--filter", "attrs.tenant = acme")
        assert wrong.exit_code != 0
        assert "column 16" in wrong.output
        assert (await run("list", "--search-attr", "tenant")).exit_code == 2
