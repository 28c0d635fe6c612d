"""One execution: its shape, its payloads to the byte, its history in windows, its result."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest

from harvest import clock
from harvest.errors import ExecutionNotFoundError, InvalidRequestError, PayloadDecodeError, ShardUnavailableError
from harvest.history.data import ActivityScheduled, Failure, SignalReceived, WorkflowContinuedAsNew
from harvest.history.events import encode_data
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations import closing, reading
from harvest.operations.actor import Actor
from harvest.operations.views import INLINE_BYTES, Truncated
from harvest.operations.waiting import OWN_CODE
from harvest.shards import Shards
from tests.operations.population import Run, add, add_events, started

AWKWARD = b'{"big": 123456789012345678901234567890, "price": 1.10, "nul": "\\u0000", "z": 1, "a": [  ]}'


async def test_payloads_come_as_the_text_that_was_stored(shards: Shards) -> None:
    run = Run(state=State.COMPLETED, input=AWKWARD, result=b"1.10", memo=b'"\xc3\xa9"')
    detail = await reading.get(shards, await add(shards, 1, run))
    assert (detail.input, detail.result, detail.memo) == (
        msgspec.Raw(AWKWARD),
        msgspec.Raw(b"1.10"),
        msgspec.Raw(b'"\xc3\xa9"'),
    )
    assert AWKWARD in msgspec.json.encode(detail)
    assert (detail.shard_id, detail.state, detail.history_events) == (1, "COMPLETED", 1)


async def test_a_large_payload_becomes_its_size_its_head_and_where_it_is(shards: Shards) -> None:
    large = b'"' + "é".encode() * INLINE_BYTES + b'"'
    execution_id = await add(shards, 0, Run(input=large))
    shown = (await reading.get(shards, execution_id, api_root="/base/api/harvest")).input
    assert isinstance(shown, Truncated)
    assert shown.bytes == len(large)
    assert shown.href == f"/base/api/harvest/workflows/{execution_id}/payload/input"
    assert shown.head.startswith('"ééé')
    assert len(shown.head.encode()) <= 2048
    assert "�" not in shown.head
    assert await reading.detail_payload(shards, execution_id, "input") == large


async def test_a_payload_of_exactly_the_limit_is_shown(shards: Shards) -> None:
    exact = b'"' + b"x" * (INLINE_BYTES - 2) + b'"'
    detail = await reading.get(shards, await add(shards, 0, Run(input=exact)))
    assert detail.input == msgspec.Raw(exact)


async def test_bytes_that_are_no_json_never_reach_an_answer_as_json(shards: Shards) -> None:
    for bytes_ in (b"\xff\xfe", b"{", b'"\xff"', b"", b"[" * 5000):
        execution_id = await add(shards, 0, Run(workflow_id=repr(bytes_[:8]), input=bytes_))
        detail = await reading.get(shards, execution_id)
        assert isinstance(detail.input, Truncated)
        msgspec.json.decode(msgspec.json.encode(detail))


async def test_a_failure_comes_with_its_cause_and_an_undecodable_one_as_text(shards: Shards) -> None:
    failure = Failure("ActivityError", "charge failed", cause=Failure("Declined", "no funds", traceback="File …"))
    run = Run(workflow_id="a", state=State.FAILED, failure=encode_data(failure))
    shown = (await reading.get(shards, await add(shards, 0, run))).failure
    assert shown is not None
    assert shown.cause is not None
    assert (shown.cause.type, shown.cause.message, shown.cause.traceback) == ("Declined", "no funds", "File …")
    broken = await add(shards, 0, Run(workflow_id="b", state=State.FAILED, failure=b"\x00\x01"))
    assert (await reading.get(shards, broken)).failure.type == "Undecodable"  # type: ignore[union-attr]


async def test_what_is_under_way_says_attempt_next_try_and_last_failure(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    store = shards.store(0)
    await store.write.write(
        "insert into harvest_activity_tasks (execution_id, seq, scheduled_event_id, queue, name, attempt, due, "
        "last_failure) values ($1, 1, 2, 'default', 'charge', 2, '2026-06-01T08:00:00Z', $2)",
        execution_id,
        encode_data(Failure("Declined", "no funds")),
    )
    await store.write.write(
        "insert into harvest_activity_tasks (execution_id, seq, scheduled_event_id, queue, name, attempt, state, "
        "worker, started_at) values ($1, 2, 3, 'default', 'ship', 1, 1, $2, '2026-06-01T07:00:00Z')",
        execution_id,
        UUID(int=7),
    )
    pending = (await reading.get(shards, execution_id)).pending
    charge, ship = pending.activities
    assert (charge.state, charge.attempt, charge.last_failure.message) == ("PENDING", 2, "no funds")  # type: ignore[union-attr]
    assert charge.next_try_at is not None
    assert (ship.state, ship.next_try_at) == ("RUNNING", None)
    assert ship.started_at is not None


async def test_an_activity_times_out_after_its_last_heartbeat_and_shows_what_that_told(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    store = shards.store(0)
    insert = (
        "insert into harvest_activity_tasks (execution_id, seq, scheduled_event_id, queue, name, attempt, state, "
        "worker, started_at, timeout_at, start_to_close, heartbeat) "
        "values ($1, $2, 2, 'default', 'report', 2, 1, $3, '2026-06-01T07:00:00Z', '2026-06-01T07:00:10Z', $4, 10)"
    )
    for seq, seconds in ((1, 3600.0), (2, 15.0), (3, 3600.0)):
        await store.write.write(insert, execution_id, seq, UUID(int=7), seconds)
    for seq, attempt in ((1, 2), (2, 2), (3, 1)):
        await store.write.write(
            "insert into harvest_heartbeats (execution_id, seq, attempt, at, details) "
            "values ($1, $2, $3, '2026-06-01T07:00:08Z', $4)",
            execution_id,
            seq,
            attempt,
            b'{"page":8}',
        )
    beaten, short, old = (await reading.get(shards, execution_id)).pending.activities
    assert [one.timeout_at.second for one in (beaten, short, old) if one.timeout_at] == [18, 15, 10]
    assert [one.heartbeat_at is not None for one in (beaten, short, old)] == [True, True, False]
    assert {one.heartbeat_head for one in (beaten, short, old)} == {'{"page":8}'}


async def test_a_run_tells_whether_a_live_worker_serves_its_queue(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    assert (await reading.get(shards, execution_id)).queue_served is False
    worker = (
        "insert into harvest_workers (worker, name, host, pid, queues, lease_until, slots) "
        "values ($1, 'w', 'h', 1, $2, clock_timestamp() + $3 * interval '1 second', 10)"
    )
    await shards.store(0).write.write(worker, UUID(int=1), ["other"], 3600)
    await shards.store(0).write.write(worker, UUID(int=2), ["default"], -9)
    assert (await reading.get(shards, execution_id)).queue_served is False
    await shards.store(0).write.write(worker, UUID(int=3), ["other", "default"], 3600)
    assert (await reading.get(shards, execution_id)).queue_served is True


async def test_a_parked_run_with_nothing_under_way_waits_for_its_own_code(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    await shards.store(0).write.write(
        "insert into harvest_workflow_tasks (execution_id, partition, queue, workflow_name, version) "
        "values ($1, 0, 'default', 'order_flow', 1)",
        execution_id,
    )
    assert (await reading.get(shards, execution_id)).waiting is None
    await shards.store(0).write.write(
        "update harvest_workflow_tasks set state = 2 where execution_id = $1", execution_id
    )
    assert (await reading.get(shards, execution_id)).waiting == OWN_CODE


async def test_a_cancel_request_is_told_with_its_time(shards: Shards, actor: Actor) -> None:
    execution_id = await add(shards, 0, Run())
    assert (await reading.get(shards, execution_id)).cancel_requested_at is None
    await closing.cancel(shards, actor, execution_id, reason="wrong")
    assert (await reading.get(shards, execution_id)).cancel_requested_at is not None


async def test_not_found_and_unknown_are_different_answers(shards: Shards) -> None:
    with pytest.raises(ExecutionNotFoundError):
        await reading.get(shards, mint_execution_id(1))
    with pytest.raises(ShardUnavailableError, match="does not read"):
        await reading.get(shards, mint_execution_id(7))


async def test_history_comes_in_windows_both_ways(shards: Shards) -> None:
    execution_id = await add(shards, 1, Run())
    signals = [(int(EventKind.SIGNAL_RECEIVED), encode_data(SignalReceived(name=f"s{n}"))) for n in range(2, 13)]
    await add_events(shards, execution_id, [started(), *signals])
    page = await reading.history(shards, execution_id, limit=5)
    assert [event.event_id for event in page.events] == [1, 2, 3, 4, 5]
    assert (page.last_event_id, page.total_events, page.next_cursor) == (12, 12, 5)
    page = await reading.history(shards, execution_id, after=10, limit=5)
    assert ([event.event_id for event in page.events], page.next_cursor) == ([11, 12], None)
    page = await reading.history(shards, execution_id, limit=5, newest_first=True)
    assert ([event.event_id for event in page.events], page.next_cursor) == ([12, 11, 10, 9, 8], 8)
    page = await reading.history(shards, execution_id, before=8, limit=7, newest_first=True)
    assert ([event.event_id for event in page.events], page.next_cursor) == ([7, 6, 5, 4, 3, 2, 1], None)
    assert page.events[-1].type == "WorkflowStarted"
    with pytest.raises(InvalidRequestError, match="1 to 1000"):
        await reading.history(shards, execution_id, limit=1001)


async def test_an_event_keeps_the_text_of_its_payload(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    await add_events(shards, execution_id, [started(AWKWARD)])
    event = (await reading.history(shards, execution_id)).events[0]
    assert event.data["input"] == msgspec.Raw(AWKWARD)
    assert event.data["workflow_name"] == msgspec.Raw(b'"order_flow"')


async def test_a_large_event_shows_the_fields_before_the_large_one(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    large = b'"' + b"x" * 5_000_000 + b'"'
    data = encode_data(ActivityScheduled(name="charge", digest="abc", input=msgspec.Raw(large), queue="slow"))
    await add_events(shards, execution_id, [(int(EventKind.ACTIVITY_SCHEDULED), data)])
    event = (await reading.history(shards, execution_id)).events[0]
    shown = event.data["input"]
    assert event.data["name"] == msgspec.Raw(b'"charge"')
    assert isinstance(shown, Truncated)
    assert shown.href == f"/api/harvest/workflows/{execution_id}/history/1/payload"
    assert shown.head.startswith('"xxxx')
    assert event.bytes == shown.bytes == len(data)
    assert len(msgspec.json.encode(event)) < 4096
    assert await reading.event_payload(shards, execution_id, 1) == data


@pytest.mark.parametrize("digits", range(4080, 4100))
async def test_a_number_cut_by_the_head_is_not_taken_for_a_whole_one(digits: int) -> None:
    from harvest.operations.views import _leading_fields

    whole = Truncated(bytes=9, href="x")
    data = b'{"a":' + b"7" * digits + b',"b":1}' + b" " * 100_000
    fields = _leading_fields(data[:4096], whole)
    assert fields["a"] == msgspec.Raw(b"7" * digits) or isinstance(fields["a"], Truncated)


async def test_an_unknown_kind_and_broken_data_are_shown_not_raised(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    await add_events(shards, execution_id, [(999, b'{"new":true}'), (14, b"\xff")])
    unknown, broken = (await reading.history(shards, execution_id)).events
    assert (unknown.type, unknown.data) == ("Unknown999", {"new": msgspec.Raw(b"true")})
    assert isinstance(broken.data["undecodable"], Truncated)


async def test_sealed_data_is_named_not_shown(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    await add_events(shards, execution_id, [started(b'"secret"')])
    await shards.store(0).write.write("update harvest_events set codec = 2 where execution_id = $1", execution_id)
    event = (await reading.history(shards, execution_id)).events[0]
    assert isinstance(event.data["sealed"], Truncated)
    assert b"secret" not in msgspec.json.encode(event)
    with pytest.raises(PayloadDecodeError, match="codec 2"):
        await reading.event_payload(shards, execution_id, 1)


CLOSE = "update harvest_executions set state = 10, closed_at = clock_timestamp() where execution_id = $1"


async def test_a_result_is_there_at_once_or_after_a_wait_or_not_yet(shards: Shards) -> None:
    done = await add(shards, 0, Run(workflow_id="a", state=State.COMPLETED, result=b"42"))
    outcome = await reading.result(shards, done)
    assert outcome is not None
    assert (outcome.state, outcome.output) == ("COMPLETED", msgspec.Raw(b"42"))
    running = await add(shards, 0, Run(workflow_id="b"))
    assert await reading.result(shards, running) is None
    began = clock.monotonic()
    assert await reading.result(shards, running, wait=0.3) is None
    assert clock.monotonic() - began >= 0.3
    with pytest.raises(ExecutionNotFoundError):
        await reading.result(shards, mint_execution_id(0), wait=5)


async def test_many_waiters_share_one_poll_and_no_connection(shards: Shards) -> None:
    running = [await add(shards, n % 2, Run(workflow_id=f"o-{n}", result=b"1")) for n in range(40)]
    tasks = [asyncio.create_task(reading.result(shards, each, wait=20)) for each in running for _ in range(3)]
    from harvest.operations.outcomes import waiters

    async def all_wait() -> bool:
        return sum(len(futures) for shard in waiters(shards)._waiting.values() for futures in shard.values()) == 120

    assert await clock.until(all_wait, within=10)
    polls = [task for task in asyncio.all_tasks() if "Waiters._poll" in repr(task)]
    assert len(polls) == 2
    for execution_id in running:
        await shards.store_of(execution_id).write.write(CLOSE, execution_id)
    outcomes = await asyncio.gather(*tasks)
    assert {outcome.state for outcome in outcomes if outcome} == {"COMPLETED"}

    async def nobody_polls() -> bool:
        return not waiters(shards)._polls

    assert await clock.until(nobody_polls, within=5)


async def test_a_chain_is_followed_to_its_last_run(shards: Shards) -> None:
    last = await add(shards, 1, Run(workflow_id="o-1", result=b'"done"'))
    first = await add(shards, 0, Run(workflow_id="o-0", state=State.CONTINUED_AS_NEW))
    link = encode_data(WorkflowContinuedAsNew(new_execution_id=str(last)))
    await add_events(shards, first, [started(), (int(EventKind.WORKFLOW_CONTINUED_AS_NEW), link)])
    waiting = asyncio.create_task(reading.result(shards, first, wait=20))
    await shards.store(1).write.write(CLOSE, last)
    outcome = await waiting
    assert outcome is not None
    assert (outcome.execution_id, outcome.output) == (last, msgspec.Raw(b'"done"'))


async def test_numbers_beyond_every_event_are_not_there(shards: Shards) -> None:
    run, beyond = await add(shards, 1, Run(workflow_id="numbers")), 2**40
    await add_events(shards, run, [started()])
    with pytest.raises(ExecutionNotFoundError):
        await reading.event_payload(shards, run, beyond)
    assert (await reading.history(shards, run, after=beyond)).events == []
    assert (await reading.history(shards, run, before=beyond, newest_first=True)).events
