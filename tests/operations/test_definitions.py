"""What workers registered: the latest version over all shards, for seven days, alive or not."""

from __future__ import annotations

import pytest

from harvest.errors import ShardUnavailableError, WorkflowNotRegisteredError
from harvest.operations import definitions
from harvest.shards import Shards
from tests.operations.population import register

DEAD = "postgresql://postgres@/x?host=/nonexistent"


async def test_the_latest_version_of_all_shards_is_shown_once(shards: Shards) -> None:
    await register(shards, 0, "order_flow", version=1)
    await register(shards, 1, "order_flow", version=2)
    await register(shards, 1, "refund_flow")
    known = await definitions.registered(shards)
    assert [(each.name, each.version) for each in known.rows] == [("order_flow", 2), ("refund_flow", 1)]
    assert known.rows[0].input_schema == {"type": "integer", "x-version": 2}
    assert known.rows[0].signals == {"approved": {"type": "object"}}


async def test_a_type_is_live_while_a_worker_that_has_it_holds_a_lease(shards: Shards) -> None:
    await register(shards, 0, "gone", live=False, build="old", seen="2 days")
    await register(shards, 0, "here")
    await register(shards, 1, "half", live=False)
    await register(shards, 0, "half")
    live = {each.name: each.live for each in (await definitions.registered(shards)).rows}
    assert live == {"gone": False, "here": True, "half": True}


async def test_a_type_is_forgotten_after_seven_days(shards: Shards) -> None:
    await register(shards, 0, "old", seen="8 days", live=False)
    assert (await definitions.registered(shards)).rows == []


async def test_a_type_registered_a_moment_ago_is_found_though_the_list_is_cached(shards: Shards) -> None:
    with pytest.raises(WorkflowNotRegisteredError):
        await definitions.find(shards, "order_flow")
    await register(shards, 1, "order_flow")
    assert (await definitions.find(shards, "order_flow")).name == "order_flow"


async def test_an_unknown_type_is_refused_with_the_nearest_known_one(shards: Shards) -> None:
    await register(shards, 0, "order_flow")
    with pytest.raises(WorkflowNotRegisteredError, match="did you mean 'order_flow'"):
        await definitions.find(shards, "order_flwo")


async def test_unknown_needs_every_shard(shards: Shards) -> None:
    await register(shards, 0, "order_flow")
    half = await Shards.open({0: shards.store(0).url, 1: DEAD})
    try:
        assert (await definitions.find(half, "order_flow")).live
        with pytest.raises(ShardUnavailableError, match="not all of them"):
            await definitions.find(half, "other")
    finally:
        await half.close()
