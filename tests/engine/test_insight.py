"""What is read of runs that a worker really ran: their tree, chain, timeline, views, and the exported history."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from harvest import ChildPlacement, Harvest, WorkflowContext
from harvest.history.document import decode_document, events_of
from harvest.operations import reading
from harvest.operations.chains import run_chain
from harvest.operations.exporting import export_history
from harvest.operations.timelines import timeline
from harvest.operations.trees import tree
from harvest.replay.verifier import verify
from tests.support import at_work, eventually, history_of

app = Harvest()


@app.activity
async def charge(cents: int) -> int:
    return cents


@app.workflow
async def ship(ctx: WorkflowContext, place: str) -> str:
    return f"to {place}"


@app.workflow
async def mail(ctx: WorkflowContext) -> str:
    return await ctx.wait_for_signal("sent", str)


@app.workflow
async def order(ctx: WorkflowContext, runs_left: int) -> str:
    if runs_left:
        ctx.continue_as_new(runs_left - 1)
    ctx.upsert_search_attributes({"city": "Köln"})
    ctx.set_current_details({"step": "charging"})
    await ctx.execute_activity(charge, 7)
    await ctx.start_child_workflow(mail.with_options(detached=True, close_policy="abandon"))
    await ctx.sleep(timedelta(milliseconds=20))
    shipped = await ctx.execute_child_workflow(ship.with_options(placement=ChildPlacement.Shard(1)), "Bonn")
    word = await ctx.wait_for_signal("go", str)
    return f"{shipped} {word}"


async def test_a_run_with_everything_reads_as_it_ran(new_database: Callable[[str], str]) -> None:
    urls = {0: new_database("insight_0"), 1: new_database("insight_1")}
    async with at_work(app, urls) as (_, shards):
        begun = await app.start(order, 1)

        async def waits() -> bool:
            chain = await run_chain(shards, begun.execution_id)
            if chain.total_runs < 2:
                return False
            return (await reading.get(shards, chain.runs[-1].exec_id)).waiting == "signal go"

        await eventually(waits, within=20)
        chain = await run_chain(shards, begun.execution_id)
        assert [(run.state, run.outcome) for run in chain.runs] == [
            ("CONTINUED_AS_NEW", "continued_as_new"),
            ("RUNNING", None),
        ]
        last = chain.runs[-1].exec_id
        assert (await reading.get(shards, begun.execution_id)).next_execution_id == last
        view = await reading.get(shards, last)
        assert view.search_attributes is not None
        assert bytes(view.search_attributes["city"]) == '"Köln"'.encode()
        assert view.current_details is not None

        family = await tree(shards, last)
        nodes = {node.workflow_name: node for node in family.root.children}
        assert (nodes["ship"].await_mode, nodes["ship"].shard_id, nodes["ship"].state) == ("awaited", 1, "COMPLETED")
        assert (nodes["mail"].await_mode, nodes["mail"].parent_close_policy) == ("detached", "abandon")

        await begun.signal("go", "now")
        assert await begun.result(timedelta(seconds=60)) == "to Bonn now"
        found = await timeline(shards, last)
        assert [(step.kind, step.name, step.outcome) for step in found.steps] == [
            ("activity", "charge", "completed"),
            ("detached_child", "mail", "spawned"),
            ("timer", "", "fired"),
            ("child", "ship", "completed"),
            ("signal", "go", "received"),
        ]
        assert (found.steps[0].attempts, found.steps[0].wait_ms is not None) == (1, True)
        assert found.steps[3].execution_id == nodes["ship"].execution_id
        assert found.rollup.open_steps == 0

        # What goes out is what replay takes in: the same events, and the code goes the same way.
        document = decode_document(await export_history(shards, last))
        assert events_of(document) == await history_of(shards, last)
        verdict = verify(document, app.registry)
        assert verdict.is_clean, verdict
