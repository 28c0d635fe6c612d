"""Signals are checked before they are written: what could not be decoded would block the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import Struct

from harvest import Harvest, WorkflowContext
from harvest.errors import InputInvalidError
from harvest.history.kinds import EventKind
from tests.support import at_work, history_of


class Approval(Struct):
    by: str


def application() -> Harvest:
    app = Harvest()

    @app.workflow(signals={"approved": Approval})
    async def waits(ctx: WorkflowContext) -> str:
        return (await ctx.wait_for_signal("approved", Approval)).by

    return app


async def test_a_signal_that_does_not_fit_its_declared_type_is_refused_and_leaves_no_trace(
    new_database: Callable[[str], str],
) -> None:
    app = application()
    async with at_work(app, new_database("signal_schema")) as (_, shards):
        handle = await app.start(app.registry.workflows["waits", 1])
        with pytest.raises(InputInvalidError) as refused:
            await handle.signal("approved", {"by": 7})
        assert refused.value.fields["problems"][0]["pointer"] == "/by"
        kinds = [event.kind for event in await history_of(shards, handle.execution_id)]
        assert EventKind.SIGNAL_RECEIVED not in kinds
        await handle.signal("approved", Approval(by="mira"))
        assert await handle.result() == "mira"


async def test_a_signal_that_no_workflow_declares_takes_any_payload(new_database: Callable[[str], str]) -> None:
    app = application()
    async with at_work(app, new_database("signal_free")):
        handle = await app.start(app.registry.workflows["waits", 1])
        await handle.signal("aside", {"anything": [1, 2]})
        await handle.signal("approved", Approval(by="mira"))
        assert await handle.result() == "mira"
