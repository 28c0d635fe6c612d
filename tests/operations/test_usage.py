"""The usage report: what counts, in which window and for whom; what does not; and what cannot be asked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from harvest import clock
from harvest.errors import InvalidRequestError, LimitError, TooManyGroupsError
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.operations import usage
from harvest.operations.usage import UNATTRIBUTED, Usage, UsageGroup, UsageQuestion
from harvest.shards import ShardRouter, Shards
from harvest.store import costs
from harvest.store.costs import CostRow
from tests.operations.population import EPOCH, Happened, Run, add, add_history

MICROSECOND = timedelta(microseconds=1)
SINCE, UNTIL = EPOCH, EPOCH + timedelta(hours=1)
K = EventKind


def at(after: float, kind: EventKind, seq: int = 0) -> Happened:
    """An event so many seconds after the window's beginning."""
    return Happened(kind=kind, after=after, seq=seq)


async def a_run(shards: Shards, events: Sequence[Happened] = (), *, shard_id: int = 0, **run: Any) -> UUID:
    """A run that started long before the window, unless it says otherwise, with this history."""
    execution_id = await add(shards, shard_id, Run(**{"workflow_id": str(mint_execution_id(0)), "age": 1e6, **run}))
    await add_history(shards, execution_id, events)
    return execution_id


async def report(shards: Shards, attribute: str | None = None, **window: datetime) -> Usage:
    """The report of an hour from `EPOCH` on."""
    question = UsageQuestion(**{"since": SINCE, "until": UNTIL, "attribute": attribute, **window})
    return await usage.report_usage(shards, question)


async def only(shards: Shards, **window: datetime) -> UsageGroup:
    """The report's one group."""
    (group,) = (await report(shards, **window)).groups
    return group


# What counts


async def test_a_start_counts_in_the_window_that_it_falls_in_both_ends_included(shards: Shards) -> None:
    for instant in (SINCE - MICROSECOND, SINCE, UNTIL, UNTIL + MICROSECOND):
        await a_run(shards, age=(EPOCH - instant).total_seconds())
    assert await only(shards) == UsageGroup(group="order_flow", workflow_starts=2)


async def test_outcomes_count_by_their_events_and_the_ends_of_the_window_are_in_it(shards: Shards) -> None:
    hour, step = 3600, 1e-6
    for kind in (K.WORKFLOW_COMPLETED, K.WORKFLOW_FAILED, K.WORKFLOW_CANCELLED, K.WORKFLOW_EXECUTION_TIMED_OUT):
        for after in (-step, 0, hour, hour + step):
            await a_run(shards, [at(-10, K.WORKFLOW_STARTED), at(after, kind)])
    assert await only(shards) == UsageGroup(group="order_flow", completed=2, failed=2, cancelled=2, timed_out=2)


async def test_terminated_runs_and_continued_ones_are_no_outcome(shards: Shards) -> None:
    for kind in (K.WORKFLOW_TERMINATED, K.WORKFLOW_CONTINUED_AS_NEW, K.WORKFLOW_CANCEL_REQUESTED):
        await a_run(shards, [at(-10, K.WORKFLOW_STARTED), at(5, kind)])
    assert (await report(shards)).groups == []


async def test_what_becomes_of_the_row_later_changes_no_outcome(shards: Shards) -> None:
    failed = await a_run(shards, [at(1, K.WORKFLOW_STARTED), at(2, K.WORKFLOW_FAILED)])
    await shards.store(0).write.write("update harvest_executions set state = 0 where execution_id = $1", failed)
    assert (await only(shards)).failed == 1


async def test_each_attempt_that_began_in_the_window_counts(shards: Shards) -> None:
    await a_run(
        shards,
        [
            at(-5, K.ACTIVITY_SCHEDULED, 1),
            at(-4, K.ACTIVITY_STARTED, 1),
            at(0, K.ACTIVITY_STARTED, 1),
            at(3600, K.ACTIVITY_STARTED, 1),
            at(3600.000001, K.ACTIVITY_STARTED, 1),
        ],
    )
    assert await only(shards) == UsageGroup(group="order_flow", activity_executions=2)


async def test_compute_is_the_last_attempts_time_also_where_it_began_before_the_window(shards: Shards) -> None:
    await a_run(
        shards,
        [
            at(-900, K.ACTIVITY_SCHEDULED, 1),
            at(-800, K.ACTIVITY_STARTED, 1),
            at(-100, K.ACTIVITY_STARTED, 1),
            at(-90, K.ACTIVITY_SCHEDULED, 2),
            at(-90, K.ACTIVITY_STARTED, 2),
            at(0.000001, K.ACTIVITY_COMPLETED, 1),
            at(1, K.ACTIVITY_SCHEDULED, 3),
            at(1, K.ACTIVITY_STARTED, 3),
            at(50, K.ACTIVITY_STARTED, 3),
            at(52.5, K.ACTIVITY_FAILED, 3),
            at(3599, K.ACTIVITY_STARTED, 4),
            at(3601, K.ACTIVITY_COMPLETED, 2),
            at(3602, K.ACTIVITY_COMPLETED, 4),
        ],
    )
    assert await only(shards) == UsageGroup(
        group="order_flow",
        activity_executions=3,
        activity_executions_failed=1,
        activity_compute_seconds=100.000001 + 2.5,
    )


