"""Stops a commit between the snapshot of its statement and its first lock, by an advisory lock that the test holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from harvest.store import commit_parts as statements
from harvest.store.commit import Answer, Batch, commit
from harvest.store.store import Store
from tests.support import eventually

_KEY = 4711
_FIRST = "with d as materialized ("
_GATED = f"with gate as materialized (select pg_advisory_xact_lock_shared({_KEY})), d as materialized ("
_FENCE = "where t.execution_id = any($1)"


@asynccontextmanager
async def stopped_commit(
    store: Store, worker: UUID, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[asyncio.Task[dict[UUID, Answer]]]:
    """The commit is under way, has its snapshot and no lock yet, until this block ends."""
    decided = statements._DECIDED
    assert decided.count(_FIRST) == decided.count(_FENCE) == 1
    gated = decided.replace(_FIRST, _GATED).replace(_FENCE, f"where (select count(*) from gate) = 1 and {_FENCE[6:]}")
    monkeypatch.setattr(statements, "_DECIDED", gated)
    monkeypatch.setattr(statements, "_statements", {})
    keeper: Any = await asyncpg.connect(store.url)
    sender: Any = await asyncpg.connect(store.url, server_settings={"application_name": "gated"})
    try:
        await keeper.execute(f"select pg_advisory_lock({_KEY})")
        sending = asyncio.create_task(commit(store, sender, worker, batch))

        async def has_its_snapshot() -> bool:
            waits = "select 1 from pg_stat_activity where application_name = 'gated' and wait_event = 'advisory'"
            return bool(await keeper.fetch(waits))

        await eventually(has_its_snapshot)
        yield sending
        await keeper.execute(f"select pg_advisory_unlock({_KEY})")
        await sending
    finally:
        await keeper.close()
        await sender.close()
        monkeypatch.undo()
