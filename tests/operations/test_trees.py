"""Trees and children: whole over all shards, bounded, and honest about what is not shown."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from harvest.errors import CursorError, ExecutionNotFoundError, InvalidRequestError, ShardUnavailableError
from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.operations import trees
from harvest.operations.trees import Tree, TreeNode, children, tree
from harvest.shards import Shards
from harvest.store import families
from tests.operations.population import Run, add

DEAD = "postgresql://postgres@/x?host=/nonexistent"


async def grow(
    shards: Shards, parent_id: UUID, names: str, *, shard: Callable[[int], int] = lambda n: n % 2
) -> list[UUID]:
    """A child for each letter, the first the oldest."""
    return [
        await add(
            shards,
            shard(n),
            Run(workflow_id=name, age=-n - 1, parent_id=parent_id, awaited=True, close_policy=1),
        )
        for n, name in enumerate(names)
    ]


def drawn(node: TreeNode) -> str:
    """A tree as text: a(b,c(d))."""
    below = ",".join(drawn(child) for child in node.children)
    return f"{node.workflow_id}({below})" if below else node.workflow_id


def missing(found: Tree) -> list[int]:
    return [shard.shard_id for shard in found.shards.missing]


async def family(shards: Shards) -> tuple[UUID, list[UUID]]:
    """r(a(d,e(f)),b,c(g)), the children of each run in turn on shard 0 and 1."""
    root = await add(shards, 0, Run(workflow_id="r"))
    a, b, c = await grow(shards, root, "abc")
    _, e = await grow(shards, a, "de")
    await grow(shards, e, "f")
    await grow(shards, c, "g")
    return root, [a, b, c, e]


async def test_a_tree_is_whole_over_all_shards_and_its_children_are_in_order(shards: Shards) -> None:
    root, _ = await family(shards)
    found = await tree(shards, root)
    assert drawn(found.root) == "r(a(d,e(f)),b,c(g))"
    assert (found.node_count, found.max_depth_reached, found.counts) == (8, 3, {"RUNNING": 7})
    assert (found.truncation_reason, found.truncated_parent_ids, found.shards.status) == (None, [], "complete")
    assert {node.shard_id for node in found.root.children} == {0, 1}
    assert [node.depth for node in (found.root, found.root.children[0], found.root.children[0].children[1])] == [
        0,
        1,
        2,
    ]


async def test_a_node_says_how_it_hangs_on_its_parent(shards: Shards) -> None:
    root = await add(shards, 0, Run(workflow_id="r"))
    await add(shards, 0, Run(workflow_id="a", age=9, parent_id=root, awaited=True, close_policy=1, state=State.FAILED))
    await add(shards, 1, Run(workflow_id="b", age=8, parent_id=root, awaited=False, close_policy=2))
    await add(shards, 1, Run(workflow_id="c", age=7, parent_id=root, close_policy=0))
    found = (await tree(shards, root)).root
    assert (found.await_mode, found.parent_close_policy) == (None, None)
    assert [(node.workflow_id, node.state, node.await_mode, node.parent_close_policy) for node in found.children] == [
        ("a", "FAILED", "awaited", "request_cancel"),
        ("b", "RUNNING", "detached", "terminate"),
        ("c", "RUNNING", "detached", "abandon"),
    ]


@pytest.mark.parametrize(
    ("max_nodes", "shape", "cut"),
    [
        (1, "r", "r"),
        (2, "r(a)", "ra"),
        (4, "r(a,b,c)", "ac"),
        (5, "r(a(d),b,c)", "ac"),
        (7, "r(a(d,e),b,c(g))", "e"),
        (8, "r(a(d,e(f)),b,c(g))", ""),
    ],
)
async def test_nodes_are_bounded_and_every_parent_with_more_children_is_named(
    shards: Shards, max_nodes: int, shape: str, cut: str
) -> None:
    root, (a, b, c, e) = await family(shards)
    names = {root: "r", a: "a", b: "b", c: "c", e: "e"}
    found = await tree(shards, root, max_nodes=max_nodes)
    assert drawn(found.root) == shape
    assert "".join(names[parent] for parent in found.truncated_parent_ids) == cut
    assert found.truncation_reason == ("max_nodes" if cut else None)
    assert found.node_count == max_nodes


async def test_depth_is_bounded_and_what_lies_below_is_named(shards: Shards) -> None:
    root, (a, _, c, e) = await family(shards)
    found = await tree(shards, root, max_depth=1)
    assert (drawn(found.root), found.truncation_reason) == ("r(a,b,c)", "max_depth")
    assert found.truncated_parent_ids == [a, c]
    assert (await tree(shards, root, max_depth=2)).truncated_parent_ids == [e]
    whole = await tree(shards, root, max_depth=3)
    assert (whole.truncation_reason, whole.truncated_parent_ids) == (None, [])


async def test_a_node_has_the_cursor_of_its_children_that_follow(shards: Shards) -> None:
    root = await add(shards, 0, Run(workflow_id="r"))
    await grow(shards, root, "abcdefg")
    shown, after = [], {}
    for _ in range(3):
        found = await tree(shards, root, max_nodes=4, after=after)
        shown.append(drawn(found.root))
        after = {root: found.root.next_cursor} if found.root.next_cursor else {}
    assert (shown, after) == (["r(a,b,c)", "r(d,e,f)", "r(g)"], {})


async def test_a_node_within_goes_on_by_its_cursor_and_the_others_stay(shards: Shards) -> None:
    root = await add(shards, 0, Run(workflow_id="r"))
    a, b = await grow(shards, root, "ab")
    await grow(shards, a, "cdefg")
    await grow(shards, b, "h")
    cut = await tree(shards, root, max_nodes=6)
    assert drawn(cut.root) == "r(a(c,d,e),b)"
    cursor = cut.root.children[0].next_cursor
    assert cursor is not None
    assert (cut.root.next_cursor, cut.root.children[1].next_cursor) == (None, None)
    more = await tree(shards, root, max_nodes=6, after={a: cursor})
    assert (drawn(more.root), more.truncated_parent_ids) == ("r(a(f,g),b(h))", [])


async def test_the_cursor_of_a_node_is_one_of_the_list_of_its_children(shards: Shards) -> None:
    root = await add(shards, 0, Run(workflow_id="r"))
    await grow(shards, root, "abcde")
    found = await tree(shards, root, max_nodes=3)
    page = await children(shards, root, cursor=found.root.next_cursor)
    assert [item.workflow_id for item in page.items] == ["c", "d", "e"]
    listed = await children(shards, root, limit=1)
    assert listed.next_cursor is not None
    assert drawn((await tree(shards, root, after={root: listed.next_cursor})).root) == "r(b,c,d,e)"


async def test_a_cursor_of_another_run_is_refused(shards: Shards) -> None:
    root = await add(shards, 0, Run(workflow_id="r"))
    a, _ = await grow(shards, root, "ab")
    cursor = (await tree(shards, root, max_nodes=2)).root.next_cursor
    assert cursor is not None
    with pytest.raises(CursorError):
        await tree(shards, root, after={a: cursor})


async def test_the_names_of_truncated_parents_end_at_a_cap(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "PARENTS_NAMED", 1)
    root, (a, *_) = await family(shards)
    found = await tree(shards, root, max_depth=1)
    assert (found.truncated_parent_ids, found.truncated_parents_capped) == ([a], True)


async def test_a_summary_has_the_figures_and_no_nodes(shards: Shards) -> None:
    root, _ = await family(shards)
    found = await tree(shards, root, summary=True)
    assert (found.root.children, found.node_count, found.counts) == ([], 8, {"RUNNING": 7})


async def test_a_level_is_one_statement_a_shard(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    root, _ = await family(shards)
    asked: list[int] = []
    read = families.level

    async def counted(
        store: families.Store, parents: list[UUID], limit: int, after: families.Anchors
    ) -> list[families.Record]:
        asked.append(len(parents))
        return await read(store, parents, limit, after)

    monkeypatch.setattr(families, "level", counted)
    await tree(shards, root)
    assert asked == [1, 1, 3, 3, 3, 3, 1, 1]


async def test_a_missing_shard_is_named_asked_once_and_the_rest_is_shown(shards: Shards) -> None:
    root, _ = await family(shards)
    half = await Shards.open({0: shards.store(0).url, 1: DEAD})
    try:
        found = await tree(half, root)
        # b, e and what lies below e are on shard 1, or below a run that is.
        assert (drawn(found.root), found.shards.status, missing(found)) == ("r(a(d),c(g))", "partial", [1])
        page = await children(half, root, depth=1)
        assert [drawn(item) for item in page.items] == ["a(d)", "c(g)"]
        assert [shard.shard_id for shard in page.shards.missing] == [1]
        with pytest.raises(ShardUnavailableError):
            await tree(half, mint_execution_id(1))
    finally:
        await half.close()


async def test_a_walk_has_a_deadline_for_all_its_levels(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "WALK_SECONDS", -1.0)
    root, _ = await family(shards)
    found = await tree(shards, root)
    assert (drawn(found.root), found.shards.status, missing(found)) == ("r", "unavailable", [0, 1])
    assert found.shards.missing[0].reason == "no answer in time"


async def test_an_unknown_run_is_not_found_and_bounds_are_told(shards: Shards) -> None:
    with pytest.raises(ExecutionNotFoundError):
        await tree(shards, mint_execution_id(0))
    with pytest.raises(ExecutionNotFoundError):
        await children(shards, mint_execution_id(0))
    root = await add(shards, 0, Run())
    for name, value in (("max_depth", 0), ("max_depth", 51), ("max_nodes", 10_001)):
        with pytest.raises(InvalidRequestError, match=name):
            await tree(shards, root, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="NONSENSE"):
        await children(shards, root, states=["NONSENSE"])


async def test_children_come_in_pages_each_once_and_oldest_first(shards: Shards) -> None:
    root = await add(shards, 0, Run(workflow_id="r"))
    await grow(shards, root, "abcdefg")
    shown, cursor = [], None
    for _ in range(3):
        page = await children(shards, root, limit=3, cursor=cursor)
        shown.append("".join(item.workflow_id for item in page.items))
        cursor = page.next_cursor
    assert (shown, cursor) == (["abc", "def", "g"], None)


async def test_children_are_filtered_by_state_and_type(shards: Shards) -> None:
    root = await add(shards, 0, Run(workflow_id="r"))
    for n, state in enumerate((State.RUNNING, State.FAILED, State.COMPLETED, State.FAILED)):
        name = "ship_flow" if n < 2 else "pay_flow"
        await add(shards, n % 2, Run(workflow_name=name, workflow_id=f"c{n}", age=-n, parent_id=root, state=state))
    failed = await children(shards, root, states=["FAILED", "RUNNING"])
    assert [item.workflow_id for item in failed.items] == ["c0", "c1", "c3"]
    paid = await children(shards, root, states=["FAILED"], workflow_name="pay_flow")
    assert [item.workflow_id for item in paid.items] == ["c3"]
    first = await children(shards, root, limit=1)
    with pytest.raises(CursorError):
        await children(shards, root, limit=1, cursor=first.next_cursor, workflow_name="pay_flow")


async def test_children_bring_the_levels_below_them_that_were_asked_for(shards: Shards) -> None:
    root, _ = await family(shards)
    flat = await children(shards, root)
    assert [drawn(item) for item in flat.items] == ["a", "b", "c"]
    nested = await children(shards, root, depth=1)
    assert [drawn(item) for item in nested.items] == ["a(d,e)", "b", "c(g)"]
    assert not nested.truncated
    assert drawn((await children(shards, root, depth=2)).items[0]) == "a(d,e(f))"


async def test_levels_below_children_that_do_not_fit_are_said_to_be_cut(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "NESTED_NODES", 1)
    root, _ = await family(shards)
    page = await children(shards, root, depth=3)
    assert ([drawn(item) for item in page.items], page.truncated) == (["a(d)", "b", "c"], True)
