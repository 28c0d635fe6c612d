"""The query page: a form for each question, the answer to the digit, and calm words where nobody can answer."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.errors import RequestTimeoutError
from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.operations import requesting
from tests.operations.population import Run, add
from tests.pages.acting import Site, hidden, words

MOST_BYTES = 150_000


async def test_every_question_has_a_form_made_from_its_handler(site: Site) -> None:
    run = await site.begin()
    page = await site.get(f"/w/{run}/query?name=total")
    assert page.status_code == 200
    for name in ("broken", "exact", "huge", "total"):
        assert f"/w/{run}/query?name={name}" in page.text
    assert 'name="v/0"' in page.text
    assert "currency" in words(page)
    assert "It takes no input." in words(await site.get(f"/w/{run}/query?name=exact"))


async def test_an_answer_is_shown_to_the_digit_and_nothing_is_kept_of_it(site: Site) -> None:
    run = await site.begin()
    before = await site.events(run)
    page = await site.post(f"/w/{run}/query", name="exact", tab="fields")
    assert page.status_code == 200
    assert '"n": 123456789012345678901234567890, "f": 1.10' in words(page)
    page = await site.post(f"/w/{run}/query", name="total", tab="fields", **{"v/0": "EUR", "v/1": "3"})
    assert '"0 EUR"' in words(page)
    assert 'name="v/0" value="EUR"' in page.text
    page = await site.post(f"/w/{run}/query", name="total", tab="raw", raw='["USD"]')
    assert '"0 USD"' in words(page)
    assert await site.events(run) == before
    assert await site.acts(run) == ["workflow.start"]


async def test_a_huge_answer_is_cut_and_its_download_is_whole(site: Site) -> None:
    run = await site.begin()
    page = await site.post(f"/w/{run}/query", name="huge", tab="fields", v="20000")
    assert (page.status_code, len(page.content) < MOST_BYTES) == (200, True)
    assert "The first part of 1.4 MB." in words(page)
    assert '<b>"&' not in page.text
    whole = await site.post(f"/w/{run}/query/download", name="huge", args=hidden(page, "args"))
    assert whole.json() == ['<b>"&' + "x" * 60] * 20_000
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"] == 'attachment; filename="answer.json"'


async def test_a_handler_that_fails_says_how(site: Site) -> None:
    run = await site.begin()
    page = await site.post(f"/w/{run}/query", name="broken", tab="fields")
    assert page.status_code == 422
    assert "The handler of broken failed." in words(page)
    assert "ValueError: no &lt;i&gt;such&lt;/i&gt; thing" in page.text
    assert "Ask broken again" in words(page)


async def test_arguments_that_do_not_fit_are_told_at_their_field(site: Site) -> None:
    run = await site.begin()
    page = await site.post(f"/w/{run}/query", name="total", tab="fields", **{"v/0": "EUR", "v/1": "many"})
    assert page.status_code == 422
    assert "Must be a whole number, was “many”." in words(page)
    page = await site.post(f"/w/{run}/query", name="total", tab="raw", raw='["EUR", "many"]')
    assert page.status_code == 422
    assert "One thing to mend before this can be asked." in words(page)
    assert 'aria-invalid="true"' in page.text


async def test_a_question_that_there_is_not_leads_to_those_that_there_are(site: Site) -> None:
    run = await site.begin()
    for page in (await site.get(f"/w/{run}/query?name=nothing"), await site.post(f"/w/{run}/query", name="nothing")):
        assert page.status_code == 404
        assert "This run has no query 'nothing' now. Choose one of those above." in words(page)
        assert f"/w/{run}/query?name=total" in page.text
    plain = await site.get(f"/w/{await site.begin('plain_flow')}/query")
    assert (plain.status_code, "This run answers no queries" in words(plain)) == (200, True)


async def test_nobody_to_ask_and_nobody_left_to_ask(site: Site) -> None:
    alone = await add(site.shards, 0, Run(workflow_name="nobodys_flow", workflow_id="alone"))
    ended = await add(site.shards, 1, Run(workflow_id="ended", state=State.FAILED))
    for run, status, told, again in (
        (alone, 503, "No worker can answer for it now.", True),
        (ended, 409, "It has ended; its code answers no more.", False),
    ):
        for page in (await site.get(f"/w/{run}/query"), await site.post(f"/w/{run}/query", name="total")):
            assert (page.status_code, told in words(page)) == (status, True)
            assert ("Ask again" in words(page)) is again
            assert "Back to the run" in words(page)
        download = await site.post(f"/w/{run}/query/download", name="total", args="null")
        assert download.status_code == status
    assert (await site.get(f"/w/{mint_execution_id(0)}/query")).status_code == 404


async def test_a_late_answer_is_told_as_such(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await site.begin()

    async def late(*_: Any, **__: Any) -> None:
        raise RequestTimeoutError("no worker has answered in 5 s")

    monkeypatch.setattr(requesting, "query", late)
    page = await site.post(f"/w/{run}/query", name="total", tab="fields", **{"v/0": "EUR"})
    assert (page.status_code, "Its workers did not answer in time." in words(page)) == (408, True)
    assert 'name="v/0" value="EUR"' in page.text
    monkeypatch.setattr(requesting, "handlers", late)
    page = await site.get(f"/w/{run}/query?name=total")
    assert (page.status_code, f"/w/{run}/query?name=total" in page.text) == (408, True)


async def test_a_form_of_another_page_asks_nothing(site: Site) -> None:
    run = await site.begin()
    for path in (f"/w/{run}/query", f"/w/{run}/query/download"):
        refused = await site.post(path, name="exact", csrf="forged")
        assert refused.status_code == 403