async def test_an_end_that_two_clocks_put_before_its_start_took_no_time(shards: Shards) -> None:
    await a_run(shards, [at(5, K.ACTIVITY_STARTED, 1), at(4.9995, K.ACTIVITY_COMPLETED, 1)])
    assert await only(shards) == UsageGroup(group="order_flow", activity_executions=1)


async def test_a_failure_counts_once_and_only_where_an_attempt_had_begun(shards: Shards) -> None:
    await a_run(
        shards,
        [
            at(-9, K.ACTIVITY_SCHEDULED, 1),
            at(-8, K.ACTIVITY_STARTED, 1),
            at(1, K.ACTIVITY_FAILED, 1),
            at(2, K.ACTIVITY_SCHEDULED, 2),
            at(2, K.ACTIVITY_STARTED, 2),
            at(3, K.ACTIVITY_TIMED_OUT, 2),
            at(4, K.ACTIVITY_SCHEDULED, 3),
            at(6, K.ACTIVITY_TIMED_OUT, 3),
            at(7, K.ACTIVITY_SCHEDULED, 4),
            at(8, K.ACTIVITY_FAILED, 4),
        ],
    )
    found = await only(shards)
    assert (found.activity_executions, found.activity_executions_failed) == (1, 2)
    assert found.activity_compute_seconds == 9 + 1


async def test_local_activities_are_no_attempts_and_no_compute(shards: Shards) -> None:
    await a_run(
        shards,
        [
            at(1, K.LOCAL_ACTIVITY_SCHEDULED, 1),
            at(2, K.LOCAL_ACTIVITY_COMPLETED, 1),
            at(3, K.LOCAL_ACTIVITY_SCHEDULED, 2),
            at(4, K.LOCAL_ACTIVITY_FAILED, 2),
        ],
    )
    assert (await report(shards)).groups == []


async def test_the_ledger_is_summed_by_when_it_was_recorded(shards: Shards) -> None:
    run = await a_run(shards)
    for number, cost in enumerate((None, 5, 7, 11), start=1):
        await costs.record(shards.store(0), [CostRow(run, 1, 1, number, 0, "m", 100 * number, 10, cost, 1000)])
    for number, instant in enumerate((SINCE - MICROSECOND, SINCE, UNTIL, UNTIL + MICROSECOND)):
        await shards.store(0).write.write(
            "update harvest_cost_ledger set recorded_at = $1 where number = $2", instant, number % 4 + 1
        )
    await costs.record(shards.store(0), [CostRow(run, 2, 1, 1, 0, "m", 1, 1, None, 1)])
    await shards.store(0).write.write("update harvest_cost_ledger set recorded_at = $1 where seq = 2", SINCE)
    assert await only(shards) == UsageGroup(
        group="order_flow",
        llm_calls=3,
        llm_input_tokens=200 + 300 + 1,
        llm_output_tokens=21,
        llm_cost_usd_micros=5 + 7,
        llm_unpriced_calls=1,
        llm_latency_ms=2001,
    )


# Groups and shards


async def test_groups_are_types_by_name_summed_over_the_shards(shards: Shards) -> None:
    for shard_id, name in ((0, "b_flow"), (1, "b_flow"), (1, "a_flow")):
        events = [at(1, K.ACTIVITY_STARTED, 1), at(1.1, K.ACTIVITY_COMPLETED, 1)]
        await a_run(shards, events, shard_id=shard_id, workflow_name=name)
    found = await report(shards)
    assert [(group.group, group.activity_executions) for group in found.groups] == [("a_flow", 1), ("b_flow", 2)]
    assert found.groups[1].activity_compute_seconds == 0.2
    assert (found.status, found.missing) == ("complete", ())
    total = usage.sum_of(found.groups)
    assert (total.activity_executions, total.activity_compute_seconds) == (3, 0.3)


async def test_groups_by_an_attribute_are_its_texts_and_runs_without_it_are_not_dropped(shards: Shards) -> None:
    shown = ('{"tenant": "acme"}', '{"tenant": 7}', '{"tenant": true}', '{"tenant": ["a", "b"]}', '{"tenant": ""}')
    for attributes in (*shown, '{"tenant": null}', '{"other": 1}', None):
        await a_run(shards, [at(1, K.WORKFLOW_COMPLETED)], search_attributes=attributes)
    found = {group.group: group.completed for group in (await report(shards, "tenant")).groups}
    assert found == {"acme": 1, "7": 1, "true": 1, '["a", "b"]': 1, "": 1, UNATTRIBUTED: 3}


@pytest.mark.parametrize("key", ["it's", 'a"b', "a.b", "%s", "$3", "{name}", "; drop table harvest_events"])
async def test_an_attributes_name_is_a_value_and_never_sql(shards: Shards, key: str) -> None:
    await a_run(shards, [at(1, K.WORKFLOW_COMPLETED)], search_attributes='{"it\'s": "x"}')
    (group,) = (await report(shards, key)).groups
    assert group.group == ("x" if key == "it's" else UNATTRIBUTED)


