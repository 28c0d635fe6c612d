"""The suites have teeth: each fault that is planted here is found by one of them (design 9)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.replay import (
    differential,
    plants_of_constructs,
    plants_of_loop,
    test_continuing,
    test_joining,
    test_locals,
    test_messages,
    test_placements,
    test_queries,
    test_run,
    test_updates,
    test_versions,
)
from tests.replay.edits import every_edit_is_reported
from tests.replay.planting import PLANTS

PROGRAMS = 250
PLANTED_BY = (plants_of_loop, plants_of_constructs)
QUICK: tuple[Callable[[], None], ...] = (
    test_run.test_signals_of_the_starting_transaction_come_before_the_code_runs,
    test_run.test_what_is_asked_for_and_dropped_within_one_step_vanishes,
    test_run.test_tasks_hash_by_the_seed_and_not_by_a_bare_number,
    test_queries.test_a_handler_leaves_no_mark_in_the_context_of_the_code,
    test_queries.test_the_loop_and_hooks_of_the_asker_are_its_own_again,
    test_versions.test_removing_a_patch_that_runs_have_recorded_is_reported,
    test_versions.test_what_a_side_effect_raises_is_recorded_too,
    test_updates.test_a_validator_may_change_from_build_to_build,
    test_messages.test_what_a_signal_handler_raises_fails_the_run,
    test_messages.test_a_handler_takes_what_has_come_first_and_then_all_that_comes,
    test_messages.test_a_handlers_defaults_are_its_own_runs,
    test_continuing.test_a_cancel_request_that_came_after_the_code_had_left_goes_along,
    test_continuing.test_an_update_under_way_is_answered_and_does_not_go_along,
    test_locals.test_the_end_of_another_call_that_had_the_number_is_nobodys,
    test_placements.test_a_placed_child_that_is_taken_back_at_once_is_recorded,
    test_joining.test_a_race_is_won_by_who_ended_first_and_not_by_who_stands_first,
    lambda: test_continuing.test_a_run_that_was_asked_to_end_is_not_tried_again(after_the_end=True),
)


def _suites(caplog: pytest.LogCaptureFixture) -> None:
    """What runs for each change of the engine, at a small size."""
    for quick in QUICK:
        quick()
    every_edit_is_reported(bases=2, inserted=1)
    test_run.test_logs_speak_only_when_the_code_is_live(caplog)
    for seed in range(PROGRAMS):
        differential.check(seed)


@pytest.mark.prove_main_job
@pytest.mark.prove_whole_core
@pytest.mark.parametrize("name", PLANTS)
def test_the_fault_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, proof: Callable[..., None]
) -> None:
    with monkeypatch.context() as patch:
        PLANTS[name](patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)) as found:
            _suites(caplog)
    asyncio._set_running_loop(None)
    differential.let_go_of_all()
    proof("planted fault found", fault=name.replace("_", " "), by=str(found.value).splitlines()[0][:120])


def test_without_a_fault_nothing_is_found(caplog: pytest.LogCaptureFixture) -> None:
    _suites(caplog)


def test_there_are_enough_of_them() -> None:
    assert len(PLANTS) >= 40
