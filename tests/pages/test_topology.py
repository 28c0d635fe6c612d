"""The pages of the topology and of the residency map, as they are sent."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest
from litestar.testing import AsyncTestClient

from harvest.shards import ShardRouter, Shards
from harvest.shards.presence import Presence
from harvest.store import processes
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, BEARER, DEAD, Client, settings
from tests.pages.acting import Site, words
from tests.support import eventually

TWO = ShardRouter.of((0, 1))
TOPOLOGY, RESIDENCY = "/shards/topology", "/shards/residency"


@asynccontextmanager
async def site_of(urls: dict[int, str], router: ShardRouter | None = None) -> AsyncIterator[Site]:
    """A signed-in browser's requests to a console with this router, once its shards know of it."""
    shards = await Shards.open(urls, router)
    async with AsyncTestClient(create_app(settings(urls, router=router)), base_url=ADDRESS) as inner:
        client = Client(inner)
        site = Site(shards, client, await client.sign_in(shards))
        for shard_id, url in urls.items():
            if url != DEAD:
                await eventually(lambda shard_id=shard_id: processes.page(shards.store(shard_id), 10))
        yield site
    await shards.close()


@pytest.fixture
def urls(new_database: Callable[[str], str]) -> dict[int, str]:
    """The databases of two empty shards."""
    return {0: new_database("topology_pages_a"), 1: new_database("topology_pages_b")}


async def tell(
    site: Site, name: str, router: ShardRouter = TWO, *, silent_for: str = "", assigned: tuple[int, ...] = (0, 1)
) -> UUID:
    """A worker with this router tells of itself, and then nothing for so long."""
    process = uuid4()
    urls = {shard_id: store.url for shard_id, store in site.shards.stores.items() if store.url != DEAD}
    routed = Shards(urls, router)
    told = Presence(
        routed, process, "worker", through=lambda store: store.write, name=name, build="b-1", assigned=assigned
    )
    await told.tick()
    for store in routed.stores.values():
        if silent_for:
            await store.write.write(
                "update harvest_processes set seen_at = clock_timestamp() - $2::text::interval where process = $1",
                process,
                silent_for,
            )
    await routed.close()
    return process


async def test_a_console_alone_has_nothing_to_be_compared_with(urls: dict[int, str]) -> None:
    async with site_of(urls) as site:
        said = words(await site.get(TOPOLOGY))
    assert "Only one process was heard of." in said
    assert "1 living process." in said


async def test_processes_that_agree_are_said_to(urls: dict[int, str]) -> None:
    async with site_of(urls) as site:
        process = await tell(site, "w-1")
        page = await site.get(TOPOLOGY)
    assert "All 2 processes agree on every field." in words(page)
    assert "All 2 living processes agree." in words(page)
    assert page.text.count(TWO.digest) == 2
    assert f'href="/workers/{process}"' in page.text
    assert "Differs" not in page.text


async def test_differing_columns_and_rows_come_first_and_are_marked(urls: dict[int, str]) -> None:
    async with site_of(urls) as site:
        await tell(site, "alike")
        odd = but(TWO, residency={"eu": 1}, reserved=(1,))
        await tell(site, "odd <b>one</b>", odd)
        page = await site.get(TOPOLOGY)
    said = words(page)
    assert "1 of 3 processes routes differently: Reserved, Residency." in said
    headings = re.findall(r'<th scope="col"[^>]*>(?:<span class="state failed">)?([A-Z][a-z ]+)', page.text)
    assert headings[:5] == ["Process", "Heard", "Digest", "Reserved", "Residency"]
    rows = re.findall(r'<tr id="process-[^>]*>(.*?)</tr>', page.text, re.DOTALL)
    assert "odd &lt;b&gt;one&lt;/b&gt;" in rows[0]
    assert rows[0].count('class="state wrap failed">Differs: ') == 2
    assert "eu → 1" in rows[0]
    assert all("Differs" not in row for row in rows[1:])
    assert "2 different digests among 3 living processes." in said


