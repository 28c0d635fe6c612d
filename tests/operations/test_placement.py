"""Starts that say where their run is to live: what they get, what they are refused, and that it writes nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from harvest.errors import (
    ExecutionExistsError,
    NoWritableShardError,
    PlacementError,
    ShardUnavailableError,
    UnknownExecutionError,
)
from harvest.history.ids import shard_of
from harvest.operations import auditing, closing, placing, resolving, signalling, starting, with_start
from harvest.operations.actor import Actor
from harvest.operations.preparing import StartRequest
from harvest.operations.starting import Started
from harvest.shards import AUTOMATIC, Placement, ShardRouter, Shards
from tests.operations.population import register

ROUTER = ShardRouter(
    readable=(0, 1, 2, 3), writable=(0, 1), default=0, residency={"eu": 0, "us": 1, "old": 2, "next": 3}, reserved=()
)
TABLES = ("executions", "events", "execution_details", "workflow_tasks", "dedupe")


@pytest.fixture
async def urls(new_database: Callable[[str], str]) -> dict[int, str]:
    """Databases of shard 0, shard 1, and shard 2, which drains. Shard 3 has none yet."""
    return {number: new_database(f"placing_{number}") for number in (0, 1, 2)}


@pytest.fixture
async def shards(urls: dict[int, str]) -> AsyncIterator[Shards]:
    """The shards with one workflow type."""
    opened = await Shards.open(urls, ROUTER)
    await register(opened, 0, "any_flow", input_schema=b"{}")
    yield opened
    await opened.close()


async def begin(shards: Shards, actor: Actor, **more: Any) -> Started:
    return await starting.start(shards, actor, workflow_name="any_flow", **more)


async def with_router(urls: dict[int, str], **more: Any) -> Shards:
    """The same databases in a process with another router."""
    fields = {name: getattr(ROUTER, name) for name in ROUTER.__struct_fields__}
    return await Shards.open(urls, ShardRouter(**{**fields, **more}))


async def rows(shards: Shards) -> dict[str, int]:
    """How many rows there are of runs, over all shards."""
    counts = dict.fromkeys(TABLES, 0)
    for store in shards.stores.values():
        for table in TABLES:
            counts[table] += len(await store.read.fetch(f"select from harvest_{table}"))
    return counts


async def on(shards: Shards, shard_id: int) -> set[str]:
    """The workflow ids of the runs on a shard."""
    found = await shards.store(shard_id).read.fetch("select workflow_id from harvest_executions")
    return {row["workflow_id"] for row in found}


@pytest.mark.parametrize("placement", [Placement(shard_id=1), Placement(residency_key="us")], ids=["shard", "key"])
async def test_a_placed_run_lives_on_its_shard_and_nowhere_else(
    shards: Shards, actor: Actor, placement: Placement
) -> None:
    led_elsewhere = next(each for n in range(99) if shards.router.pick("any_flow", each := f"o-{n}") == 0)
    started = await begin(shards, actor, workflow_id=led_elsewhere, placement=placement)
    assert (started.shard_id, shard_of(started.execution_id), started.created) == (1, 1, True)
    assert (await on(shards, 1), await on(shards, 0)) == ({led_elsewhere}, set())
    await signalling.signal(shards, actor, started.execution_id, "approved", b"{}")


async def test_each_residency_key_leads_to_its_own_shard(shards: Shards, actor: Actor) -> None:
    for key, shard_id in (("eu", 0), ("us", 1)):
        for n in range(5):
            placed = await begin(shards, actor, workflow_id=f"{key}-{n}", placement=Placement(residency_key=key))
            assert placed.shard_id == shard_id
    assert await on(shards, 0) == {f"eu-{n}" for n in range(5)}


async def test_an_id_that_is_made_for_a_placed_run_leads_to_it_without_a_placement(
    shards: Shards, actor: Actor
) -> None:
    for n in range(12):
        key = f"k-{n}" if n % 2 else None
        placed = await begin(shards, actor, idempotency_key=key, placement=Placement(shard_id=1))
        assert shards.router.pick("any_flow", placed.workflow_id) == 1
        found = await begin(shards, actor, workflow_id=placed.workflow_id)
        assert (found.execution_id, found.created) == (placed.execution_id, False)


async def test_keys_that_look_alike_make_runs_of_their_own(shards: Shards, actor: Actor) -> None:
    keys = [f"a{''.join(f'-{digit}' for digit in digits)}" for digits in ("", "1", "2", "11", "12", "111")]
    placed = [await begin(shards, actor, idempotency_key=key, placement=Placement(shard_id=1)) for key in keys]
    assert all(each.created for each in placed)
    assert len({each.workflow_id for each in placed}) == len(keys)


async def test_no_id_leads_to_a_reserved_shard_and_a_placement_does(urls: dict[int, str], actor: Actor) -> None:
    shards = await with_router(urls, reserved=(1,))
    try:
        await register(shards, 0, "any_flow", input_schema=b"{}")
        placed = await begin(shards, actor, placement=Placement(residency_key="us"))
        assert placed.shard_id == 1
        keyed = await begin(shards, actor, placement=Placement(shard_id=1), idempotency_key="k")
        assert (keyed.shard_id, keyed.workflow_id) == (1, "key-k")
        for n in range(20):
            assert (await begin(shards, actor, workflow_id=f"o-{n}")).shard_id == 0
    finally:
        await shards.close()


@pytest.mark.parametrize("named", [True, False], ids=["with an id", "without an id"])
@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (Placement(shard_id=9), "shard 9 is not a placeable shard for this deployment"),
        (Placement(shard_id=2), "shard 2 is not currently accepting new workflows; it is being drained"),
        (
            Placement(residency_key="old"),
            "residency key 'old' is not currently accepting new workflows; its shard is being drained",
        ),
        (Placement(residency_key="mars"), "residency key 'mars' is not declared for this deployment"),
        (Placement(residency_key=" "), "residency key must not be blank"),
        (Placement(shard_id=0, residency_key="eu"), "shard_id and residency_key exclude each other: give one of them"),
    ],
    ids=["unknown", "draining", "draining by key", "undeclared", "blank", "both"],
)
async def test_what_is_refused_writes_no_run_and_is_in_the_audit_log(
    shards: Shards, actor: Actor, placement: Placement, said: str, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "harvest.shards"), pytest.raises(PlacementError) as refused:
        await begin(shards, actor, workflow_id="a" if named else None, placement=placement)
    assert refused.value.message == said
    assert set((await rows(shards)).values()) == {0}
    (act,) = (await auditing.list_audit(shards)).rows.rows
    assert (act.operation, act.status, act.error_summary) == ("workflow.start", "failed", said)
    logged = [record.getMessage() for record in caplog.records]
    if said.endswith(("deployment", "drained")):
        (line,) = logged
        assert said in line
        assert "'readable_shards': [0, 1, 2, 3]" in line


async def test_a_place_is_refused_before_the_workflow_is_looked_for(shards: Shards, actor: Actor) -> None:
    for workflow_id in ("a", None):
        with pytest.raises(PlacementError):
            await starting.start(
                shards, actor, workflow_name="nothing", workflow_id=workflow_id, placement=Placement(shard_id=9)
            )


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_shard_without_a_database_here_is_unavailable_and_nothing_is_written(
    urls: dict[int, str], actor: Actor, key: str | None
) -> None:
    shards = await with_router(urls, writable=(0, 1, 3))
    try:
        await register(shards, 0, "any_flow", input_schema=b"{}")
        for placement in (Placement(shard_id=3), Placement(residency_key="next")):
            with pytest.raises(ShardUnavailableError, match="shard 3 has no database configured here") as refused:
                await begin(shards, actor, placement=placement, idempotency_key=key)
            assert (refused.value.status, refused.value.fields["shard_id"]) == (503, 3)
        assert set((await rows(shards)).values()) == {0}
        assert (await auditing.list_audit(shards)).rows.rows == []
    finally:
        await shards.close()


@pytest.mark.parametrize("names_id", [True, False])
async def test_a_repeated_key_finds_its_run_while_the_shard_drains_and_a_fresh_one_is_refused(
    urls: dict[int, str], shards: Shards, actor: Actor, names_id: bool, caplog: pytest.LogCaptureFixture
) -> None:
    workflow_id = "mine" if names_id else None
    first = await begin(
        shards, actor, workflow_id=workflow_id, placement=Placement(residency_key="us"), idempotency_key="k-7"
    )
    drained = await with_router(urls, writable=(0,))
    try:
        with caplog.at_level(logging.WARNING, "harvest.shards"):
            for placement in (Placement(residency_key="us"), Placement(shard_id=1)):
                again = await begin(drained, actor, workflow_id=workflow_id, placement=placement, idempotency_key="k-7")
                assert (again.execution_id, again.workflow_id) == (first.execution_id, first.workflow_id)
                assert (again.deduplicated, again.created, again.shard_id) == (True, False, 1)
        assert caplog.records == [], "nothing was refused"
        before = await rows(drained)
        for key in ("k-8", None):
            with pytest.raises(PlacementError, match="drained") as refused:
                await begin(drained, actor, placement=Placement(shard_id=1), idempotency_key=key)
            assert refused.value.fields["reason"] == "draining"
        assert await rows(drained) == before, "a key that was refused is not taken"
    finally:
        await drained.close()
    fresh = await begin(shards, actor, placement=Placement(shard_id=1), idempotency_key="k-8")
    assert fresh.created, "once the shard takes new runs again, the key that was refused begins one"


async def test_ids_are_unique_on_each_shard_alone(shards: Shards, actor: Actor) -> None:
    placed = [await begin(shards, actor, workflow_id="twice", placement=Placement(shard_id=n)) for n in (0, 1)]
    assert [each.created for each in placed] == [True, True]


async def test_the_policies_hold_on_the_shard_of_the_placement(shards: Shards, actor: Actor) -> None:
    asked = {"workflow_id": "a", "placement": Placement(shard_id=1)}
    first = await begin(shards, actor, **asked)
    found = await begin(shards, actor, conflict_policy="use_existing", **asked)
    assert (found.execution_id, found.created) == (first.execution_id, False)
    ended = await begin(shards, actor, conflict_policy="terminate_existing", **asked)
    assert (ended.shard_id, ended.created) == (1, True)


async def test_without_a_placement_the_id_decides_and_a_message_finds_the_run_by_it(
    shards: Shards, actor: Actor
) -> None:
    for n in range(10):
        started = await begin(shards, actor, workflow_id=f"o-{n}", placement=AUTOMATIC)
        assert started.shard_id == shards.router.pick("any_flow", f"o-{n}")
        request = StartRequest(workflow_name="any_flow", workflow_id=f"o-{n}")
        sent = await with_start.signal_with_start(shards, actor, request, "approved", b"{}")
        assert (sent.execution_id, sent.started_fresh) == (started.execution_id, False)


async def with_message(
    shards: Shards, actor: Actor, what: str, workflow_id: str, **more: Any
) -> with_start.StartedWith:
    """A signal or an update that comes with a start of this id."""
    key = more.pop("idempotency_key", None)
    request = StartRequest(workflow_name="any_flow", workflow_id=workflow_id, idempotency_key=key)
    if what == "signal":
        return await with_start.signal_with_start(shards, actor, request, "approved", b"{}", **more)
    return (await with_start.update_with_start(shards, actor, request, "set", b"1", wait="admitted", **more)).started


def led_to(router: ShardRouter, shard_id: int) -> str:
    """A workflow id that leads to this shard."""
    return next(name for n in range(100) if router.pick("any_flow", name := f"o-{n}") == shard_id)


@pytest.fixture
async def cells(urls: dict[int, str]) -> AsyncIterator[Shards]:
    """Shards 0 and 1 for everybody, and shard 2, which is reserved."""
    router = ShardRouter(readable=(0, 1, 2), writable=(0, 1, 2), default=0, reserved=(2,))
    opened = await Shards.open(urls, router)
    await register(opened, 0, "any_flow", input_schema=b"{}")
    yield opened
    await opened.close()


@pytest.mark.parametrize("what", ["signal", "update"])
async def test_a_message_with_a_start_finds_the_open_run_in_a_cell(cells: Shards, actor: Actor, what: str) -> None:
    placed = await begin(cells, actor, workflow_id="a", placement=Placement(shard_id=2))
    sent = await with_message(cells, actor, what, "a")
    assert (sent.execution_id, sent.shard_id, sent.started_fresh) == (placed.execution_id, 2, False)
    assert (await rows(cells))["executions"] == 1


@pytest.mark.parametrize("what", ["signal", "update"])
async def test_a_message_with_a_start_finds_the_open_run_on_a_shard_that_drains_since(
    urls: dict[int, str], shards: Shards, actor: Actor, what: str
) -> None:
    workflow_id = led_to(shards.router, 1)
    begun = await begin(shards, actor, workflow_id=workflow_id)
    drained = await with_router(urls, writable=(0,))
    try:
        sent = await with_message(drained, actor, what, workflow_id)
        assert (sent.execution_id, sent.shard_id, sent.started_fresh) == (begun.execution_id, 1, False)
        assert (await rows(shards))["executions"] == 1
    finally:
        await drained.close()


async def test_the_policies_of_a_message_with_a_start_hold_on_the_shard_of_the_open_run(
    cells: Shards, actor: Actor
) -> None:
    placed = await begin(cells, actor, workflow_id="a", placement=Placement(shard_id=2))
    with pytest.raises(ExecutionExistsError) as refused:
        await with_message(cells, actor, "signal", "a", reuse_policy="reject_duplicate")
    assert refused.value.fields["existing_execution_id"] == str(placed.execution_id)
    sent = await with_message(cells, actor, "signal", "a", reuse_policy="terminate_if_running")
    assert (sent.shard_id, sent.started_fresh) == (2, True)
    assert await on(cells, 0) == await on(cells, 1) == set()


async def test_where_no_run_is_open_a_message_with_a_start_begins_one_where_its_id_leads(
    cells: Shards, actor: Actor
) -> None:
    placed = await begin(cells, actor, workflow_id="a", placement=Placement(shard_id=2))
    await closing.terminate(cells, actor, placed.execution_id, reason="")
    sent = await with_message(cells, actor, "signal", "a")
    assert (sent.shard_id, sent.started_fresh) == (cells.router.pick("any_flow", "a"), True)


async def test_a_run_that_ends_after_it_was_found_gets_no_successor_on_its_shard(
    cells: Shards, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = await begin(cells, actor, workflow_id="a", placement=Placement(shard_id=2))
    look = resolving.shard_of_open

    async def ending(*args: Any, **more: Any) -> int | None:
        found = await look(*args, **more)
        if found is not None:
            await closing.terminate(cells, actor, placed.execution_id, reason="")
        return found

    monkeypatch.setattr(resolving, "shard_of_open", ending)
    sent = await with_message(cells, actor, "signal", "a")
    assert (sent.shard_id, sent.started_fresh) == (cells.router.pick("any_flow", "a"), True)


async def test_a_repeated_key_of_a_message_finds_its_run_on_any_shard_after_that_has_ended(
    cells: Shards, actor: Actor
) -> None:
    placed = await begin(cells, actor, workflow_id="a", placement=Placement(shard_id=2))
    first = await with_message(cells, actor, "signal", "a", idempotency_key="k")
    await closing.terminate(cells, actor, placed.execution_id, reason="")
    again = await with_message(cells, actor, "signal", "a", idempotency_key="k")
    assert (first.execution_id, again.execution_id) == (placed.execution_id, placed.execution_id)
    assert (first.delivered, again.delivered, again.deduplicated) == (True, False, True)


@pytest.mark.parametrize("what", ["signal", "update"])
async def test_while_a_shard_is_missing_a_message_begins_no_run_and_reaches_an_open_one(
    urls: dict[int, str], cells: Shards, actor: Actor, what: str
) -> None:
    found = led_to(cells.router, 1)
    begun = await begin(cells, actor, workflow_id=found)
    half = await Shards.open({**urls, 2: "postgresql://postgres@/x?host=/nonexistent"}, cells.router)
    try:
        before = await rows(cells)
        with pytest.raises(UnknownExecutionError) as refused:
            await with_message(half, actor, what, led_to(cells.router, 0), idempotency_key="k")
        assert [each["shard_id"] for each in refused.value.fields["unavailable_shards"]] == [2]
        assert await rows(cells) == before
        sent = await with_message(half, actor, what, found)
        assert (sent.execution_id, sent.started_fresh) == (begun.execution_id, False)
    finally:
        await half.close()


async def test_with_one_shard_a_message_with_a_start_looks_nowhere_first(
    urls: dict[int, str], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = await Shards.open({0: urls[0]})
    monkeypatch.setattr(resolving, "shard_of_open", None)
    try:
        await register(alone, 0, "any_flow", input_schema=b"{}")
        assert (await with_message(alone, actor, "signal", "a")).started_fresh
    finally:
        await alone.close()


async def test_with_every_shard_draining_an_unplaced_start_waits_and_writes_nothing(
    urls: dict[int, str], actor: Actor
) -> None:
    shards = await with_router(urls, writable=())
    try:
        await register(shards, 0, "any_flow", input_schema=b"{}")
        for more in ({}, {"workflow_id": "a"}, {"idempotency_key": "k"}):
            with pytest.raises(NoWritableShardError) as refused:
                await begin(shards, actor, **more)
            assert (refused.value.status, refused.value.retryable) == (503, True)
        assert set((await rows(shards)).values()) == {0}
    finally:
        await shards.close()


def ids(*given: str) -> Any:
    return iter(given)


async def test_a_look_ahead_tells_what_the_start_then_does(shards: Shards, actor: Actor) -> None:
    made = [f"made-{n}" for n in range(50)]
    for placement in (AUTOMATIC, Placement(shard_id=1), Placement(residency_key="eu")):
        target = placing.preview(shards, "any_flow", placement, ids(*made))
        assert target.shard is not None
        started = await begin(shards, actor, workflow_id=target.workflow_id, placement=placement)
        assert started.shard_id == target.shard.shard_id == shards.router.pick("any_flow", target.workflow_id)
        assert target.led_to is None
    assert (await rows(shards))["executions"] >= 2


async def test_a_look_ahead_says_where_an_id_leads_that_is_placed_elsewhere(shards: Shards) -> None:
    home = shards.router.pick("any_flow", "mine")
    other = 1 - home
    target = placing.preview(shards, "any_flow", Placement(shard_id=other), ids("mine"))
    assert (target.workflow_id, target.led_to, target.refusal) == ("mine", home, None)


@pytest.mark.parametrize("shard_id", [2, 3, 9])
async def test_a_look_ahead_has_the_refusal_of_the_start(
    shards: Shards, actor: Actor, shard_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    target = placing.preview(shards, "any_flow", Placement(shard_id=shard_id), ids("a"))
    assert (caplog.records, target.shard) == ([], None)
    with pytest.raises((PlacementError, ShardUnavailableError)) as refused:
        await begin(shards, actor, workflow_id="a", placement=Placement(shard_id=shard_id))
    assert target.refusal is not None
    assert target.refusal.message == refused.value.message


async def test_what_a_start_may_name_is_told_with_its_state(urls: dict[int, str]) -> None:
    shards = await with_router(urls, reserved=(1,))
    try:
        found = placing.placeable(shards)
    finally:
        await shards.close()
    assert [(each.shard_id, each.writable, each.reserved, each.has_database) for each in found] == [
        (0, True, False, True),
        (1, True, True, True),
        (2, False, False, True),
        (3, False, False, False),
    ]
    assert [each.residency_keys for each in found] == [("eu",), ("us",), ("old",), ("next",)]
    keys = placing.by_residency_key(found)
    assert [(key, each.shard_id) for key, each in keys] == [("eu", 0), ("next", 3), ("old", 2), ("us", 1)]
