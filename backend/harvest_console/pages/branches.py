"""A tree of runs as it is drawn: runs of one chain folded together, and each branch open or closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.operations.trees import Tree, TreeNode

OPEN_ALL: Final = "all"
OPEN_NONE: Final = "none"
# A smaller tree is shown unfolded; in a larger one the branches with more children than that are closed.
_SMALL: Final = 60
_MANY: Final = 20


class Branch(Struct, frozen=True, kw_only=True):
    """One run, the earlier runs of its chain, and what is below it. `tally` counts all that is below, by state.

    `cut` tells that it has children that are not shown: `children` where some are, `depth` where the walk ended.
    """

    node: TreeNode
    is_current: bool
    earlier: list[Branch]
    below: list[Branch]
    tally: list[tuple[str, int]]
    is_open: bool
    earlier_is_open: bool
    cut: str


class _Made(Struct, frozen=True):
    branch: Branch
    states: Counter[str]
    has_current: bool


def branches(tree: Tree, current: UUID, unfold: str = "", continued: Container[UUID] = ()) -> Branch:
    """The tree from its root down; `unfold` opens all of it, or none but the way to the current run.

    Those that are `continued`, and the way to them, are open too.
    """
    return _Branches(tree, current, unfold, continued).made(tree.root).branch


class _Branches:
    """What holds for the whole tree while its branches are made."""

    def __init__(self, tree: Tree, current: UUID, unfold: str, continued: Container[UUID]) -> None:
        self._continued = continued
        self._truncated = frozenset(tree.truncated_parent_ids)
        self._current = current
        self._unfold = unfold
        self._is_small = tree.node_count <= _SMALL

    def made(self, node: TreeNode, earlier: Sequence[_Made] = ()) -> _Made:
        """The branch of one run, with those below it."""
        below = [self._chain(chain) for chain in chains(node.children)]
        states = Counter(node.state for node in node.children)
        for each in below:
            states += each.states
        is_current = node.execution_id == self._current
        is_continued = node.execution_id in self._continued
        leads = is_continued or any(each.has_current for each in below)
        before = any(each.has_current for each in earlier)
        branch = Branch(
            node=node,
            is_current=is_current,
            earlier=[each.branch for each in earlier],
            below=[each.branch for each in below],
            tally=sorted(states.items(), key=lambda item: (-item[1], item[0])),
            is_open=leads or self._is_open(node, len(below)),
            earlier_is_open=before or self._unfold == OPEN_ALL,
            cut=self._cut(node),
        )
        for each in earlier:
            states += each.states
        return _Made(branch, states, is_current or leads or before)

    def _chain(self, runs: Sequence[TreeNode]) -> _Made:
        """Runs of one chain as one branch: the newest, with those before it folded into it."""
        *before, newest = runs
        return self.made(newest, [self.made(run) for run in reversed(before)])

    def _is_open(self, node: TreeNode, children: int) -> bool:
        if self._unfold in (OPEN_ALL, OPEN_NONE):
            return self._unfold == OPEN_ALL
        return self._is_small or node.depth == 0 or children <= _MANY

    def _cut(self, node: TreeNode) -> str:
        if node.execution_id not in self._truncated:
            return ""
        return "children" if node.children else "depth"


def chains(nodes: Sequence[TreeNode]) -> list[list[TreeNode]]:
    """Children of one parent, oldest first, with the runs of one chain together in order; by their first runs."""
    known = {node.execution_id for node in nodes}
    found: list[list[TreeNode]] = []
    chain_of: dict[UUID, list[TreeNode]] = {}
    for node in nodes:
        before = node.previous_execution_id
        if before is not None and before in known and before in chain_of:
            chain = chain_of[before]
            chain.append(node)
        else:
            chain = [node]
            found.append(chain)
        chain_of[node.execution_id] = chain
    return found
