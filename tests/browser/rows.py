"""Families and histories written into the databases of the development setup: what would take long to come about."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import msgspec
from msgspec import Raw

from harvest.history.data import (
    ActivityFailed,
    ActivityScheduled,
    ActivityStarted,
    ChildWorkflowFailed,
    ChildWorkflowSpawnedDetached,
    ChildWorkflowStarted,
    Failure,
    SignalReceived,
    TimerStarted,
    UpdateAdmitted,
    UpdateCompleted,
)
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import Shards
from tests.browser.server import DevServer
from tests.operations.population import EPOCH, Happened, Run, add, add_history
from tests.pages.families import BEGUN, activity, child_of, many_children

PARENT_ID = "family-🎁-<b>bold</b>"
LONG_ID = "🎁 <script>alert(1)</script> \u202egnp.exe " + "x" * 1_900


class Family(msgspec.Struct, frozen=True):
    """Runs by what they are. `child` is the newest of a chain of three, `there` is on shard 1."""

    parent: str
    child: str
    there: str
    large: str


def family_of(server: DevServer) -> Family:
    """Write a family; it is of the first of May."""

    async def write() -> Family:
        shards = await Shards.open(server.urls)
        try:
            return await _family(shards)
        finally:
            await shards.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, write()).result()


async def _family(shards: Shards) -> Family:
    parent, there = mint_execution_id(0), mint_execution_id(1)
    run = Run(workflow_name="family_flow", workflow_id=PARENT_ID, state=State.COMPLETED, execution_id=parent)
    run = msgspec.structs.replace(
        run,
        age=60,
        search_attributes='{"tenant":"acme","tags":["vip","<i>new</i>"]}',
        details=b'"Two of three parcels are packed\\nand one is lost"',
    )
    await add(shards, 0, run)
    chain: list[UUID] = []
    for n in range(3):
        more = {"previous_execution_id": chain[-1], "first_execution_id": chain[0]} if chain else {}
        state = State.COMPLETED if n == 2 else State.CONTINUED_AS_NEW
        chain.append(await child_of(shards, parent, parent, f"{parent}/1", age=50 - n, state=state, **more))
        await add_history(shards, chain[-1], [BEGUN])
    await child_of(
        shards, parent, parent, LONG_ID, shard_id=1, execution_id=there, age=45, state=State.FAILED, close_policy=2
    )
    await add_history(shards, there, [BEGUN, *activity(1, 0)])
    await child_of(shards, there, parent, "grandchild", shard_id=1, age=40, state=State.TERMINATED, awaited=False)
    await add_history(shards, parent, [BEGUN, *_events(chain[0], there)])
    large = await add(shards, 1, Run(workflow_name="family_flow", workflow_id="large-family", state=State.COMPLETED))
    await add_history(shards, large, [BEGUN])
    await many_children(shards, large, large, 300, state=State.COMPLETED)
    return Family(str(parent), str(chain[-1]), str(there), str(large))


def _events(first: UUID, second: UUID) -> list[Happened]:
    """Something of every kind, with two days in which nothing happens."""
    long_name = "pack_" + "very_" * 30 + "long"
    late = 2 * 86_400.0
    return [
        Happened(EventKind.CHILD_WORKFLOW_STARTED, 0, 1, ChildWorkflowStarted(str(first), "ship_flow", "s/1", "d")),
        Happened(EventKind.CHILD_WORKFLOW_STARTED, 0, 2, ChildWorkflowStarted(str(second), "ship_flow", LONG_ID, "d")),
        Happened(
            EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED,
            0.1,
            3,
            ChildWorkflowSpawnedDetached(str(first), "mail", "m", "d"),
        ),
        *activity(4, 0.2, name=long_name),
        Happened(EventKind.ACTIVITY_SCHEDULED, 1.5, 5, ActivityScheduled("<i>charge</i>", "d", Raw(b'{"cents":500}'))),
        Happened(EventKind.ACTIVITY_STARTED, 2, 5, ActivityStarted(1)),
        Happened(EventKind.ACTIVITY_STARTED, 3, 5, ActivityStarted(2)),
        Happened(EventKind.ACTIVITY_FAILED, 3.5, 5, ActivityFailed(Failure("CardDeclined", "no <b>money</b>"), 2)),
        Happened(EventKind.ACTIVITY_SCHEDULED, 3.5, 6, ActivityScheduled("slow", "d")),
        Happened(EventKind.ACTIVITY_TIMED_OUT, 5.5, 6, None),
        Happened(EventKind.TIMER_STARTED, 5.5, 7, TimerStarted(late, EPOCH + timedelta(seconds=late))),
        Happened(EventKind.ACTIVITY_SCHEDULED, 5.6, 8, ActivityScheduled("dropped", "d")),
        Happened(EventKind.ACTIVITY_CANCEL_REQUESTED, 6, 8),
        Happened(EventKind.SIGNAL_RECEIVED, 6, 0, SignalReceived("approved", Raw(b'{"by":"lena"}'), "token:shop")),
        Happened(EventKind.UPDATE_ADMITTED, 6.2, 0, UpdateAdmitted("u-1", "reprice", Raw(b"1"))),
        Happened(EventKind.UPDATE_COMPLETED, 6.4, 18, UpdateCompleted("u-1", Raw(b"2"))),
        Happened(EventKind.CHILD_WORKFLOW_COMPLETED, 7, 1),
        Happened(
            EventKind.CHILD_WORKFLOW_FAILED,
            7.5,
            2,
            ChildWorkflowFailed(Failure("Lost", "parcel \u202e lost"), "FAILED"),
        ),
        Happened(EventKind.TIMER_FIRED, late + 5.5, 7),
        *activity(9, late + 6, name="close", took=0.8),
        Happened(EventKind.WORKFLOW_COMPLETED, late + 7),
    ]
