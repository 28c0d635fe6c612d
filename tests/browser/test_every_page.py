"""What holds on every page: WCAG by axe in both themes, no sideways scrolling on a phone, no page of 150 kB."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.rows import Family
from tests.browser.server import DevServer

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]}
MOST_BYTES = 150_000
PAGES = {
    "overview": ("/", 200),
    "list": ("/workflows", 200),
    "list without a match": ("/workflows?state=FAILED&type=nothing&after=2026-01-01T00:00:00Z", 200),
    "list with a wrong filter": ("/workflows?state=SLEEPING&after=yesterday", 200),
    "list with an old cursor": ("/workflows?cursor=abc", 200),
    "list with conditions and columns": (
        "/workflows?type=order_flow&state=RUNNING&owner=x&columns=attrs.tenant&columns=owner&filter=attrs.tenant%3D'acme'",
        200,
    ),
    "list with columns": ("/workflows?columns=attrs.tenant&columns=attrs.tags&columns=severity", 200),
    "list with a filter that cannot be read": ("/workflows?filter=attrs.tenant%20~%205", 200),
    "list with facets": ("/workflows?facet=state", 200),
    "list with facets of an attribute": ("/workflows?facet=attrs.tenant", 200),
    "saved views": ("/views", 200),
    "save a view": ("/views/new?query=state%3DFAILED", 200),
    "no such view": ("/views/00000000-0000-4000-8000-000000000000", 404),
    "filters": ("/help/filters", 200),
    "waiting run": ("/w/{waiting}", 200),
    "completed run": ("/w/{completed}", 200),
    "failed run": ("/w/{failed}", 200),
    "history of a waiting run": ("/w/{waiting}/history", 200),
    "history in full": ("/w/{completed}/history?view=full&dir=oldest", 200),
    "history of some kinds": ("/w/{failed}/history?kind=failed", 200),
    "history without a match": ("/w/{waiting}/history?kind=timers&after=900", 200),
    "timeline": ("/w/{waiting}/timeline", 200),
    "timeline of a parent": ("/w/{parent}/timeline", 200),
    "timeline as a drawing": ("/w/{parent}/timeline?view=drawing", 200),
    "timeline as a table": ("/w/{parent}/timeline?view=table", 200),
    "timeline without steps": ("/w/{large}/timeline", 200),
    "run of a parent": ("/w/{parent}", 200),
    "history of a parent": ("/w/{parent}/history", 200),
    "run of a child": ("/w/{child}", 200),
    "tree": ("/w/{child}/tree", 200),
    "tree of a run alone": ("/w/{completed}/tree", 200),
    "tree of a large family": ("/w/{large}/tree", 200),
    "children": ("/w/{large}/children", 200),
    "children without a match": ("/w/{parent}/children?type=nothing", 200),
    "runs": ("/w/{child}/runs", 200),
    "runs of a run alone": ("/w/{completed}/runs", 200),
    "decisions": ("/w/{completed}/decisions", 200),
    "decisions as a drawing": ("/w/{waiting}/decisions?view=drawing&scale=each", 200),
    "decisions as a table": ("/w/{completed}/decisions?view=table", 200),
    "decisions that are not kept": ("/w/{large}/decisions", 200),
    "event": ("/w/{completed}/events/1", 200),
    "input": ("/w/{completed}/payload/input", 200),
    "types": ("/workflows/start", 200),
    "start form": ("/workflows/start?type=order_flow", 200),
    "start form, raw": ("/workflows/start?type=order_flow&tab=raw", 200),
    "signal form": ("/w/{waiting}/signal", 200),
    "another signal": ("/w/{waiting}/signal?other=true", 200),
    "cancel": ("/w/{waiting}/cancel", 200),
    "terminate": ("/w/{waiting}/terminate", 200),
    "workers": ("/workers", 200),
    "workers without a match": ("/workers?queue=nothing&status=draining", 200),
    "workers with a wrong filter": ("/workers?status=asleep&shard=x", 200),
    "worker": ("/workers/{worker}", 200),
    "drain": ("/workers/{worker}/drain", 200),
    "evict": ("/workers/{worker}/evict", 200),
    "warmth": ("/warmth", 200),
    "warmth of a day by worker": ("/warmth?window=24h&by=worker", 200),
    "no such worker": ("/workers/00000000-0000-8000-8000-000000000000", 404),
    "shards": ("/shards", 200),
    "shard": ("/shards/0", 200),
    "no such shard": ("/shards/7", 503),
    "add a shard": ("/shards/add?candidate=2", 200),
    "add a shard that is there": ("/shards/add?candidate=1", 200),
    "add a shard with a wrong number": ("/shards/add?candidate=many", 200),
    "partitions": ("/shards/0/partitions", 200),
    "journal of a partition": ("/shards/0/partitions?p=37", 200),
    "partitions of no shard": ("/shards/7/partitions", 503),
    "topology": ("/shards/topology", 200),
    "topology with every stale process": ("/shards/topology?stale=all", 200),
    "residency map": ("/shards/residency", 200),
    "key": ("/shards/key", 200),
    "key of a run": ("/shards/key?workflow_name=order_flow&workflow_id=waiting-order", 200),
    "key of nobody": ("/shards/key?workflow_name=order_flow&workflow_id=nobody", 200),
    "key that cannot be": ("/shards/key?workflow_name=order_flow&workflow_id=", 400),
    "relay": ("/shards/relay", 200),
    "owner mode": ("/owner-mode", 200),
    "turn owner mode on": ("/shards/0/owner-mode", 200),
    "usage": ("/usage", 200),
    "usage by an attribute": ("/usage?from=7d&by=search_attr:tenant&sort=-completed", 200),
    "usage of an empty window": ("/usage?from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z", 200),
    "usage of a wrong window": ("/usage?from=yesterday", 200),
    "audit": ("/audit", 200),
    "audit without a match": ("/audit?who=nobody", 200),
    "keys": ("/help/keys", 200),
    "sign in": ("/signin?token=x", 200),
    "no such run": ("/w/00000000-0000-8000-8000-000000000000", 404),
    "no such page": ("/nothing", 404),
    "no execution id": ("/w/xyz", 400),
    "a shard that is not configured": ("/w/00070000-0000-8000-8000-000000000000", 503),
}


@pytest.fixture(scope="session")
def runs(server: DevServer, waiting_run: str, completed_run: str, failed_run: str, family: Family) -> dict[str, str]:
    """Runs by what they do, and a worker."""
    kin = {"parent": family.parent, "child": family.child, "large": family.large}
    worker = server.call("GET", "/workers?health=healthy")["workers"][0]["worker_id"]
    return {"waiting": waiting_run, "completed": completed_run, "failed": failed_run, "worker": worker, **kin}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page(page: Page, runs: dict[str, str], name: str, theme: str) -> None:
    path, status = PAGES[name]
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    answer = page.goto(path.format(**runs))
    assert answer is not None
    assert answer.status == status
    assert len(answer.body()) < MOST_BYTES
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert overflow(page) <= 0
    page.set_viewport_size({"width": 320, "height": 844})
    assert overflow(page) <= 0


def violations(page: Page) -> list[Any]:
    """What axe finds, by rule and place."""
    found = Axe().run(page, options=RULES).response["violations"]
    return [(one["id"], [node["target"] for node in one["nodes"]]) for one in found]


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    width: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width
