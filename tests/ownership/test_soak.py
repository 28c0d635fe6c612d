"""Half an hour of owner mode while its fleet has no rest: the invariants hold (issue 4, Must show 5)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harvest import clock
from harvest.shards import Shards
from tests.faults.owners import PATIENCE, owners
from tests.faults.test_chaos import nothing_is_open
from tests.ownership.soak import KINDS, Unrest, Work
from tests.scale import scale
from tests.support import check_invariants, eventually

SEED = 5
SECONDS, AT_ONCE, PAUSE = scale(20, 1800), scale(10, 60), scale(1, 10)
LEASE = scale(3, 10)


@pytest.mark.slow
@pytest.mark.prove_ownership_soak
@pytest.mark.timeout(scale(300, 3500))
async def test_a_fleet_without_rest_loses_and_doubles_nothing(
    new_database: Callable[[str], str], tmp_path: Path, proof: Callable[..., None]
) -> None:
    chance = random.Random(SEED)
    began = clock.monotonic()
    async with owners(new_database("soak"), tmp_path, ("a", "b"), LEASE) as fleet:
        work, unrest = Work(random.Random(SEED + 1), AT_ONCE), Unrest(fleet, chance)
        working = asyncio.create_task(work.run())
        unsettled = asyncio.create_task(_unsettle(unrest, chance, began))
        await asyncio.wait((working, unsettled), return_when=asyncio.FIRST_COMPLETED)
        work.stop()
        await asyncio.gather(working, unsettled)
        await eventually(lambda: nothing_is_open(fleet.shards), within=PATIENCE)
        await check_invariants(fleet.shards)
        await _one_owner_an_epoch(fleet.shards)
        refused = await _refused(fleet.shards)
    proof("unrest", seed=SEED, seconds=clock.monotonic() - began, **unrest.happened)
    proof("work", refused_late_commits=refused, **work.ended)


async def _unsettle(unrest: Unrest, chance: random.Random, began: float) -> None:
    """Everything once in some order, and over again until the time is up."""
    while True:
        for kind in chance.sample(KINDS, len(KINDS)):
            await clock.sleep(chance.uniform(0, 2 * PAUSE))
            await unrest.happen(kind)
        if clock.monotonic() - began > SECONDS:
            return


async def _one_owner_an_epoch(shards: Shards) -> None:
    """No epoch of a partition was ever acquired twice, and the map is at the newest."""
    twice: list[Any] = await shards.stores[0].read.fetch(
        "select partition, epoch from harvest_partition_journal where event = 'acquired' "
        "group by partition, epoch having count(*) > 1"
    )
    assert not twice
    behind: list[Any] = await shards.stores[0].read.fetch(
        "select p.partition from harvest_partitions p "
        "where p.epoch < (select max(j.epoch) from harvest_partition_journal j where j.partition = p.partition)"
    )
    assert not behind


async def _refused(shards: Shards) -> int:
    """How many commits came under an epoch that had passed."""
    rows = await shards.stores[0].read.fetch("select detail from harvest_partition_journal where event = 'fenced'")
    return sum(int(row["detail"].split()[0]) for row in rows)
