"""The tree below an execution and its children, over every readable shard (reference 4.2).

A tree is walked by `parent_id`, level by level: one statement a shard and level. A shard that does not answer once is
not asked again; it is named, and the rest is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeVar
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from harvest import clock
from harvest.errors import ExecutionNotFoundError, InvalidRequestError
from harvest.operations.asking import ask
from harvest.operations.listing import state_named
from harvest.operations.paging import Key, filter_digest, keyset_page, read_cursor, write_cursor
from harvest.operations.views import await_mode, close_policy_word, state_word
from harvest.shards import MissingShard, Partial, Shards
from harvest.shards.shards import READ_DEADLINE
from harvest.store import families
from harvest.store.store import Store

T = TypeVar("T")
MOST_DEPTH: Final = 50
MOST_NODES: Final = 10_000
MOST_CHILDREN: Final = 200
MOST_NESTED: Final = 5
NESTED_NODES: Final = 1_000
PARENTS_NAMED: Final = 100
WALK_SECONDS: Final = 5.0


class TreeNode(Struct, frozen=True, kw_only=True):
    """One run of a tree. `await_mode` and `parent_close_policy` are null where it has no parent.

    Every run of a child that went on as new is a node; `previous_execution_id` links them. `next_cursor` is there where
    more children follow those that are shown: it is one of a list of this run's children, and of a tree's `after`.
    """

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    state: str
    started_at: datetime
    closed_at: datetime | None
    parent_id: UUID | None
    previous_execution_id: UUID | None
    depth: int
    shard_id: int
    await_mode: Literal["awaited", "detached"] | None
    parent_close_policy: str | None
    next_cursor: str | None = None
    children: list[TreeNode] = []


class TreeLimits(Struct, frozen=True):
    """How far a tree was walked at most."""

    max_depth: int
    max_nodes: int


class Tree(Struct, frozen=True, kw_only=True):
    """A tree from a run downwards. `counts` has the descendants that were read by state.

    `truncated_parent_ids` are runs with children that are not shown, 100 of them at most. `shards` says which shards
    were read: children on another are not in the tree.
    """

    root: TreeNode
    node_count: int
    max_depth_reached: int
    truncation_reason: Literal["max_depth", "max_nodes"] | None
    truncated_parent_ids: list[UUID]
    truncated_parents_capped: bool
    limits: TreeLimits
    counts: dict[str, int]
    shards: Partial[None]


class Children(Struct, frozen=True, kw_only=True):
    """A page of a run's children, oldest first, each with the levels below it that were asked for.

    `truncated` tells that some of those levels are not whole.
    """

    items: list[TreeNode]
    next_cursor: str | None
    previous_cursor: str | None
    truncated: bool
    shards: Partial[None]


async def tree(
    shards: Shards,
    execution_id: UUID,
    *,
    max_depth: int = 20,
    max_nodes: int = 1_000,
    summary: bool = False,
    after: Mapping[UUID, str] | None = None,
) -> Tree:
    """The tree below an execution, to `max_depth` levels (1 to 50) and `max_nodes` runs (1 to 10,000).

    Children hang on the run that started them, also when that one went on as new. `summary` leaves the nodes out and
    keeps the figures. `after` has cursors of nodes: of those the children beyond are shown. Raises
    ExecutionNotFoundError, CursorError, and ShardUnavailableError when the execution's own shard does not answer.
    """
    _check("max_depth", max_depth, 1, MOST_DEPTH)
    _check("max_nodes", max_nodes, 1, MOST_NODES)
    anchors = {node: read_cursor(cursor, _digest(node))[0] for node, cursor in (after or {}).items()}
    root = await _root(shards, execution_id)
    walk = _Walk(shards, max_nodes=max_nodes, nodes=[root], after=anchors)
    await walk.down([root], max_depth)
    return Tree(
        root=root if summary else walk.nested([root])[0],
        node_count=len(walk.nodes),
        max_depth_reached=walk.nodes[-1].depth,
        truncation_reason=walk.reason,
        truncated_parent_ids=walk.truncated[:PARENTS_NAMED],
        truncated_parents_capped=len(walk.truncated) > PARENTS_NAMED,
        limits=TreeLimits(max_depth, max_nodes),
        counts=dict(sorted(Counter(node.state for node in walk.nodes[1:]).items())),
        shards=walk.answered(),
    )


async def children(
    shards: Shards,
    execution_id: UUID,
    *,
    states: Sequence[str] = (),
    workflow_name: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
    depth: int = 0,
) -> Children:
    """A page of an execution's children, with `depth` levels (0 to 5) of descendants below each.

    The filter is of the children alone. Raises as `tree` does, and CursorError.
    """
    _check("limit", limit, 1, MOST_CHILDREN)
    _check("depth", depth, 0, MOST_NESTED)
    wanted = families.ChildFilter(
        parent_id=execution_id,
        states=tuple(int(state_named(word, "status")) for word in states),
        workflow_name=workflow_name,
    )
    await _root(shards, execution_id)

    async def read(store: Store, anchor: tuple[datetime, UUID] | None, descending: bool, limit: int) -> list[TreeNode]:
        rows = await families.children(store, wanted, anchor, descending=descending, limit=limit)
        return [_node(row, store.shard_id, 1) for row in rows]

    page = await keyset_page(
        shards,
        read,
        key=lambda node: (node.started_at, node.execution_id),
        size=limit,
        descending=False,
        cursor=cursor,
        digest=_digest(execution_id, wanted.states, workflow_name),
    )
    items = page.rows.rows
    walk = _Walk(shards, max_nodes=len(items) + NESTED_NODES, nodes=list(items), missing=page.rows.missing)
    if depth:
        await walk.down(items, depth)
    return Children(
        items=walk.nested(items) if depth else items,
        next_cursor=page.next_cursor,
        previous_cursor=page.previous_cursor,
        truncated=bool(walk.truncated) and walk.reason == "max_nodes",
        shards=walk.answered(),
    )


def _digest(parent_id: UUID, states: tuple[int, ...] = (), workflow_name: str | None = None) -> str:
    return filter_digest("children", str(parent_id), states, workflow_name)


async def _root(shards: Shards, execution_id: UUID) -> TreeNode:
    shard_id = shards.store_of(execution_id).shard_id
    row = await ask(shards, shard_id, lambda store: families.node(store, execution_id))
    if row is None:
        raise ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=execution_id)
    return _node(row, shard_id, 0)


def _node(row: Mapping[str, Any], shard_id: int, depth: int) -> TreeNode:
    parent_id = row["parent_id"]
    return TreeNode(
        execution_id=row["execution_id"],
        workflow_name=row["workflow_name"],
        workflow_id=row["workflow_id"],
        state=state_word(row["state"]),
        started_at=row["started_at"],
        closed_at=row["closed_at"],
        parent_id=parent_id,
        previous_execution_id=row["previous_execution_id"],
        depth=depth,
        shard_id=shard_id,
        await_mode=await_mode(parent_id, row["awaited"]),
        parent_close_policy=close_policy_word(row["close_policy"]),
    )


class _Walk:
    """The nodes that were read, in the order of their levels, and what is known to be missing."""

    def __init__(
        self,
        shards: Shards,
        *,
        max_nodes: int,
        nodes: list[TreeNode],
        missing: Sequence[MissingShard] = (),
        after: Mapping[UUID, Key] | None = None,
    ) -> None:
        self._after = after or {}
        self.nodes = nodes
        self.reason: Literal["max_depth", "max_nodes"] | None = None
        self.truncated: list[UUID] = []
        self._shards = shards
        self._missing = {shard.shard_id: shard for shard in missing}
        self._max_nodes = max_nodes
        self._known = {node.execution_id for node in nodes}
        self._below: dict[UUID | None, list[TreeNode]] = {}
        self._end = clock.monotonic() + WALK_SECONDS

    async def down(self, level: list[TreeNode], levels: int) -> None:
        """Read up to `levels` levels below `level`, and then which runs have children that are not shown."""
        unsure = level
        for _ in range(levels):
            room = self._max_nodes - len(self.nodes)
            if not level or room <= 0:
                break
            found = await self._children_of(level, room + 1)
            shown = found[:room]
            self._keep(shown)
            if len(found) > room:
                self.reason, unsure = "max_nodes", level + shown
                break
            unsure = level = shown
        await self._find_truncated([node.execution_id for node in unsure])

    async def _children_of(self, level: list[TreeNode], limit: int) -> list[TreeNode]:
        parents = [node.execution_id for node in level]
        depth = level[0].depth + 1

        async def read(store: Store) -> list[TreeNode]:
            rows = await families.level(store, parents, limit, self._after)
            return [_node(row, store.shard_id, depth) for row in rows]

        place: dict[UUID | None, int] = {parent: n for n, parent in enumerate(parents)}
        # Rows that were tampered with might name each other as parents.
        found = [node for node in await self._fan_out(read) if node.execution_id not in self._known]
        return sorted(found, key=lambda node: (place[node.parent_id], node.started_at, node.execution_id))

    def _keep(self, shown: list[TreeNode]) -> None:
        self.nodes += shown
        for node in shown:
            self._known.add(node.execution_id)
            self._below.setdefault(node.parent_id, []).append(node)

    async def _find_truncated(self, unsure: list[UUID]) -> None:
        if not unsure:
            return

        async def read(store: Store) -> list[UUID]:
            shown = {
                parent: sum(child.shard_id == store.shard_id for child in self._below.get(parent, ()))
                for parent in unsure
            }
            return await families.incomplete(store, shown, self._after)

        more = set(await self._fan_out(read))
        self.truncated = [parent for parent in unsure if parent in more]
        if self.truncated and self.reason is None:
            self.reason = "max_nodes" if len(self.nodes) >= self._max_nodes else "max_depth"

    async def _fan_out(self, read: Callable[[Store], Awaitable[list[T]]]) -> list[T]:
        over = [shard for shard in self._shards.router.readable if shard not in self._missing]
        left = max(0.0, self._end - clock.monotonic())
        answer = await self._shards.fan_out(read, over=over, deadline=min(READ_DEADLINE, left))
        self._missing |= {shard.shard_id: shard for shard in answer.missing}
        return answer.rows

    def nested(self, top: list[TreeNode]) -> list[TreeNode]:
        """The nodes of `top` with those below them inside."""
        whole: dict[UUID, TreeNode] = {}
        truncated = set(self.truncated)
        for node in reversed(self.nodes):
            below = [whole[child.execution_id] for child in self._below.get(node.execution_id, ())]
            cursor = self._cursor(node.execution_id, below) if node.execution_id in truncated else None
            whole[node.execution_id] = replace(node, next_cursor=cursor, children=below)
        return [whole[node.execution_id] for node in top]

    def _cursor(self, parent_id: UUID, shown: list[TreeNode]) -> str | None:
        """The cursor of the children that follow; none where they begin with the first."""
        last = (shown[-1].started_at, shown[-1].execution_id) if shown else self._after.get(parent_id)
        return None if last is None else write_cursor(last, backwards=False, digest=_digest(parent_id))

    def answered(self) -> Partial[None]:
        """Which shards were read in every step, and which were not."""
        expected = tuple(self._shards.router.readable)
        return Partial(
            rows=[],
            expected=expected,
            read=tuple(shard for shard in expected if shard not in self._missing),
            missing=tuple(shard for _, shard in sorted(self._missing.items())),
        )


def _check(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(f"{field} is {value}; it must be {least} to {most}", field=field)
