"""Signal-with-start and update-with-start by the state of the prior run (reference 2.8), each in one transaction."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest

from harvest.errors import (
    ExecutionExistsError,
    ExecutionPausedError,
    InputInvalidError,
    InvalidRequestError,
    UpdateTimeoutError,
    WorkflowNotRegisteredError,
)
from harvest.history.data import (
    Failure,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowExecutionTimedOut,
    WorkflowFailed,
)
from harvest.history.kinds import EventKind
from harvest.operations import closing, pausing, signalling, starting, updating, with_start
from harvest.operations.actor import Actor
from harvest.operations.preparing import StartRequest
from harvest.operations.starting import REUSE_POLICIES
from harvest.shards import Shards
from harvest.store import claims
from tests.operations.population import EPOCH, register
from tests.operations.rotating import events_of, signals_of, worker_on
from tests.store.rows import a_worker

REQUEST = StartRequest(workflow_name="any_flow", workflow_id="o-1", input=b'"in"')
START, ATTACH, ERROR, END = "start", "attach", "error", "end and start"
# Columns as in the reference: allow_duplicate, reject_duplicate, allow_duplicate_failed_only, terminate_if_running.
TABLE = {
    "none": (START, START, START, START),
    "RUNNING": (ATTACH, ERROR, ATTACH, END),
    "PAUSED": (ATTACH, ERROR, ATTACH, END),
    "COMPLETED": (START, ERROR, START, START),
    "FAILED": (START, ERROR, START, START),
    "CANCELLED": (START, ERROR, START, START),
    "TIMED_OUT": (START, ERROR, START, START),
    "TERMINATED": (START, START, START, START),
}
ENDS = {
    "COMPLETED": (EventKind.WORKFLOW_COMPLETED, WorkflowCompleted()),
    "FAILED": (EventKind.WORKFLOW_FAILED, WorkflowFailed(Failure(type="E", message="m"))),
    "CANCELLED": (EventKind.WORKFLOW_CANCELLED, WorkflowCancelled()),
    "TIMED_OUT": (EventKind.WORKFLOW_EXECUTION_TIMED_OUT, WorkflowExecutionTimedOut(deadline=EPOCH)),
}


async def prior_run(shards: Shards, actor: Actor, state: str, workflow_id: str) -> UUID | None:
    if state == "none":
        return None
    started = await starting.start(shards, actor, workflow_name="any_flow", workflow_id=workflow_id)
    run = started.execution_id
    if state == "PAUSED":
        await pausing.pause(shards, actor, run)
    elif state == "TERMINATED":
        await closing.terminate(shards, actor, run, reason="")
    elif state in ENDS:
        await (await worker_on(shards, started.shard_id)).decide(run, end=ENDS[state])
    return run


@pytest.mark.parametrize("state", TABLE)
async def test_a_signal_with_start_does_what_the_table_says(shards: Shards, actor: Actor, state: str) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    for policy, expected in zip(REUSE_POLICIES, TABLE[state], strict=True):
        request = msgspec.structs.replace(REQUEST, workflow_id=f"o-{policy}")
        prior = await prior_run(shards, actor, state, f"o-{policy}")
        send = with_start.signal_with_start(shards, actor, request, "go", b"1", reuse_policy=policy)
        if expected == ERROR:
            with pytest.raises(ExecutionExistsError) as refused:
                await send
            assert refused.value.fields["existing_state"] == state
            continue
        done = await send
        assert done.delivered
        assert done.started_fresh is (expected != ATTACH)
        assert (done.execution_id == prior) is (expected == ATTACH)
        kinds = [kind for kind, _ in await events_of(shards, done.execution_id)]
        if done.started_fresh:
            assert kinds == [EventKind.WORKFLOW_STARTED, EventKind.SIGNAL_RECEIVED]
        assert kinds.count(EventKind.SIGNAL_RECEIVED) == 1
        if expected == END:
            assert prior is not None
            assert (await events_of(shards, prior))[-1][0] is EventKind.WORKFLOW_TERMINATED


@pytest.mark.parametrize("state", TABLE)
async def test_an_update_with_start_does_what_the_table_says(shards: Shards, actor: Actor, state: str) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    for policy, expected in zip(REUSE_POLICIES, TABLE[state], strict=True):
        request = msgspec.structs.replace(REQUEST, workflow_id=f"o-{policy}")
        prior = await prior_run(shards, actor, state, f"o-{policy}")
        send = with_start.update_with_start(shards, actor, request, "set", b"1", reuse_policy=policy, wait="admitted")
        if expected == ERROR:
            with pytest.raises(ExecutionExistsError):
                await send
        elif expected == ATTACH and state == "PAUSED":
            assert prior is not None
            with pytest.raises(ExecutionPausedError):
                await send
            assert EventKind.UPDATE_ADMITTED not in [kind for kind, _ in await events_of(shards, prior)]
        else:
            done = await send
            assert done.updated.stage == "admitted"
            assert done.started.started_fresh is (expected != ATTACH)
            kind, data = (await events_of(shards, done.started.execution_id))[-1]
            assert (kind, data["update_id"]) == (EventKind.UPDATE_ADMITTED, done.updated.update_id)


async def test_what_comes_with_the_start_is_carried_and_claimed_with_it(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    done = await with_start.signal_with_start(shards, actor, REQUEST, "go", b"1")
    (_, first), (_, signal) = await events_of(shards, done.execution_id)
    assert (first["carried"], first["input"], signal["name"], signal["payload"]) == (1, "in", "go", 1)
    store = shards.store(done.shard_id)
    (claimed,) = await claims.claim(store, await a_worker(store), ["default"], 10)
    assert (claimed.next_event_id, claimed.first) == (3, None)


async def test_a_repeated_key_finds_the_run_and_delivers_nothing_again(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    request = msgspec.structs.replace(REQUEST, idempotency_key="k")
    first = await with_start.signal_with_start(shards, actor, request, "go", b"1")
    again = await with_start.signal_with_start(shards, actor, request, "go", b"1")
    assert (again.execution_id, again.delivered, again.deduplicated) == (first.execution_id, False, True)
    other = await with_start.signal_with_start(
        shards, actor, msgspec.structs.replace(REQUEST, idempotency_key="k-2"), "go", b"2"
    )
    attached = await with_start.signal_with_start(
        shards, actor, msgspec.structs.replace(REQUEST, idempotency_key="k-2"), "go", b"2"
    )
    assert (other.delivered, attached.delivered, attached.execution_id) == (True, False, first.execution_id)
    assert await signals_of(shards, [first.execution_id]) == [1, 2]
    by_itself = await signalling.signal(shards, actor, first.execution_id, "go", b"1", idempotency_key="k")
    assert by_itself.deduplicated


async def test_a_key_of_a_plain_start_does_not_swallow_a_signal(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    started = await starting.start(
        shards, actor, workflow_name="any_flow", workflow_id="o-1", idempotency_key="k", input=b"1"
    )
    request = msgspec.structs.replace(REQUEST, idempotency_key="k")
    done = await with_start.signal_with_start(shards, actor, request, "go", b"1")
    assert (done.execution_id, done.delivered) == (started.execution_id, True)


async def test_a_key_is_that_of_the_run_even_after_that_has_ended(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    request = msgspec.structs.replace(REQUEST, idempotency_key="k")
    first = await with_start.update_with_start(shards, actor, request, "set", b"1", wait="admitted")
    run = first.started.execution_id
    worker = await worker_on(shards, first.started.shard_id)
    await worker.answer(run, admitted=2, update_id=first.updated.update_id, output=b"5")
    await worker.decide(run, end=ENDS["COMPLETED"])
    again = await with_start.update_with_start(shards, actor, request, "set", b"1")
    assert (again.started.execution_id, again.started.deduplicated, again.started.state) == (run, True, "COMPLETED")
    assert (again.updated.update_id, again.updated.output) == (first.updated.update_id, b"5")


async def test_an_update_that_is_not_answered_in_time_can_be_asked_for_later(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    with pytest.raises(UpdateTimeoutError) as late:
        await with_start.update_with_start(shards, actor, REQUEST, "set", b"1", timeout=0.01)
    found = UUID(late.value.fields["execution_id"])
    assert (await updating.result(shards, found, late.value.fields["update_id"])).stage == "admitted"


async def test_of_many_at_once_one_starts_the_run_and_every_signal_is_in_it(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    done = await asyncio.gather(
        *(with_start.signal_with_start(shards, actor, REQUEST, "go", b"%d" % n) for n in range(12))
    )
    assert len({each.execution_id for each in done}) == 1
    assert sum(each.started_fresh for each in done) == 1
    assert await signals_of(shards, [done[0].execution_id]) == sorted(range(12), key=str)


async def test_what_does_not_fit_is_refused_and_begins_nothing(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b'{"x-updates":{"set":{"type":"integer"}}}')
    with pytest.raises(InputInvalidError):
        await with_start.signal_with_start(shards, actor, REQUEST, "approved", b"1")
    with pytest.raises(InputInvalidError):
        await with_start.update_with_start(shards, actor, REQUEST, "set", b'"text"')
    nameless = StartRequest(workflow_name="any_flow")
    with pytest.raises(InvalidRequestError, match="workflow_id"):
        await with_start.signal_with_start(shards, actor, nameless, "go", b"1")
    with pytest.raises(WorkflowNotRegisteredError):
        await with_start.signal_with_start(shards, actor, StartRequest(workflow_name="no", workflow_id="a"), "go", b"1")
    for store in shards.stores.values():
        assert await store.read.fetch("select from harvest_executions") == []
