"""The page of a run when what stands beside the run cannot be read in time: it is drawn, and says what is not known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from litestar.testing import AsyncTestClient

from harvest.history.states import State
from harvest.operations import legal_holds
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, Client, settings
from tests.operations.population import Run
from tests.pages.acting import ACTOR, HTML, Site, words
from tests.pages.families import run_with


@asynccontextmanager
async def console_of_its_own(site: Site) -> AsyncIterator[Client]:
    """A console over the shards of `site`, signed in to: what is late for it is not for those of other tests."""
    urls = {shard_id: store.url for shard_id, store in site.shards.stores.items()}
    async with AsyncTestClient(create_app(settings(urls)), base_url=ADDRESS) as inner:
        client = Client(inner)
        await client.sign_in(site.shards)
        yield client


@asynccontextmanager
async def late(site: Site) -> AsyncIterator[None]:
    """Neither holds nor receipts of shard 0 can be read."""
    connection = await asyncpg.connect(site.shards.store(0).url)
    try:
        async with connection.transaction():
            await connection.execute("lock table harvest_legal_holds, harvest_erasures in access exclusive mode")
            yield
    finally:
        await connection.close()


async def test_a_late_hold_or_receipt_is_not_known_and_the_page_is_drawn(site: Site) -> None:
    run = await run_with(site.shards, [], Run(state=State.COMPLETED, input=b'{"card":"4711"}'))
    await legal_holds.hold(site.shards, ACTOR, run, reason="case 7")
    async with console_of_its_own(site) as client, late(site):
        page = await client("GET", f"/w/{run}", headers=HTML)
    assert page.status_code == 200
    for told in ("Legal hold: not known", "Whether this run was erased is not known", "4711"):
        assert told in words(page), told


async def test_the_region_that_follows_a_run_says_so_too(site: Site) -> None:
    run = await run_with(site.shards, [], Run())
    async with console_of_its_own(site) as client, late(site):
        region = await client("GET", f"/_f/w/{run}", headers=HTML)
    assert region.status_code == 200
    assert "Legal hold: not known" in words(region)


async def test_what_could_be_read_is_not_said_to_be_unknown(site: Site) -> None:
    run = await run_with(site.shards, [], Run(state=State.COMPLETED))
    assert "not known" not in words(await site.get(f"/w/{run}"))


async def test_a_hold_of_a_run_that_is_being_erased_is_refused_in_place(site: Site) -> None:
    run = await run_with(site.shards, [], Run(state=State.COMPLETED))
    connection = await asyncpg.connect(site.shards.store(0).url)
    try:
        async with connection.transaction():
            await connection.execute("select from harvest_executions where execution_id = $1 for update", run)
            refused = await site.post(f"/w/{run}/legal-hold", reason="case 7")
    finally:
        await connection.close()
    assert refused.status_code == 409
    assert "being erased" in words(refused)
    assert "case 7" in refused.text, "what was typed is there for the next try"
