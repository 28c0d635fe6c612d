"""The pages of owner mode and of partitions, as they are sent."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable

import pytest
from litestar.testing import AsyncTestClient

from harvest.shards import Shards
from harvest.store import partitions
from harvest.store.store import Store
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, DEAD, Client, settings
from tests.operations.owning import an_owner, end_lease, owning, switch_on
from tests.pages.acting import Site, words

MAP = "/shards/1/partitions"
CHANGE = "/shards/1/owner-mode"


@pytest.fixture
async def site(new_database: Callable[[str], str]) -> AsyncIterator[Site]:
    """A signed-in browser's requests to a console over two shards without workers."""
    urls = {0: new_database("pages_of_owners_a"), 1: new_database("pages_of_owners_b")}
    shards = await Shards.open(urls)
    async with AsyncTestClient(create_app(settings(urls)), base_url=ADDRESS) as inner:
        client = Client(inner)
        yield Site(shards, client, await client.sign_in(shards))
    await shards.close()


@pytest.fixture
def store(site: Site) -> Store:
    """The shard with the owners."""
    return site.shards.store(1)


async def test_each_shard_shows_what_is_met_and_who_offends(site: Site, store: Store) -> None:
    await an_owner(store, "alike")
    await an_owner(store, "old <b>one</b>", scanned=None)
    page = await site.get("/owner-mode")
    said = words(page)
    assert "Shard 0 Off 0 of 0 living workers can own" in said
    assert "Shard 1 Off 1 of 2 living workers can own" in said
    assert "old <b>one</b> has run no owner loop" in said
    assert "old <b>one</b>" not in page.text
    assert page.text.count("state wrap completed") == 8
    assert page.text.count("state wrap failed") == 2


async def test_it_is_turned_on_by_a_reason_and_a_phrase(site: Site, store: Store) -> None:
    await an_owner(store, "a")
    assert "Type owner mode on to confirm" in words(await site.get(CHANGE))
    missing = await site.post(CHANGE, enabled="true", phrase="owner mode")
    assert missing.status_code == 422
    assert "Reason : Needed" in words(missing)
    assert "Type the word owner mode on to confirm." in words(missing)
    done = await site.post(CHANGE, enabled="true", reason="warmth", phrase="owner mode on")
    assert (done.status_code, done.headers["location"]) == (303, f"{MAP}?did=on")
    assert "Owner mode is on. Owners take the partitions" in words(await site.get(done.headers["location"]))
    assert "Owner mode is on already." in words(
        await site.post(CHANGE, enabled="true", reason="", phrase="owner mode on")
    )
    off = await site.post(CHANGE, enabled="false", reason="deploy", phrase="owner mode off")
    assert off.headers["location"] == f"{MAP}?did=off"
    said = words(await site.get(off.headers["location"]))
    assert "Owner mode is off on shard 1" in said


async def test_a_fleet_that_differs_gets_no_button_and_a_late_refusal_is_said_in_place(
    site: Site, store: Store
) -> None:
    await an_owner(store, "a", queues=("default",))
    await an_owner(store, "b", queues=("mail",))
    page = await site.get(CHANGE)
    assert "It cannot be turned on now." in words(page)
    assert 'name="reason"' not in page.text
    refused = await site.post(CHANGE, enabled="true", reason="warmth", phrase="owner mode on")
    assert refused.status_code == 409
    assert "It was refused. Owner mode cannot be turned on for shard 1" in words(refused)
    assert (await site.post(CHANGE, enabled="true", reason="r", phrase="owner mode on", csrf="x")).status_code == 403


async def test_the_map_draws_each_partition_with_its_owner(site: Site, store: Store) -> None:
    await switch_on(store)
    await owning(store, "a", 300)
    other = await owning(store, "b", 205)
    await store.scan.write("update harvest_partitions set heir = $1 where owner <> $1 and partition < 8", other)
    page = await site.get(MAP)
    cells = re.findall(
        r'<a id="p(\d+)" href="([^"]+)" class="([^"]+)" aria-label="([^"]+)"[^>]*>([^<]+)</a>', page.text
    )
    assert [int(cell[0]) for cell in cells] == list(range(512))
    looks = [(cell[2], cell[4]) for cell in cells]
    assert looks.count(("free", "–")) == 7
    moving = sum(look == ("o2 moving", "a›b") for look in looks)
    assert (looks.count(("o1", "a")) + moving, looks.count(("o2", "b"))) == (300, 205)
    assert moving
    said = words(page)
    assert "505 of 512 partitions owned" in said
    assert "2 live owners, target 256 each" in said
    assert page.text.count('tabindex="0"') == 2, "the map's scroller and one cell of it"


