"""Updates are admitted once, answered by the run or the one that follows it, and what became of each is said."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from msgspec import Raw

from harvest.errors import (
    ExecutionClosedError,
    ExecutionNotFoundError,
    InputInvalidError,
    UpdateFailedError,
    UpdateNotFoundError,
    UpdateRejectedError,
    UpdateTimeoutError,
)
from harvest.history.data import UpdateAdmitted, WorkflowCompleted
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.operations import auditing, closing, starting, updating
from harvest.operations.actor import Actor
from harvest.operations.updating import Updated
from harvest.shards import Shards
from harvest.store import updates
from tests.operations.population import register
from tests.operations.rotating import Worker, events_of, worker_on
from tests.support import eventually


async def begin(shards: Shards, actor: Actor, input_schema: bytes = b"{}") -> tuple[UUID, Worker]:
    await register(shards, 0, "any_flow", input_schema=input_schema)
    started = await starting.start(shards, actor, workflow_name="any_flow", workflow_id="o-1")
    return started.execution_id, await worker_on(shards, started.shard_id)


async def admit(shards: Shards, actor: Actor, run: UUID, key: str | None = None) -> Updated:
    return await updating.update(shards, actor, run, "set", b"1", wait="admitted", idempotency_key=key)


async def test_an_update_is_an_event_and_its_answer_is_waited_for(shards: Shards, actor: Actor) -> None:
    run, worker = await begin(shards, actor)
    waiting = asyncio.create_task(updating.update(shards, actor, run, "set", b"[1]", timeout=20))
    await eventually(lambda: _has(shards, run, EventKind.UPDATE_ADMITTED))
    (kind, data) = (await events_of(shards, run))[-1]
    assert (kind, data["name"], data["input"], data["actor"]) == (EventKind.UPDATE_ADMITTED, "set", [1], "token:admin")
    await worker.answer(run, admitted=2, update_id=data["update_id"], output=b"1.10")
    done = await waiting
    assert (done.stage, done.output, done.update_id) == ("completed", b"1.10", data["update_id"])
    assert done.event_id == 3
    assert [act.operation for act in (await auditing.list_audit(shards)).rows.rows][:1] == ["workflow.update"]


async def _has(shards: Shards, run: UUID, kind: EventKind) -> bool:
    return any(each == kind for each, _ in await events_of(shards, run))


async def test_many_wait_at_once_and_each_gets_its_own_answer(shards: Shards, actor: Actor) -> None:
    run, worker = await begin(shards, actor)
    sent = [await admit(shards, actor, run) for _ in range(20)]
    waiting = [asyncio.create_task(updating.result(shards, run, each.update_id, wait=20)) for each in sent]
    for n in reversed(range(20)):
        await worker.answer(run, admitted=sent[n].event_id, update_id=sent[n].update_id, output=b"%d" % n)
    done = await asyncio.gather(*waiting)
    assert [each.output for each in done] == [b"%d" % n for n in range(20)]


async def test_an_answer_that_does_not_come_in_time_leaves_the_update_admitted(shards: Shards, actor: Actor) -> None:
    run, worker = await begin(shards, actor)
    with pytest.raises(UpdateTimeoutError) as late:
        await updating.update(shards, actor, run, "set", b"1", timeout=0.05, idempotency_key="k")
    update_id = late.value.fields["update_id"]
    assert (await updating.result(shards, run, update_id)).stage == "admitted"
    await worker.answer(run, admitted=2, update_id=update_id, output=b"2")
    again = await updating.update(shards, actor, run, "set", b"1", idempotency_key="k")
    assert (again.output, again.deduplicated, again.update_id) == (b"2", True, update_id)
    assert (await updating.result(shards, run, update_id)).output == b"2"


@pytest.mark.parametrize(("rejected", "error"), [(True, UpdateRejectedError), (False, UpdateFailedError)])
async def test_what_refused_and_what_failed_differ(
    shards: Shards, actor: Actor, rejected: bool, error: type[UpdateRejectedError]
) -> None:
    run, worker = await begin(shards, actor)
    sent = await admit(shards, actor, run)
    await worker.refuse(run, admitted=sent.event_id, update_id=sent.update_id, rejected=rejected)
    with pytest.raises(error) as refused:
        await updating.result(shards, run, sent.update_id, wait=5)
    assert refused.value.fields["failure_type"] == "Declined"
    assert refused.value.status == (422 if rejected else 409)


async def test_a_key_admits_an_update_once_in_a_chain(shards: Shards, actor: Actor) -> None:
    run, worker = await begin(shards, actor)
    first = await admit(shards, actor, run, "k")
    second = await worker.rotate(run)
    for asked in (run, second):
        again = await admit(shards, actor, asked, "k")
        assert (again.update_id, again.execution_id, again.deduplicated) == (first.update_id, run, True)
    assert not await _has(shards, second, EventKind.UPDATE_ADMITTED)
    assert (await admit(shards, actor, run)).update_id != (await admit(shards, actor, run)).update_id


async def test_an_update_that_was_carried_over_is_answered_by_the_run_that_follows(
    shards: Shards, actor: Actor
) -> None:
    run, worker = await begin(shards, actor)
    sent = await admit(shards, actor, run)
    waiting = asyncio.create_task(updating.result(shards, run, sent.update_id, wait=20))
    carried = [
        (EventKind.UPDATE_ADMITTED, UpdateAdmitted(update_id="another", name="set")),
        (EventKind.UPDATE_ADMITTED, UpdateAdmitted(update_id=sent.update_id, name="set", input=Raw(b"1"))),
    ]
    second = await worker.rotate(run, carried=carried)
    third = await worker.rotate(second, carried=carried[1:])
    await worker.answer(third, admitted=2, update_id=sent.update_id, output=b'"late"')
    done = await waiting
    assert (done.execution_id, done.output, done.routed_execution_id) == (third, b'"late"', third)


@pytest.mark.parametrize("end", ["completed", "terminated", "continued without it"])
async def test_a_run_that_ends_without_an_answer_says_so(shards: Shards, actor: Actor, end: str) -> None:
    run, worker = await begin(shards, actor)
    sent = await admit(shards, actor, run)
    waiting = asyncio.create_task(updating.result(shards, run, sent.update_id, wait=20))
    if end == "completed":
        await worker.decide(run, end=(EventKind.WORKFLOW_COMPLETED, WorkflowCompleted()))
    elif end == "terminated":
        await closing.terminate(shards, actor, run, reason="")
    else:
        await worker.rotate(run)
    with pytest.raises(UpdateFailedError, match="ended before it answered"):
        await waiting


async def test_an_answer_in_the_last_decision_of_a_run_counts(shards: Shards, actor: Actor) -> None:
    run, worker = await begin(shards, actor)
    sent = await admit(shards, actor, run)
    answered = (EventKind.UPDATE_COMPLETED, sent.event_id, updates_answer(sent.update_id))
    await worker.decide(run, [answered], end=(EventKind.WORKFLOW_COMPLETED, WorkflowCompleted()))
    assert (await updating.result(shards, run, sent.update_id)).output == b"7"


def updates_answer(update_id: str) -> Any:
    from harvest.history.data import UpdateCompleted

    return UpdateCompleted(update_id=update_id, output=Raw(b"7"))


async def test_closed_and_unknown_runs_and_updates_are_refused(shards: Shards, actor: Actor) -> None:
    run, _ = await begin(shards, actor)
    with pytest.raises(UpdateNotFoundError):
        await updating.result(shards, run, "nothing")
    await closing.terminate(shards, actor, run, reason="")
    with pytest.raises(ExecutionClosedError):
        await updating.update(shards, actor, run, "set", b"1")
    with pytest.raises(ExecutionNotFoundError):
        await updating.update(shards, actor, UUID(int=mint_execution_id(0).int), "set", b"1")


async def test_an_input_that_does_not_fit_what_the_workflow_declares_is_refused_and_leaves_no_trace(
    shards: Shards, actor: Actor
) -> None:
    run, _ = await begin(shards, actor, b'{"x-updates":{"set":{"type":"integer"}}}')
    with pytest.raises(InputInvalidError):
        await updating.update(shards, actor, run, "set", b'"text"')
    assert not await _has(shards, run, EventKind.UPDATE_ADMITTED)
    assert (await admit(shards, actor, run)).stage == "admitted"


async def test_a_look_for_an_answer_tells_how_far_it_went(shards: Shards, actor: Actor) -> None:
    run, worker = await begin(shards, actor)
    sent = await admit(shards, actor, run)
    admitted = await updates.find(worker.store, run, sent.update_id)
    assert admitted is not None
    (look,) = await updates.look(worker.store, [admitted])
    assert look is not None
    assert (look.kind, look.through, look.closed) == (None, 2, False)
