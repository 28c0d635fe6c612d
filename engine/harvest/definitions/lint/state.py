"""State that outlives a run: names outside of the workflow that code changes (HVG007)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from harvest.definitions.lint.scopes import Assigned, FunctionNode, Scope

Place = tuple[int, str]
_CONTAINERS: Final = frozenset(
    [f"builtins.{name}" for name in ("dict", "list", "set", "bytearray")]
    + [f"collections.{name}" for name in ("defaultdict", "deque", "Counter", "OrderedDict")]
)
_DISPLAYS: Final = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
_CHANGING: Final = frozenset(
    [
        "append",
        "appendleft",
        "extend",
        "extendleft",
        "insert",
        "remove",
        "pop",
        "popleft",
        "popitem",
        "clear",
        "update",
        "setdefault",
        "add",
        "discard",
        "difference_update",
        "intersection_update",
        "symmetric_difference_update",
        "subtract",
        "sort",
        "reverse",
        "rotate",
    ]
)


def place(name: str, owner: Scope) -> Place:
    """The identity of a name: which scope's."""
    return (id(owner), name)


def changed_names(node: ast.AST, scope: Scope) -> Iterator[tuple[str, Scope]]:
    """The names, with the scopes that own them, whose containers this very node changes or that it borrows to bind."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        owners = ((name, scope.owner(name)) for name in node.names)
        yield from ((name, owner) for name, owner in owners if owner is not None)
        return
    changed: ast.expr | None = None
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        changed = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        changed = node.func.value
    while isinstance(changed, ast.Subscript):
        changed = changed.value
    if isinstance(changed, ast.Name):
        found = scope.binding(changed.id)
        if found is not None and isinstance(found[0], Assigned) and _is_container(found[0].value, found[1]):
            yield changed.id, found[1]


def _is_container(value: ast.expr, scope: Scope) -> bool:
    if isinstance(value, ast.Call):
        return scope.resolve(value.func) in _CONTAINERS
    return isinstance(value, _DISPLAYS)


def changes_of(functions: Iterable[tuple[FunctionNode, Scope]]) -> dict[Place, int]:
    """What functions, each with its own scope, change that is not their own, with the first line that does."""
    changes: dict[Place, int] = {}
    for function, scope in functions:
        for node in _own_nodes(function):
            for name, owner in changed_names(node, scope):
                if owner is not scope:
                    changes.setdefault(place(name, owner), getattr(node, "lineno", function.lineno))
    return changes


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of the functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _own_nodes(child)
