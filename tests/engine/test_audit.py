"""Each mutation leaves one row in the audit log, in the statement of the change; failed and idle ones too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from harvest import Harvest, WorkflowContext
from harvest.errors import HarvestError
from harvest.operations import auditing, closing, reading, signalling, starting
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest.store.audit import AuditFilter
from harvest.worker.worker import Worker
from tests.support import at_work, eventually

app = Harvest()
SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, {0: new_database("audit0"), 1: new_database("audit1")}) as working:
        yield working


@app.workflow
async def waits(ctx: WorkflowContext, name: str = "") -> str:
    return str(await ctx.wait_for_signal("go"))


def caller(request_id: str) -> Actor:
    return Actor("session:abcd1234", "ui", request_id, "POST /workflows/x", on_behalf_of="somebody")


async def rows(shards: Shards, request_id: str) -> list[auditing.AuditView]:
    """The rows of one request, oldest first."""
    page = await auditing.list_audit(shards, AuditFilter(), limit=200)
    return [row for row in reversed(page.rows.rows) if row.request_id == request_id]


async def test_each_act_is_one_row_with_who_what_and_how(work: Work) -> None:
    _, shards = work
    started = await starting.start(
        shards, caller("r-start"), workflow_name="waits", workflow_id="one", idempotency_key="key"
    )
    run = started.execution_id
    await signalling.signal(shards, caller("r-signal"), run, "other", b"1", idempotency_key="s-key")
    await closing.cancel(shards, caller("r-cancel"), run, reason="not wanted")
    other = await starting.start(shards, caller("r-start-2"), workflow_name="waits")
    await closing.terminate(shards, caller("r-terminate"), other.execution_id, reason="out of patience")
    expected = {
        "r-start": ("workflow.start", str(run), "key", None),
        "r-signal": ("workflow.signal", str(run), "s-key", "signal other"),
        "r-cancel": ("workflow.cancel", str(run), None, "not wanted"),
        "r-start-2": ("workflow.start", str(other.execution_id), None, None),
        "r-terminate": ("workflow.terminate", str(other.execution_id), None, "out of patience"),
    }
    for request_id, wanted in expected.items():
        (row,) = await rows(shards, request_id)
        assert (row.operation, row.target_id, row.idempotency_key, row.reason) == wanted
        assert (row.actor, row.on_behalf_of, row.source) == ("session:abcd1234", "somebody", "ui")
        assert (row.status, row.error_summary, row.target_type) == ("succeeded", None, "execution")
        assert row.route_or_command == "POST /workflows/x"
        assert row.shard_id == int(row.target_id.replace("-", "")[:4], 16)


async def test_acts_that_fail_are_recorded_with_the_reason(work: Work) -> None:
    _, shards = work
    run = (await starting.start(shards, caller("f-0"), workflow_name="waits", workflow_id="busy")).execution_id
    acts: dict[str, Any] = {
        "f-conflict": lambda who: starting.start(
            shards, who, workflow_name="waits", workflow_id="busy", conflict_policy="fail"
        ),
        "f-input": lambda who: starting.start(shards, who, workflow_name="waits", input=b"[]"),
        "f-type": lambda who: starting.start(shards, who, workflow_name="nobody"),
    }
    for request_id, act in acts.items():
        with pytest.raises(HarvestError) as caught:
            await act(caller(request_id))
        (row,) = await rows(shards, request_id)
        assert row.status == "failed"
        assert row.error_summary == str(caught.value)[:500]
    await closing.terminate(shards, caller("f-1"), run, reason="")
    for request_id, act in {
        "f-signal": lambda who: signalling.signal(shards, who, run, "go", b"1"),
        "f-cancel": lambda who: closing.cancel(shards, who, run, reason=""),
    }.items():
        with pytest.raises(HarvestError):
            await act(caller(request_id))
        (row,) = await rows(shards, request_id)
        assert (row.status, row.target_id) == ("failed", str(run))


async def test_acts_that_change_nothing_are_recorded_as_such(work: Work) -> None:
    _, shards = work
    run = (await starting.start(shards, caller("n-0"), workflow_name="waits", workflow_id="calm")).execution_id
    await signalling.signal(shards, caller("n-1"), run, "x", b"1", idempotency_key="k")
    await signalling.signal(shards, caller("n-signal"), run, "x", b"1", idempotency_key="k")
    again = await starting.start(shards, caller("n-start"), workflow_name="waits", workflow_id="calm")
    assert again.execution_id == run
    await closing.terminate(shards, caller("n-2"), run, reason="")
    assert not (await closing.terminate(shards, caller("n-terminate"), run, reason="")).newly_terminated
    for request_id in ("n-signal", "n-start", "n-terminate"):
        (row,) = await rows(shards, request_id)
        assert (row.status, row.target_id) == ("succeeded", str(run))
        assert row.error_summary


async def test_a_start_that_replaces_a_run_is_two_rows_of_one_request(work: Work) -> None:
    _, shards = work
    first = await starting.start(shards, caller("p-0"), workflow_name="waits", workflow_id="swap")
    second = await starting.start(
        shards, caller("p-1"), workflow_name="waits", workflow_id="swap", conflict_policy="terminate_existing"
    )
    found = {row.operation: row.target_id for row in await rows(shards, "p-1")}
    assert found == {
        "workflow.terminate": str(first.execution_id),
        "workflow.start": str(second.execution_id),
    }


async def test_the_row_and_the_change_are_one_transaction(work: Work) -> None:
    """Where the audit log takes no rows, nothing is changed."""
    _, shards = work
    handle = await app.start(waits, workflow_id="atomic")
    store = shards.store_of(handle.execution_id)
    block = "alter table harvest_audit_log add constraint shut check (request_id not like 'shut%') not valid"
    async with store.write.connection() as connection:
        await connection.execute(block)
    try:
        for act in (
            signalling.signal(shards, caller("shut-1"), handle.execution_id, "go", b"1"),
            closing.cancel(shards, caller("shut-2"), handle.execution_id, reason=""),
            closing.terminate(shards, caller("shut-3"), handle.execution_id, reason=""),
            starting.start(shards, caller("shut-4"), workflow_name="waits", workflow_id="atomic-2"),
        ):
            with pytest.raises(Exception, match="shut"):
                await act
    finally:
        async with store.write.connection() as connection:
            await connection.execute("alter table harvest_audit_log drop constraint shut")
    view = await reading.get(shards, handle.execution_id)
    assert (view.state, view.history_events) == ("RUNNING", 1)
    await handle.signal("go", "on")
    assert await handle.result(SOON) == "on"


@app.workflow
async def parks(ctx: WorkflowContext, how: str) -> None:
    match how:
        case "signal":
            await ctx.wait_for_signal("go")
        case "two signals":
            await asyncio.wait(
                [asyncio.create_task(ctx.wait_for_signal(name)) for name in ("b", "a")],
                return_when=asyncio.FIRST_COMPLETED,
            )
        case "condition":
            await ctx.wait_condition(lambda: False)
        case "timer":
            await ctx.sleep(3600)
        case _:
            await ctx.execute_activity("far_away")


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("signal", "signal go"),
        ("two signals", "signal a, b"),
        ("condition", "condition"),
        ("timer", "timer until "),
        ("activity", "activity far_away"),
    ],
)
async def test_what_a_run_waits_for_is_one_short_line(work: Work, how: str, text: str) -> None:
    handle = await app.start(parks, how)

    async def says() -> bool:
        return ((await reading.get(work[1], handle.execution_id)).waiting or "").startswith(text)

    await eventually(says)
    await handle.terminate()
    assert (await reading.get(work[1], handle.execution_id)).waiting is None
