"""What an author sees of a handle, of a worker that has stopped, and of the docstrings of what they import."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable
from datetime import timedelta

import pytest

import harvest
from harvest import Harvest, WorkflowContext
from harvest.errors import ResultTimeoutError, every_error
from harvest.worker.options import Counters
from tests.support import at_work

app = Harvest()


@app.workflow
async def waits(ctx: WorkflowContext) -> str:
    return await ctx.wait_for_signal("go", str)


async def test_a_handle_says_which_execution_it_is_and_waits_for_seconds_too(
    new_database: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "harvest.worker")
    async with at_work(app, new_database("handle")):
        handle = await app.start(waits, workflow_id="o-1")
        assert handle.workflow_id == "o-1"
        assert repr(handle) == f"<WorkflowHandle workflow 'waits' 'o-1' {handle.execution_id}>"
        bare = await app.handle(str(handle.execution_id))
        assert bare.workflow_id is None
        assert repr(bare) == f"<WorkflowHandle {handle.execution_id}>"
        for timeout in (0.05, 0, timedelta(seconds=0.05)):
            with pytest.raises(ResultTimeoutError):
                await handle.result(timeout=timeout)
        await handle.signal("go", "gone")
        assert await handle.result(timeout=20) == "gone"
    (stopped,) = [record.getMessage() for record in caplog.records if "has stopped" in record.getMessage()]
    assert re.search(r"has stopped: 1 runs closed, \d+ decisions \(\d+ cold\), 0 activities completed$", stopped)


def test_a_worker_that_had_troubles_says_which() -> None:
    assert Counters(closed=12_000, fenced=2).summary() == (
        "12,000 runs closed, 0 decisions (0 cold), 0 activities completed, 2 decisions fenced"
    )


def test_no_public_docstring_cites_what_a_reader_cannot_find() -> None:
    public = [getattr(harvest, name) for name in harvest.__all__] + list(every_error())
    texts = [inspect.getdoc(each) or "" for each in public]
    texts += [inspect.getdoc(member) or "" for each in public for _, member in inspect.getmembers(each, callable)]
    assert [text for text in texts if re.search(r"\b(reference|answers|design|fault|toolbox) \d", text)] == []
