"""The usage report over the API, as CSV, on the command line and as a page."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from litestar.testing import AsyncTestClient

from harvest.errors import ConfigurationError
from harvest.history.kinds import EventKind
from harvest.operations.usage import UsageGroup
from harvest.shards import Shards
from harvest.store import costs
from harvest.store.costs import CostRow
from harvest_console import settings as configuration
from harvest_console.app import create_app
from harvest_console.cli.root import root
from harvest_console.usage_text import HEADS, shards_named, usage_csv, usage_table
from tests.console.conftest import ADDRESS, API, BEARER, DEAD, TOKEN, Client, settings
from tests.console.serving import served
from tests.operations.population import EPOCH, Happened, Run, add, add_history
from tests.pages.acting import words

HTML = {"accept": "text/html"}
MAY = {"from": "2026-05-01T00:00:00Z", "to": "2026-06-01T00:00:00Z"}
HOSTILE = ("=1+1", "+1", "-1", "@sum", "\tx", "\rx", 'a"b', "a,b", "a\nb", "ä", "plain")


def window(**more: str) -> dict[str, str]:
    """A question about May."""
    return {**MAY, **more}


@pytest.fixture
async def used(shards: Shards) -> Shards:
    """Two runs of `order_flow` on two shards, and one of `any_flow`; one has asked a model."""
    first = await add(shards, 0, Run(workflow_id="o-1", search_attributes='{"tenant": "acme"}'))
    await add_history(
        shards,
        first,
        [
            Happened(kind=EventKind.WORKFLOW_STARTED),
            Happened(kind=EventKind.ACTIVITY_STARTED, after=1, seq=1),
            Happened(kind=EventKind.ACTIVITY_COMPLETED, after=3.25, seq=1),
            Happened(kind=EventKind.WORKFLOW_COMPLETED, after=4),
        ],
    )
    await costs.record(shards.store(0), [CostRow(first, 1, 1, 1, 0, "m", 1200, 34, 56_789, 2500)])
    await shards.store(0).write.write("update harvest_cost_ledger set recorded_at = $1", EPOCH)
    second = await add(shards, 1, Run(workflow_id="o-2"))
    await add_history(shards, second, [Happened(kind=EventKind.WORKFLOW_FAILED, after=4)])
    await add(shards, 1, Run(workflow_id="a-1", workflow_name="any_flow"))
    return shards


# API


async def test_the_answer_has_the_shape_of_its_contract(console: Client, used: Shards) -> None:
    answer = await console.api("GET", "/admin/usage", params=window(group_by="search_attr:tenant"))
    assert answer.status_code == 200
    told = answer.json()
    assert list(told) == ["status", "from", "to", "group_by", "groups", "unavailable_shards"]
    assert (told["status"], told["unavailable_shards"]) == ("complete", [])
    assert (told["from"], told["to"], told["group_by"]) == (MAY["from"], MAY["to"], "search_attr:tenant")
    assert told["groups"][1] == {
        "group": "acme",
        "workflow_starts": 1,
        "completed": 1,
        "failed": 0,
        "cancelled": 0,
        "timed_out": 0,
        "activity_executions": 1,
        "activity_executions_failed": 0,
        "activity_compute_seconds": 2.25,
        "llm_calls": 1,
        "llm_input_tokens": 1200,
        "llm_output_tokens": 34,
        "llm_cost_usd_micros": 56789,
        "llm_unpriced_calls": 0,
        "llm_latency_ms": 2500,
    }
    assert (told["groups"][0]["group"], told["groups"][0]["workflow_starts"]) == ("(unattributed)", 2)


async def test_types_are_the_groups_where_none_are_asked_for(console: Client, used: Shards) -> None:
    told = (await console.api("GET", "/admin/usage", params=MAY)).json()
    assert [(group["group"], group["workflow_starts"]) for group in told["groups"]] == [
        ("any_flow", 1),
        ("order_flow", 2),
    ]
    assert told["group_by"] == "workflow_name"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({}, "from"),
        ({"from": "24h"}, "to"),
        ({"from": "tomorrow", "to": "now"}, "from is 'tomorrow'; it must be an instant with its zone"),
        (window(group_by="tenant"), "it must be workflow_name, or search_attr:KEY"),
        (window(to="2027-06-01T00:00:00Z"), "at most 90 days"),
        (window(format="xml"), "format"),
        (window(by="tenant"), "by"),
    ],
)
async def test_what_cannot_be_asked_is_400_and_says_what_can(
    refusing_console: Client, query: dict[str, str], said: str
) -> None:
    answer = await refusing_console.api("GET", "/admin/usage", params=query)
    assert answer.status_code == 400
    assert said in answer.json()["detail"]


async def test_the_ceiling_is_a_setting_and_is_named(urls: dict[int, str], shards: Shards) -> None:
    async with AsyncTestClient(create_app(settings(urls, usage_ceiling_days=7)), base_url=ADDRESS) as inner:
        console = Client(inner)
        assert (await console.api("GET", "/admin/usage", params={"from": "7d", "to": "now"})).status_code == 200
        refused = await console.api("GET", "/admin/usage", params={"from": "8d", "to": "now"})
    assert (refused.status_code, refused.json()["ceiling_days"]) == (400, 7)
    assert "at most 7 days" in refused.json()["detail"]


async def test_nobody_reads_it_without_being_known(refusing_console: Client) -> None:
    assert (await refusing_console("GET", f"{API}/admin/usage", params=MAY)).status_code == 401


async def test_a_missing_shard_is_named(half_console: Client, used: Shards) -> None:
    told = (await half_console.api("GET", "/admin/usage", params=MAY)).json()
    assert (told["status"], [shard["shard_id"] for shard in told["unavailable_shards"]]) == ("partial", [1])
    assert [(group["group"], group["completed"]) for group in told["groups"]] == [("order_flow", 1)]


# CSV


async def table_of(console: Client, **query: str) -> tuple[Any, list[list[str]]]:
    """The CSV answer and its rows."""
    answer = await console.api("GET", "/admin/usage", params=window(format="csv", **query))
    assert answer.status_code == 200, answer.text
    return answer, list(csv.reader(io.StringIO(answer.content.decode(), newline="")))


async def test_csv_says_what_json_says_and_of_which_window(console: Client, used: Shards) -> None:
    answer, rows = await table_of(console)
    assert answer.headers["content-type"].startswith("text/csv; charset=utf-8")
    name = "usage-20260501T000000Z-20260601T000000Z.csv"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    groups = (await console.api("GET", "/admin/usage", params=MAY)).json()["groups"]
    head, *body = [row[: len(HEADS)] for row in rows]
    assert [dict(zip(head, row, strict=True)) for row in body] == [
        {field: str(value) for field, value in group.items()} for group in groups
    ]
    about = ["from", "to", "group_by", "status", "unavailable_shards"]
    assert rows[0][len(HEADS) :] == about
    assert rows[1][len(HEADS) :] == [MAY["from"], MAY["to"], "workflow_name", "complete", ""]
    assert answer.content.count(b"\r\n") == 3


async def test_csv_is_answered_to_who_accepts_it(console: Client, used: Shards) -> None:
    as_csv = await console("GET", f"{API}/admin/usage", params=MAY, headers={**BEARER, "accept": "text/csv"})
    assert as_csv.content.startswith(b"group,workflow_starts")
    wins = await console(
        "GET", f"{API}/admin/usage", params=window(format="json"), headers={**BEARER, "accept": "text/csv"}
    )
    assert wins.json()["status"] == "complete"


async def test_no_cell_of_it_is_a_formula_and_every_text_comes_through(console: Client, shards: Shards) -> None:
    for name in HOSTILE:
        await add(shards, 0, Run(workflow_id=name.strip() or "x", workflow_name=name))
    _, rows = await table_of(console)
    found = {row[0] for row in rows[1:]}
    assert found == {f"'{name}" if name[0] in "=+-@\t\r" else name for name in HOSTILE}
    assert not [row for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


async def test_a_table_without_a_shard_says_so_in_each_row_and_its_name(half_console: Client, used: Shards) -> None:
    answer, rows = await table_of(half_console)
    assert [row[-2:] for row in rows[1:]] == [["partial", "1"]]
    assert answer.headers["content-disposition"].endswith('-partial.csv"')


async def test_a_table_of_no_shard_is_refused(shards: Shards) -> None:
    async with AsyncTestClient(create_app(settings({0: DEAD})), base_url=ADDRESS) as inner:
        console = Client(inner)
        refused = await console.api("GET", "/admin/usage", params=window(format="csv"))
        assert (refused.status_code, refused.json()["code"]) == (503, "HVT-400")
        assert (await console.api("GET", "/admin/usage", params=MAY)).json()["status"] == "unavailable"


def test_the_columns_of_tables_are_the_fields_of_the_answer() -> None:
    assert tuple(HEADS) == UsageGroup.__struct_fields__
    about = {"from": "a", "to": "b", "group_by": "c", "status": "complete", "unavailable_shards": [], "groups": []}
    assert usage_csv(about).count("\r\n") == 1


# Command line


@pytest.fixture
async def address(urls: dict[int, str], shards: Shards) -> AsyncIterator[str]:
    """The address of a console that serves."""
    async with served(settings(urls)) as found:
        yield found


async def harvest_usage(address: str, *arguments: str) -> Result:
    """Run `harvest usage …` about May."""
    environment = {"HARVEST_URL": f"{address}/api/harvest", "HARVEST_TOKEN": TOKEN}
    command = ["usage", "--from", MAY["from"], "--to", MAY["to"], *arguments]
    return await asyncio.to_thread(CliRunner().invoke, root, command, env=environment)


async def test_the_command_prints_a_table_with_sums(address: str, used: Shards) -> None:
    told = await harvest_usage(address)
    assert told.exit_code == 0, told.output
    said, heads, *rows = told.stdout.splitlines()
    assert said == "2026-05-01T00:00:00Z to 2026-06-01T00:00:00Z, by workflow_name"
    assert re.split(r"\s{2,}", heads) == list(HEADS.values())
    assert [re.split(r"\s{2,}", row) for row in rows] == [
        ["any_flow", "1", *["0"] * 6, "0.0", *["0"] * 3, "0.0000", "0", "0.0"],
        ["order_flow", "2", "1", "1", "0", "0", "1", "0", "2.2", "1", "1,200", "34", "0.0568", "0", "2.5"],
        ["sum", "3", "1", "1", "0", "0", "1", "0", "2.2", "1", "1,200", "34", "0.0568", "0", "2.5"],
    ]


async def test_the_command_pipes_json_and_csv(address: str, used: Shards, console: Client) -> None:
    as_json = await harvest_usage(address, "--json", "--group-by", "search_attr:tenant")
    expected = await console.api("GET", "/admin/usage", params=window(group_by="search_attr:tenant"))
    assert msgspec.json.decode(as_json.stdout) == expected.json()
    as_csv = await harvest_usage(address, "--csv")
    assert as_csv.stdout_bytes == (await table_of(console))[0].content
    assert (await harvest_usage(address, "--csv", "--json")).exit_code == 2


async def test_a_table_of_the_command_says_at_its_end_what_it_is_without(urls: dict[int, str], used: Shards) -> None:
    async with served(settings({**urls, 1: DEAD})) as address:
        told = await harvest_usage(address)
    *_, sums, said = told.stdout.splitlines()
    assert (told.exit_code, sums.split()[0]) == (0, "sum")
    assert said == "partial, not in these numbers: shard 1"
    assert "shard 1 is not in this answer" in told.stderr


@pytest.mark.parametrize(
    ("missing", "said"), [((1,), "shard 1"), ((1, 2), "shards 1 and 2"), ((0, 3, 4), "shards 0, 3 and 4")]
)
def test_missing_shards_are_named_in_words(missing: tuple[int, ...], said: str) -> None:
    assert shards_named([{"shard_id": number, "reason": "gone"} for number in missing]) == said


async def test_the_command_refuses_as_the_api_does(address: str) -> None:
    told = await harvest_usage(address, "--group-by", "tenant")
    assert (told.exit_code, "search_attr:KEY" in told.stderr) == (1, True)
    assert (await harvest_usage(address)).stdout.endswith("nothing was used\n")


def test_a_terminal_is_told_no_sequences_and_nothing_of_models_that_nobody_asked() -> None:
    group = {**dict.fromkeys(HEADS, 0), "group": "\x1b[31mred\n", "activity_compute_seconds": 1.25}
    table = usage_table([group])
    assert table.splitlines()[1].startswith("\\x1b[31mred\\n  ")
    assert "LLM" not in table


# Settings


def test_the_ceiling_comes_from_the_environment() -> None:
    name = "HARVEST_USAGE_WINDOW_CEILING_DAYS"
    assert configuration.usage_ceiling_days({}) == 90
    assert configuration.usage_ceiling_days({name: " 365 "}) == 365
    for wrong in ("0", "-1", "1.5", "a year", "99999999999"):
        with pytest.raises(ConfigurationError, match="it must be whole days"):
            configuration.usage_ceiling_days({name: wrong})


# Page


async def page_of(console: Client, shards: Shards, **query: str) -> Any:
    """The page, for who is signed in."""
    await console.sign_in(shards)
    return await console("GET", "/usage", params=query, headers=HTML)


async def test_the_page_shows_each_group_its_sums_and_links(console: Client, used: Shards) -> None:
    page = await page_of(console, used, **MAY)
    assert page.status_code == 200
    said = words(page)
    for text in ("any_flow", "order_flow", "All 2", "2.2", "1,200", "0.0568", "Cost (USD)", "Compute (s)"):
        assert text in said, text
    assert 'href="/workflows?type=order_flow"' in page.text
    csv_link = re.search(r'href="(/api/harvest/admin/usage\?[^"]+)"', page.text)
    assert csv_link is not None
    told = await console("GET", csv_link[1].replace("&amp;", "&"))
    assert told.content.startswith(b"group,workflow_starts")


async def test_the_page_sorts_by_any_column_and_says_by_which(console: Client, used: Shards) -> None:
    page = await page_of(console, used, **MAY, sort="-workflow_starts")
    assert page.text.index(">order_flow<") < page.text.index(">any_flow<")
    assert 'aria-sort="descending"' in page.text
    page = await console("GET", "/usage", params={**MAY, "sort": "workflow_starts"}, headers=HTML)
    assert page.text.index(">any_flow<") < page.text.index(">order_flow<")


async def test_a_long_report_is_read_in_pages_and_summed_whole(console: Client, shards: Shards) -> None:
    for number in range(101):
        await add(shards, number % 2, Run(workflow_id=f"w-{number}", workflow_name=f"flow_{number:03}"))
    page = await page_of(console, shards, **MAY)
    assert "All 101" in words(page)
    assert "flow_099" in page.text
    assert "flow_100" not in page.text
    further = re.search(r'id="older" href="([^"]+)"', page.text)
    assert further is not None
    page = await console("GET", further[1].replace("&amp;", "&"), headers=HTML)
    assert "flow_100" in page.text
    assert "101 to 101 of 101" in words(page)
    assert "All 101" in words(page)


async def test_the_page_of_an_empty_window_says_so_and_offers_a_longer_one(console: Client, shards: Shards) -> None:
    page = await page_of(console, shards)
    assert "Nothing was used in this window" in words(page)
    assert 'href="/usage?from=30d"' in page.text


async def test_the_page_says_what_was_wrong_with_a_question(console: Client, used: Shards) -> None:
    page = await page_of(console, used, **{"from": "91d", "by": "search_attr:tenant"})
    assert page.status_code == 200
    assert "at most 90 days" in words(page)
    assert "The last 24 hours by workflow type are shown instead." in words(page)
    page = await console("GET", "/usage", params={"from": "yesterday"}, headers=HTML)
    assert "is no time for" in words(page)


async def test_the_page_takes_a_grouping_as_the_api_writes_it(console: Client, used: Shards) -> None:
    page = await page_of(console, used, **MAY, group_by="search_attr:tenant")
    assert "acme" in words(page)
    assert "any_flow" not in words(page)
    page = await console("GET", "/usage", params={**MAY, "group_by": "workflow_name"}, headers=HTML)
    assert "any_flow" in words(page)
    page = await console("GET", "/usage", params={**MAY, "group_by": "tenant"}, headers=HTML)
    assert "it must be workflow_name, or search_attr:KEY" in words(page)


async def test_a_forms_times_are_of_the_readers_zone(console: Client, used: Shards) -> None:
    local = {"from": "2026-05-01T14:00", "to": "2026-05-01T15:00", "tz": "Europe/Berlin"}
    page = await page_of(console, used, **local, attribute=" tenant ")
    assert "acme" in words(page)
    assert "(unattributed)" in words(page)
    later = {"from": "2026-05-01T14:01", "to": "2026-05-01T15:00", "tz": "Europe/Berlin"}
    page = await console("GET", "/usage", params=later, headers=HTML)
    assert "Nothing was used in this window" in words(page)


async def test_the_page_names_missing_shards_and_is_no_empty_report_without_any(
    half_console: Client, used: Shards, urls: dict[int, str]
) -> None:
    page = await page_of(half_console, used, **MAY)
    assert "Shard 1 did not answer." in words(page)
    assert "order_flow" in page.text


async def test_too_many_groups_are_413_and_the_page_says_what_to_do(console: Client, shards: Shards) -> None:
    await shards.store(0).write.write(
        "insert into harvest_executions (execution_id, business_key, started_at, next_event_id, version, partition, "
        "workflow_name, workflow_id) select gen_random_uuid(), gen_random_uuid(), $1, 2, 1, 0, 'type_' || n, 'w' "
        "from generate_series(1, 10001) n",
        EPOCH,
    )
    refused = await console.api("GET", "/admin/usage", params=MAY)
    assert (refused.status_code, refused.json()["code"], refused.json()["limit"]) == (413, "HVT-122", 10_000)
    page = await page_of(console, shards, **MAY)
    assert page.status_code == 413
    assert "group by what has fewer values" in words(page)
    assert "<table" not in page.text.partition("<main")[2].partition("</main>")[0]


async def test_hostile_groups_stay_text(console: Client, shards: Shards) -> None:
    await add(shards, 0, Run(search_attributes='{"t": "<script>alert(1)</script>"}'))
    page = await page_of(console, shards, **MAY, by="search_attr:t")
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert(1)" in page.text
    page = await console("GET", "/usage", params={**MAY, "by": 'search_attr:"><img src=x>'}, headers=HTML)
    assert page.status_code == 200
    assert "<img" not in page.text
