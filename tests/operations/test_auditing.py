"""The audit log over shards: merged by time, filtered, and written where a shard answers."""

from __future__ import annotations

import pytest

from harvest.errors import CursorError, ShardUnavailableError
from harvest.operations import auditing
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest.store.audit import AuditFilter

DEAD = "postgresql://postgres@/x?host=/nonexistent"


async def test_an_act_that_changed_nothing_is_on_the_default_shard(shards: Shards, actor: Actor) -> None:
    await auditing.record(shards, actor, "authz.deny", "route", "/x", "failed", "HVT-211 no")
    (entry,) = (await auditing.list_audit(shards)).rows.rows
    assert (entry.shard_id, entry.actor, entry.operation, entry.source) == (0, "token:admin", "authz.deny", "api")
    assert (entry.status, entry.error_summary, entry.request_id) == ("failed", "HVT-211 no", "req-1")


async def test_when_the_default_shard_is_down_the_next_one_takes_the_row(shards: Shards, actor: Actor) -> None:
    half = await Shards.open({0: DEAD, 1: shards.store(1).url})
    none = await Shards.open({0: DEAD})
    try:
        await auditing.record(half, actor, "console.signin", "session", "ab", "succeeded")
        page = await auditing.list_audit(half)
        assert [entry.shard_id for entry in page.rows.rows] == [1]
        assert page.rows.status == "partial"
        with pytest.raises(ShardUnavailableError):
            await auditing.record(none, actor, "console.signin", "session", "ab", "succeeded")
    finally:
        await half.close()
        await none.close()


async def test_pages_are_merged_by_time_over_the_shards(shards: Shards, actor: Actor) -> None:
    ones = {n: await Shards.open({n: shards.store(n).url}) for n in (0, 1)}
    for n in range(9):
        await auditing.record(ones[n % 2], actor, "workflow.start", "execution", f"e-{n}", "succeeded")
    seen, cursor = [], None
    while True:
        page = await auditing.list_audit(shards, limit=4, cursor=cursor)
        seen += [entry.target_id for entry in page.rows.rows]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"e-{n}" for n in reversed(range(9))]
    for each in ones.values():
        await each.close()


async def test_filters_and_their_cursors(shards: Shards, actor: Actor) -> None:
    for n in range(6):
        status = "failed" if n % 3 == 0 else "succeeded"
        await auditing.record(shards, actor, f"op.{n % 2}", "execution", f"e-{n}", status)
    for wanted, found in (
        ({"operation": "op.1"}, ["e-5", "e-3", "e-1"]),
        ({"status": "failed"}, ["e-3", "e-0"]),
        ({"target_id": "e-2"}, ["e-2"]),
    ):
        page = await auditing.list_audit(shards, AuditFilter(**wanted))
        assert [entry.target_id for entry in page.rows.rows] == found
    assert (await auditing.list_audit(shards, AuditFilter(actor="nobody"))).rows.rows == []
    assert (await auditing.list_audit(shards, AuditFilter(source="ui"))).rows.rows == []
    cursor = (await auditing.list_audit(shards, limit=2)).next_cursor
    with pytest.raises(CursorError):
        await auditing.list_audit(shards, AuditFilter(status="failed"), limit=2, cursor=cursor)