async def test_a_shard_that_does_not_answer_is_named_and_the_others_are_counted(shards: Shards) -> None:
    await a_run(shards, [at(1, K.WORKFLOW_COMPLETED)])
    wider = Shards({0: shards.store(0).url, 5: "postgresql://postgres@/x?host=/nonexistent"}, ShardRouter.of((0, 5)))
    try:
        found = await report(wider)
    finally:
        await wider.close()
    assert (found.status, [shard.shard_id for shard in found.missing]) == ("partial", [5])
    assert [(group.group, group.completed) for group in found.groups] == [("order_flow", 1)]


async def test_no_small_group_is_left_out_and_too_many_are_refused(shards: Shards) -> None:
    write = shards.store(1).write.write
    many = """
        insert into harvest_executions
          (execution_id, business_key, started_at, next_event_id, version, partition, workflow_name, workflow_id)
        select gen_random_uuid(), gen_random_uuid(), $1, 2, 1, 0, 'type_' || n, 'w' from generate_series($2::int, $3) n
    """
    await write(many, SINCE, 1, usage.MOST_GROUPS)
    found = await report(shards)
    assert len(found.groups) == usage.MOST_GROUPS
    assert {group.workflow_starts for group in found.groups} == {1}
    await write(many, SINCE, 0, 0)
    with pytest.raises(TooManyGroupsError, match="more than 10,000 groups by workflow_name") as told:
        await report(shards)
    assert told.value.status == 413


# Questions


def asked(since: str, until: str, group_by: str = "workflow_name") -> UsageQuestion:
    return usage.asked(since, until, group_by, ceiling_days=90)


def test_a_window_is_of_instants_in_any_zone() -> None:
    found = asked("2026-06-01T02:00:00.000001+02:00", "2026-07-01T00:00:00Z", "search_attr:tenant_id")
    assert (found.since, found.until) == (datetime(2026, 6, 1, 0, 0, 0, 1, UTC), datetime(2026, 7, 1, tzinfo=UTC))
    assert (found.attribute, found.group_by) == ("tenant_id", "search_attr:tenant_id")


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86400), ("-24h", 86400), ("90m", 5400), ("7d", 604800), ("2w", 1209600), ("5s", 5)]
)
def test_a_span_is_measured_back_from_now(text: str, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: EPOCH)
    found = asked(text, "now")
    assert (found.since, found.until) == (EPOCH - timedelta(seconds=seconds), EPOCH)
    assert asked(text, "0s") == found


def test_the_longest_window_is_the_ceiling_to_the_microsecond() -> None:
    asked("90d", "now")
    asked("2026-01-01T00:00:00Z", "2026-04-01T00:00:00Z")
    with pytest.raises(InvalidRequestError, match=r"at most 90 days .* \(HARVEST_USAGE_WINDOW_CEILING_DAYS") as told:
        asked("2026-01-01T00:00:00Z", "2026-04-01T00:00:00.000001Z")
    assert (told.value.status, told.value.fields["ceiling_days"]) == (400, 90)
    with pytest.raises(InvalidRequestError, match="at most 2 days"):
        usage.asked("3d", "now", ceiling_days=2)


@pytest.mark.parametrize(
    ("since", "until", "field"),
    [
        ("yesterday", "now", "from"),
        ("2026-06-01T00:00:00", "now", "from"),
        ("2026-06-01", "now", "from"),
        ("", "now", "from"),
        ("24", "now", "from"),
        ("9999999w", "now", "from"),
        ("24h", "1y", "to"),
        ("1h", "2h", "from"),
    ],
)
def test_what_is_no_window_is_refused_by_its_field(since: str, until: str, field: str) -> None:
    with pytest.raises(InvalidRequestError) as told:
        asked(since, until)
    assert told.value.fields["field"] == field


@pytest.mark.parametrize("group_by", ["", "tenant", "search_attr", "Workflow_name"])
def test_what_is_no_grouping_is_refused(group_by: str) -> None:
    with pytest.raises(InvalidRequestError, match="it must be workflow_name, or search_attr:KEY"):
        asked("24h", "now", group_by)


@pytest.mark.parametrize("key", ["", "a\x00b", "k" * 256])
def test_an_attributes_name_that_cannot_be_is_refused(key: str) -> None:
    with pytest.raises(LimitError):
        asked("24h", "now", f"search_attr:{key}")


async def test_a_report_that_takes_too_long_says_so_and_the_others_are_counted(shards: Shards) -> None:
    await a_run(shards, [at(1, K.WORKFLOW_COMPLETED)], shard_id=1)
    blocked = shards.store(0)
    await blocked.report.write("set statement_timeout = 300")
    async with blocked.write.connection() as connection, connection.transaction():
        await connection.execute("lock table harvest_events in access exclusive mode")
        found = await report(shards)
    assert [(shard.shard_id, shard.reason) for shard in found.missing] == [(0, "the query took too long")]
    assert [group.completed for group in found.groups] == [1]