async def test_who_has_lost_the_lease_is_no_owner_and_keeps_the_letters_of_others(site: Site, store: Store) -> None:
    await switch_on(store)
    lost, kept = await owning(store, "a", 200), await owning(store, "b", 312)
    await end_lease(store, lost)
    page = await site.get(f"{MAP}?view=table")
    said = words(page)
    assert "312 of 512 partitions owned" in said
    assert "none: the lease of a has ended" in said
    only = words(await site.get(f"{MAP}?view=table&owner={kept}&sort=partition"))
    assert re.search(r"1 to 128 of 312\s?, owned by b", only)
    assert "b b" in only


async def test_the_table_leads_through_all_of_them(site: Site, store: Store) -> None:
    await switch_on(store)
    await owning(store, "a", 512)
    seen: list[int] = []
    path: str | None = f"{MAP}?view=table&sort=partition"
    while path:
        page = await site.get(path)
        seen += [int(number) for number in re.findall(r'<tr id="row(\d+)"', page.text)]
        later = re.search(r'id="older" href="([^"]+)"', page.text)
        path = later[1].replace("&amp;", "&") if later else None
    assert seen == list(range(512))


async def test_the_journal_of_a_partition_is_a_part_of_the_page(site: Site, store: Store) -> None:
    await switch_on(store)
    for n in range(12):
        worker = await owning(store, f"owner-{n}", 512)
        await end_lease(store, worker)
    await partitions.note_fenced(store, worker, {(37, 11): 4})
    page = await site.get(f"{MAP}?p=37")
    said = words(page)
    assert "Journal of partition 37" in said
    assert "fenced owner-11, epoch 11 4 late commits were refused" in said
    assert "expired at owner-10, epoch 11" in said
    assert "acquired by owner-0" not in said
    assert 'id="p37" href="?p=37#journal" class="free" aria-label="37, no owner, epoch 12" aria-current="true"' in (
        page.text
    )
    for _ in range(2):
        older = re.search(r'href="([^"#]+)#journal" data-open>Older', page.text)
        assert older
        page = await site.get(older[1].replace("&amp;", "&"))
    assert "acquired by owner-0, epoch 1" in words(page)
    assert "data-open>Older" not in page.text


@pytest.mark.parametrize(
    "query", ["?p=512", "?p=-1", "?p=x", "?view=cube&sort=age", "?from=99999999", "?owner=b", "?before=0"]
)
async def test_an_address_that_means_nothing_shows_the_map(site: Site, store: Store, query: str) -> None:
    await switch_on(store)
    page = await site.get(MAP + query)
    assert (page.status_code, 'class="map"' in page.text) == (200, True)


async def test_the_region_is_told_to_be_as_it_was(site: Site, store: Store) -> None:
    await switch_on(store)
    await owning(store, "a", 512)
    first = await site.get(f"/_f{MAP}?p=3")
    assert 'hx-get="/_f/shards/1/partitions?p=3"' in first.text
    again = await site.client("GET", f"/_f{MAP}?p=3", headers={"hx-ptag": first.headers["hx-ptag"]})
    assert again.status_code == 304
    assert len(first.content) < 100_000


async def test_partitions_lead_to_the_default_shard(site: Site) -> None:
    assert (await site.get("/partitions")).headers["location"] == "/shards/0/partitions"


async def test_a_shard_that_is_away_is_named(site: Site) -> None:
    urls = {0: site.shards.stores[0].url, 1: DEAD}
    async with AsyncTestClient(create_app(settings(urls)), base_url=ADDRESS) as inner:
        client = Client(inner)
        half = Site(site.shards, client, await client.sign_in(site.shards))
        said = words(await half.get("/owner-mode"))
        assert "Shard 1 did not answer." in said
        assert "Shard 0 Off" in said
        for path in (MAP, CHANGE):
            page = await half.get(path)
            assert (page.status_code, "Cannot tell: a shard does not answer" in words(page)) == (503, True)
