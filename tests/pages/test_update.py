"""The update pages: a form for each change, its answer on a page of its own, and the same form sent twice acts once."""

from __future__ import annotations

import re

import pytest

from harvest.history.states import State
from harvest.operations import closing, pausing, signalling
from harvest_console.pages import update
from tests.operations.population import Run, add
from tests.pages.acting import ACTOR, Site, hidden, words
from tests.support import eventually


async def form_of(site: Site, run: str, name: str) -> dict[str, str]:
    """The hidden fields of an update's form."""
    page = await site.get(f"/w/{run}/update?name={name}")
    assert page.status_code == 200
    return {"name": name, "key": hidden(page, "key"), "tab": "fields"}


async def test_every_change_has_a_form_made_from_its_handler(site: Site) -> None:
    run = await site.begin()
    page = await site.get(f"/w/{run}/update")
    for name in ("add_line", "explode", "later"):
        assert f"/w/{run}/update?name={name}" in page.text
    assert "Another one" not in words(page)
    assert 'name="v/sku"' in page.text
    preview = await site.post(f"/_f/w/{run}/update", name="add_line", tab="fields", **{"v/sku": "HV-1"})
    assert '"sku": "HV-1"' in words(preview)


async def test_an_update_is_answered_on_its_own_page_and_sent_twice_it_acts_once(site: Site) -> None:
    run = await site.begin()
    form = {**await form_of(site, run, "add_line"), "v/sku": "HV-1", "v/count": "2"}
    sent = await site.post(f"/w/{run}/update", **form)
    assert sent.status_code == 303
    assert re.fullmatch(rf"/w/{run}/updates/[0-9a-f-]{{36}}", sent.headers["location"])
    page = await site.get(sent.headers["location"])
    assert page.status_code == 200
    said = words(page)
    for told in ("Update add_line", "Completed", '"count": 2', "by session:", "Send another"):
        assert told in said, told
    again = await site.post(f"/w/{run}/update", **form)
    assert again.headers["location"] == sent.headers["location"] + "?did=repeated"
    assert "nothing was done twice" in words(await site.get(again.headers["location"]))
    kinds = await site.events(run)
    assert (kinds.count("UpdateAdmitted"), kinds.count("UpdateCompleted")) == (1, 1)
    assert await site.acts(run) == ["workflow.update", "workflow.update", "workflow.start"]


async def test_what_the_code_rejects_can_be_mended_in_the_form(site: Site) -> None:
    run = await site.begin()
    form = {**await form_of(site, run, "add_line"), "v/sku": "X-1"}
    for _ in range(2):
        page = await site.post(f"/w/{run}/update", **form)
        assert page.status_code == 422
        assert "Its code rejected this; nothing was done." in words(page)
        assert "Discontinued: article X-1 is &lt;b&gt;not sold&lt;/b&gt;." in page.text
        assert 'name="v/sku" value="X-1"' in page.text
    kept = re.search(rf"/w/{run}/updates/[0-9a-f-]+", page.text)
    assert kept is not None
    answer = words(await site.get(kept[0]))
    assert "Rejected Nothing was done." in answer
    assert "Update add_line" in answer
    mended = await site.post(f"/w/{run}/update", **form | {"key": hidden(page, "key"), "v/sku": "HV-1"})
    assert mended.status_code == 303
    kinds = await site.events(run)
    assert (kinds.count("UpdateFailed"), kinds.count("UpdateCompleted")) == (1, 1)


async def test_a_handler_that_fails_says_how_on_the_answers_page(site: Site) -> None:
    run = await site.begin()
    sent = await site.post(f"/w/{run}/update", **await form_of(site, run, "explode"), v="tea")
    page = await site.get(sent.headers["location"])
    assert "Failed Its handler may have done a part of it." in words(page)
    assert "RuntimeError: it broke: tea" in words(page)


async def test_what_does_not_fit_is_told_before_it_is_in_the_history(site: Site) -> None:
    run = await site.begin()
    form = {**await form_of(site, run, "add_line"), "v/sku": "H", "v/count": "0"}
    page = await site.post(f"/w/{run}/update", **form)
    assert page.status_code == 422
    assert "2 things to mend before this can be sent." in words(page)
    assert hidden(page, "key") == form["key"]
    page = await site.post(f"/w/{run}/update", **form | {"tab": "raw", "raw": '{"sku": 7}'})
    assert page.status_code == 422
    assert await site.events(run) == ["WorkflowStarted"]


