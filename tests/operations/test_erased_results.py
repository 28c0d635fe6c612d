"""Results of runs that were erased: who asks for one hears that it is gone, and takes no tombstone for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from harvest import Harvest, WorkflowContext
from harvest.errors import ExternalWorkflowError, PayloadsErasedError
from harvest.history.document import decode_document, events_of
from harvest.history.erasing import ERASED
from harvest.history.states import State
from harvest.operations import erasing, reading, updating
from harvest.operations.actor import Actor
from harvest.operations.exporting import export_history
from harvest.replay.verifier import verify
from harvest.shards import Shards
from harvest.store import exports
from harvest.store.pool import Record
from harvest.store.store import Store
from harvest.testing import WorkflowEnvironment
from tests.operations.population import Run, add, add_events, started
from tests.operations.test_erasing import PLANTED, SIGNAL, ended, erase, may_be_erased
from tests.support import at_work

app = Harvest()


@app.workflow
async def keeps(ctx: WorkflowContext, card: str) -> str:
    ctx.register_update_handler("note", lambda text: text)
    await ctx.wait_for_signal("go")
    return card


@app.workflow
async def fails(ctx: WorkflowContext, card: str) -> str:
    raise ValueError(f"no {card}")


@app.workflow
async def follows(ctx: WorkflowContext, target: str) -> list[str]:
    try:
        return [str(await ctx.await_external_workflow(target))]
    except ExternalWorkflowError as error:
        cause: Any = error.__cause__
        return [error.fields["state"], error.fields["reason_code"], cause.type, cause.message]


async def test_awaiting_a_run_whose_result_was_erased_fails_and_says_so(
    new_database: Callable[[str], str], actor: Actor
) -> None:
    async with at_work(app, {0: new_database("erased_a0"), 1: new_database("erased_a1")}) as (_, shards):
        target = await app.start(keeps, PLANTED, shard_id=0, workflow_id="order-1")
        await target.signal("go")
        await target.result(timedelta(seconds=60))
        await may_be_erased(shards, target.execution_id)
        await erase(shards, actor, target.execution_id)
        told = "workflow 'keeps' (order-1) completed, and its result was erased since"
        for shard_id in (0, 1):
            late = await app.start(follows, str(target.execution_id), shard_id=shard_id)
            heard = await late.result(timedelta(seconds=60))
            assert heard == ["COMPLETED", "payloads_erased", "PayloadsErased", told]
            document = decode_document(await export_history(shards, late.execution_id))
            assert verify(document, app.registry).verdict == "clean"


async def test_awaiting_a_run_that_failed_and_was_erased_tells_its_failure_without_the_message(
    new_database: Callable[[str], str], actor: Actor
) -> None:
    async with at_work(app, new_database("erased_f")) as (_, shards):
        target = await app.start(fails, PLANTED)

        with pytest.raises(Exception, match=PLANTED):
            await target.result(timedelta(seconds=60))
        await may_be_erased(shards, target.execution_id)
        await erase(shards, actor, target.execution_id)
        late = await app.start(follows, str(target.execution_id))
        heard = await late.result(timedelta(seconds=60))
        assert heard == ["FAILED", "not_completed", "ValueError", "(erased)"]


async def test_the_environment_of_tests_tells_it_as_the_engine_does() -> None:
    mine = Harvest()

    @mine.workflow
    async def erased(ctx: WorkflowContext) -> dict[str, bool]:
        return {"_harvest_erased": True}

    mine.registry.add_workflow(follows)
    async with WorkflowEnvironment(mine) as env:
        target = await env.start(erased, workflow_id="order-1")
        await target.result()
        heard = await (await env.start(follows, str(target.execution_id))).result()
        told = "workflow 'erased' (order-1) completed, and its result was erased since"
        assert heard == ["COMPLETED", "payloads_erased", "PayloadsErased", told]


async def test_an_erased_result_is_not_there_and_the_run_is_named(shards: Shards, actor: Actor) -> None:
    run = await ended(shards, 1)
    await erase(shards, actor, run)
    with pytest.raises(PayloadsErasedError, match=str(run)) as raised:
        await reading.result(shards, run, wait=5)
    assert (raised.value.fields["execution_id"], raised.value.fields["state"]) == (run, "COMPLETED")


async def test_what_returned_nothing_or_failed_ends_as_it_did(shards: Shards, actor: Actor) -> None:
    for state, result in ((State.COMPLETED, b"null"), (State.FAILED, None), (State.TERMINATED, None)):
        run = await ended(shards, state=state, result=result)
        await erase(shards, actor, run)
        outcome = await reading.result(shards, run)
        assert outcome is not None
        assert outcome.state == state.name


async def test_the_answer_of_an_update_is_gone_with_its_run(new_database: Callable[[str], str], actor: Actor) -> None:
    async with at_work(app, new_database("erased_u")) as (_, shards):
        handle = await app.start(keeps, PLANTED)
        sent = await handle.start_update("note", PLANTED, idempotency_key="one")
        assert await sent.result(timedelta(seconds=60)) == PLANTED
        await handle.signal("go")
        await handle.result(timedelta(seconds=60))
        await may_be_erased(shards, handle.execution_id)
        await erase(shards, actor, handle.execution_id)
        with pytest.raises(PayloadsErasedError, match=sent.update_id):
            await updating.result(shards, handle.execution_id, sent.update_id)
        with pytest.raises(PayloadsErasedError, match=sent.update_id):
            await handle.update("note", PLANTED, idempotency_key="one")
        with pytest.raises(PayloadsErasedError, match=sent.update_id):
            await sent.result()


async def test_an_export_that_an_erasure_overtakes_has_nothing_of_what_went(
    shards: Shards, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await add(shards, 0, Run(state=State.COMPLETED))
    await add_events(shards, run, [started(), *[SIGNAL] * (exports.PAGE + 10)])
    pages: list[UUID] = []
    read = exports.events

    async def overtaken(store: Store, execution_id: UUID, after: int, before: int) -> list[Record]:
        page = await read(store, execution_id, after, before)
        if not pages:
            await erase(shards, actor, run)
        pages.append(execution_id)
        return page

    monkeypatch.setattr(exports, "events", overtaken)
    content = await export_history(shards, run)
    assert PLANTED not in content.decode()
    document = decode_document(content)
    receipt = await erasing.receipt_of(shards, run)
    assert receipt is not None
    assert document.erased_at == receipt.erased_at
    assert len(events_of(document)) == exports.PAGE + 11
    assert all(ERASED in event.payload for event in events_of(document)[1:])
    assert verify(document, app.registry).verdict == "erased"
