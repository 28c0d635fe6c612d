"""The ring of a run: the last 200 attempts, whoever wrote them; old ones are swept."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from msgspec.structs import replace

from harvest import clock
from harvest.store import decisions
from harvest.store.decisions import MOST, DecisionRow
from harvest.store.store import Store
from tests.store.rows import a_run


@pytest.fixture
async def execution_id(store: Store) -> uuid.UUID:
    """A run that nobody works on."""
    return await a_run(store, None, state=0)


def attempt(execution_id: uuid.UUID, number: int) -> DecisionRow:
    now = clock.now()
    return DecisionRow(
        execution_id=execution_id,
        number=number,
        epoch=None,
        outcome="hit",
        reason="",
        source="resident",
        answer="passed",
        events_loaded=0,
        bytes_loaded=0,
        woken_at=None,
        notified_at=None,
        taken_at=now,
        loaded_at=now,
        driven_at=now,
        fence_checked_at=now,
        committed_at=now,
    )


async def test_the_last_200_attempts_are_kept(store: Store, execution_id: uuid.UUID) -> None:
    worker = uuid.uuid4()
    for first in range(1, 451, 150):
        await decisions.write(store, worker, [attempt(execution_id, number) for number in range(first, first + 150)])

    found = await decisions.read(store, execution_id)
    assert found is not None
    assert [row["number"] for row in found] == list(range(451 - MOST, 451))
    assert await decisions.last_numbers(store, [execution_id, uuid.uuid4()]) == {execution_id: 450}


async def test_more_attempts_than_the_ring_holds_can_come_at_once(store: Store, execution_id: uuid.UUID) -> None:
    await decisions.write(store, uuid.uuid4(), [attempt(execution_id, number) for number in range(1, 2 * MOST + 1)])
    found = await decisions.read(store, execution_id)
    assert found is not None
    assert [row["number"] for row in found] == list(range(MOST + 1, 2 * MOST + 1))


async def test_a_number_that_another_worker_has_given_is_told_and_nothing_is_lost(
    store: Store, execution_id: uuid.UUID
) -> None:
    assert await decisions.write(store, uuid.uuid4(), [attempt(execution_id, 1), attempt(execution_id, 2)]) == set()
    late = await decisions.write(store, uuid.uuid4(), [attempt(execution_id, 2), attempt(execution_id, 3)])
    assert late == {(execution_id, 2)}
    found = await decisions.read(store, execution_id)
    assert found is not None
    assert len(found) == 3


async def test_a_run_without_attempts_is_told_from_one_that_is_not_there(store: Store, execution_id: uuid.UUID) -> None:
    assert await decisions.read(store, execution_id) == []
    assert await decisions.read(store, uuid.uuid4()) is None


async def test_what_is_older_than_a_day_is_swept(store: Store, execution_id: uuid.UUID) -> None:
    fresh = attempt(execution_id, 2)
    old = replace(attempt(execution_id, 1), committed_at=clock.now() - timedelta(hours=25))
    await decisions.write(store, uuid.uuid4(), [old, fresh])
    await decisions.sweep(store)
    found = await decisions.read(store, execution_id)
    assert found is not None
    assert [row["number"] for row in found] == [2]
