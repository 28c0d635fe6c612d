"""Erasing runs that have ended: what goes, what stays, who is skipped, the receipt, and proving it later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
from msgspec import Raw

from harvest import ActivityContext, ApplicationError, ChildPlacement, Harvest, Retry, WorkflowContext
from harvest.errors import (
    ChildWorkflowError,
    DeliveriesUnderWayError,
    ExecutionNotFoundError,
    InvalidRequestError,
    LegalHoldError,
    LimitError,
    OutcomeUnknownError,
    PayloadsErasedError,
    ReceiptNotFoundError,
    RunNotClosedError,
    ShardUnavailableError,
)
from harvest.history.data import ActivityCompleted, ChildWorkflowFailed, ChildWorkflowStarted, Failure, SignalReceived
from harvest.history.deliveries import DeliveryKind
from harvest.history.document import decode_document
from harvest.history.erasing import ERASED, Digest, KeyedDigest
from harvest.history.events import encode_data
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations import closing, erasing, legal_holds, reading
from harvest.operations.actor import Actor
from harvest.operations.auditing import AuditFilter, AuditView, list_audit
from harvest.operations.erasing import SkippedRun
from harvest.operations.exporting import export_history
from harvest.operations.timelines import timeline
from harvest.operations.triage import TriageChange, change_triage
from harvest.replay.verifier import verify
from harvest.shards import ShardRouter, Shards
from harvest.store import erasures, progress
from tests.operations.population import EPOCH, Run, add, add_events, started
from tests.support import at_work, check_invariants, eventually, history_of

PLANTED = "4111-1111-Ada"
VALUE = msgspec.json.encode({"card": PLANTED})
SIGNAL = (int(EventKind.SIGNAL_RECEIVED), encode_data(SignalReceived("go", Raw(VALUE))))
COMPLETED = (int(EventKind.WORKFLOW_COMPLETED), b'{"output":%b}' % VALUE)

app = Harvest()


@app.activity(retry=Retry(max_attempts=2, initial_interval=timedelta(0)), heartbeat_timeout=timedelta(seconds=30))
async def charge(ctx: ActivityContext, card: str) -> str:
    ctx.heartbeat(card)
    if ctx.attempt == 1:
        raise ApplicationError(f"refused {card}", type="Refused")
    return card


@app.activity
async def echo(card: str) -> str:
    return card


@app.workflow
async def ship(ctx: WorkflowContext, card: str, fails: bool) -> str:
    await ctx.execute_local_activity(echo, card)
    if fails:
        raise ApplicationError(f"no stock for {card}", type="OutOfStock")
    return card


@app.workflow
async def order(ctx: WorkflowContext, card: str) -> str:
    notes: list[str] = []

    def note(text: str) -> str:
        notes.append(text)
        return text

    ctx.register_update_handler("note", note)
    ctx.register_query_handler("notes", lambda: notes)
    ctx.set_current_details(card)
    ctx.upsert_search_attributes({"card": card})
    ctx.publish_progress(card)
    ctx.side_effect(lambda: card, as_type=str)
    await ctx.execute_activity(charge, card)
    await ctx.execute_child_workflow(ship, card, False)
    await ctx.execute_child_workflow(ship.with_options(placement=ChildPlacement.Shard(1)), card, False)
    with suppress(ChildWorkflowError):
        await ctx.execute_child_workflow(ship, card, True)
    return await ctx.wait_for_signal("go", str)


async def ended(shards: Shards, shard_id: int = 0, **fields: Any) -> UUID:
    """A run that has ended, with the planted text in its history and its details."""
    given: dict[str, Any] = {"state": State.COMPLETED, "input": VALUE, "result": VALUE, **fields}
    execution_id = await add(shards, shard_id, Run(**given))
    await add_events(shards, execution_id, [started(VALUE), SIGNAL, COMPLETED])
    return execution_id


async def erase(shards: Shards, actor: Actor, execution_id: UUID) -> erasing.Erasure:
    return await erasing.erase_payloads(shards, actor, execution_id, reason="asked by the subject")


async def audited(shards: Shards, execution_id: UUID, operation: str = erasing.OPERATION) -> list[AuditView]:
    page = await list_audit(shards, AuditFilter(target_id=str(execution_id), operation=operation))
    return page.rows.rows


async def holding(shards: Shards, shard_id: int, text: str) -> set[str]:
    """The tables of a shard that have the text somewhere in a row, as text or as bytes."""
    store = shards.store(shard_id)
    tables = await store.read.fetch("select tablename::text as name from pg_tables where schemaname = current_schema()")
    found = set()
    for table in tables:
        rows = await store.read.fetch(f"select t::text as row from {table['name']} t")
        if any(text in row["row"] or text.encode().hex() in row["row"] for row in rows):
            found.add(table["name"])
    return found


@asynccontextmanager
async def other_session(shards: Shards) -> AsyncIterator[Any]:
    """A connection to shard 0 beside the pools, in a transaction that is rolled back."""
    connection = await asyncpg.connect(shards.store(0).url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection
    finally:
        await transaction.rollback()
        await connection.close()


async def waiting_for_a_lock(shards: Shards, sessions: int) -> None:
    """Until so many sessions of shard 0 wait for a lock."""

    async def waits() -> bool:
        rows = await shards.store(0).read.fetch(
            "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        return len(rows) == sessions

    await eventually(waits)


async def may_be_erased(shards: Shards, execution_id: UUID) -> None:
    """Until nothing keeps a run, and those below it on its shard, from being erased."""

    async def may() -> bool:
        plan = await erasing.plan(shards, execution_id)
        return not plan.blockers and {each.reason for each in plan.skipped_children} <= {"other_shard"}

    await eventually(may)


async def test_nothing_of_a_run_that_really_ran_is_left_on_its_shard(
    new_database: Callable[[str], str], actor: Actor
) -> None:
    urls = {0: new_database("erased_0"), 1: new_database("erased_1")}
    async with at_work(app, urls) as (_, shards):
        handle = await app.start(order, PLANTED, shard_id=0, memo={"by": PLANTED})
        run = handle.execution_id

        async def waits() -> bool:
            return (await reading.get(shards, run)).waiting == "signal go"

        await eventually(waits)
        noted = await handle.start_update("note", PLANTED)
        assert await noted.result() == PLANTED
        assert await handle.query("notes") == [PLANTED]
        await change_triage(shards, actor, run, TriageChange(owner="payments", note=f"card {PLANTED}"))
        await handle.signal("go", PLANTED)
        assert await handle.result(timedelta(seconds=60)) == PLANTED
        await may_be_erased(shards, run)
        assert {"harvest_events", "harvest_execution_details", "harvest_triage"} <= await holding(shards, 0, PLANTED)
        before, steps = await history_of(shards, run), (await timeline(shards, run)).steps

        done = await erase(shards, actor, run)

        assert await holding(shards, 0, PLANTED) == set()
        assert [child.newly_erased for child in done.children] == [True, True]
        assert [(skipped.workflow_name, skipped.reason) for skipped in done.skipped_children] == [
            ("ship", "other_shard")
        ]
        after = await history_of(shards, run)
        shape = [(event.event_id, event.kind, event.seq, event.at) for event in before]
        assert [(event.event_id, event.kind, event.seq, event.at) for event in after] == shape
        assert [(step.kind, step.name, step.outcome) for step in (await timeline(shards, run)).steps] == [
            (step.kind, step.name, step.outcome) for step in steps
        ]
        view = await reading.get(shards, run)
        assert (view.state, view.owner, view.note, view.search_attributes) == ("COMPLETED", "payments", None, None)
        assert (view.input, view.result, view.memo) == (Raw(ERASED), Raw(ERASED), Raw(ERASED))
        with pytest.raises(PayloadsErasedError, match=str(run)):
            await handle.result()
        with pytest.raises(PayloadsErasedError, match="answer"):
            await noted.result()
        verdict = verify(decode_document(await export_history(shards, run)), app.registry)
        assert verdict.verdict == "erased"
        for erased in (done.run, *done.children):
            assert (await erasing.verify(shards, actor, erased.receipt)).matches
        await check_invariants(shards)


async def test_a_run_that_was_cancelled_keeps_its_reason_in_the_audit_log_alone(
    new_database: Callable[[str], str], actor: Actor
) -> None:
    async with at_work(app, {0: new_database("erased_c0"), 1: new_database("erased_c1")}) as (_, shards):
        handle = await app.start(order, "nobody", shard_id=0)
        await closing.cancel(shards, actor, handle.execution_id, reason=f"says {PLANTED}")

        async def has_ended() -> bool:
            return (await reading.get(shards, handle.execution_id)).state == "CANCELLED"

        await eventually(has_ended)
        await may_be_erased(shards, handle.execution_id)
        assert "harvest_events" in await holding(shards, 0, PLANTED)
        await erase(shards, actor, handle.execution_id)
        assert await holding(shards, 0, PLANTED) == {"harvest_audit_log"}


async def test_what_is_kept_beside_a_history_goes_too(shards: Shards, actor: Actor) -> None:
    run = await ended(
        shards,
        memo=VALUE,
        search_attributes=VALUE.decode(),
        details=VALUE,
        blocked_details=VALUE,
        failure=encode_data(Failure("Declined", PLANTED, PLANTED)),
    )
    write = shards.store(0).write.write
    await write(
        "insert into harvest_heartbeats (execution_id, seq, attempt, details) values ($1, 1, 1, $2)", run, VALUE
    )
    await write("insert into harvest_progress (execution_id, chunk) values ($1, $2)", run, VALUE)
    await write(
        "insert into harvest_requests (request_id, execution_id, kind, name, payload, deadline_at, answer) "
        "values ($1, $2, 'query', 'q', $3, clock_timestamp(), $3)",
        uuid4(),
        run,
        VALUE,
    )
    await change_triage(shards, actor, run, TriageChange(note=PLANTED))
    done = await erase(shards, actor, run)
    assert await holding(shards, 0, PLANTED) == set()
    assert await shards.store(0).read.fetch("select from harvest_triage") == []
    view = await reading.get(shards, run)
    assert (view.failure.type if view.failure else None, view.current_details) == ("Declined", None)
    # Three values of events; input, memo, result, attributes, details, blocked, message and traceback of the details.
    assert (done.run.events_scrubbed, done.run.fields_tombstoned) == (3, 3 + 8)
    assert done.run.bytes_removed > 0


async def test_null_and_absent_values_stay_as_they_are(shards: Shards, actor: Actor) -> None:
    run = await ended(shards, input=b"null", result=None)
    await erase(shards, actor, run)
    [row] = await shards.store(0).read.fetch("select * from harvest_execution_details")
    assert (row["input"], row["result"], row["memo"], row["failure"]) == (b"null", None, None, None)


async def test_a_history_of_several_slices_is_erased_to_the_last_event(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 0, Run(state=State.COMPLETED))
    large = (SIGNAL[0], encode_data(SignalReceived("go", Raw(b'"%b"' % (PLANTED.encode() * 200_000)))))
    await add_events(shards, run, [started(VALUE), *[SIGNAL] * (2 * erasures.SLICE_EVENTS), large, large, COMPLETED])
    assert len(large[1]) < erasures.SLICE_BYTES < 2 * len(large[1])
    done = await erase(shards, actor, run)
    assert done.run.events_scrubbed == 2 * erasures.SLICE_EVENTS + 4
    assert done.run.bytes_removed > 5_000_000
    assert await holding(shards, 0, PLANTED) == set()
    assert (await erasing.verify(shards, actor, done.run.receipt)).matches


async def test_what_this_release_cannot_read_is_replaced_as_a_whole(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    await shards.store(0).write.write("update harvest_events set kind = 999 where event_id = 2")
    await shards.store(0).write.write("update harvest_events set codec = 2 where event_id = 3")
    await shards.store(0).write.write("update harvest_execution_details set codec = 2")
    done = await erase(shards, actor, run)
    assert await holding(shards, 0, PLANTED) == set()
    rows = await shards.store(0).read.fetch("select payload, codec from harvest_events where event_id > 1")
    assert [(row["payload"], row["codec"]) for row in rows] == [(ERASED, 1), (ERASED, 1)]
    assert (await erasing.verify(shards, actor, done.run.receipt)).matches


async def test_erasing_again_answers_the_same_receipt(shards: Shards, actor: Actor) -> None:
    run = await ended(shards, 1)
    first = (await erase(shards, actor, run)).run
    again = (await erase(shards, actor, run)).run
    assert first.newly_erased
    assert again == msgspec.structs.replace(first, newly_erased=False)
    assert [entry.error_summary for entry in await audited(shards, run)] == ["its payloads were erased before", None]


async def test_an_erasure_is_audited_and_on_record_with_who_and_why(shards: Shards, actor: Actor) -> None:
    run = await ended(shards, 1, workflow_id="o-7")
    done = (await erase(shards, actor, run)).run
    (entry,) = await audited(shards, run)
    assert (entry.status, entry.reason, entry.shard_id) == ("succeeded", "asked by the subject", 1)
    found = await erasing.receipt(shards, done.receipt)
    assert found == await erasing.receipt_of(shards, run)
    assert (found.workflow_name, found.workflow_id, found.shard_id) == ("order_flow", "o-7", 1)
    assert (found.actor, found.reason, found.parent_receipt) == ("token:admin", "asked by the subject", None)
    assert (found.digest_before, found.digest_after) == (done.digest_before, done.digest_after)
    assert found.digest_before != found.digest_after


async def test_the_digest_of_before_can_be_made_anew_with_the_key_and_a_copy_alone(
    shards: Shards, actor: Actor
) -> None:
    run = await ended(shards)
    child = await ended(shards, parent_id=run, workflow_id="c")
    before: dict[UUID, tuple[Any, Any]] = {}
    for each in (run, child):
        row = await erasures.details(shards.store(0), each)
        before[each] = await history_of(shards, each), row
    done = await erase(shards, actor, run)
    for erased in (done.run, *done.children):
        events, row = before[erased.execution_id]
        digests = (KeyedDigest(bytes.fromhex(done.digest_key), erased.execution_id), Digest())
        for digest in digests:
            for event in events:
                digest.event(event.event_id, int(event.kind), bytes(event.payload))
            erasures.take_details(digest, erasures.stored_details(row))
        assert digests[0].hex() == erased.digest_before != digests[1].hex()
    assert len({each.digest_before for each in (done.run, *done.children)}) == 2
    assert await holding(shards, 0, done.digest_key) == set()
    assert (await erase(shards, actor, run)).digest_key == ""


async def test_two_at_once_give_one_receipt(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    done = await asyncio.gather(*(erase(shards, actor, run) for _ in range(5)))
    assert len({each.run.receipt for each in done}) == 1
    assert sum(each.run.newly_erased for each in done) == 1
    assert len(await shards.store(0).read.fetch("select from harvest_erasures")) == 1


@pytest.mark.parametrize("state", [State.RUNNING, State.PAUSED])
async def test_a_run_that_is_open_is_refused(shards: Shards, actor: Actor, state: State) -> None:
    run = await ended(shards, state=state)
    with pytest.raises(RunNotClosedError, match="has not ended"):
        await erase(shards, actor, run)
    assert (await erasing.plan(shards, run)).blockers == ["open"]
    (entry,) = await audited(shards, run)
    assert entry.status == "failed"
    assert "harvest_events" in await holding(shards, 0, PLANTED)


async def test_a_run_that_still_tells_others_is_refused(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    await deliver_from(shards, run)
    with pytest.raises(DeliveriesUnderWayError):
        await erase(shards, actor, run)
    assert (await erasing.plan(shards, run)).blockers == ["under_way"]


async def test_a_run_that_has_only_waited_for_another_can_be_erased(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    await deliver_from(shards, run, DeliveryKind.EXTERNAL_AWAIT)
    assert (await erase(shards, actor, run)).run.newly_erased


async def deliver_from(shards: Shards, run: UUID, kind: DeliveryKind = DeliveryKind.CHILD_CLOSED) -> None:
    """A delivery of the run that has not arrived."""
    await shards.store(0).write.write(
        "insert into harvest_deliveries (kind, source_execution_id, source_seq, target_execution_id, target_shard, "
        "payload) values ($3, $1, 0, $2, 0, '{}')",
        run,
        uuid4(),
        int(kind),
    )


async def test_a_run_that_is_not_there_is_named(shards: Shards, actor: Actor) -> None:
    missing = mint_execution_id(1)
    with pytest.raises(ExecutionNotFoundError, match=str(missing)):
        await erase(shards, actor, missing)
    with pytest.raises(ExecutionNotFoundError):
        await erasing.plan(shards, missing)
    (entry,) = await audited(shards, missing)
    assert entry.status == "failed"


@pytest.mark.parametrize(
    ("reason", "error"),
    [("", LimitError), ("  ", InvalidRequestError), ("a\x00b", LimitError), ("x" * 2_001, LimitError)],
)
async def test_an_erasure_needs_a_reason(shards: Shards, actor: Actor, reason: str, error: type[Exception]) -> None:
    run = await ended(shards)
    with pytest.raises(error, match="reason"):
        await erasing.erase_payloads(shards, actor, run, reason=reason)
    assert await erasing.receipt_of(shards, run) is None


async def test_those_below_on_the_same_shard_are_erased_with_it(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    child = await ended(shards, parent_id=run, age=2, workflow_id="c")
    grandchild = await ended(shards, parent_id=child, age=1, workflow_id="g")
    assert (await erasing.plan(shards, run)).children == 2
    done = await erase(shards, actor, run)
    assert [(each.execution_id, each.newly_erased) for each in done.children] == [(child, True), (grandchild, True)]
    for each in done.children:
        assert (await erasing.receipt(shards, each.receipt)).parent_receipt == done.run.receipt
    assert await holding(shards, 0, PLANTED) == set()
    assert len(await audited(shards, grandchild)) == 1


async def test_those_that_cannot_be_erased_are_told_with_the_reason(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    still_open = await ended(shards, parent_id=run, state=State.RUNNING, workflow_id="c-1")
    held = await ended(shards, parent_id=run, workflow_id="c-2")
    under_way = await ended(shards, parent_id=run, workflow_id="c-3")
    below_held = await ended(shards, parent_id=held, workflow_id="c-4")
    await legal_holds.hold(shards, actor, held, reason="case 7")
    await deliver_from(shards, under_way)
    expected = {still_open: "open", held: "legal_hold", under_way: "under_way"}
    plan = await erasing.plan(shards, run)
    assert ({each.execution_id: each.reason for each in plan.skipped_children}, plan.children) == (expected, 0)
    done = await erase(shards, actor, run)
    assert {each.execution_id: each.reason for each in done.skipped_children} == expected
    assert done.children == []
    assert await erasing.receipt_of(shards, below_held) is None


async def test_asking_again_erases_those_that_have_ended_since(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    earlier = await ended(shards, parent_id=run, workflow_id="c-1")
    held = await ended(shards, parent_id=run, workflow_id="c-2")
    await legal_holds.hold(shards, actor, held, reason="case 7")
    first = await erase(shards, actor, run)
    assert [each.execution_id for each in first.children] == [earlier]
    await legal_holds.release(shards, actor, held)
    again = await erase(shards, actor, run)
    assert (again.run.receipt, again.run.newly_erased) == (first.run.receipt, False)
    assert {each.execution_id: each.newly_erased for each in again.children} == {held: True, earlier: False}
    assert again.skipped_children == []


async def test_no_more_than_the_limit_are_erased_at_once_and_the_rest_by_asking_again(
    shards: Shards, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "MOST_RUNS", 2)
    run = await ended(shards)
    children = {await ended(shards, parent_id=run, workflow_id=f"c-{n}") for n in range(3)}
    first = await erase(shards, actor, run)
    assert len(first.children) == 2
    (skipped,) = first.skipped_children
    assert (skipped.reason, skipped.workflow_name) == ("too_many", "order_flow")
    assert children == {each.execution_id for each in first.children} | {skipped.execution_id}
    again = await erase(shards, actor, run)
    assert [each.execution_id for each in again.children if each.newly_erased] == [skipped.execution_id]
    assert again.skipped_children == []


async def test_children_on_other_shards_are_told_before_and_after(shards: Shards, actor: Actor) -> None:
    run, child, rejected = await ended(shards), mint_execution_id(1), mint_execution_id(1)
    events = [
        (EventKind.CHILD_WORKFLOW_STARTED, ChildWorkflowStarted(str(child), "ship", "s-1", "d", Raw(VALUE))),
        (EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED, ChildWorkflowStarted(str(rejected), "ship", "s-2", "d")),
        (EventKind.CHILD_WORKFLOW_FAILED, ChildWorkflowFailed(Failure("Rejected", "taken"), "REJECTED")),
    ]
    await add_events(shards, run, [(int(kind), encode_data(data)) for kind, data in events], first=4)
    await shards.store(0).write.write("update harvest_events set seq = 1 where event_id = 4")
    await shards.store(0).write.write("update harvest_events set seq = 2 where event_id > 4")
    expected = [SkippedRun(execution_id=child, workflow_name="ship", reason="other_shard")]
    assert (await erasing.plan(shards, run)).skipped_children == expected
    assert (await erase(shards, actor, run)).skipped_children == expected
    assert (await erase(shards, actor, run)).skipped_children == expected


async def test_no_input_keeps_children_on_other_shards_from_being_told_or_stands_for_them(
    shards: Shards, actor: Actor
) -> None:
    run, child, lost, name = await ended(shards), mint_execution_id(1), mint_execution_id(1), 'the "näme"\x01'
    fake = msgspec.json.encode({"child_id": str(mint_execution_id(1)), "workflow_name": "fake"})
    nul = Raw(b'{"text":"\\u0000","of":%b}' % fake)
    rejected = '\x00,"state":"REJECTED"}'
    events = [
        (EventKind.CHILD_WORKFLOW_STARTED, 1, ChildWorkflowStarted(str(child), name, "s-1", "d", nul)),
        (EventKind.CHILD_WORKFLOW_FAILED, 1, ChildWorkflowFailed(Failure("F", rejected))),
        (EventKind.CHILD_WORKFLOW_STARTED, 2, ChildWorkflowStarted(str(lost), name, "s-2", "d", nul)),
        (EventKind.CHILD_WORKFLOW_FAILED, 2, ChildWorkflowFailed(Failure("F", "\x00"), "REJECTED")),
        (EventKind.SIGNAL_RECEIVED, 0, SignalReceived("go", Raw(fake))),
    ]
    await add_events(shards, run, [(int(kind), encode_data(data)) for kind, _, data in events], first=4)
    for event_id, (_, seq, _) in enumerate(events, start=4):
        await shards.store(0).write.write(
            "update harvest_events set seq = $1 where execution_id = $2 and event_id = $3", seq, run, event_id
        )
    expected = [SkippedRun(execution_id=child, workflow_name=name, reason="other_shard")]
    assert (await erasing.plan(shards, run)).skipped_children == expected
    assert (await erase(shards, actor, run)).skipped_children == expected
    assert (await erase(shards, actor, run)).skipped_children == expected


async def test_what_fails_below_an_erased_run_is_told_with_its_receipt(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    child = await ended(shards, parent_id=run, workflow_id="c")
    grandchild = await ended(shards, parent_id=child, workflow_id="g")
    async with other_session(shards) as other:
        await other.execute(
            "select from harvest_events where execution_id = $1 and event_id = 2 for update", grandchild
        )
        erasure = asyncio.create_task(erase(shards, actor, run))
        await waiting_for_a_lock(shards, 1)
        await other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and wait_event_type = 'Lock'"
        )
        done = await erasure
    assert done.run.newly_erased
    assert [each.execution_id for each in done.children] == [child]
    assert done.incomplete == "shard 0 did not answer; repeat the request for the rest"
    again = await erase(shards, actor, run)
    assert (again.run.receipt, again.incomplete) == (done.run.receipt, "")
    assert {each.execution_id: each.newly_erased for each in again.children} == {grandchild: True, child: False}


async def test_what_there_is_no_time_for_is_left_to_the_next_request(
    shards: Shards, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await ended(shards)
    child = await ended(shards, parent_id=run, workflow_id="c")
    with monkeypatch.context() as patch:
        patch.setattr(erasing, "MOST_SECONDS", 0.0)
        done = await erase(shards, actor, run)
    assert (done.run.newly_erased, done.children) == (True, [])
    assert [(each.execution_id, each.reason) for each in done.skipped_children] == [(child, "too_many")]
    assert "no time" in done.incomplete
    again = await erase(shards, actor, run)
    assert ([each.execution_id for each in again.children], again.incomplete) == ([child], "")


async def test_progress_that_comes_late_of_an_erased_run_is_dropped(shards: Shards, actor: Actor) -> None:
    run, other = await ended(shards), await ended(shards, workflow_id="o-2")
    await erase(shards, actor, run)
    await progress.publish(shards.store(0), [(run, VALUE), (other, VALUE)])
    assert await progress.after(shards.store(0), {run: 0}) == {}
    assert [chunk.data for chunk in (await progress.after(shards.store(0), {other: 0}))[other]] == [VALUE]


async def test_a_plan_says_what_there_is(shards: Shards, actor: Actor) -> None:
    run = await ended(shards, 1, workflow_id="o-7")
    await legal_holds.hold(shards, actor, run, reason="case 7")
    plan = await erasing.plan(shards, run)
    assert (plan.workflow_name, plan.workflow_id, plan.state, plan.events) == ("order_flow", "o-7", "COMPLETED", 3)
    assert plan.payload_bytes == sum(len(event.payload) for event in await history_of(shards, run))
    assert (plan.hold.reason if plan.hold else None, plan.blockers) == ("case 7", ["legal_hold"])
    await legal_holds.release(shards, actor, run)
    done = await erase(shards, actor, run)
    plan = await erasing.plan(shards, run)
    assert (plan.erased.receipt if plan.erased else None, plan.blockers) == (done.run.receipt, ["already_erased"])


async def test_a_hold_that_is_being_set_keeps_an_erasure_waiting_and_refuses_it(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    connection = await asyncpg.connect(shards.store(0).url)
    try:
        async with connection.transaction():
            await connection.execute("select from harvest_executions where execution_id = $1 for no key update", run)
            await connection.execute(
                "insert into harvest_legal_holds (execution_id, reason, actor) values ($1, 'case 7', 'somebody')", run
            )
            erasure = asyncio.create_task(erase(shards, actor, run))
            await waiting_for_a_lock(shards, 1)
        with pytest.raises(LegalHoldError):
            await erasure
    finally:
        await connection.close()
    assert await erasing.receipt_of(shards, run) is None


async def test_a_hold_that_is_set_while_an_erasure_runs_comes_after_it(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    async with other_session(shards) as other:
        await other.execute("select from harvest_events where execution_id = $1 and event_id = 2 for update", run)
        erasure = asyncio.create_task(erase(shards, actor, run))
        await waiting_for_a_lock(shards, 1)
        hold = asyncio.create_task(legal_holds.hold(shards, actor, run, reason="case 7"))
        await waiting_for_a_lock(shards, 2)
    assert (await erasure).run.newly_erased
    assert (await hold).newly_held
    assert (await erasing.plan(shards, run)).blockers == ["legal_hold", "already_erased"]
    assert not (await erase(shards, actor, run)).run.newly_erased


async def test_an_erasure_that_is_cut_off_has_changed_nothing(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    before = await history_of(shards, run)
    async with other_session(shards) as other:
        await other.execute("select from harvest_events where execution_id = $1 and event_id = 2 for update", run)
        erasure = asyncio.create_task(erase(shards, actor, run))
        await waiting_for_a_lock(shards, 1)
        await other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and wait_event_type = 'Lock'"
        )
        with pytest.raises((OutcomeUnknownError, ShardUnavailableError)):
            await erasure
    assert await history_of(shards, run) == before
    assert await erasing.receipt_of(shards, run) is None
    assert (await erase(shards, actor, run)).run.newly_erased


@pytest.mark.parametrize(
    ("change", "differs_at"),
    [
        ("update harvest_events set payload = '{\"name\":\"go\",\"payload\":1}' where event_id = 2", "event 2"),
        ("update harvest_events set codec = 2 where event_id = 3", "event 3"),
        ("delete from harvest_events where event_id = 2", "event 2"),
        ("delete from harvest_events where event_id = 3", "event 3"),
        ("update harvest_execution_details set memo = '1'", "details"),
        ("delete from harvest_execution_details", "details"),
        ("update harvest_events set payload = overlay(payload placing '\\x6e' from 10) where event_id = 2", "digest"),
    ],
)  # fmt: skip
async def test_what_was_changed_since_is_found_and_audited(
    shards: Shards, actor: Actor, change: str, differs_at: str
) -> None:
    run = await ended(shards)
    done = (await erase(shards, actor, run)).run
    found = await erasing.verify(shards, actor, done.receipt)
    assert (found.matches, found.differs_at, found.events) == (True, "", 3)
    assert found.digest == found.expected == done.digest_after
    await shards.store(0).write.write(change)
    found = await erasing.verify(shards, actor, done.receipt)
    assert (found.matches, found.differs_at, found.expected) == (False, differs_at, done.digest_after)
    assert found.digest != done.digest_after or differs_at == "event 3"
    entries = await audited(shards, run, erasing.VERIFY)
    assert [(entry.status, entry.error_summary) for entry in entries] == [
        ("failed", f"differs at {differs_at}"),
        ("succeeded", None),
    ]


async def test_receipts_of_all_shards_are_listed_newest_first(shards: Shards, actor: Actor) -> None:
    runs = [await ended(shards, n % 2, workflow_id=f"o-{n}") for n in range(5)]
    for run in runs:
        await erase(shards, actor, run)
    first = await erasing.receipts(shards, limit=3)
    assert [each.execution_id for each in first.rows.rows] == runs[:1:-1]
    assert [each.workflow_id for each in first.rows.rows] == ["o-4", "o-3", "o-2"]
    rest = await erasing.receipts(shards, limit=3, cursor=first.next_cursor)
    assert ([each.execution_id for each in rest.rows.rows], rest.next_cursor) == (runs[1::-1], None)
    back = await erasing.receipts(shards, limit=3, cursor=rest.previous_cursor)
    assert back.rows.rows == first.rows.rows
    with pytest.raises(InvalidRequestError, match="limit"):
        await erasing.receipts(shards, limit=0)


async def test_a_receipt_outlives_its_run(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    done = (await erase(shards, actor, run)).run
    for table in ("harvest_executions", "harvest_execution_details", "harvest_events"):
        await shards.store(0).write.write(f"delete from {table}")
    assert [each.workflow_id for each in (await erasing.receipts(shards)).rows.rows] == [""]
    found = await erasing.verify(shards, actor, done.receipt)
    assert (found.matches, found.events, found.differs_at) == (False, 0, "details")


async def test_a_receipt_that_is_not_there_is_named(shards: Shards, actor: Actor) -> None:
    missing = mint_execution_id(1)
    with pytest.raises(ReceiptNotFoundError, match=str(missing)):
        await erasing.receipt(shards, missing)
    with pytest.raises(ReceiptNotFoundError):
        await erasing.verify(shards, actor, missing)


async def test_a_shard_that_is_missing_is_named_and_hides_no_receipt(
    new_database: Callable[[str], str], actor: Actor
) -> None:
    shards = await Shards.open({0: new_database("erased_alone")}, ShardRouter.of((0, 1)))
    try:
        run = await ended(shards)
        await erase(shards, actor, run)
        found = (await erasing.receipts(shards)).rows
        assert [each.execution_id for each in found.rows] == [run]
        assert [missing.shard_id for missing in found.missing] == [1]
        for ask in (erasing.plan, erasing.receipt, erasing.receipt_of):
            with pytest.raises(ShardUnavailableError):
                await ask(shards, mint_execution_id(1))
        with pytest.raises(ShardUnavailableError):
            await erase(shards, actor, mint_execution_id(1))
    finally:
        await shards.close()


async def test_the_times_and_numbers_of_an_activity_stay(shards: Shards, actor: Actor) -> None:
    run = await ended(shards)
    data = ActivityCompleted(Raw(VALUE), attempt=3)
    await add_events(shards, run, [(int(EventKind.ACTIVITY_COMPLETED), encode_data(data))], first=4)
    before = (await history_of(shards, run))[-1]
    await erase(shards, actor, run)
    after = (await history_of(shards, run))[-1]
    assert after == msgspec.structs.replace(before, payload=after.payload)
    assert after.data().attempt == 3
    assert (await reading.get(shards, run)).started_at == EPOCH
