"""Tree, children, chain, timeline, export and counts over the API and by the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from harvest.history.data import ActivityScheduled, WorkflowStarted
from harvest.history.document import decode_document
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import Shards
from harvest_console.cli.root import root
from tests.console.conftest import API, DEAD, TOKEN, Client, settings
from tests.console.serving import served
from tests.operations.population import Happened, Run, add, add_history

BY_ID = "/workflows/by-id/order_flow/o%2F1"
READS = ("tree", "children", "run-chain", "timeline", "history", "history/export")


async def family(shards: Shards) -> tuple[UUID, UUID, UUID]:
    """A parent on shard 0 that has gone on as new, and two children, one of them on shard 1."""
    parent = await add(
        shards,
        0,
        Run(workflow_id="o/1", search_attributes='{"city": "Köln"}', details=b'{"step": 1.0}', age=9),
    )
    await add_history(
        shards,
        parent,
        [
            Happened(EventKind.WORKFLOW_STARTED, data=WorkflowStarted("order_flow", "o/1", 1, 1)),
            Happened(EventKind.ACTIVITY_SCHEDULED, 1, 1, ActivityScheduled("charge", "d", msgspec.Raw(b"[1.0]"))),
            Happened(EventKind.ACTIVITY_COMPLETED, 3, 1),
        ],
    )
    one = await add(shards, 0, Run(workflow_id="c1", parent_id=parent, awaited=True, close_policy=1, age=8))
    two = await add(
        shards, 1, Run(workflow_name="any_flow", workflow_id="c2", parent_id=parent, state=State.FAILED, age=7)
    )
    return parent, one, two


async def read(console: Client, path: str, **query: Any) -> dict[str, Any]:
    response = await console.api("GET", path, params=query)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


async def test_a_tree_has_the_names_that_are_promised(console: Client, shards: Shards) -> None:
    parent, one, two = await family(shards)
    found = await read(console, f"/workflows/{parent}/tree")
    children = found["root"].pop("children")
    assert found == {
        "root": {
            "execution_id": str(parent),
            "workflow_name": "order_flow",
            "workflow_id": "o/1",
            "state": "RUNNING",
            "started_at": found["root"]["started_at"],
            "closed_at": None,
            "parent_id": None,
            "previous_execution_id": None,
            "depth": 0,
            "shard_id": 0,
            "await_mode": None,
            "parent_close_policy": None,
            "next_cursor": None,
        },
        "node_count": 3,
        "max_depth_reached": 1,
        "truncated": False,
        "truncation_reason": None,
        "truncated_parent_ids": [],
        "truncated_parents_capped": False,
        "limits": {"max_depth": 20, "max_nodes": 1000},
        "counts": {"FAILED": 1, "RUNNING": 1},
        "total_descendants": 2,
        "status": "complete",
        "unavailable_shards": [],
    }
    assert [(child["execution_id"], child["await_mode"], child["shard_id"]) for child in children] == [
        (str(one), "awaited", 0),
        (str(two), "detached", 1),
    ]
    assert (await read(console, f"/workflows/{parent}/tree", summary="true"))["root"]["children"] == []
    cut = await read(console, f"/workflows/{parent}/tree", max_nodes=2)
    assert (cut["truncated"], cut["truncation_reason"], cut["truncated_parent_ids"]) == (
        True,
        "max_nodes",
        [str(parent)],
    )


async def test_children_take_their_filters(console: Client, shards: Shards) -> None:
    parent, one, two = await family(shards)
    path = f"/workflows/{parent}/children"
    assert [item["execution_id"] for item in (await read(console, path))["items"]] == [str(one), str(two)]
    assert [item["execution_id"] for item in (await read(console, path, status="failed"))["items"]] == [str(two)]
    both = await read(console, path, status=["FAILED", "RUNNING"])
    assert len(both["items"]) == 2
    assert [item["execution_id"] for item in (await read(console, path, workflow_name="any_flow"))["items"]] == [
        str(two)
    ]
    first = await read(console, path, limit=1)
    second = await read(console, path, limit=1, cursor=first["next_cursor"])
    assert [item["execution_id"] for item in second["items"]] == [str(two)]


async def test_a_chain_has_the_names_that_are_promised(console: Client, shards: Shards) -> None:
    first = await add(shards, 1, Run(state=State.CONTINUED_AS_NEW, age=5))
    last = await add(shards, 1, Run(first_execution_id=first, previous_execution_id=first))
    found = await read(console, f"/workflows/{last}/run-chain")
    assert (found["workflow_id"], found["head_unknown"], found["total_runs"]) == ("o-1", False, 2)
    for run in found["runs"]:
        run.pop("started_at")
    assert found["runs"][0].pop("completed_at") is not None
    shared = {"workflow_name": "order_flow", "workflow_id": "o-1", "version": 1}
    assert found["runs"] == [
        {
            "exec_id": str(first),
            "run_id": str(first),
            "sequence": 1,
            "state": "CONTINUED_AS_NEW",
            "outcome": "continued_as_new",
            "continued_to_exec_id": str(last),
            **shared,
        },
        {
            "exec_id": str(last),
            "run_id": str(last),
            "sequence": 2,
            "state": "RUNNING",
            "completed_at": None,
            "outcome": None,
            "continued_to_exec_id": None,
            **shared,
        },
    ]


async def test_a_timeline_is_there_in_windows(console: Client, shards: Shards) -> None:
    parent, *_ = await family(shards)
    found = await read(console, f"/workflows/{parent}/timeline", limit=1)
    [step] = found["steps"]
    assert (step["kind"], step["name"], step["total_ms"], step["outcome"]) == ("activity", "charge", 2000, "completed")
    assert (found["rollup"]["total_steps"], found["next_cursor"]) == (1, None)
    assert (await read(console, f"/workflows/{parent}/timeline", after_step=step["step"]))["steps"] == []


async def test_an_export_is_a_file_that_reads_back(console: Client, shards: Shards) -> None:
    parent, *_ = await family(shards)
    response = await console.api("GET", f"/workflows/{parent}/history/export")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-disposition"] == f'attachment; filename="{parent}-history.json"'
    document = decode_document(response.content)
    assert (document.workflow_id, len(document.events)) == ("o/1", 3)
    assert '"input":[1.0]' in str(document.events[1].data)
    redacted = await console.api("GET", f"/workflows/{parent}/history/export?payload_policy=redacted")
    assert "redacted_bytes" in redacted.text
    refused = await console.api("GET", f"/workflows/{parent}/history/export?max_bytes=100")
    assert (refused.status_code, refused.json()["slug"]) == (413, "export_too_large")


async def test_counts_come_in_groups(console: Client, shards: Shards) -> None:
    await family(shards)
    plain = await read(console, "/workflows/count")
    assert (plain["count"], plain["total"], plain["groups"]) == (3, 3, [])
    found = await read(console, "/workflows/count", group_by="state,workflow_name", limit_groups=1)
    assert (found["total"], found["truncated"], found["as_of"] > "2026") == (3, True, True)
    assert [(group["state"], group["workflow_name"], group["count"], group["other"]) for group in found["groups"]] == [
        ("RUNNING", "order_flow", 2, False),
        (None, None, 1, True),
    ]
    assert (await read(console, "/workflows/count", group_by="state", state="FAILED"))["total"] == 1


@pytest.mark.parametrize("name", READS)
async def test_every_read_is_there_by_business_key_and_names_the_run(
    console: Client, shards: Shards, name: str
) -> None:
    parent, *_ = await family(shards)
    by_key = await console.api("GET", f"{BY_ID}/{name}")
    assert (by_key.status_code, by_key.headers["x-harvest-execution-id"]) == (200, str(parent))
    by_id = await read(console, f"/workflows/{parent}/{name}")
    changing = ("as_of", "exported_at")
    same = {key: value for key, value in by_key.json().items() if key not in changing}
    assert {key: value for key, value in by_id.items() if key not in (*changing, "rollup")} == {
        key: value for key, value in same.items() if key != "rollup"
    }
    refused = await console.api("GET", f"{BY_ID}/{name}?nonsense=1")
    assert (refused.status_code, refused.headers["x-harvest-execution-id"]) == (400, str(parent))
    assert (await console.api("GET", f"/workflows/by-id/order_flow/none/{name}")).status_code == 404


@pytest.mark.parametrize("name", READS)
async def test_what_is_not_there_or_wrong_is_refused(refusing_console: Client, name: str) -> None:
    unknown = await refusing_console.api("GET", f"/workflows/{mint_execution_id(0)}/{name}")
    assert (unknown.status_code, unknown.json()["slug"]) == (404, "execution_not_found")
    assert (await refusing_console.api("GET", f"/workflows/nothing/{name}")).status_code == 400
    assert (await refusing_console.api("GET", f"/workflows/{mint_execution_id(9)}/{name}")).status_code == 503
    assert (await refusing_console("GET", f"{API}/workflows/{mint_execution_id(0)}/{name}")).status_code == 401


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("tree?max_depth=0", "max_depth"),
        ("tree?max_depth=51", "max_depth"),
        ("tree?max_nodes=10001", "max_nodes"),
        ("children?status=NONSENSE", "status"),
        ("children?depth=6", "depth"),
        ("children?cursor=x", "cursor"),
        ("run-chain?before=0", "before"),
        ("timeline?limit=501", "limit"),
        ("history/export?payload_policy=some", "payload_policy"),
        ("history/export?max_bytes=0", "max_bytes"),
    ],
)
async def test_a_wrong_query_is_a_400_that_names_the_parameter(
    console: Client, shards: Shards, query: str, field: str
) -> None:
    execution_id = await add(shards, 0, Run())
    response = await console.api("GET", f"/workflows/{execution_id}/{query}")
    assert (response.status_code, response.json().get("field")) == (400, field), response.text


async def test_a_missing_shard_is_named_and_the_rest_is_there(half_console: Client, shards: Shards) -> None:
    parent, one, _ = await family(shards)
    for name, rows in (("tree", "root"), ("children", "items")):
        found = await read(half_console, f"/workflows/{parent}/{name}")
        shown = found[rows]["children"] if rows == "root" else found[rows]
        assert [each["execution_id"] for each in shown] == [str(one)]
        assert (found["status"], found["unavailable_shards"]) == (
            "partial",
            [{"shard_id": 1, "reason": "connection refused"}],
        )
    counted = await read(half_console, "/workflows/count", group_by="state")
    assert (counted["total"], counted["status"]) == (2, "partial")
    assert (await half_console.api("GET", f"/workflows/{mint_execution_id(1)}/tree")).status_code == 503


async def test_list_and_detail_say_where_a_run_belongs_and_what_it_is_found_by(console: Client, shards: Shards) -> None:
    parent, one, two = await family(shards)
    rows = {row["execution_id"]: row for row in (await read(console, "/workflows"))["workflows"]}
    assert rows[str(parent)]["search_attributes"] == {"city": "Köln"}
    assert (rows[str(one)]["await_mode"], rows[str(one)]["parent_close_policy"]) == ("awaited", "request_cancel")
    assert (rows[str(two)]["await_mode"], rows[str(two)]["search_attributes"]) == ("detached", None)
    detail = await read(console, f"/workflows/{parent}")
    assert (detail["search_attributes"], detail["current_details"]) == ({"city": "Köln"}, {"step": 1.0})
    file = await console.api("GET", f"/workflows/{parent}/payload/current_details")
    assert file.content == b'{"step": 1.0}'


async def test_the_answers_fit_the_document(console: Client, shards: Shards) -> None:
    parent, *_ = await family(shards)
    document = (await console("GET", f"{API}/openapi.json")).json()
    paths = [f"/workflows/{{execution_id}}/{name}" for name in READS]
    paths += [
        "/workflows/count",
        "/workflows",
        "/workflows/{execution_id}",
        "/workflows/{execution_id}/children?depth=2",
    ]
    for template in paths:
        content = await read(console, template.format(execution_id=parent))
        described = document["paths"][API + template.partition("?")[0]]["get"]["responses"]["200"]
        schema = described["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": document["components"]}).validate(content)


# The command line


class Cli:
    """The command line of a console that serves."""

    def __init__(self, address: str) -> None:
        self.environment = {"HARVEST_URL": f"{address}/api/harvest", "HARVEST_TOKEN": TOKEN}

    async def __call__(self, *arguments: str) -> Result:
        """Run `harvest …` in a thread of its own."""
        return await asyncio.to_thread(CliRunner().invoke, root, list(arguments), env=self.environment)

    async def answer(self, *arguments: str) -> dict[str, Any]:
        """Run a command that must succeed; its answer."""
        result = await self(*arguments)
        assert result.exit_code == 0, result.output
        decoded: dict[str, Any] = msgspec.json.decode(result.stdout)
        return decoded


@pytest.fixture
async def cli(urls: dict[int, str], shards: Shards) -> AsyncIterator[Cli]:
    async with served(settings(urls)) as address:
        yield Cli(address)


async def test_reads_by_the_command_line(cli: Cli, shards: Shards) -> None:
    parent, one, two = await family(shards)
    by_key = ("o/1", "--workflow-name", "order_flow")
    assert (await cli.answer("workflow", "tree", str(parent)))["node_count"] == 3
    assert (await cli.answer("workflow", "tree", *by_key, "--summary"))["root"]["children"] == []
    assert (await cli.answer("workflow", "tree", *by_key, "--max-depth", "1", "--max-nodes", "1"))["truncated"] is True
    listed = await cli.answer("workflow", "children", *by_key, "--status", "FAILED", "--status", "running")
    assert [item["execution_id"] for item in listed["items"]] == [str(one), str(two)]
    named = await cli.answer(
        "workflow", "children", *by_key, "--child-name", "any_flow", "--depth", "1", "--limit", "9"
    )
    assert [item["execution_id"] for item in named["items"]] == [str(two)]
    assert (await cli.answer("workflow", "run-chain", *by_key, "--limit", "5"))["total_runs"] == 1
    assert len((await cli.answer("workflow", "timeline", *by_key, "--limit", "5"))["steps"]) == 1
    grouped = await cli.answer("workflow", "count", "--group-by", "workflow_name", "--state", "RUNNING")
    assert [(group["workflow_name"], group["count"]) for group in grouped["groups"]] == [("order_flow", 2)]


async def test_an_export_by_the_command_line_reads_back(cli: Cli, shards: Shards, tmp_path: Path) -> None:
    parent, *_ = await family(shards)
    printed = await cli("history", "export", "o/1", "--workflow-name", "order_flow")
    file = tmp_path / "history.json"
    assert (await cli("history", "export", str(parent), "--file", str(file), "--payload-policy", "full")).stdout == ""
    assert decode_document(printed.stdout.encode()).events == decode_document(file.read_bytes()).events
    assert "redacted_bytes" in (await cli("history", "export", str(parent), "--payload-policy", "redacted")).stdout
    refused = await cli("history", "export", str(parent), "--max-bytes", "10")
    assert (refused.exit_code, "HVT-115" in refused.stderr) == (1, True)
    unwritable = await cli("history", "export", str(parent), "--file", str(tmp_path / "none" / "x"))
    assert (unwritable.exit_code, "cannot be written" in unwritable.stderr) == (2, True)


async def test_a_missing_shard_is_named_on_standard_error(urls: dict[int, str], shards: Shards) -> None:
    parent, *_ = await family(shards)
    async with served(settings({0: urls[0], 1: DEAD})) as address:
        for command in (("tree", str(parent)), ("children", str(parent)), ("count", "--group-by", "state")):
            result = await Cli(address)("workflow", *command)
            assert result.exit_code == 0, result.output
            assert "shard 1 is not in this answer: connection refused" in result.stderr