async def test_stale_processes_are_greyed_with_their_age_and_only_some_are_listed(urls: dict[int, str]) -> None:
    async with site_of(urls) as site:
        await tell(site, "w-1")
        for number in range(12):
            await tell(site, f"gone-{number}", but(TWO, writable=(0,)), silent_for=f"{number + 2} minutes")
        page = await site.get(TOPOLOGY)
        said = words(page)
        assert "All 2 processes agree" in said
        assert page.text.count('class="dim"><th scope="row">') == 10
        assert re.search(r"Stale, 2 min", said)
        assert "2 more stale ones are not listed." in said
        assert "gone-11" not in said
        assert "gone-11" in words(await site.get(f"{TOPOLOGY}?stale=all"))


async def test_a_map_that_is_long_tells_what_is_not_as_in_most(urls: dict[int, str]) -> None:
    keys = {f"key-{number}": 0 for number in range(40)}
    router = but(TWO, residency=keys)
    async with site_of(urls, router) as site:
        await tell(site, "w-1", router)
        await tell(site, "odd", but(router, residency={**keys, "key-7": 1, "apac": 1}))
        said = words(await site.get(TOPOLOGY))
    assert "Differs: apac → 1; key-7 → 1" in said
    assert "40 keys" in said


async def test_shards_that_are_away_are_named_and_none_at_all_is_no_empty_list(urls: dict[int, str]) -> None:
    async with site_of({0: urls[0], 1: DEAD}, TWO) as site:
        said = words(await site.get(TOPOLOGY))
        assert "Shard 1 did not answer." in said
        assert "Only one process was heard of." in said
        assert "Shard 1 did not answer." in words(await site.get(RESIDENCY))


async def test_the_residency_map_shows_the_state_of_each_target_and_who_disagrees(urls: dict[int, str]) -> None:
    router = ShardRouter(
        readable=(0, 1, 2), writable=(0, 2), default=0, residency={"eu": 0, "us": 1, "cell-a": 2}, reserved=(2,)
    )
    async with site_of(urls, router) as site:
        await tell(site, "alike", router)
        await tell(site, "odd", but(router, residency={"eu": 1, "us": 1, "cell-a": 2, "apac": 0}))
        page = await site.get(RESIDENCY)
        said = words(page)
        keys = re.findall(r'<th scope="row"><code>([^<]+)</code>', page.text)
    assert keys == ["apac", "eu", "cell-a", "us"], "those in dispute first"
    assert "2 keys lead to different places." in said
    assert re.search(r"eu 0 Writable odd: shard 1", said)
    assert re.search(r"us 1 Readable only starts by this key are refused nobody", said)
    assert re.search(r"cell-a 2 No database here Writable, reserved nobody", said)
    assert re.search(r"apac none Not declared here odd: shard 0", said)


async def test_without_a_key_the_map_says_how_one_is_declared(urls: dict[int, str]) -> None:
    async with site_of(urls) as site:
        said = words(await site.get(RESIDENCY))
    assert "No residency key is declared" in said
    assert "HARVEST_RESIDENCY_MAP=eu=0,us=1" in said


async def test_where_no_shard_answers_the_map_of_this_console_is_shown_all_the_same() -> None:
    router = but(TWO, residency={"eu": 0})
    async with AsyncTestClient(
        create_app(settings({0: DEAD, 1: f"{DEAD}b"}, router=router)), base_url=ADDRESS
    ) as inner:
        headers = {**BEARER, "accept": "text/html"}
        assert "No shard answered" in words(await Client(inner)("GET", TOPOLOGY, headers=headers))
        said = words(await Client(inner)("GET", RESIDENCY, headers=headers))
    assert "No shard answered" in said
    assert "eu 0 Writable not known" in said


async def test_the_regions_are_told_to_be_as_they_were(urls: dict[int, str]) -> None:
    async with site_of(urls) as site:
        for path in (f"/_f{TOPOLOGY}?stale=all", f"/_f{RESIDENCY}"):
            assert (await site.get(path)).status_code == 200


def but(router: ShardRouter, **changed: object) -> ShardRouter:
    """The same router but for these fields."""
    fields = {name: getattr(router, name) for name in ShardRouter.__struct_fields__}
    return ShardRouter(**{**fields, **changed})
