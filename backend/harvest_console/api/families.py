"""What belongs to an execution: the tree below it, its children, the runs of its chain."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from litestar import Response
from msgspec import Meta, Struct

from harvest.errors import CursorError, ExecutionNotFoundError, ShardUnavailableError
from harvest.history.limits import NAME_BYTES
from harvest.operations import chains, trees
from harvest.operations.chains import MOST_RUNS, RunChain
from harvest.operations.trees import MOST_CHILDREN, MOST_DEPTH, MOST_NESTED, MOST_NODES, TreeLimits, TreeNode
from harvest.shards import Shards
from harvest_console.api.answers import UnavailableShard, answer, read_query, status_fields
from harvest_console.api.doc import Doc
from harvest_console.api.pairs import AnyRequest, read_pair
from harvest_console.api.shapes import STATES, Availability, Cursor

_MISSING = (ExecutionNotFoundError, ShardUnavailableError)


class TreeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How far down, how many runs, and whether the figures alone are wanted."""

    max_depth: Annotated[int, Meta(ge=1, le=MOST_DEPTH)] = 20
    max_nodes: Annotated[int, Meta(ge=1, le=MOST_NODES)] = 1_000
    summary: bool = False


class TreeAnswer(Struct, frozen=True, kw_only=True):
    """The tree below an execution. `counts` and `total_descendants` are of the runs that were read.

    `truncated_parent_ids` have children that are not shown: beyond a limit, or on no shard that is unavailable.
    """

    root: TreeNode
    node_count: int
    max_depth_reached: int
    truncated: bool
    truncation_reason: Literal["max_depth", "max_nodes"] | None
    truncated_parent_ids: list[UUID]
    truncated_parents_capped: bool
    limits: TreeLimits
    counts: dict[str, int]
    total_descendants: int
    status: Availability
    unavailable_shards: list[UnavailableShard]


class ChildrenQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which children; `status` may be given several times, or with commas. `depth` levels come below each."""

    status: Annotated[str, Meta(max_length=200, extra_json_schema={"pattern": STATES})] | None = None
    workflow_name: Annotated[str, Meta(max_length=NAME_BYTES)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_CHILDREN)] = 50
    cursor: Cursor | None = None
    depth: Annotated[int, Meta(ge=0, le=MOST_NESTED)] = 0


class ChildrenAnswer(Struct, frozen=True, kw_only=True):
    """A page of children, oldest first. `truncated` tells that the levels below them are not whole."""

    items: list[TreeNode]
    next_cursor: str | None
    previous_cursor: str | None
    truncated: bool
    status: Availability
    unavailable_shards: list[UnavailableShard]


class ChainQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A window of a chain: the newest runs, or those below the sequence `before`."""

    before: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_RUNS)] = 100


async def _tree(request: AnyRequest, shards: Shards, execution_id: UUID) -> Response[bytes]:
    """Runs by their parents, over every shard; one that does not answer is named, and the rest is shown."""
    query = read_query(request, TreeQuery)
    found = await trees.tree(
        shards, execution_id, max_depth=query.max_depth, max_nodes=query.max_nodes, summary=query.summary
    )
    return answer(
        TreeAnswer(
            root=found.root,
            node_count=found.node_count,
            max_depth_reached=found.max_depth_reached,
            truncated=found.truncation_reason is not None,
            truncation_reason=found.truncation_reason,
            truncated_parent_ids=found.truncated_parent_ids,
            truncated_parents_capped=found.truncated_parents_capped,
            limits=found.limits,
            counts=found.counts,
            total_descendants=found.node_count - 1,
            **status_fields(found.shards),
        )
    )


async def _children(request: AnyRequest, shards: Shards, execution_id: UUID) -> Response[bytes]:
    """Every run of a child that went on as new is an item."""
    query = read_query(request, ChildrenQuery)
    words = (word.strip().upper() for word in (query.status or "").split(","))
    found = await trees.children(
        shards,
        execution_id,
        states=[word for word in words if word],
        workflow_name=query.workflow_name or None,
        limit=query.limit,
        cursor=query.cursor or None,
        depth=query.depth,
    )
    return answer(
        ChildrenAnswer(
            items=found.items,
            next_cursor=found.next_cursor,
            previous_cursor=found.previous_cursor,
            truncated=found.truncated,
            **status_fields(found.shards),
        )
    )


async def _chain(request: AnyRequest, shards: Shards, execution_id: UUID) -> Response[bytes]:
    """The same from each of its runs."""
    query = read_query(request, ChainQuery)
    return answer(await chains.run_chain(shards, execution_id, before=query.before, limit=query.limit))


handlers = [
    *read_pair(
        "/tree",
        Doc("The tree of runs below an execution.", query=TreeQuery, answers={200: TreeAnswer}, refusals=_MISSING),
        _tree,
    ),
    *read_pair(
        "/children",
        Doc(
            "The children of an execution, oldest first.",
            query=ChildrenQuery,
            answers={200: ChildrenAnswer},
            refusals=(*_MISSING, CursorError),
        ),
        _children,
    ),
    *read_pair(
        "/run-chain",
        Doc(
            "The runs of an execution's chain: continued as new, or tried again.",
            query=ChainQuery,
            answers={200: RunChain},
            refusals=_MISSING,
        ),
        _chain,
    ),
]
