"""Which expressions are sets, and where their order gets out (HVG008)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from harvest.definitions.lint.scopes import Assigned, Parameter, Scope

_SETS: Final = frozenset({"builtins.set", "builtins.frozenset"})
_SET_METHODS: Final = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
_SET_OPERATORS: Final = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
_ORDERING: Final = frozenset(
    f"builtins.{name}" for name in ("list", "tuple", "enumerate", "iter", "zip", "map", "filter")
)
ORDER_FREE: Final = frozenset(
    f"builtins.{name}" for name in ("sorted", "sum", "min", "max", "any", "all", "len", "set", "frozenset")
)
_DEPTH: Final = 6


def is_set(node: ast.expr, scope: Scope, depth: int = _DEPTH) -> bool:
    """Whether an expression is a set for sure."""
    if depth == 0:
        return False
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, _SET_OPERATORS):
        return is_set(node.left, scope, depth - 1) or is_set(node.right, scope, depth - 1)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS:
            return is_set(node.func.value, scope, depth - 1)
        return scope.resolve(node.func) in _SETS
    if isinstance(node, ast.Name):
        found = scope.binding(node.id)
        if found is None:
            return False
        binding, owner = found
        if isinstance(binding, Assigned):
            return is_set(binding.value, owner, depth - 1)
        return isinstance(binding, Parameter) and _annotates_set(binding.annotation, owner)
    return False


def _annotates_set(annotation: ast.expr | None, scope: Scope) -> bool:
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    outside = scope.outer or scope
    return annotation is not None and outside.resolve(annotation) in _SETS


def iterated(node: ast.AST, scope: Scope) -> Iterator[ast.expr]:
    """The expressions whose order this very node lets out."""
    if isinstance(node, ast.For | ast.AsyncFor):
        yield node.iter
    elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
        yield from (generator.iter for generator in node.generators)
    elif isinstance(node, ast.Starred):
        yield node.value
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "pop" and not node.args:
                yield node.func.value
            elif node.func.attr == "join":
                yield from node.args
        elif scope.resolve(node.func) in _ORDERING:
            yield from node.args
