"""A run that is woken and claimed before the answer of its commit was read is not replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from harvest import Harvest, WorkflowContext
from harvest.worker import committer
from tests.support import at_work, check_invariants, eventually

app = Harvest()


@app.workflow
async def adding(ctx: WorkflowContext, times: int) -> int:
    total = 0
    for _ in range(times):
        total += await ctx.wait_for_signal("add", int)
    return total


async def test_a_claim_before_the_answer_keeps_the_parked_code(
    new_database: Callable[[str], str], monkeypatch: Any
) -> None:
    async with at_work(app, new_database("retaken")) as (worker, shards):
        real, slow, held_up = committer.commit, asyncio.Event(), asyncio.Event()

        async def commit(*arguments: Any) -> Any:
            answers = await real(*arguments)
            if not held_up.is_set():
                held_up.set()
                await slow.wait()
            return answers

        monkeypatch.setattr(committer, "commit", commit)
        handle = await app.start(adding, 2)
        await held_up.wait()
        await handle.signal("add", 1)

        async def claimed() -> bool:
            return worker.counters.claims >= 2

        await eventually(claimed)
        slow.set()
        await handle.signal("add", 1)
        assert await handle.result() == 2
        assert worker.counters.decisions_cold == 1
        assert worker.counters.fenced == 0
        await check_invariants(shards)
