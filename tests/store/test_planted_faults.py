"""The rules of the store have teeth: each planted fault is found by one of them (design 9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import ModuleType

import pytest

from harvest.store import appends, changes, commit_relations, deliveries, results
from harvest.store import commit_parts as commits
from harvest.store.store import Store
from tests.store import rules

Rule = Callable[[Store], Awaitable[None]]

FAULTS: dict[str, tuple[ModuleType, str, str, str, Rule]] = {
    "the fence dropped": (
        commits, "_DECIDED", "and t.worker is not distinct from $9", "and $9::uuid is not null",
        rules.a_stale_worker_cannot_commit,
    ),
    "the lease not looked at": (
        commits, "_DECIDED", "and w.lease_until > clock_timestamp()", "", rules.an_ended_lease_commits_nothing,
    ),
    "expected next_event_id ignored": (
        commits, "_DECIDED", "and d.expected = c.next_event_id", "", rules.only_the_exact_history_passes,
    ),
    "a stale attempt merged": (
        commits, "_MERGED", "and m.attempt = a.attempt", "", rules.a_stale_attempt_is_not_merged,
    ),
    "a stale attempt accepted": (
        results, "_END", "and a.attempt = r.attempt", "", rules.a_stale_attempt_ends_nothing,
    ),
    "dedupe ignored": (
        appends, "_APPEND", "and ($4::text is null or exists (select from fresh))", "", rules.a_signal_key_is_used_once,
    ),
    "the wake of a signal lost": (
        appends, "_APPEND", "when 2 then 0 when 1 then 3", "when 1 then 3", rules.a_signal_wakes_a_parked_run,
    ),
    "the wake of a result lost": (
        results, "_END", "when 2 then 0 when 1 then 3", "when 1 then 3", rules.a_result_wakes_a_parked_run,
    ),
    "the news of a held run lost": (
        appends, "_APPEND", "when 2 then 0 when 1 then 3", "when 2 then 0", rules.news_of_a_held_run_is_marked,
    ),
    "a close policy for the first run of a chain": (
        deliveries, "_RUNS", "e.state in (11, 15) and", "false and", rules.a_close_policy_finds_the_current_run,
    ),
    "an end told to who does not wait": (
        changes, "_HERE", "n.child_execution_id and k.awaited", "n.child_execution_id",
        rules.only_who_waits_is_told_of_an_end,
    ),
    "children left to a run that went on": (
        commit_relations, "_INHERITED", "c.parent_execution_id = h.execution_id", "false",
        rules.an_heir_takes_children_over,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_fault_is_found(store: Store, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, right, wrong, rule = FAULTS[fault]
    await rule(store)
    text: str = getattr(module, name)
    assert right in text
    monkeypatch.setattr(module, name, text.replace(right, wrong))
    monkeypatch.setattr(commits, "_statements", {})
    with pytest.raises(AssertionError):
        await rule(store)
