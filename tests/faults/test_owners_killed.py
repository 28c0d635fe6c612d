"""Owners that die, end, join and leave: what they owned is decided on by others, in time (issue 4, Must show 2)."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from harvest import clock
from tests.faults.owners import PATIENCE, Load, Owners, owners
from tests.scale import scale
from tests.support import check_invariants, eventually

SEED = 4
KILLS = scale(2, 20)
LEASE = scale(3, 10)
RUNS, TIMES = scale(40, 600), scale(6, 20)
SETTLED_SCANS = 3
pytestmark = [pytest.mark.slow, pytest.mark.prove_ownership, pytest.mark.timeout(scale(300, 1800))]


async def test_what_a_killed_owner_had_is_decided_on_right_after_its_lease(
    new_database: Callable[[str], str], tmp_path: Path, full_scale: bool, proof: Callable[..., None]
) -> None:
    chance = random.Random(SEED)
    late: list[float] = []
    async with owners(new_database("killed_owner"), tmp_path, ("a", "b"), LEASE) as fleet:
        load = Load(fleet, chance, RUNS, KILLS + 1)
        await load.start()
        for number in range(KILLS):
            await clock.sleep(chance.uniform(0, 1))
            victim = "ab"[number % 2]
            late.append(await _seconds_after_the_lease(fleet, load, victim))
            fleet.start(victim)
            await fleet.settled("a", "b")
        await load.one_more()
        await load.finished()
        await check_invariants(fleet.shards)
    proof("killed owners", seed=SEED, kills=KILLS, runs=RUNS, lease=LEASE, longest=max(late), seconds=late)
    if full_scale:
        assert max(late) <= 1.0


async def _seconds_after_the_lease(fleet: Owners, load: Load, victim: str) -> float:
    """Kill an owner while every run hears a number; when the last of its runs was decided on, after its lease."""
    row = await fleet.worker(victim)
    owned = await fleet.partitions_of(row["worker"])
    fleet.processes[victim].kill()
    since = await fleet.now()
    await load.one_more()
    await load.parked()
    ended = (await fleet.worker(victim))["lease_until"]
    expired = await fleet.journal(since, "expired", row["worker"])
    assert {each["partition"] for each in expired} == owned, "each of its partitions was taken over as expired"
    decided = [each.decided for each in await load.answered(since) if each.partition in owned]
    assert decided, "it had runs"
    assert min(each["at"] for each in expired) >= ended, "nobody takes what a living lease covers"
    return float((max(decided) - ended).total_seconds())


async def test_an_owner_that_ends_hands_over_warm_runs_at_once(
    new_database: Callable[[str], str], tmp_path: Path, full_scale: bool, proof: Callable[..., None]
) -> None:
    chance = random.Random(SEED)
    async with owners(new_database("ending_owner"), tmp_path, ("a", "b"), LEASE) as fleet:
        load = Load(fleet, chance, RUNS, TIMES)
        await load.start()
        leaver = await fleet.worker("a")
        owned = await fleet.partitions_of(leaver["worker"])
        before = await fleet.counters("b")
        since = await fleet.now()
        streaming = asyncio.create_task(load.stream(TIMES / 3))
        await clock.sleep(chance.uniform(0.5, 1.5))
        fleet.processes["a"].signal(signal.SIGTERM)
        assert await fleet.processes["a"].ended(PATIENCE) == 0
        await fleet.settled("b")
        await streaming
        await load.finished()
        after = await fleet.counters("b")
        released = await fleet.journal(since, "released", leaver["worker"])
        assert {each["partition"] for each in released} == owned
        assert {each["detail"] for each in released} == {"handed over"}, "each went to its heir, none was let fall"
        assert not await fleet.journal(since, "expired", leaver["worker"])
        answered = await load.answered(since)
        gap = max(each.seconds for each in answered if each.partition in owned)
        beside = max(each.seconds for each in answered if each.partition not in owned)
        wanted = ("decisions_cold", "decisions_warm", "declined_overtaken")
        grown = {name: after[name] - before[name] for name in wanted}
        # A number that comes as a step ends costs a replay wherever the run lives: that is no matter of its owner.
        cold = max(0, grown["decisions_cold"] - grown["declined_overtaken"])
        share = cold / (grown["decisions_cold"] + grown["decisions_warm"])
        await check_invariants(fleet.shards)
    proof(
        "ended owner", seed=SEED, runs=RUNS, partitions=len(owned), longest_gap=gap, beside=beside, cold=share, **grown
    )
    assert share < 0.02
    if full_scale:
        assert gap < 0.5


async def test_who_joins_and_leaves_under_load_loses_and_doubles_nothing(
    new_database: Callable[[str], str], tmp_path: Path, full_scale: bool, proof: Callable[..., None]
) -> None:
    chance = random.Random(SEED)
    async with owners(new_database("joining_owner"), tmp_path, ("a", "b"), LEASE) as fleet:
        load = Load(fleet, chance, RUNS, TIMES)
        await load.start()
        since = await fleet.now()
        streaming = asyncio.create_task(load.stream(TIMES / 2))
        await clock.sleep(chance.uniform(0, 1))
        fleet.start("c")
        await fleet.settled("a", "b", "c")
        joiner = await fleet.worker("c")
        acquired = await fleet.journal(since, "acquired", joiner["worker"])
        joined = (acquired[-1]["at"] - joiner["started_at"]).total_seconds()
        await clock.sleep(chance.uniform(0, 1))
        told = await fleet.now()
        fleet.processes["c"].signal(signal.SIGTERM)
        await fleet.settled("a", "b")
        released = await fleet.journal(told, "released", joiner["worker"])
        left = (released[-1]["at"] - told).total_seconds()
        await streaming
        await load.finished()
        await check_invariants(fleet.shards)
        await _nothing_was_fenced(fleet)
    proof("join and leave", seed=SEED, runs=RUNS, joined_seconds=joined, left_seconds=left)
    if full_scale:
        assert max(joined, left) <= SETTLED_SCANS


async def _nothing_was_fenced(fleet: Owners) -> None:
    """Where everybody hands over, nobody commits too late."""

    async def none() -> bool:
        rows = await fleet.store.read.fetch("select from harvest_partition_journal where event = 'fenced'")
        return not rows

    await eventually(none)
