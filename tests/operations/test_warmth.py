"""Warmth is summed from the rows of workers: by outcome, type, queue, worker and time; a missing shard is named."""

from __future__ import annotations

import uuid
from datetime import timedelta

from harvest.operations.warmth import warmth
from harvest.shards import Shards
from harvest.store import rollups
from harvest.store.measures import BOUNDS, Share, Totals

WORKER = uuid.UUID(int=1)


def totals(*shares: tuple[str, str, str, str, int], residents: int = 0) -> Totals:
    """Shares as workflow, queue, outcome, reason and count; each attempt took a millisecond, two events, ten bytes."""
    found = Totals()
    for workflow, queue, outcome, reason, count in shares:
        buckets = [0] * (len(BOUNDS) + 1)
        buckets[10] = count
        key = (workflow, queue, outcome, reason, "resident" if outcome == "hit" else "postgres")
        found.shares[key] = Share(count=count, sum=count / 1_000, buckets=buckets, events=2 * count, bytes=10 * count)
    found.count(("commit.statements",), 1)
    found.gauges[("worker.residents",)] = residents
    found.gauges[("worker.resident_bytes",)] = residents * 7
    return found


async def test_everything_is_summed_over_shards_and_told_apart_by_group(shards: Shards) -> None:
    one, two = shards.stores.values()
    await rollups.write(one, WORKER, 5.0, totals(("a", "fast", "hit", "", 90), ("a", "fast", "cold", "first", 10)))
    await rollups.write(two, WORKER, 5.0, totals(("b", "slow", "cold", "evicted", 10), residents=3))

    found = await warmth(shards, "5m")
    assert found.status == "complete"
    assert found.decisions == 110
    assert found.resident == {"hit": 90, "cold": 20}
    assert found.reasons == {"first": 10, "evicted": 10}
    assert found.warm_share == 0.9
    assert (found.events_loaded, found.bytes_loaded) == (220, 1_100)
    assert [(group.name, group.decisions, group.warm_share) for group in found.by_workflow] == [
        ("a", 100, 1.0),
        ("b", 10, 0.0),
    ]
    assert [group.name for group in found.by_queue] == ["fast", "slow"]
    (worker,) = found.by_worker
    assert (worker.worker, worker.decisions, worker.residents, worker.resident_bytes) == (WORKER, 110, 3, 21)
    assert {each.outcome: each.count for each in found.durations} == {"hit": 90, "cold": 20}
    assert 0.5 < found.durations[0].p50 <= 1.024


async def test_buckets_have_no_holes_and_sum_to_the_whole(shards: Shards) -> None:
    await rollups.write(shards.stores[0], WORKER, 5.0, totals(("a", "q", "hit", "", 4)))
    found = await warmth(shards, "5m")
    assert len(found.buckets) == 30
    assert {after.at - before.at for before, after in zip(found.buckets, found.buckets[1:], strict=False)} == {
        timedelta(seconds=found.bucket_seconds)
    }
    assert sum(bucket.decisions for bucket in found.buckets) == found.decisions == 4
    assert sum(bucket.commits for bucket in found.buckets) == 1


async def test_a_day_is_read_from_coarse_rows_and_no_attempt_is_counted_twice(shards: Shards) -> None:
    store = shards.stores[0]
    await rollups.write(store, WORKER, 5.0, totals(("a", "q", "hit", "", 4)))
    await rollups.write(store, WORKER, 300.0, totals(("a", "q", "hit", "", 4)))
    await rollups.write(store, WORKER, 5.0, totals(("a", "q", "hit", "", 1)))

    assert (await warmth(shards, "24h")).decisions == 5
    assert (await warmth(shards, "1h")).decisions == 5


async def test_nothing_decided_has_no_share(shards: Shards) -> None:
    found = await warmth(shards)
    assert (found.decisions, found.warm_share, found.by_worker) == (0, None, [])


async def test_what_is_outside_the_window_is_not_in_it(shards: Shards) -> None:
    store = shards.stores[0]
    await rollups.write(store, WORKER, 5.0, totals(("a", "q", "hit", "", 4)))
    await store.write.write("update harvest_rollups set at = at - interval '10 minutes'")
    assert (await warmth(shards, "5m")).decisions == 0
    assert (await warmth(shards, "1h")).decisions == 4


async def test_rows_that_nobody_reads_any_more_are_swept(shards: Shards) -> None:
    store = shards.stores[0]
    for seconds, age in ((5.0, "3 hours"), (300.0, "3 hours"), (300.0, "26 hours"), (5.0, "1 hour")):
        await rollups.write(store, WORKER, seconds, totals())
        await store.write.write(
            f"update harvest_rollups set at = at - interval '{age}' where at > clock_timestamp() - interval '1 minute'"
        )
    await rollups.sweep(store)
    rows = await store.read.fetch("select seconds from harvest_rollups order by seconds")
    assert [row["seconds"] for row in rows] == [5.0, 300.0]


async def test_a_shard_that_does_not_answer_is_named(shards: Shards) -> None:
    await rollups.write(shards.stores[0], WORKER, 5.0, totals(("a", "q", "hit", "", 4)))
    beside = await Shards.open({0: shards.stores[0].url, 1: "postgresql://postgres@/x?host=/nonexistent"})
    try:
        found = await warmth(beside, "5m")
    finally:
        await beside.close()
    assert found.status == "partial"
    assert [shard.shard_id for shard in found.missing] == [1]
    assert found.decisions == 4
