"""A result is checked against the declared return type before it is recorded: a misfit fails, and blocks nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Struct

from harvest import ActivityError, Harvest, Retry, WorkflowContext, WorkflowFailedError
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.worker.worker import Worker
from tests.support import at_work, check_invariants, history_of

app = Harvest()
SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]


class Receipt(Struct):
    charge: str
    cents: int

    def __post_init__(self) -> None:
        if self.cents < 0:
            raise ValueError("cents must not be negative")


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("results")) as working:
        yield working
        await check_invariants(working[1])


@app.activity(retry=Retry(max_attempts=5, initial_interval=timedelta(0)))
async def forgets_to_return(name: str) -> str:
    return None  # type: ignore[return-value]


@app.activity
def returns_a_dict(name: str) -> Receipt:
    return {"charge": name, "cents": "12"}  # type: ignore[return-value]


@app.activity
async def returns_something(name: str) -> None:
    return name  # type: ignore[return-value]


@app.activity
async def breaks_its_own_rule(name: str) -> Receipt:
    receipt = Receipt(name, 0)
    receipt.cents = -1
    return receipt


@app.activity
async def fits_as_json(name: str) -> Receipt:
    return {"charge": name, "cents": 12}  # type: ignore[return-value]


@app.activity
async def untyped(name):  # type: ignore[no-untyped-def]
    return [name, None]


ACTIVITIES: dict[str, Any] = {
    each.name: each
    for each in (forgets_to_return, returns_a_dict, returns_something, breaks_its_own_rule, fits_as_json, untyped)
}


@app.workflow
async def uses(ctx: WorkflowContext, name: str) -> list[Any]:
    try:
        return ["returned", await ctx.execute_activity(ACTIVITIES[name], "x")]
    except ActivityError as error:
        return [error.fields["type"], error.fields["attempt"], str(error.__cause__)]


@pytest.mark.parametrize(
    ("name", "declared", "came"),
    [
        ("forgets_to_return", "str", "None"),
        ("returns_a_dict", "Receipt", "dict"),
        ("returns_something", "None", "str"),
        ("breaks_its_own_rule", "Receipt", "cents must not be negative"),
    ],
)
async def test_a_misfit_fails_the_activity_at_its_first_attempt(
    work: Work, name: str, declared: str, came: str
) -> None:
    handle = await app.start(uses, name)
    failed, attempt, message = await handle.result(SOON)
    assert (failed, attempt) == ("ResultTypeError", 1)
    assert repr(name) in message
    assert f"declared to return {declared}" in message.replace(f"{__name__}.", "")
    assert came in message
    kinds = [event.kind for event in await history_of(work[1], handle.execution_id)]
    assert EventKind.ACTIVITY_COMPLETED not in kinds, "nothing is recorded that cannot be read back"


async def test_what_reads_back_as_the_declared_type_fits(work: Work) -> None:
    assert await (await app.start(uses, "fits_as_json")).result(SOON) == ["returned", {"charge": "x", "cents": 12}]
    assert await (await app.start(uses, "untyped")).result(SOON) == ["returned", ["x", None]]


@app.workflow
async def promises_text(ctx: WorkflowContext) -> str:
    return 5  # type: ignore[return-value]


async def test_a_workflow_that_returns_another_type_ends_failed(work: Work) -> None:
    with pytest.raises(
        WorkflowFailedError, match=r"ResultTypeError.*'promises_text' is declared to return str"
    ) as told:
        await (await app.start(promises_text)).result(SOON)
    assert told.value.fields["state"] == "FAILED"
    assert told.value.fields["failure_type"] == "ResultTypeError"
