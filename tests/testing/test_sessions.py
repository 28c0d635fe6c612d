"""Worker sessions in an environment: opened at once, broken by time or by the test."""

from __future__ import annotations

from typing import Any

from harvest import Harvest, SessionBrokenError, WorkflowContext
from harvest.history.kinds import EventKind
from harvest.testing import WorkflowEnvironment, never, verify

app = Harvest()


@app.activity
async def step(number: int) -> int:
    return number + 1


@app.workflow
async def steps(ctx: WorkflowContext) -> list[Any]:
    told: list[Any] = []
    for _ in range(2):
        try:
            async with ctx.create_session(execution_timeout=60) as session:
                told.append(await session.execute_activity(step, len(told)))
        except SessionBrokenError as error:
            told.append(error.fields["reason"])
    return told


async def test_a_session_is_opened_at_once() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(steps)
        assert await handle.result() == [1, 2]
        document = env.history(handle)
        assert [event.kind for event in document.events].count(EventKind.SESSION_OPENED) == 2
        assert verify(document, app.registry).is_clean


async def test_time_breaks_a_session_that_lasts_too_long() -> None:
    async with WorkflowEnvironment(app) as env:
        env.mock(step, never)
        handle = await env.start(steps)
        assert await handle.result() == ["execution_timeout"] * 2


async def test_a_test_breaks_a_session_as_the_death_of_its_worker_does() -> None:
    async with WorkflowEnvironment(app) as env:
        env.mock(step, never)
        handle = await env.start(steps)
        assert [await env.break_sessions(handle) for _ in range(3)] == [1, 1, 0]
        assert await handle.result() == ["worker_lost"] * 2
        kinds = [event.kind for event in env.history(handle).events]
        assert kinds.count(EventKind.SESSION_BROKEN) == kinds.count(EventKind.ACTIVITY_FAILED) == 2
        assert EventKind.SESSION_CLOSED not in kinds


async def test_a_run_that_ends_leaves_no_session_to_break() -> None:
    async with WorkflowEnvironment(app) as env:
        env.mock(step, never)
        handle = await env.start(steps)
        await handle.terminate("enough")
        assert await env.break_sessions(handle) == 0
