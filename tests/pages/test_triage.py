"""Triage on pages: what people say of a run is shown in every state, and changed by a form that overwrites nobody."""

from __future__ import annotations

import re

import pytest

from harvest.history.states import State
from harvest.operations import reading
from harvest.operations.triage import NOTE_BYTES, TriageChange, change_triage
from harvest.store.filters import SEVERITIES
from tests.operations.population import Run, add
from tests.pages.acting import ACTOR, Site, hidden, words

PAYMENTS = TriageChange(owner="payments & <b>co</b>", severity="sev2", note="call <i>first</i>\nthen wait")


async def said_of(site: Site, run: str) -> tuple[str | None, str | None, str | None]:
    """Owner, severity and note as they are kept."""
    found = await reading.get(site.shards, site.id(run))
    return found.owner, found.severity, found.note


async def test_a_run_of_which_nobody_said_anything_has_one_line_and_a_way_to_say_it(site: Site) -> None:
    run = await site.begin()
    page = await site.get(f"/w/{run}")
    assert "Triage no owner, no severity, no note Set" in words(page)
    assert f'id="triage" href="/w/{run}/triage" aria-label="Set the triage"' in page.text


async def test_owner_severity_and_note_are_on_the_page_and_lead_to_what_has_the_same(site: Site) -> None:
    run = await site.begin()
    await change_triage(site.shards, ACTOR, site.id(run), PAYMENTS)
    for path in (f"/w/{run}", f"/_f/w/{run}"):
        page = await site.get(path)
        said = words(page)
        assert "Severity sev2 Owner payments & <b>co</b> call <i>first</i> then wait" in said
        for told in ('<span class="state sev2">sev2</span>', 'href="/workflows?severity=sev2"', "<i>first</i>\nthen"):
            assert told in page.text.replace("&lt;", "<").replace("&gt;", ">")
    owner = re.search(r'href="(/workflows\?owner=[^"]*)"', (await site.get(f"/w/{run}")).text)
    assert owner is not None
    assert run in (await site.get(owner[1])).text


@pytest.mark.parametrize("state", [State.FAILED, State.COMPLETED, State.PAUSED])
async def test_a_run_of_any_state_is_triaged_from_its_page(site: Site, state: State) -> None:
    run = str(await add(site.shards, 1, Run(state=state)))
    assert f"/w/{run}/triage" in (await site.get(f"/w/{run}")).text
    done = await site.post(f"/w/{run}/triage", owner=" lena ", severity="sev1", note="the card\r\nis dead\r\n")
    assert (done.status_code, done.headers["location"]) == (303, f"/w/{run}?did=triaged")
    assert "Its triage is changed." in words(await site.get(done.headers["location"]))
    assert await said_of(site, run) == ("lena", "sev1", "the card\nis dead")
    assert await site.acts(run) == ["workflow.triage"]


async def test_the_form_shows_what_is_said_and_offers_the_severities_that_there_are(site: Site) -> None:
    run = await site.begin()
    await change_triage(site.shards, ACTOR, site.id(run), PAYMENTS)
    page = await site.get(f"/w/{run}/triage")
    assert re.findall(r'name="severity" value="([^"]*)"', page.text) == ["", *SEVERITIES]
    assert 'value="sev2" checked' in page.text
    assert hidden(page, "was_owner") == "payments & <b>co</b>"
    assert hidden(page, "was_note") == "call <i>first</i>\nthen wait"


async def test_each_field_is_cleared_by_leaving_it_empty(site: Site) -> None:
    run = await site.begin()
    await change_triage(site.shards, ACTOR, site.id(run), PAYMENTS)
    was = {"was_owner": "payments & <b>co</b>", "was_severity": "sev2", "was_note": "call <i>first</i>\r\nthen wait"}
    await site.post(f"/w/{run}/triage", owner=" ", severity="", note="", **was)
    assert await said_of(site, run) == (None, None, None)
    assert "no owner, no severity, no note" in words(await site.get(f"/w/{run}"))


async def test_a_field_that_was_left_as_it_was_keeps_what_somebody_else_has_set_meanwhile(site: Site) -> None:
    run = await site.begin()
    await change_triage(site.shards, ACTOR, site.id(run), PAYMENTS)
    await change_triage(site.shards, ACTOR, site.id(run), TriageChange(note="mended"))
    was = {"was_owner": "payments & <b>co</b>", "was_severity": "sev2", "was_note": "call <i>first</i>\nthen wait"}
    await site.post(f"/w/{run}/triage", owner="lena", severity="sev2", note="call <i>first</i>\r\nthen wait", **was)
    assert await said_of(site, run) == ("lena", "sev2", "mended")


async def test_a_form_in_which_nothing_was_changed_changes_nothing_and_says_so(site: Site) -> None:
    run = await site.begin()
    done = await site.post(f"/w/{run}/triage", owner="", severity="", note="")
    assert done.headers["location"] == f"/w/{run}?did=same"
    assert "Nothing of it was changed." in words(await site.get(done.headers["location"]))
    assert await site.acts(run) == ["workflow.start"]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("owner", "é" * 128, "Owner has 256 bytes; at most 255 are allowed."),
        ("note", "n" * (NOTE_BYTES + 1), "Note has 8193 bytes; at most 8192 are allowed."),
        ("note", "a\0b", "Note holds a NUL character"),
        ("severity", "worst", "'worst' is no severity; there are sev1, sev2, sev3, sev4."),
    ],
)
async def test_what_cannot_be_kept_is_told_beside_its_field_and_nothing_is_lost(
    site: Site, field: str, value: str, told: str
) -> None:
    run = await site.begin()
    typed = {"owner": "lena", "severity": "sev3", "note": "kept", field: value}
    answer = await site.post(f"/w/{run}/triage", **typed)
    assert 400 <= answer.status_code < 500
    assert words(answer).count(told) == 2
    assert f'<span class="err" id="{field}-h">' in answer.text
    assert hidden(answer, "was_owner") == ""
    kept = {"owner": 'value="lena"', "note": ">\nkept</textarea>"}
    for name, text in kept.items():
        assert name == field or text in answer.text
    assert await said_of(site, run) == (None, None, None)


async def test_it_is_refused_without_the_sessions_token_and_for_no_run(site: Site) -> None:
    run = await site.begin()
    assert (await site.post(f"/w/{run}/triage", owner="lena", csrf="forged")).status_code == 403
    assert await said_of(site, run) == (None, None, None)
    gone = "00000000-0000-8000-8000-000000000000"
    assert (await site.get(f"/w/{gone}/triage")).status_code == 404
    assert (await site.post(f"/w/{gone}/triage", owner="lena")).status_code == 404
