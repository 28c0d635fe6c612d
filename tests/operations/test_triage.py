"""Triage: owner, severity and note of a run, each set, kept or cleared, and audited with the change."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from msgspec import UNSET

from harvest.errors import ExecutionNotFoundError, InvalidRequestError, LimitError
from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.operations import reading
from harvest.operations.actor import Actor
from harvest.operations.auditing import AuditFilter, AuditView, list_audit
from harvest.operations.listing import ListFilter, list_executions
from harvest.operations.triage import NOTE_BYTES, TriageChange, TriagedRun, change_triage
from harvest.shards import Shards
from tests.operations.population import Run, add


async def audited(shards: Shards, execution_id: UUID) -> list[AuditView]:
    page = await list_audit(shards, AuditFilter(target_id=str(execution_id)))
    return page.rows.rows


async def test_a_field_is_set_kept_and_cleared(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 1, Run(state=State.FAILED))
    first = await change_triage(shards, actor, run, TriageChange(owner="payments", severity="sev2", note="card down"))
    assert first == TriagedRun(
        execution_id=run,
        changed_fields=("owner", "severity", "note"),
        owner="payments",
        severity="sev2",
        note="card down",
    )
    second = await change_triage(shards, actor, run, TriageChange(severity=None, note="card down"))
    assert (second.changed_fields, second.owner, second.severity) == (("severity",), "payments", None)


async def test_the_list_the_page_and_filters_show_it(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 1, Run(state=State.COMPLETED))
    await add(shards, 0, Run(workflow_id="o-2"))
    await change_triage(shards, actor, run, TriageChange(owner="payments", severity="sev1", note="n"))
    detail = await reading.get(shards, run)
    assert (detail.owner, detail.severity, detail.note) == ("payments", "sev1", "n")
    for wanted in (ListFilter(owner="payments"), ListFilter(severity="sev1"), ListFilter(filter="owner = 'payments'")):
        rows = (await list_executions(shards, wanted)).executions.rows
        assert [(row.execution_id, row.owner, row.severity) for row in rows] == [(run, "payments", "sev1")]


async def test_a_change_is_audited_on_the_shard_of_the_run(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 1, Run())
    await change_triage(shards, actor, run, TriageChange(owner="payments", note="n"))
    (entry,) = await audited(shards, run)
    assert (entry.operation, entry.shard_id, entry.status) == ("workflow.triage", 1, "succeeded")
    assert entry.reason == "owner, note"


async def test_what_changes_nothing_is_audited_as_that(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 1, Run())
    done = await change_triage(shards, actor, run, TriageChange(owner=None))
    assert done.changed_fields == ()
    (entry,) = await audited(shards, run)
    assert entry.error_summary == "it was so before"


async def test_a_run_without_triage_has_no_row(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 0, Run())
    await change_triage(shards, actor, run, TriageChange(owner="payments"))
    await change_triage(shards, actor, run, TriageChange(owner="", note=None))
    assert await shards.store(0).read.fetch("select from harvest_triage") == []


async def test_two_at_once_keep_what_the_other_set(shards: Shards, actor: Actor) -> None:
    run = await add(shards, 0, Run())
    changes = [TriageChange(owner="payments"), TriageChange(severity="sev3"), TriageChange(note="n")]
    await asyncio.gather(*(change_triage(shards, actor, run, change) for change in changes))
    detail = await reading.get(shards, run)
    assert (detail.owner, detail.severity, detail.note) == ("payments", "sev3", "n")


async def test_a_run_that_is_not_there_is_named(shards: Shards, actor: Actor) -> None:
    missing = mint_execution_id(1)
    with pytest.raises(ExecutionNotFoundError, match=str(missing)):
        await change_triage(shards, actor, missing, TriageChange(owner="payments"))
    (entry,) = await audited(shards, missing)
    assert entry.status == "failed"


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (TriageChange(), InvalidRequestError, "nothing to change"),
        (TriageChange(severity="sev5"), InvalidRequestError, "sev1, sev2, sev3, sev4"),
        (TriageChange(owner="o" * 256), LimitError, "255"),
        (TriageChange(owner="a\x00b"), LimitError, "NUL"),
        (TriageChange(note="é" * NOTE_BYTES), LimitError, f"{NOTE_BYTES}"),
        (TriageChange(owner=UNSET, note="\udc80"), LimitError, "surrogate"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_written(
    shards: Shards, actor: Actor, change: TriageChange, error: type[Exception], said: str
) -> None:
    run = await add(shards, 0, Run())
    with pytest.raises(error, match=said):
        await change_triage(shards, actor, run, change)
    assert await audited(shards, run) == []
