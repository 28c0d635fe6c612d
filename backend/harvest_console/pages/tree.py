"""`/w/{execution_id}/tree`: the family of a run over all shards, and the children of a run page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final
from uuid import UUID

from litestar import get
from litestar.params import QueryParameter
from msgspec import Struct
from msgspec.structs import replace

from harvest.errors import CursorError, ExecutionNotFoundError, InvalidRequestError, ShardUnavailableError
from harvest.history.ids import parse_execution_id
from harvest.history.states import State
from harvest.operations import reading, trees
from harvest.operations.trees import Children, Tree, TreeNode
from harvest.operations.views import ExecutionDetail
from harvest.shards import Shards
from harvest_console.pages.branches import OPEN_ALL, OPEN_NONE, branches
from harvest_console.pages.frames import frame
from harvest_console.pages.types import AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render

NODES: Final = (200, 1_000)
DEPTH: Final = 20
CHILDREN: Final = 50
HERE: Final = "here"
MOST_CONTINUED: Final = 20
States = Annotated[list[str] | None, QueryParameter(name="state")]


class Asked(Struct, frozen=True):
    """What the address of a tree asks for; `more` has cursors of runs: their children begin beyond."""

    start: str = ""
    nodes: int = NODES[0]
    unfold: str = ""
    more: dict[UUID, str] = {}

    def url(self, base: str, execution_id: UUID, **changed: Any) -> str:
        """An address like this one."""
        values: dict[str, Any] = {
            "from": self.start,
            "nodes": self.nodes if self.nodes != NODES[0] else None,
            "open": self.unfold,
            "more": _continuing(self.more),
        }
        return build_url(base, f"/w/{execution_id}/tree", **(values | changed))


class Found(Struct, frozen=True):
    """A tree, and why it is not the one from the root, where it should be; `stale` where a cursor meant nothing."""

    tree: Tree
    instead: str = ""
    stale: bool = False


def _continuing(more: dict[UUID, str]) -> list[str]:
    return [f"{node}.{cursor}" for node, cursor in more.items()]


def _continued(words: Sequence[str]) -> dict[UUID, str]:
    """The cursors of an address by their runs; what cannot be one is left out."""
    found: dict[UUID, str] = {}
    for word in words[-MOST_CONTINUED:]:
        node, _, cursor = word.partition(".")
        try:
            found[parse_execution_id(node)] = cursor
        except InvalidRequestError:
            continue
    return found


@get("/w/{execution:str}/tree")
async def tree_page(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    start: Annotated[str, QueryParameter(name="from")] = "",
    nodes: int = NODES[0],
    unfold: Annotated[str, QueryParameter(name="open")] = "",
    more: Annotated[list[str] | None, QueryParameter(name="more")] = None,
) -> Page:
    """The tree from the root, or from this run. Raises ExecutionNotFoundError and ShardUnavailableError."""
    asked = Asked(
        start if start == HERE else "",
        next((most for most in NODES if nodes <= most), NODES[-1]),
        unfold if unfold in (OPEN_ALL, OPEN_NONE) else "",
        _continued(more or ()),
    )
    run = await reading.get(shards, parse_execution_id(execution))
    try:
        found = await _read(shards, run, asked)
    except CursorError:
        asked = replace(asked, more={})
        found = replace(await _read(shards, run, asked), stale=True)
    return render(request, "tree.html", **frame(run, "tree"), **_context(request, run, found, asked))


async def _read(shards: Shards, run: ExecutionDetail, asked: Asked) -> Found:
    """The tree; from this run where the root is not to be had."""

    async def walk(execution_id: UUID) -> Tree:
        return await trees.tree(shards, execution_id, max_depth=DEPTH, max_nodes=asked.nodes, after=asked.more)

    instead = ""
    if run.root_id is not None and asked.start != HERE:
        try:
            return Found(await walk(run.root_id))
        except ExecutionNotFoundError:
            instead = "Its root is not there any more."
        except ShardUnavailableError as error:
            instead = f"Its root cannot be read: {error.message}."
    return Found(await walk(run.execution_id), instead)


def _context(request: AnyRequest, run: ExecutionDetail, found: Found, asked: Asked) -> dict[str, Any]:
    base, tree = base_path(request), found.tree

    def url(**changed: Any) -> str:
        return asked.url(base, run.execution_id, **changed)

    def more_url(node: TreeNode) -> str:
        shown = {each: cursor for each, cursor in asked.more.items() if each != node.execution_id}
        return url(more=_continuing({**shown, node.execution_id: node.next_cursor or ""})) + f"#n{node.execution_id}"

    def first_url(node: TreeNode) -> str:
        shown = {each: cursor for each, cursor in asked.more.items() if each != node.execution_id}
        return url(more=_continuing(shown)) + f"#n{node.execution_id}"

    larger = next((most for most in NODES if most > asked.nodes), None)
    return {
        "tree": tree,
        "root": branches(tree, run.execution_id, asked.unfold, asked.more),
        "instead": found.instead,
        "stale": found.stale,
        "more_url": more_url,
        "first_url": first_url,
        "asked": asked,
        "has_root": run.root_id is not None and run.root_id != run.execution_id,
        "shown_here": _holds(tree, run.execution_id),
        "again_url": url(),
        "larger": larger,
        "larger_url": url(nodes=larger) if larger is not None and tree.truncation_reason == "max_nodes" else None,
        "from_root_url": url(**{"from": None}),
        "from_here_url": url(**{"from": HERE}),
        "unfold_url": url(open=OPEN_ALL),
        "fold_url": url(open=OPEN_NONE),
    }


def _holds(tree: Tree, execution_id: UUID) -> bool:
    """Whether a run is among the nodes of a tree."""
    left = [tree.root]
    while left:
        node = left.pop()
        if node.execution_id == execution_id:
            return True
        left += node.children
    return False


@get("/w/{execution:str}/children")
async def children_page(
    request: AnyRequest, shards: Shards, execution: str, states: States = None, type: str = "", cursor: str = ""
) -> Page:
    """One page of a run's children, oldest first. Raises ExecutionNotFoundError and ShardUnavailableError."""
    run = await reading.get(shards, parse_execution_id(execution))
    chosen = tuple(dict.fromkeys(states or ()))
    stale = False
    try:
        found = await _children(shards, run, chosen, type, cursor)
    except CursorError:
        found, stale = await _children(shards, run, chosen, type, ""), True
    base, page = base_path(request), f"/w/{run.execution_id}/children"

    def url(**changed: Any) -> str:
        return build_url(base, page, **({"state": list(chosen), "type": type} | changed))

    return render(
        request,
        "children.html",
        **frame(run, "tree"),
        found=found,
        stale=stale,
        type=type,
        narrowed=bool(chosen or type),
        chips=[
            (word, word in chosen, url(state=[each for each in _OFFERED if (each in chosen) != (each == word)]))
            for word in _OFFERED
        ],
        again_url=url(cursor=cursor),
        clear_url=url(state=None, type=None),
        newer_url=url(cursor=found.previous_cursor) if found.previous_cursor else None,
        older_url=url(cursor=found.next_cursor) if found.next_cursor else None,
    )


_OFFERED: Final = tuple(state.name for state in State if state.name not in ("MIGRATING", "MIGRATED"))


async def _children(shards: Shards, run: ExecutionDetail, states: tuple[str, ...], type: str, cursor: str) -> Children:
    return await trees.children(
        shards,
        run.execution_id,
        states=states,
        workflow_name=type or None,
        limit=CHILDREN,
        cursor=cursor or None,
    )


handlers = [tree_page, children_page]
