"""The family of a run: every node with what it is and where, bounded, and honest about what is not shown."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from harvest.history.states import State
from harvest.operations.trees import tree
from harvest_console.pages import tree as tree_pages
from harvest_console.pages.branches import Branch, branches
from tests.operations.population import Run, add
from tests.pages.acting import HTML, Site, words
from tests.pages.families import child_of, many_children, without_shard_1
from tests.scale import scale


async def root_of(site: Site, name: str, **more: object) -> UUID:
    return await add(site.shards, 0, Run(workflow_name="family_flow", workflow_id=name, age=10, **more))  # type: ignore[arg-type]


def drawn(branch: Branch) -> str:
    """A branch as text: `root[earlier](child,child)`, the current run starred, closed branches with a dash."""
    name = branch.node.workflow_id + "*" * branch.is_current
    earlier = f"[{','.join(drawn(each) for each in branch.earlier)}]" if branch.earlier else ""
    below = f"({','.join(drawn(each) for each in branch.below)}){'' if branch.is_open else '-'}" if branch.below else ""
    return name + earlier + below


async def test_a_child_shows_the_whole_family_with_itself_marked(site: Site) -> None:
    root = await root_of(site, "family-a")
    first = await child_of(site.shards, root, root, "first", age=9)
    await child_of(site.shards, root, root, "second", shard_id=1, age=8, state=State.FAILED, awaited=False)
    leaf = await child_of(site.shards, first, root, "leaf", shard_id=1, age=7, state=State.COMPLETED, close_policy=2)
    found = branches(await tree(site.shards, root), leaf)
    assert drawn(found) == "family-a(first(leaf*),second)"
    assert found.tally == [("COMPLETED", 1), ("FAILED", 1), ("RUNNING", 1)]
    page = await site.get(f"/w/{leaf}/tree")
    assert "Running family_flow family-a" in words(page)
    assert "Completed ship_flow leaf this run awaited, terminated with its parent, shard 1, 1 s" in words(page)
    assert "Failed ship_flow second detached, cancelled with its parent, shard 1, 1 s" in words(page)
    assert page.text.count("<details open>") == 2
    here = words(await site.get(f"/w/{first}/tree?from=here"))
    assert ("leaf" in here, "second" in here) == (True, False)


async def test_runs_of_one_chain_are_one_node_with_the_earlier_ones_folded_into_it(site: Site) -> None:
    root = await root_of(site, "family-b")
    runs: list[UUID] = []
    for n in range(3):
        before = {"previous_execution_id": runs[-1], "first_execution_id": runs[0]} if runs else {}
        state = State.RUNNING if n == 2 else State.CONTINUED_AS_NEW
        runs.append(await child_of(site.shards, root, root, "loop", age=9 - n, state=state, **before))
    await child_of(site.shards, root, root, "other", age=5)
    found = branches(await tree(site.shards, root), root)
    assert drawn(found) == "family-b*(loop[loop,loop],other)"
    assert [each.node.execution_id for each in found.below[0].earlier] == [runs[1], runs[0]]
    assert dict(found.tally) == {"CONTINUED_AS_NEW": 2, "RUNNING": 2}
    earlier = branches(await tree(site.shards, root), runs[0])
    assert earlier.below[0].earlier_is_open
    assert "2 earlier runs of its chain" in words(await site.get(f"/w/{root}/tree"))


async def test_a_large_family_is_folded_but_for_the_way_to_the_current_run(site: Site) -> None:
    root = await root_of(site, "family-c")
    await many_children(site.shards, root, root, 70, state=State.COMPLETED)
    wide = await child_of(site.shards, root, root, "wide", age=-100)
    await many_children(site.shards, wide, root, 30, state=State.COMPLETED)
    whole = await tree(site.shards, root)
    below = {each.node.workflow_id: each for each in branches(whole, root).below}
    assert (branches(whole, root).is_open, below["wide"].is_open) == (True, False)
    inside = below["wide"].below[0].node.execution_id
    assert next(each for each in branches(whole, inside).below if each.node.workflow_id == "wide").is_open
    assert not branches(whole, root, "none").is_open
    page = (await site.get(f"/w/{root}/tree?open=all")).text
    assert "<details>" not in page


async def test_a_family_that_is_too_large_says_so_and_leads_on(site: Site) -> None:
    root = await root_of(site, "family-d")
    count = scale(300, 1_200)
    await many_children(site.shards, root, root, count, state=State.COMPLETED)
    page = await site.get(f"/w/{root}/tree")
    assert "there are more than 200 runs in it" in words(page)
    assert "Tree at least 200 runs" in words(page)
    assert len(page.content) < 150_000
    assert f'href="/w/{root}/children"' in page.text
    larger = re.search(r'href="([^"]+)">Show up to 1,000', page.text)
    assert larger is not None
    all_of_it = await site.get(larger[1].replace("&amp;", "&"))
    assert all_of_it.text.count('class="node"') == min(count + 1, 1_000)


async def test_more_children_of_a_run_are_links_that_show_each_of_them_once(site: Site) -> None:
    root = await root_of(site, "family-j")
    wide = await child_of(site.shards, root, root, "wide-j", age=-100)
    await many_children(site.shards, wide, root, 450, state=State.COMPLETED)
    path, shown, above = f"/w/{root}/tree", [], (str(root), str(wide))
    for _ in range(4):
        page = await site.get(path)
        shown += [each for each in re.findall(r'<li id="n([0-9a-f-]+)"', page.text) if each not in above]
        more = re.search(r'rel="next" href="([^"]+)"', page.text)
        if more is None:
            break
        assert more[1].endswith(f"#n{wide}")
        path = more[1].replace("&amp;", "&").partition("#")[0]
        assert "<details open>" in page.text
    assert (len(shown), len(set(shown))) == (450, 450)
    first = re.search(r'rel="prev" href="([^"]+)"', page.text)
    assert first is not None
    assert "From its first child" in words(page)
    again = await site.get(first[1].replace("&amp;", "&").partition("#")[0])
    assert 'rel="prev"' not in again.text


async def test_a_damaged_link_to_more_children_shows_the_tree_from_the_first(site: Site) -> None:
    root = await root_of(site, "family-k")
    await child_of(site.shards, root, root, "only", age=9)
    for more in (f"{root}.nonsense", f"{root}.", "nonsense", f"{UUID(int=1)}.nonsense"):
        page = await site.get(f"/w/{root}/tree?more={more}")
        assert (page.status_code, "only" in words(page)) == (200, True)
    assert "A link to more children of a run was damaged" in words(await site.get(f"/w/{root}/tree?more={root}.abc"))


async def test_a_deep_family_goes_on_where_it_is_cut(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_pages, "DEPTH", 2)
    root = await root_of(site, "family-e")
    runs = [root]
    for n in range(4):
        runs.append(await child_of(site.shards, runs[-1], root, f"level-{n}", age=9 - n))
    page = await site.get(f"/w/{root}/tree")
    assert "it goes deeper than 2 levels" in words(page)
    assert f'href="/w/{runs[2]}/tree?from=here"' in page.text
    deep = words(await site.get(f"/w/{runs[4]}/tree"))
    assert "This run is not among those that are shown." in deep


async def test_a_missing_shard_is_named_and_only_it_is_asked_again(site: Site) -> None:
    root = await root_of(site, "family-f")
    await child_of(site.shards, root, root, "here", age=9)
    there = await child_of(site.shards, root, root, "there", shard_id=1, age=8)
    async with without_shard_1(site.shards) as console:
        page = await console("GET", f"/w/{root}/tree", headers=HTML)
        assert page.status_code == 200
        said = words(page)
        assert "Shard 1 did not answer. The runs there, and what is below them, are not in this tree" in said
        assert ("here" in said, f"/w/{there}" in page.text) == (True, False)
        again = re.search(r'hx-get="([^"]+/shards/answering[^"]+)"', page.text)
        assert again is not None
        assert "shard=1" in again[1]
        region = await console("GET", again[1].replace("&amp;", "&"), headers=HTML)
        assert "Still no answer from shard 1" in words(region)
        children = words(await console("GET", f"/w/{root}/children", headers=HTML))
        assert "Shard 1 did not answer. Children there are not in this list" in children
    whole = await site.get(f"/_f/shards/answering?shard=1&again=%2Fw%2F{root}%2Ftree")
    assert "Every shard answers now. Read the page again" in words(whole)
    for elsewhere in ("https%3A%2F%2Felsewhere", "%2F%2Felsewhere"):
        assert (await site.get(f"/_f/shards/answering?shard=1&again={elsewhere}")).status_code == 400


async def test_a_run_whose_root_cannot_be_read_shows_what_is_below_it(site: Site) -> None:
    root = await add(site.shards, 1, Run(workflow_id="family-g", age=10))
    run = await child_of(site.shards, root, root, "child-g", age=9)
    await child_of(site.shards, run, root, "grandchild-g", age=8)
    async with without_shard_1(site.shards) as console:
        said = words(await console("GET", f"/w/{run}/tree", headers=HTML))
    assert "Its root cannot be read: shard 1 does not answer" in said
    assert "grandchild-g" in said
    gone = UUID(int=root.int ^ 1)
    orphan = await child_of(site.shards, gone, gone, "orphan", age=9)
    assert "Its root is not there any more." in words(await site.get(f"/w/{orphan}/tree"))


async def test_a_run_alone_says_so(site: Site) -> None:
    run = await root_of(site, "family-h")
    assert "It has no parent and has started no children." in words(await site.get(f"/w/{run}/tree"))
    assert "It has started no children." in words(await site.get(f"/w/{run}/children"))


async def test_children_are_filtered_and_come_in_pages(site: Site) -> None:
    root = await root_of(site, "family-i")
    await many_children(site.shards, root, root, 60, state=State.COMPLETED)
    await child_of(site.shards, root, root, "bad one", age=-90, state=State.FAILED)
    page = await site.get(f"/w/{root}/children")
    assert page.text.count('<tr id="r') == 50
    older = re.search(r'id="older" href="([^"]+)"', page.text)
    assert older is not None
    second = await site.get(older[1].replace("&amp;", "&"))
    assert second.text.count('<tr id="r') == 11
    failed = await site.get(f"/w/{root}/children?state=FAILED")
    assert failed.text.count('<tr id="r') == 1
    assert "No child matches" in words(await site.get(f"/w/{root}/children?type=nothing"))
    stale = await site.get(f"/w/{root}/children?cursor=abc")
    assert (stale.status_code, "The link to this page of the list was too old" in words(stale)) == (200, True)
    assert (await site.get(f"/w/{root}/children?state=NONSENSE")).status_code == 400


async def test_ids_of_full_length_with_anything_in_them_are_text(site: Site) -> None:
    name = "<script>alert(1)</script>🎁\u202e" + "x" * 1900
    root = await root_of(site, name)
    await child_of(site.shards, root, root, "y" + name, age=9)
    for path in ("tree", "children", "history", "timeline", "runs", ""):
        page = await site.get(f"/w/{root}/{path}".rstrip("/"))
        assert page.status_code == 200
        assert "<script>alert" not in page.text
    assert "🎁" in (await site.get(f"/w/{root}/tree")).text
