"""`/w/{execution_id}/tree`: the family of a run over all shards, and the children of a run page by page."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

from litestar import get
from litestar.params import QueryParameter
from msgspec import Struct

from harvest.errors import CursorError, ExecutionNotFoundError, InvalidRequestError, ShardUnavailableError
from harvest.history.ids import parse_execution_id
from harvest.history.states import State
from harvest.operations import probing, reading, trees
from harvest.operations.trees import Children, Tree
from harvest.operations.views import ExecutionDetail
from harvest.shards import Shards
from harvest_console.pages.branches import OPEN_ALL, OPEN_NONE, branches
from harvest_console.pages.frames import frame
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render, render_region

NODES: Final = (200, 1_000)
DEPTH: Final = 20
CHILDREN: Final = 50
HERE: Final = "here"
States = Annotated[list[str] | None, QueryParameter(name="state")]
ShardIds = Annotated[list[int] | None, QueryParameter(name="shard")]


class Asked(Struct, frozen=True):
    """What the address of a tree asks for."""

    start: str = ""
    nodes: int = NODES[0]
    unfold: str = ""

    def url(self, base: str, execution_id: UUID, **changed: Any) -> str:
        """An address like this one."""
        values: dict[str, Any] = {
            "from": self.start,
            "nodes": self.nodes if self.nodes != NODES[0] else None,
            "open": self.unfold,
        }
        return build_url(base, f"/w/{execution_id}/tree", **(values | changed))


class Found(Struct, frozen=True):
    """A tree, and why it is not the one from the root, where it should be."""

    tree: Tree
    instead: str = ""


@get("/w/{execution:str}/tree")
async def tree_page(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    start: Annotated[str, QueryParameter(name="from")] = "",
    nodes: int = NODES[0],
    unfold: Annotated[str, QueryParameter(name="open")] = "",
) -> Page:
    """The tree from the root, or from this run. Raises ExecutionNotFoundError and ShardUnavailableError."""
    asked = Asked(
        start if start == HERE else "",
        next((most for most in NODES if nodes <= most), NODES[-1]),
        unfold if unfold in (OPEN_ALL, OPEN_NONE) else "",
    )
    run = await reading.get(shards, parse_execution_id(execution))
    found = await _read(shards, run, asked)
    return render(request, "tree.html", **frame(run, "tree"), **_context(request, run, found, asked))


async def _read(shards: Shards, run: ExecutionDetail, asked: Asked) -> Found:
    """The tree; from this run where the root is not to be had."""

    async def walk(execution_id: UUID) -> Tree:
        return await trees.tree(shards, execution_id, max_depth=DEPTH, max_nodes=asked.nodes)

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

    larger = next((most for most in NODES if most > asked.nodes), None)
    return {
        "tree": tree,
        "root": branches(tree, run.execution_id, asked.unfold),
        "instead": found.instead,
        "asked": asked,
        "has_root": run.root_id is not None and run.root_id != run.execution_id,
        "shown_here": _holds(tree, run.execution_id),
        "again_url": url(),
        "shards_url": _shards_url(base, run.execution_id, [shard.shard_id for shard in tree.shards.missing], url()),
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


def _shards_url(base: str, execution_id: UUID, missing: list[int], again: str) -> str:
    return build_url(base, f"{FRAGMENTS}/w/{execution_id}/tree/shards", shard=missing, again=again)


@get(FRAGMENTS + "/w/{execution:str}/tree/shards")
async def shards_region(
    request: AnyRequest, shards: Shards, execution: str, over: ShardIds = None, again: str = ""
) -> Page:
    """Ask only the shards that did not answer whether they do now."""
    execution_id = parse_execution_id(execution)
    base = base_path(request)
    if not again.startswith(f"{base}/w/"):
        raise InvalidRequestError("again must be an address of this console", field="again")
    asked = sorted(set(over or ()) & set(shards.router.readable))
    answer = await probing.answering(shards, asked)
    return render_region(
        request,
        "regions/tree_shards.html",
        answer=answer,
        again_url=again,
        shards_url=_shards_url(base, execution_id, [shard.shard_id for shard in answer.missing], again),
    )


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


handlers = [tree_page, shards_region, children_page]
