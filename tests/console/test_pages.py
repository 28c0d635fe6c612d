"""Pages as their HTML: what a person is told of blocked, unserved and cancelled runs, and what a form says at once."""

from __future__ import annotations

import re
from uuid import UUID

from harvest.history.states import State
from harvest.shards import Shards
from tests.console.conftest import Client
from tests.operations.population import Run, add

HTML = {"accept": "text/html"}


async def text(console: Client, path: str) -> str:
    """A page's words, one space between them."""
    response = await console("GET", path, headers=HTML)
    assert response.status_code == 200, response.text
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", response.text))


async def test_the_overview_leads_to_the_blocked_runs_alone(console: Client, shards: Shards) -> None:
    await console.sign_in(shards)
    await add(shards, 0, Run(workflow_id="stands-still", blocked="step_too_long"))
    await add(shards, 1, Run(workflow_id="goes-on"))
    assert 'href="/workflows?blocked=1"' in (await console("GET", "/", headers=HTML)).text
    for path in ("/workflows?blocked=1", "/_f/workflows?blocked=1"):
        page = (await console("GET", path, headers=HTML)).text
        assert ("stands-still" in page, "goes-on" in page) == (True, False)
    listed = (await console.api("GET", "/workflows?blocked=true")).json()["workflows"]
    assert [row["workflow_id"] for row in listed] == ["stands-still"]
    assert (await console.api("GET", "/workflows/count?blocked=true")).json()["count"] == 1


async def test_a_run_that_no_live_worker_serves_says_so(console: Client, shards: Shards) -> None:
    await console.sign_in(shards)
    execution_id = await add(shards, 0, Run(waiting="signal approved"))
    await shards.store(0).write.write("delete from harvest_workers")
    page = await text(console, f"/w/{execution_id}")
    assert "No live worker serves queue default" in page
    assert "Nothing holds it back" not in page
    await shards.store(0).write.write(
        "insert into harvest_workers (worker, name, host, pid, queues, lease_until, slots) "
        "values ($1, 'w', 'h', 1, '{default}', clock_timestamp() + interval '1 hour', 10)",
        UUID(int=1),
    )
    page = await text(console, f"/w/{execution_id}")
    assert "No live worker" not in page
    assert "Waiting for signal approved. Nothing holds it back." in page
    ended = await add(shards, 1, Run(workflow_id="ended", state=State.COMPLETED))
    assert "No live worker" not in await text(console, f"/w/{ended}")


async def test_a_cancel_is_told_before_and_after(console: Client, shards: Shards) -> None:
    csrf = await console.sign_in(shards)
    execution_id = await add(shards, 0, Run(blocked="step_too_long"))
    later = "takes effect once it is unblocked; terminate ends it now"
    assert later in await text(console, f"/w/{execution_id}/cancel")
    assert later not in await text(console, f"/w/{execution_id}")
    form = {"reason": "wrong", "csrf": csrf}
    assert (await console("POST", f"/w/{execution_id}/cancel", data=form)).status_code == 303
    page = await text(console, f"/w/{execution_id}")
    assert later in page
    assert "asked to cancel" in page
    assert "Cancel asked" in page
