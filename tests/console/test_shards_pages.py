"""The pages of the shards: the table, one shard, and the runbook of adding one, with shards that do not answer too."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import msgspec
import pytest
from litestar.testing import AsyncTestClient

from harvest.operations import workers
from harvest.operations.canary import Canary
from harvest.operations.worker_views import WorkerSummary
from harvest.operations.workers import WorkerFilter
from harvest.shards import MissingShard, Partial, ShardRouter, Shards
from harvest.shards.presence import Presence
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, Client, settings
from tests.operations.test_shard_health import task, worker
from tests.pages.acting import HTML, words

ID = UUID(int=41)
ROUTER = ShardRouter(readable=(0, 1, 2), writable=(0, 2), default=0, reserved=(2,))


@pytest.fixture
async def three(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """A writable shard with a worker, one that takes nothing new, and a cell without a worker."""
    opened = await Shards.open({number: new_database(f"shards_page_{number}") for number in range(3)}, ROUTER)
    await worker(opened, 0)
    yield opened
    await opened.close()


@pytest.fixture
async def wide(three: Shards) -> AsyncIterator[Client]:
    """A console over them, signed in."""
    urls = {shard: store.url for shard, store in three.stores.items()}
    async with AsyncTestClient(create_app(settings(urls, router=ROUTER)), base_url=ADDRESS) as inner:
        console = Client(inner)
        await console.sign_in(three)
        yield console


async def text(console: Client, path: str) -> str:
    """A page's words."""
    response = await console("GET", path, headers=HTML)
    assert response.status_code == 200, response.text
    return words(response)


def row(page: str, shard: int) -> str:
    """The words of a shard's row."""
    found = re.search(rf'<tr id="s{shard}">.*?</tr>', page, re.S)
    assert found is not None
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", found[0]))


async def test_each_shard_says_its_role_readiness_and_what_waits(wide: Client, three: Shards) -> None:
    await task(three, 0)
    await task(three, 2)
    for path in ("/shards", "/_f/shards"):
        page = (await wide("GET", path, headers=HTML)).text
        assert "Writable , default Ready 1 1" in row(page, 0)
        assert "Readable only Ready" in row(page, 1)
        assert "Writable , reserved Degraded no living worker covers it 0 1" in row(page, 2)
        assert '<span class="state failed">1</span>' in page
        for look in ("running", "paused", "completed", "blocked"):
            assert f'class="state {look}"' in page


async def test_a_shard_that_takes_no_new_runs_is_told_as_one_that_is_added_or_drained(wide: Client) -> None:
    for path in ("/shards", "/shards/1"):
        assert "new runs: it is being added, or drained." in await text(wide, path)
    assert "takes no new runs" not in await text(wide, "/shards/0")
    assert "Make it writable" in await text(wide, "/shards/1")


async def test_the_canary_of_a_shard_is_told_or_that_nobody_probes(wide: Client, three: Shards) -> None:
    assert "Nobody probes now: HARVEST_CANARY is off here." in await text(wide, "/shards")
    await Canary(three).tick()
    page = (await wide("GET", "/shards", headers=HTML)).text
    assert "no answer for" in row(page, 0)
    await three.store(0).write.write(
        "update harvest_canary set execution_id = null, last_success_at = clock_timestamp() - interval '12 s', "
        "last_roundtrip_ms = 41, success_count = 3"
    )
    page = (await wide("GET", "/shards", headers=HTML)).text
    assert "41 ms" in row(page, 0)
    await three.store(0).write.write("update harvest_canary set last_success_at = now() - interval '10 min'")
    assert "Stale, 10 min" in row((await wide("GET", "/shards", headers=HTML)).text, 0)


async def test_a_shard_tells_its_queues_workers_and_what_mends_it(wide: Client, three: Shards) -> None:
    await task(three, 0, "mail")
    page = await text(wide, "/shards/0")
    for told in ("Shard 0", "Degraded", "worker_queue_uncovered", "mail", "Nobody takes it", "w0", "Stranded 1"):
        assert told in page, told
    html = (await wide("GET", "/shards/0", headers=HTML)).text
    for link in ("/shards/0/partitions", "/shards/0/owner-mode", "/workers?shard=0", "/shards/topology"):
        assert f'href="{link}"' in html
    assert "No worker is here" in await text(wide, "/shards/2")
    assert 'href="/shards/add?candidate=1"' in (await wide("GET", "/shards/1", headers=HTML)).text


