"""The signal page: it begins with what the run waits for."""

from __future__ import annotations

from harvest.operations import reading, signalling
from tests.pages.acting import ACTOR, Site, words
from tests.support import eventually

FIELD = '<input id="name" name="name" class="input mono" value="{}"'


async def test_an_undeclared_signal_that_is_waited_for_stands_in_the_name_field(site: Site) -> None:
    run = await site.begin("plain_flow")
    page = await site.get(f"/w/{run}/signal")
    assert FIELD.format("go") in page.text
    assert FIELD.format("mine") in (await site.get(f"/w/{run}/signal?name=mine")).text


async def test_a_declared_signal_that_is_waited_for_is_chosen(site: Site) -> None:
    run = await site.begin("declared_flow")
    assert "Send second" in words(await site.get(f"/w/{run}/signal"))
    assert "Send first" in words(await site.get(f"/w/{run}/signal?name=first"))
    assert FIELD.format("") in (await site.get(f"/w/{run}/signal?other=true")).text
    await signalling.signal(site.shards, ACTOR, site.id(run), "second", b"1")

    async def goes_on() -> bool:
        return (await reading.get(site.shards, site.id(run))).waiting == "signal undeclared"

    await eventually(goes_on)
    assert FIELD.format("undeclared") in (await site.get(f"/w/{run}/signal")).text
    assert FIELD.format("undeclared") in (await site.get(f"/w/{run}/signal?other=true")).text
