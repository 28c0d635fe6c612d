"""Whether all processes route alike: what differs, from whom, and who still counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from harvest import clock
from harvest.operations import configuration, topology
from harvest.operations.topology import FIELDS, ProcessView, compared, residency
from harvest.shards import ShardRouter, Shards
from harvest.shards.presence import Presence
from tests.console.conftest import DEAD

TWO = {"readable": (0, 1), "writable": (0, 1), "default": 0}


def view(name: str, *, stale: bool = False, told: dict[str, Any] | None = None, **router: Any) -> ProcessView:
    """A process with a router that is like `TWO` but for these fields, or that told something else."""
    made = ShardRouter(**{**TWO, **router})
    return ProcessView(
        process_id=uuid4(), kind="worker", name=name, host="h", pid=1, build="", started_at=clock.now(),
        seen_at=clock.now(), age_seconds=99.0 if stale else 1.0, stale=stale, shard_ids=[0], digest=made.digest,
        topology=made.topology() if told is None else told, pool_shards=[0, 1], shard_assignments=[0, 1],
    )  # fmt: skip


def differing(*processes: ProcessView) -> dict[str, list[str]]:
    """In which fields each process differs, by its name."""
    return {one.name: one.differing_fields for one in compared(processes).processes if one.differing_fields}


def test_processes_that_route_alike_differ_in_nothing() -> None:
    found = compared([view("a"), view("b")])
    assert found.differing == []
    assert [field.name for field in found.fields] == list(FIELDS)
    assert {field.different_values for field in found.fields} == {1}


def test_who_is_not_like_most_is_marked_in_the_field_alone() -> None:
    odd = view("odd", residency={"eu": 1})
    found = compared([view("a", residency={"eu": 0}), odd, view("b", residency={"eu": 0})])
    assert found.differing == ["residency_map"]
    assert found.fields[0].name == "residency_map", "what differs comes first"
    assert found.fields[0].agreed == {"eu": 0}
    assert [one.name for one in found.processes] == ["odd", "a", "b"]
    assert found.processes[0].differing_fields == ["residency_map"]


def test_where_no_value_has_most_nobody_is_right() -> None:
    found = compared([view("a", reserved=(1,)), view("b")])
    assert found.fields[0].agreed is None
    assert differing(view("a", reserved=(1,)), view("b")) == {"a": ["reserved_shards"], "b": ["reserved_shards"]}


def test_what_a_stale_process_told_does_not_count_and_is_still_compared() -> None:
    found = compared([view("a"), view("gone", stale=True, writable=(0,)), view("b")])
    assert found.differing == []
    mixed = compared([view("a"), view("odd", writable=(0,)), view("b"), view("gone", stale=True, writable=(0,))])
    assert [(one.name, one.differing_fields) for one in mixed.processes][-1] == ("gone", ["writable_shards"])


def test_a_process_alone_differs_from_nobody_and_none_at_all_agree() -> None:
    assert compared([view("a")]).differing == []
    assert compared([]).differing == []
    assert compared([]).fields[0].agreed is None


def test_a_field_that_only_another_release_has_differs_and_one_that_tells_nothing_in_everything() -> None:
    newer = {**view("x").topology, "moon_shards": [7]}
    found = compared([view("a"), view("newer", told=newer), view("b")])
    assert found.differing == ["moon_shards"]
    assert differing(view("a"), view("b"), view("mute", told={})) == {"mute": list(FIELDS)}


def test_every_field_of_a_router_is_in_the_topology_and_in_its_digest() -> None:
    base = ShardRouter(readable=(0, 1, 2), writable=(0, 1, 2), default=0)
    changed: dict[str, Any] = {
        "readable": (0, 1, 2, 3), "writable": (0, 1), "default": 1, "residency": {"eu": 0}, "reserved": (2,),
        "forwards": {9: 0},
    }  # fmt: skip
    assert set(changed) == set(ShardRouter.__struct_fields__), "a new field of the router belongs into `topology`"
    assert len(base.topology()) == len(ShardRouter.__struct_fields__)
    for field, value in changed.items():
        other = msgspec.structs.replace(base, **{field: value})
        different = [name for name in base.topology() if base.topology()[name] != other.topology()[name]]
        assert len(different) == 1, field
        assert other.digest != base.digest, field


async def test_the_configuration_shows_exactly_the_topology_in_its_order(shards: Shards) -> None:
    router = ShardRouter(
        readable=(1, 0), writable=(1, 0), default=0, residency={"us": 1, "eu": 0}, reserved=(1,), forwards={9: 1, 8: 0}
    )
    routed = Shards({0: DEAD, 1: f"{DEAD}b"}, router)
    shown = msgspec.json.encode(configuration.topology(routed))
    assert shown == msgspec.json.encode(router.topology())
    assert shown == (
        b'{"default_shard":0,"readable_shards":[0,1],"reserved_shards":[1],"residency_map":{"eu":0,"us":1},'
        b'"shard_forwards":{"8":0,"9":1},"writable_shards":[0,1]}'
    )


@pytest.fixture
async def shards(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """Two empty shards."""
    opened = await Shards.open({0: new_database("topology_a"), 1: new_database("topology_b")})
    yield opened
    await opened.close()


async def tell(shards: Shards, process: UUID, router: ShardRouter) -> None:
    """A console with this router tells of itself."""
    routed = Shards({shard_id: store.url for shard_id, store in shards.stores.items()}, router)
    try:
        await Presence(routed, process, "console", through=lambda store: store.write, name=str(process)[:8]).tick()
    finally:
        await routed.close()


async def test_a_process_is_read_once_as_the_shard_knows_it_that_heard_of_it_last(shards: Shards) -> None:
    process = uuid4()
    await tell(shards, process, ShardRouter(**TWO))
    await shards.store(0).write.write(
        "update harvest_processes set seen_at = seen_at - interval '1 minute', topology = '{}', digest = 'old'"
    )
    found = await topology.topology(shards)
    ((one,),) = [row.processes for row in found.rows]
    assert (one.process_id, one.stale, one.shard_ids) == (process, False, [0, 1])
    assert one.digest == ShardRouter(**TWO).digest
    assert one.pool_shards == [0, 1]
    assert one.shard_assignments is None
    assert one.age_seconds < 30


async def test_one_that_is_silent_on_every_shard_is_stale_with_its_age(shards: Shards) -> None:
    await tell(shards, uuid4(), ShardRouter(**TWO))
    for store in shards.stores.values():
        await store.write.write("update harvest_processes set seen_at = seen_at - interval '2 minutes'")
    (known,) = (await topology.topology(shards)).rows
    assert known.living == []
    assert known.processes[0].stale
    assert 119 < known.processes[0].age_seconds < 180


async def test_a_shard_that_is_away_is_named_and_the_others_are_read(shards: Shards) -> None:
    await tell(shards, uuid4(), ShardRouter(**TWO))
    half = Shards({0: shards.stores[0].url, 1: DEAD})
    try:
        found = await topology.topology(half)
    finally:
        await half.close()
    assert (found.status, [shard.shard_id for shard in found.missing]) == ("partial", [1])
    assert len(found.rows[0].processes) == 1


def test_a_residency_key_names_its_shard_and_who_leads_it_elsewhere() -> None:
    router = ShardRouter(
        readable=(0, 1, 2), writable=(0, 2), default=0, residency={"eu": 0, "us": 1, "cell": 2}, reserved=(2,)
    )
    here = Shards({0: DEAD, 1: f"{DEAD}b"}, router)
    alike = view("alike", residency={"eu": 0, "us": 1})
    odd = view("odd", residency={"eu": 1, "us": 1, "apac": 0})
    gone = view("gone", stale=True, residency={"eu": 1})
    found = {one.key: one for one in residency(here, [alike, odd, gone])}
    assert list(found) == ["apac", "cell", "eu", "us"]
    assert (found["eu"].shard_id, [(one.name, one.shard_id) for one in found["eu"].dissent]) == (0, [("odd", 1)])
    assert (found["us"].writable, found["us"].has_database, found["us"].dissent) == (False, True, [])
    assert (found["cell"].reserved, found["cell"].has_database) == (True, False)
    assert [(one.name, one.shard_id) for one in found["cell"].dissent] == [("alike", None), ("odd", None)]
    assert (found["apac"].shard_id, [one.name for one in found["apac"].dissent]) == (None, ["odd"])
