"""Legal holds: set, kept, run out and released, each audited; a run that is held cannot be erased."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from harvest import clock
from harvest.errors import ExecutionNotFoundError, InvalidRequestError, LegalHoldError, LimitError
from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.operations import erasing, legal_holds
from harvest.operations.actor import Actor
from harvest.operations.auditing import AuditFilter, list_audit
from harvest.shards import Shards
from tests.operations.population import Run, add


async def audited(shards: Shards, execution_id: UUID) -> list[tuple[str, str, str | None]]:
    page = await list_audit(shards, AuditFilter(target_id=str(execution_id)))
    return [(entry.operation, entry.status, entry.reason or entry.error_summary) for entry in page.rows.rows]


async def run_out(shards: Shards, shard_id: int) -> None:
    """Let the time of every hold of a shard have passed."""
    await shards.store(shard_id).write.write(
        "update harvest_legal_holds set hold_until = clock_timestamp() - interval '1 second'"
    )


@pytest.mark.parametrize("state", [State.RUNNING, State.PAUSED, State.FAILED, State.CONTINUED_AS_NEW])
async def test_a_run_of_any_state_can_be_held(shards: Shards, actor: Actor, state: State) -> None:
    run = await add(shards, 1, Run(state=state))
    done = await legal_holds.hold(shards, actor, run, reason="case 7")
    assert (done.held, done.newly_held) == (True, True)
    assert (done.hold.execution_id, done.hold.reason, done.hold.actor) == (run, "case 7", "token:admin")
    assert done.hold.hold_until is None
    assert await legal_holds.hold_of(shards, run) == done.hold
    assert await audited(shards, run) == [("legal_hold.set", "succeeded", "case 7")]


async def test_a_hold_that_is_in_force_is_kept_as_it_is(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 0, Run())
    first = await legal_holds.hold(shards, actor, run, reason="case 7")
    again = await legal_holds.hold(shards, actor, run, reason="case 8", hold_until=clock.now() + timedelta(days=1))
    assert (again.held, again.newly_held, again.hold) == (True, False, first.hold)
    assert (await audited(shards, run))[0] == ("legal_hold.set", "succeeded", "the run was held before")


async def test_a_hold_that_has_run_out_is_none_and_is_replaced(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 0, Run(state=State.COMPLETED))
    until = clock.now() + timedelta(days=1)
    first = await legal_holds.hold(shards, actor, run, reason="case 7", hold_until=until)
    assert first.hold.hold_until == until
    await run_out(shards, 0)
    assert await legal_holds.hold_of(shards, run) is None
    again = await legal_holds.hold(shards, actor, run, reason="case 8")
    assert (again.newly_held, again.hold.reason, again.hold.hold_until) == (True, "case 8", None)
    assert again.hold.set_at > first.hold.set_at


async def test_a_run_that_is_held_is_not_erased_until_it_is_released(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 0, Run(state=State.COMPLETED, input=b"1"))
    await legal_holds.hold(shards, actor, run, reason="case 7")
    with pytest.raises(LegalHoldError, match="legal hold"):
        await erasing.erase_payloads(shards, actor, run, reason="asked")
    assert await legal_holds.release(shards, actor, run, reason="case closed")
    assert (await erasing.erase_payloads(shards, actor, run, reason="asked")).run.newly_erased
    assert await audited(shards, run) == [
        ("workflow.erase_payloads", "succeeded", "asked"),
        ("legal_hold.release", "succeeded", "case closed"),
        ("workflow.erase_payloads", "failed", f"execution {run} is under a legal hold; release that first"),
        ("legal_hold.set", "succeeded", "case 7"),
    ]


async def test_a_hold_that_has_run_out_keeps_nothing_from_being_erased(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 0, Run(state=State.COMPLETED, input=b"1"))
    await legal_holds.hold(shards, actor, run, reason="case 7")
    await run_out(shards, 0)
    assert (await erasing.plan(shards, run)).blockers == []
    assert (await erasing.erase_payloads(shards, actor, run, reason="asked")).run.newly_erased


async def test_releasing_what_is_not_held_is_no_error(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 0, Run())
    assert not await legal_holds.release(shards, actor, run)
    await legal_holds.hold(shards, actor, run, reason="case 7")
    assert await legal_holds.release(shards, actor, run)
    assert not await legal_holds.release(shards, actor, run)
    assert await legal_holds.hold_of(shards, run) is None
    assert (await audited(shards, run))[0] == ("legal_hold.release", "succeeded", "the run was not held")


async def test_of_two_at_once_one_holds(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 0, Run())
    done = await asyncio.gather(*(legal_holds.hold(shards, actor, run, reason=f"case {n}") for n in range(4)))
    assert sum(each.newly_held for each in done) == 1
    assert len({each.hold.reason for each in done}) == 1


async def test_a_run_that_is_not_there_is_named(shards: Shards, actor: Actor) -> None:
    missing = mint_execution_id(1)
    with pytest.raises(ExecutionNotFoundError, match=str(missing)):
        await legal_holds.hold(shards, actor, missing, reason="case 7")
    with pytest.raises(ExecutionNotFoundError, match=str(missing)):
        await legal_holds.release(shards, actor, missing)
    assert [status for _, status, _ in await audited(shards, missing)] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("reason", "until", "error", "said"),
    [
        ("", None, LimitError, "reason must not be empty"),
        (" ", None, InvalidRequestError, "reason must say why"),
        ("a\x00b", None, LimitError, "NUL"),
        ("case 7", datetime(2020, 1, 1, tzinfo=UTC), InvalidRequestError, "in the future"),
        ("case 7", datetime(2120, 1, 1, tzinfo=UTC).replace(tzinfo=None), InvalidRequestError, "time zone"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_written(
    shards: Shards, actor: Actor, reason: str, until: datetime | None, error: type[Exception], said: str
) -> None:
    run = await add(shards, 0, Run())
    with pytest.raises(error, match=said):
        await legal_holds.hold(shards, actor, run, reason=reason, hold_until=until)
    assert await legal_holds.hold_of(shards, run) is None
    assert await audited(shards, run) == []
