"""Pages of erasure and legal holds: what is asked before, what is refused and where it is said."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest

from harvest import clock
from harvest.history.erasing import ERASED, ERASED_TEXT
from harvest.history.states import State
from harvest.operations import erasing, legal_holds
from harvest_console.rendering.environment import with_erased
from harvest_console.rendering.json_text import head_of
from tests.operations.population import Run, add
from tests.pages.acting import ACTOR, Site, words
from tests.pages.families import child_of, run_with

MARK = '<span class="state erased">erased</span>'


async def ended(site: Site, **more: object) -> str:
    """A run that has ended, with an input."""
    run = Run(state=State.COMPLETED, input=b'{"card":"4711"}', result=b'"parcel 7"', **more)  # type: ignore[arg-type]
    return str(await run_with(site.shards, [], run))


def test_what_is_erased_is_recognised_however_it_is_laid_out() -> None:
    assert head_of(ERASED).erased
    assert with_erased(head_of(ERASED).text) == MARK
    beside = head_of(b'{"name":"<go>","input":' + ERASED + b"}")
    assert not beside.erased
    assert with_erased(beside.text) == f"{{\n  &#34;name&#34;: &#34;&lt;go&gt;&#34;,\n  &#34;input&#34;: {MARK}\n}}"


def test_the_message_of_a_failure_that_was_erased_is_marked_too() -> None:
    assert with_erased(ERASED_TEXT) == MARK
    assert with_erased("no <b>money</b>") == "no &lt;b&gt;money&lt;/b&gt;"


def test_a_text_that_only_speaks_of_it_stays_a_text() -> None:
    told = head_of(json.dumps({"note": ERASED.decode()}).encode())
    assert "erased</span>" not in with_erased(told.text)


async def test_a_run_is_erased_after_a_reason_and_the_word(site: Site) -> None:
    run = await ended(site)
    assert f"/w/{run}/erase" in (await site.get(f"/w/{run}")).text
    before = words(await site.get(f"/w/{run}/erase"))
    for told in ("Nothing brings it back.", "Goes", "Stays", "Not reached", "None goes with it."):
        assert told in before, told
    unsure = await site.post(f"/w/{run}/erase", reason="", phrase="delete")
    assert unsure.status_code == 422
    assert "Type the word erase to confirm." in words(unsure)
    assert await erasing.receipt_of(site.shards, site.id(run)) is None
    done = await site.post(f"/w/{run}/erase", reason="asked <to>", phrase="erase")
    receipt = await erasing.receipt_of(site.shards, site.id(run))
    assert receipt is not None
    assert done.status_code == 200
    shown = words(done)
    for told in ("It was erased.", "asked <to>", receipt.digest_before, receipt.digest_after, "Check again"):
        assert told in shown, told
    assert (await site.acts(run))[0] == "workflow.erase_payloads"


async def test_asked_twice_it_shows_the_first_receipt(site: Site) -> None:
    run = await ended(site)
    await site.post(f"/w/{run}/erase", reason="first", phrase="erase")
    receipt = await erasing.receipt_of(site.shards, site.id(run))
    assert receipt is not None
    again = await site.post(f"/w/{run}/erase", reason="second", phrase="erase")
    assert (again.status_code, again.headers["location"]) == (303, f"/erasure/{receipt.receipt}?did=unchanged")
    assert "Nothing was changed." in words(await site.get(again.headers["location"]))
    page = words(await site.get(f"/w/{run}/erase"))
    assert "This run was erased already" in page
    assert "Erase this run" not in page


async def test_what_is_left_below_an_erased_run_is_told_on_its_receipt(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await ended(site)
    await ended(site, parent_id=site.id(run), workflow_id="child")
    with monkeypatch.context() as patch:
        patch.setattr(erasing, "MOST_SECONDS", 0.0)
        done = await site.post(f"/w/{run}/erase", reason="asked to", phrase="erase")
    assert "Not all children were looked at" in words(done)
    rest = words(await site.post(f"/w/{run}/erase", reason="asked to", phrase="erase"))
    assert ("1 child was erased now." in rest, "Not all children" in rest) == (True, False)


async def test_the_key_of_the_digests_is_shown_once(site: Site) -> None:
    run = await ended(site)
    done = await site.post(f"/w/{run}/erase", reason="asked to", phrase="erase")
    found = re.search(r'id="digest-key">([0-9a-f]{64})<', done.text)
    assert found is not None
    assert done.headers["cache-control"] == "no-store"
    receipt = await erasing.receipt_of(site.shards, site.id(run))
    assert receipt is not None
    again = await site.post(f"/w/{run}/erase", reason="asked to", phrase="erase")
    for page in (await site.get(f"/erasure/{receipt.receipt}"), await site.get(again.headers["location"])):
        assert (found[1] in page.text, "digest-key" in page.text) == (False, False)


async def test_the_page_of_an_erased_run_says_who_and_why_and_shows_no_value(site: Site) -> None:
    run = await ended(site)
    receipt = (await erasing.erase_payloads(site.shards, ACTOR, site.id(run), reason="asked <to>")).run.receipt
    page = await site.get(f"/w/{run}")
    for told in (f'href="/erasure/{receipt}"', "asked &lt;to&gt;", f'<p id="input" class="pad">{MARK}</p>'):
        assert told in page.text, told
    for gone in ("4711", "parcel 7", "_harvest_erased"):
        assert gone not in page.text, gone
    assert MARK in (await site.get(f"/w/{run}/payload/result")).text
    assert MARK in (await site.get(f"/_f/w/{run}/payload/input")).text


async def test_an_open_run_is_refused_in_place(site: Site) -> None:
    run = await site.begin("plain_flow")
    page = words(await site.get(f"/w/{run}/erase"))
    assert "This run has not ended." in page
    assert "Erase this run" not in page
    refused = await site.post(f"/w/{run}/erase", reason="now", phrase="erase")
    assert (refused.status_code, "This run has not ended." in words(refused)) == (409, True)


async def test_a_held_run_says_who_holds_it_and_is_refused(site: Site) -> None:
    run = await ended(site)
    done = await site.post(
        f"/w/{run}/legal-hold", reason="a <court> asks", until="2100-01-01T10:00", tz="Europe/Berlin"
    )
    assert (done.status_code, done.headers["location"]) == (303, f"/w/{run}?did=held")
    assert 'class="link state on-hold"' in (await site.get(done.headers["location"])).text
    page = words(await site.get(f"/w/{run}/erase"))
    for told in ("A legal hold keeps it.", "a <court> asks", "Jan 1, 2100, 09:00:00 UTC"):
        assert told in page, told
    refused = await site.post(f"/w/{run}/erase", reason="now", phrase="erase")
    assert (refused.status_code, "A legal hold keeps it." in words(refused)) == (409, True)
    again = await site.post(f"/w/{run}/legal-hold", reason="another")
    assert again.headers["location"] == f"/w/{run}?did=unchanged"
    released = await site.post(f"/w/{run}/legal-hold/release")
    assert released.headers["location"] == f"/w/{run}?did=released"
    assert "on-hold" not in (await site.get(f"/w/{run}")).text
    assert (await site.post(f"/w/{run}/legal-hold/release")).headers["location"] == f"/w/{run}?did=unchanged"


async def test_a_hold_that_cannot_be_is_said_at_its_field(site: Site) -> None:
    run = await ended(site)
    past = await site.post(f"/w/{run}/legal-hold", reason="", until="2020-01-01T10:00", tz="UTC")
    assert past.status_code == 422
    for told in ("Needed:", "This has passed."):
        assert told in words(past), told
    assert 'value="2020-01-01T10:00"' in past.text
    odd = await site.post(f"/w/{run}/legal-hold", reason="case", until="soon", tz="UTC")
    assert (odd.status_code, "is no time" in words(odd)) == (422, True)
    long = await site.post(f"/w/{run}/legal-hold", reason="x" * 600)
    assert (long.status_code, "At most 500 characters, this has 600." in words(long)) == (422, True)
    assert await legal_holds.hold_of(site.shards, site.id(run)) is None


async def test_children_that_go_and_children_that_stay_are_told(site: Site) -> None:
    parent = await run_with(site.shards, [], Run(state=State.COMPLETED, workflow_name="parent_flow"))
    await child_of(site.shards, parent, parent, f"{parent}/gone", state=State.FAILED)
    stays = await child_of(site.shards, parent, parent, f"{parent}/open")
    page = await site.get(f"/w/{parent}/erase")
    for told in ("1 that has ended on this shard goes with it.", "1 is left out", "it has not ended"):
        assert told in words(page), told
    assert f'href="/w/{stays}"' in page.text
    done = await site.post(f"/w/{parent}/erase", reason="asked to", phrase="erase")
    assert "1 child was erased with it." in words(done)
    assert f'href="/w/{stays}"' in done.text


async def test_a_child_that_ended_later_is_erased_from_the_page_of_its_parent(site: Site) -> None:
    parent = await run_with(site.shards, [], Run(state=State.COMPLETED, workflow_name="parent_flow"))
    await site.post(f"/w/{parent}/erase", reason="asked to", phrase="erase")
    child = await child_of(site.shards, parent, parent, f"{parent}/late", state=State.COMPLETED)
    receipt = await erasing.receipt_of(site.shards, parent)
    assert receipt is not None
    assert f'href="/w/{parent}/erase"' in (await site.get(f"/erasure/{receipt.receipt}")).text
    page = words(await site.get(f"/w/{parent}/erase"))
    for told in ("This run was erased already", "that were left out then can be erased now.", "Erase 1 child"):
        assert told in page, told
    done = await site.post(f"/w/{parent}/erase", reason="asked to again", phrase="erase")
    assert "1 child was erased now." in words(done)
    assert await erasing.receipt_of(site.shards, child) is not None


async def test_receipts_come_newest_first_in_pages(site: Site) -> None:
    runs = [await add(site.shards, n % 2, Run(workflow_id=f"receipt-{n}", state=State.FAILED)) for n in range(53)]
    for run in runs:
        await erasing.erase_payloads(site.shards, ACTOR, run, reason="spring cleaning")
    first = await site.get("/erasure")
    assert first.text.index("receipt-52") < first.text.index("receipt-51") < first.text.index("receipt-4")
    assert "2 of 2 shards" in words(first)
    older = first.text.partition('id="older" href="')[2].partition('"')[0].replace("&amp;", "&")
    second = await site.get(older)
    assert "receipt-2<" in second.text
    assert "receipt-52<" not in second.text
    assert "too old" in words(await site.get("/erasure?cursor=abc"))


async def test_a_receipt_that_is_not_there_is_said_to_be_missing(site: Site) -> None:
    none = await site.get("/erasure/00000000-0000-8000-8000-000000000000")
    assert (none.status_code, "There is no such receipt" in words(none)) == (404, True)
    assert (await site.get("/erasure/xyz")).status_code == 400


async def test_a_check_says_what_it_found_and_when(site: Site) -> None:
    run = await ended(site)
    receipt = (await erasing.erase_payloads(site.shards, ACTOR, site.id(run), reason="asked to")).run.receipt
    found = await site.post(f"/erasure/{receipt}")
    assert (found.status_code, "It is as the receipt says." in words(found)) == (200, True)
    await site.shards.store_of(site.id(run)).write.write(
        "update harvest_execution_details set result = $2 where execution_id = $1", site.id(run), b'"parcel 7"'
    )
    changed = words(await site.post(f"/erasure/{receipt}"))
    for told in ("It is not as the receipt says.", "What differs is the run's own row."):
        assert told in changed, told
    assert (await site.post(f"/erasure/{receipt}", csrf="forged")).status_code == 403


async def test_a_hold_that_has_run_out_keeps_nothing(site: Site) -> None:
    run = await ended(site)
    await legal_holds.hold(site.shards, ACTOR, site.id(run), reason="x", hold_until=clock.now() + timedelta(days=1))
    await site.shards.store_of(site.id(run)).write.write(
        "update harvest_legal_holds set hold_until = now() where execution_id = $1", site.id(run)
    )
    assert "Hold this run" in words(await site.get(f"/w/{run}/legal-hold"))
    assert "Erase this run" in words(await site.get(f"/w/{run}/erase"))