async def test_an_update_of_a_paused_run_is_kept_and_its_page_shows_the_answer_when_it_comes(site: Site) -> None:
    run = await site.begin()
    await pausing.pause(site.shards, ACTOR, site.id(run))
    form = {**await form_of(site, run, "add_line"), "v/sku": "HV-1"}
    assert "answered when it is resumed" in words(await site.get(f"/w/{run}/update"))
    sent = await site.post(f"/w/{run}/update", **form)
    page = await site.get(sent.headers["location"])
    for told in ("Admitted", "is not answered yet", "The run is paused", "Look again"):
        assert told in words(page), told
    region = f"/_f{sent.headers['location']}"
    assert f'hx-get="{region}"' in page.text
    await pausing.resume(site.shards, ACTOR, site.id(run))

    async def answered() -> bool:
        return "Completed" in words(await site.get(region))

    await eventually(answered)
    assert "hx-get" not in (await site.get(region)).text


async def test_a_run_that_ends_before_it_answers_says_so(site: Site) -> None:
    run = await site.begin()
    await pausing.pause(site.shards, ACTOR, site.id(run))
    sent = await site.post(f"/w/{run}/update", **await form_of(site, run, "later"))
    await closing.terminate(site.shards, ACTOR, site.id(run), reason="over")
    page = words(await site.get(sent.headers["location"]))
    assert "ended before it answered" in page
    assert "Send another" not in page


async def test_without_a_worker_an_update_is_sent_all_the_same(site: Site) -> None:
    alone = await add(site.shards, 0, Run(workflow_name="nobodys_flow", workflow_id="kept"))
    page = await site.get(f"/w/{alone}/update")
    assert page.status_code == 200
    assert "No worker can answer for it now. An update can be sent all the same" in words(page)
    form = {"key": hidden(page, "key"), "name": "anything", "tab": "raw", "raw": "1.10"}
    sent = await site.post(f"/w/{alone}/update", **form)
    told = words(await site.get(sent.headers["location"]))
    assert "is not answered yet" in told
    assert "1.10" in told


async def test_what_has_ended_takes_no_updates_and_what_is_not_there_is_not_found(site: Site) -> None:
    ended = await add(site.shards, 1, Run(workflow_id="over", state=State.COMPLETED))
    assert "takes no more updates" in words(await site.get(f"/w/{ended}/update"))
    refused = await site.post(f"/w/{ended}/update", name="add_line", tab="raw", raw="1", key="k-1")
    assert (refused.status_code, "It was refused." in words(refused)) == (409, True)
    run = await site.begin()
    missing = await site.get(f"/w/{run}/updates/00000000-0000-4000-8000-000000000000")
    assert (missing.status_code, "There is no such update" in words(missing)) == (404, True)
    plain = await site.get(f"/w/{await site.begin('plain_flow')}/update")
    assert "This run takes no updates now" in words(plain)
    forged = await site.post(f"/w/{run}/update", name="add_line", csrf="forged")
    assert forged.status_code == 403


async def test_a_late_update_leads_to_the_page_of_its_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "WAIT", 0.1)
    run = await site.begin()
    sent = await site.post(f"/w/{run}/update", **await form_of(site, run, "later"))
    assert "is not answered yet" in words(await site.get(sent.headers["location"]))
    await signalling.signal(site.shards, ACTOR, site.id(run), "later", b'{"n":12345678901234567890123}')

    async def answered() -> bool:
        return '"n": 12345678901234567890123' in words(await site.get(sent.headers["location"]))

    await eventually(answered)


async def test_a_run_that_went_on_leads_to_the_one_that_follows_it(site: Site) -> None:
    first = await add(site.shards, 0, Run(workflow_id="chain", state=State.CONTINUED_AS_NEW, age=60))
    second = await add(site.shards, 0, Run(workflow_id="chain", first_execution_id=first, previous_execution_id=first))
    for path in ("signal", "update"):
        assert f'href="/w/{second}/{path}' in (await site.get(f"/w/{first}/{path}")).text
    asked = await site.get(f"/w/{first}/query")
    assert (asked.status_code, f'href="/w/{second}"' in asked.text) == (409, True)


async def test_the_audit_log_says_of_an_update_only_that_it_was_admitted(site: Site) -> None:
    run = await site.begin()
    await site.post(f"/w/{run}/update", **await form_of(site, run, "add_line"), **{"v/sku": "X-1"})
    told = words(await site.get(f"/audit?target={run}"))
    assert re.search(r"workflow\.update .*? Admitted ", told)
    assert re.search(r"workflow\.start .*? Done ", told)
