"""Many starts in one request: each by itself, or all or none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harvest.errors import (
    BatchRefusedError,
    BatchTooLargeError,
    InputInvalidError,
    InvalidRequestError,
    WorkflowNotRegisteredError,
)
from harvest.operations import auditing, batch_starting, closing, starting
from harvest.operations.actor import Actor
from harvest.operations.batch_starting import MOST_ITEMS
from harvest.operations.preparing import StartRequest
from harvest.shards import Shards
from tests.operations.population import register


def requests(*ids: str, **more: Any) -> list[StartRequest]:
    return [StartRequest(workflow_name="any_flow", workflow_id=each, **more) for each in ids]


def on_shard(shards: Shards, shard_id: int, count: int) -> list[str]:
    """Workflow ids that are placed there."""
    ids = (f"o-{n}" for n in range(10_000))
    return [each for each in ids if shards.router.place("any_flow", each) == shard_id][:count]


async def runs(shards: Shards) -> int:
    counts = [await store.read.fetch("select from harvest_executions") for store in shards.stores.values()]
    return sum(map(len, counts))


async def refused(shards: Shards, actor: Actor, wanted: Sequence[StartRequest]) -> BatchRefusedError:
    before = await runs(shards)
    with pytest.raises(BatchRefusedError) as error:
        await batch_starting.start_batch(shards, actor, wanted, atomic=True)
    assert await runs(shards) == before
    return error.value


async def test_each_item_has_its_own_outcome(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b'{"type":"integer"}')
    there = await starting.start(shards, actor, workflow_name="any_flow", workflow_id="there", input=b"1")
    wanted = [
        *requests("new", input=b"1"),
        *requests("wrong", input=b'"text"'),
        StartRequest(workflow_name="unknown_flow"),
        *requests("there", input=b"1"),
    ]
    done = await batch_starting.start_batch(shards, actor, wanted, atomic=False)
    new, wrong, unknown, found = done
    assert new.started is not None
    assert (new.started.started_fresh, new.started.workflow_id) == (True, "new")
    assert isinstance(wrong.error, InputInvalidError)
    assert isinstance(unknown.error, WorkflowNotRegisteredError)
    assert found.started is not None
    assert (found.started.execution_id, found.started.started_fresh) == (there.execution_id, False)


async def test_an_atomic_batch_begins_whole_and_says_so_in_the_audit_log(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    ids = on_shard(shards, 1, 30)
    done = await batch_starting.start_batch(shards, actor, requests(*ids), atomic=True)
    assert [each.started.workflow_id for each in done if each.started] == ids
    assert all(each.started is not None and each.started.created for each in done)
    assert await runs(shards) == 30
    acts = (await auditing.list_audit(shards, limit=100)).rows.rows
    assert {act.target_id for act in acts} == {str(each.started.execution_id) for each in done if each.started}


async def test_one_item_that_is_wrong_refuses_an_atomic_batch_and_is_named(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b'{"type":"integer"}')
    first, second, third = on_shard(shards, 0, 3)
    wanted = [*requests(first, input=b"1"), *requests(second, input=b'"x"'), *requests(third, input=b"3")]
    error = await refused(shards, actor, wanted)
    (item,) = error.fields["items"]
    assert (item["index"], item["workflow_id"], item["slug"], error.status) == (1, second, "input_invalid", 409)


async def test_an_open_run_refuses_an_atomic_batch_and_an_ended_one_does_not(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    first, second = on_shard(shards, 0, 2)
    there = await starting.start(shards, actor, workflow_name="any_flow", workflow_id=second)
    error = await refused(shards, actor, requests(first, second))
    assert [item["slug"] for item in error.fields["items"]] == ["execution_exists"]
    await closing.terminate(shards, actor, there.execution_id, reason="")
    assert len(await batch_starting.start_batch(shards, actor, requests(first, second), atomic=True)) == 2


async def test_an_id_or_a_key_that_is_in_the_batch_twice_refuses_it(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    first, second = on_shard(shards, 0, 2)
    error = await refused(shards, actor, requests(first, second, first))
    assert [item["index"] for item in error.fields["items"]] == [2]
    error = await refused(shards, actor, requests(first, second, idempotency_key="k"))
    assert [item["index"] for item in error.fields["items"]] == [1]


async def test_a_repeated_atomic_batch_with_keys_finds_its_runs(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    ids = on_shard(shards, 0, 4)
    wanted = [StartRequest(workflow_name="any_flow", workflow_id=each, idempotency_key=f"k-{each}") for each in ids]
    first = await batch_starting.start_batch(shards, actor, wanted[:3], atomic=True)
    again = await batch_starting.start_batch(shards, actor, wanted, atomic=True)
    found = [each.started for each in again if each.started]
    assert [each.execution_id for each in found[:3]] == [each.started.execution_id for each in first if each.started]
    assert [each.deduplicated for each in found] == [True, True, True, False]
    other = on_shard(shards, 0, 5)[4]
    taken = [StartRequest(workflow_name="any_flow", workflow_id=other, idempotency_key=f"k-{ids[0]}")]
    error = await refused(shards, actor, taken)
    assert error.fields["items"][0]["slug"] == "idempotency_conflict"


async def test_an_atomic_batch_over_two_shards_is_refused_with_the_way_out(shards: Shards, actor: Actor) -> None:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    ids = [*on_shard(shards, 0, 2), *on_shard(shards, 1, 1)]
    with pytest.raises(InvalidRequestError, match=r"2 on shard 0, 1 on shard 1.*not atomic") as error:
        await batch_starting.start_batch(shards, actor, requests(*ids), atomic=True)
    assert error.value.fields["items_by_shard"] == {"0": 2, "1": 1}
    assert await runs(shards) == 0
    assert len(await batch_starting.start_batch(shards, actor, requests(*ids), atomic=False)) == 3


async def test_a_batch_has_its_limits(shards: Shards, actor: Actor) -> None:
    with pytest.raises(BatchTooLargeError) as many:
        await batch_starting.start_batch(shards, actor, requests(*["a"] * (MOST_ITEMS + 1)), atomic=False)
    assert many.value.status == 413
    large = b'"' + b"x" * (5 * 1024 * 1024) + b'"'
    with pytest.raises(BatchTooLargeError):
        await batch_starting.start_batch(shards, actor, requests("a", "b", "c", "d", input=large), atomic=True)
    with pytest.raises(InvalidRequestError, match="empty"):
        await batch_starting.start_batch(shards, actor, [], atomic=False)