async def test_a_shard_that_nobody_knows_is_an_error_page(wide: Client) -> None:
    for number in (7, 65_535, 123_456):
        assert (await wide("GET", f"/shards/{number}", headers=HTML)).status_code == 503


async def test_one_missing_shard_is_named_and_the_others_are_listed(half_console: Client, shards: Shards) -> None:
    await half_console.sign_in(shards)
    html = (await half_console("GET", "/shards", headers=HTML)).text
    assert "Shard 1 did not answer." in words_of(html)
    assert "Ready" in row(html, 0)
    assert "Unavailable" in row(html, 1)
    one = await text(half_console, "/shards/1")
    assert "Unavailable" in one
    assert "Nothing can be told of it now" in one
    assert "is at step" in await text(half_console, "/shards/add?candidate=1")


async def test_workers_that_could_not_be_asked_for_are_not_told_as_none(
    wide: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = workers.list_workers

    async def without(shards: Shards, wanted: WorkerFilter) -> Partial[WorkerSummary]:
        found = await listed(shards, wanted)
        gone = (MissingShard(0, "no answer in time"),)
        return msgspec.structs.replace(found, rows=[], read=(1, 2), missing=gone)

    monkeypatch.setattr(workers, "list_workers", without)
    for path in ("/shards/0", "/_f/shards/0"):
        page = await text(wide, path)
        assert "Shard 0 did not answer. Its workers are listed as far as the shards know that answered" in page
        assert "No worker is here" not in page
        assert "Which workers are here is not known" in page


def words_of(html: str) -> str:
    """The words of a page."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html))


def checks(html: str) -> dict[str, str]:
    """The word of each check of the runbook, by its key."""
    found = re.findall(r'<tr id="check-(\w+)">.*?<span class="state \w+">([^<]+)</span>', html, re.S)
    return dict(found)


async def test_the_runbook_of_a_shard_that_is_not_there_begins_with_its_database(wide: Client) -> None:
    html = (await wide("GET", "/shards/add?candidate=3", headers=HTML)).text
    found = checks(html)
    assert (found["database"], found["migrated"], found["readable"]) == ("Waiting", "Waiting", "Waiting")
    assert found["ready"] == "Waiting"
    assert found["writable"] == "Blocked"
    assert found["alert"] == "Yours to check"
    assert "Shard 3 is at step 1:" in words_of(html)
    assert "HARVEST_READABLE_SHARDS=0,1,2,3" in html
    assert "HARVEST_WRITABLE_SHARDS=0,2" in html


async def test_a_readable_shard_waits_at_the_gate_until_a_worker_covers_it(wide: Client, three: Shards) -> None:
    await task(three, 1, due=600.0)
    before = checks((await wide("GET", "/shards/add?candidate=1", headers=HTML)).text)
    assert (before["database"], before["migrated"], before["readable"]) == ("Done", "Done", "Done")
    assert (before["ready"], before["covered"], before["unstranded"]) == ("Waiting", "Waiting", "Done")
    assert before["writable"] == "Blocked"
    await worker(three, 1)
    assigned = Presence(three, ID, "worker", through=lambda store: store.write, name="w1", assigned=(0, 1))
    await assigned.tick()
    after = checks((await wide("GET", "/shards/add?candidate=1", headers=HTML)).text)
    assert (after["ready"], after["covered"], after["assigned"]) == ("Done", "Done", "Done")
    assert after["readable_everywhere"] == "Done"
    assert after["writable"] == "Waiting"


async def test_a_process_that_does_not_read_the_shard_yet_is_named(wide: Client, three: Shards) -> None:
    narrow = await Shards.open({0: three.store(0).url}, ShardRouter.of((0,)))
    await Presence(narrow, ID, "worker", through=lambda store: store.write, name="old-1", assigned=(0,)).tick()
    html = (await wide("GET", "/shards/add?candidate=1", headers=HTML)).text
    assert checks(html)["readable_everywhere"] == "Waiting"
    assert "Not yet: old-1." in words_of(html)
    await narrow.close()


async def test_the_runbook_suggests_the_shard_that_is_on_its_way(wide: Client) -> None:
    html = (await wide("GET", "/shards/add", headers=HTML)).text
    assert 'name="candidate" value="1"' in html
    wrong = await wide("GET", "/shards/add?candidate=many", headers=HTML)
    assert wrong.status_code == 200
    assert "&#39;many&#39; is no number of a shard" in wrong.text
    assert (await wide("GET", "/_f/shards/add?candidate=1", headers=HTML)).status_code == 200
