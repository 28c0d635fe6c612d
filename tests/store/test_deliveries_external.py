"""What deliveries do to runs that somebody else started, and what the answers say (design 4)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from harvest.history.deliveries import (
    ANYWHERE,
    DeliveryKind,
    ExternalAwait,
)
from harvest.history.ids import business_key, mint_execution_id
from harvest.history.kinds import EventKind
from tests.store.kin import (
    a_chain,
    a_deliverer,
    a_delivery,
    a_member,
    by_name,
    rounds,
    rows_of,
    told,
)
from tests.store.rows import one, task_of
from tests.store.sites import K, Site, a_signal, do_to

# Other runs


ANSWERS = {
    K.EXTERNAL_SIGNAL: (EventKind.EXTERNAL_SIGNAL_DELIVERED, EventKind.EXTERNAL_SIGNAL_FAILED),
    K.EXTERNAL_CANCEL: (EventKind.EXTERNAL_CANCEL_DELIVERED, EventKind.EXTERNAL_CANCEL_FAILED),
}


@pytest.mark.parametrize("known_by", ["id", "name"])
@pytest.mark.parametrize("kind", ANSWERS)
async def test_another_run_is_reached_and_the_answer_says_which(site: Site, kind: DeliveryKind, known_by: str) -> None:
    source, chain = await a_member(site.near), await a_chain(site.far, 2)
    (row,) = await rows_of(site.far, f"harvest_executions where execution_id = '{chain[0]}'")
    if known_by == "id":
        await a_delivery(site.near, kind, source, chain[0], do_to(kind), seq=6)
    else:
        await a_delivery(site.near, kind, source, row["business_key"], do_to(kind), seq=6, shard=ANYWHERE)
    await site.deliver()
    ((answer, seq, data),) = await told(site.near, source)
    assert (answer, seq, data.execution_id) == (ANSWERS[kind][0], 6, str(chain[-1]))
    assert await task_of(site.near, source) == (0, None), "who asked is woken"
    assert len(await told(site.far, chain[-1])) == 1
    assert await task_of(site.far, chain[-1]) == (0, None)


async def test_a_signal_carries_its_payload_as_it_is(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    text = b'{"big": 12345678901234567890123, "text": "\\u0000\\ud83d\\ude00"}'
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal("hello", text))
    await site.deliver()
    ((kind, _, data),) = await told(site.far, target)
    assert (kind, data.name, bytes(data.payload)) == (EventKind.SIGNAL_RECEIVED, "hello", text)
    assert str(source) in data.actor


@pytest.mark.parametrize("known_by", ["id", "name"])
@pytest.mark.parametrize("case", ["unknown", "ended"])
@pytest.mark.parametrize("kind", ANSWERS)
async def test_the_answer_says_why_nothing_was_reached(
    site: Site, kind: DeliveryKind, case: str, known_by: str
) -> None:
    source, name = await a_member(site.near), uuid4().hex
    ended = await a_member(site.far, workflow_id=name, state=10) if case == "ended" else None
    if known_by == "id":
        await a_delivery(site.near, kind, source, ended or mint_execution_id(site.far.shard_id), do_to(kind))
    else:
        await a_delivery(site.near, kind, source, business_key("default", "w", name), do_to(kind), shard=ANYWHERE)
    await site.deliver()
    ((answer, _, data),) = await told(site.near, source)
    assert answer is ANSWERS[kind][1]
    assert data.reason_code == ("target_terminal" if case == "ended" else "target_unknown")


async def test_a_name_means_the_open_run_on_whatever_shard_it_is(two: Site) -> None:
    source, key = await a_member(two.near), business_key("default", "w", "name")
    await a_member(two.near, workflow_id="name", state=10)
    open_run = await a_member(two.far, workflow_id="name")
    await a_delivery(two.near, K.EXTERNAL_SIGNAL, source, key, a_signal(target=by_name("name")), shard=ANYWHERE)
    await two.deliver()
    assert len(await told(two.far, open_run)) == 1


async def test_a_signal_of_a_run_that_has_ended_arrives_all_the_same(site: Site) -> None:
    source, target = await a_member(site.near, state=10), await a_member(site.far)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal())
    await site.deliver()
    assert (len(await told(site.far, target)), await told(site.near, source)) == (1, [])


async def test_a_paused_run_takes_what_comes_and_is_not_woken(site: Site) -> None:
    source = await a_member(site.near, state=1, task_state=4)
    target = await a_member(site.far, state=1, task_state=4)
    await a_delivery(site.near, K.EXTERNAL_SIGNAL, source, target, a_signal())
    await site.deliver()
    assert (len(await told(site.far, target)), len(await told(site.near, source))) == (1, 1)
    assert [await task_of(site.near, source), await task_of(site.far, target)] == [(4, None), (4, None)]


# Who waits for an end


FAILURE = b'{"type":"Boom","message":"m"}'
ENDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "completed": ({"state": 10, "result": b'"ok"'}, "", ""),
    "failed": ({"state": 11, "failure": FAILURE}, "FAILED", "Boom"),
    "cancelled": ({"state": 12}, "CANCELLED", "WorkflowCancelled"),
    "timed out": ({"state": 14}, "TIMED_OUT", "WorkflowTimedOut"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_who_waits_for_a_run_that_has_ended_learns_how(site: Site, end: str) -> None:
    settings, state, failure = ENDS[end]
    source, target = await a_member(site.near), await a_member(site.far, **settings)
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, target, do_to(K.EXTERNAL_AWAIT), seq=3)
    await site.deliver()
    ((kind, seq, data),) = await told(site.near, source)
    assert seq == 3
    if end == "completed":
        assert (kind, bytes(data.output)) == (EventKind.EXTERNAL_AWAIT_RESOLVED, b'"ok"')
    else:
        assert (kind, data.state, data.failure.type) == (EventKind.EXTERNAL_AWAIT_FAILED, state, failure)


async def test_who_waits_for_a_run_that_is_unknown_learns_it(site: Site) -> None:
    source, target = await a_member(site.near), mint_execution_id(site.far.shard_id)
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, target, do_to(K.EXTERNAL_AWAIT))
    await site.deliver()
    ((kind, _, data),) = await told(site.near, source)
    assert (kind, data.state) == (EventKind.EXTERNAL_AWAIT_FAILED, "UNKNOWN")


async def test_an_open_run_is_looked_at_again_less_and_less_often(site: Site) -> None:
    source, target = await a_member(site.near), await a_member(site.far)
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, target, do_to(K.EXTERNAL_AWAIT))
    deliverer, waits = a_deliverer(site.shards, site.near), []
    for _ in range(12):
        await site.near.scan.write("update harvest_deliveries set due = clock_timestamp()")
        before = await one(site.near, "select clock_timestamp()")
        await rounds(deliverer)
        waits.append((await one(site.near, "select due from harvest_deliveries") - before).total_seconds())
    assert waits[0] >= 0.2
    assert waits[-1] >= 5, "it has grown to its most"


async def test_the_run_that_a_name_means_now_is_awaited_and_not_its_heir_in_name(site: Site) -> None:
    source, key = await a_member(site.near), business_key("default", "w", "name")
    target = await a_member(site.far, workflow_id="name")
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, key, ExternalAwait(by_name("name")), shard=ANYWHERE)
    await rounds(a_deliverer(site.shards, site.near))
    await site.far.scan.write(
        """update harvest_executions set state = 12, closed_at = clock_timestamp() where execution_id = $1""", target
    )
    await site.far.scan.write("delete from harvest_workflow_tasks where execution_id = $1", target)
    await a_member(site.far, workflow_id="name")
    await site.deliver()
    ((_, _, data),) = await told(site.near, source)
    assert data.state == "CANCELLED"


async def test_a_wait_of_a_run_that_has_ended_is_given_up(site: Site) -> None:
    source, target = await a_member(site.near, state=10), await a_member(site.far)
    await a_delivery(site.near, K.EXTERNAL_AWAIT, source, target, do_to(K.EXTERNAL_AWAIT))
    await site.deliver()
    assert not await told(site.near, source)
