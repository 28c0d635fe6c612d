"""What a name means where it is used: Python's scopes, read from the source alone."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from msgspec import Struct

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode: TypeAlias = ast.Module | FunctionNode | ast.Lambda
_BUILTINS: Final = frozenset(dir(builtins))
_DEPTH: Final = 8


class Imported(Struct, frozen=True):
    """Bound by an import: the dotted name of what it stands for."""

    name: str


class Parameter(Struct, frozen=True):
    """A function's parameter, with its annotation if it has one."""

    annotation: ast.expr | None


class Defined(Struct, frozen=True):
    """Bound by a `def`."""

    function: FunctionNode


class Assigned(Struct, frozen=True):
    """Bound once, to this expression."""

    value: ast.expr


class Unclear(Struct, frozen=True):
    """Bound in a way, or in several, that nothing is known of."""


Binding: TypeAlias = Imported | Parameter | Defined | Assigned | Unclear


class Scope:
    """The names that a module, function or lambda binds, and the scope around it."""

    def __init__(self, node: ScopeNode, outer: Scope | None, package: str) -> None:
        self.node = node
        self.outer = outer
        self.package = package
        self.names: dict[str, Binding] = {}
        self.borrowed: dict[str, ast.Global | ast.Nonlocal] = {}
        if isinstance(node, ast.Module):
            _Binder(self).visit_all(node.body)
        else:
            for parameter in _parameters(node.args):
                self.names[parameter.arg] = Parameter(parameter.annotation)
            _Binder(self).visit_all([node.body] if isinstance(node, ast.Lambda) else node.body)

    def bind(self, name: str, binding: Binding) -> None:
        """Note one more binding of a name; an import stands whatever else binds it."""
        before = self.names.get(name)
        if before is None:
            self.names[name] = binding
        elif not isinstance(before, Imported):
            self.names[name] = binding if isinstance(binding, Imported) else Unclear()

    def owner(self, name: str) -> Scope | None:
        """The scope whose name this is when it is used here; None for a builtin or an unknown name."""
        scope: Scope | None = self
        declared = self.borrowed.get(name)
        if isinstance(declared, ast.Global):
            return self.module()
        if isinstance(declared, ast.Nonlocal):
            scope = self.outer
        while scope is not None and name not in scope.names:
            if name in scope.borrowed:
                return scope.owner(name)
            scope = scope.outer
        return scope

    def module(self) -> Scope:
        """The outermost scope."""
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope

    def within(self, scope: Scope) -> bool:
        """Whether this scope is `scope` or lies inside it."""
        here: Scope | None = self
        while here is not None and here is not scope:
            here = here.outer
        return here is not None

    def binding(self, name: str) -> tuple[Binding, Scope] | None:
        """What a name used here is bound to, and the scope that binds it."""
        owner = self.owner(name)
        return (owner.names[name], owner) if owner is not None and name in owner.names else None

    def resolve(self, node: ast.expr, depth: int = _DEPTH) -> str | None:
        """The dotted name of an expression by its defining module, `()` for calls; None when it is not known."""
        if depth == 0:
            return None
        if isinstance(node, ast.Name):
            return self._resolve_name(node.id, depth)
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value, depth - 1)
            return f"{base}.{node.attr}" if base else None
        if isinstance(node, ast.Call):
            base = self.resolve(node.func, depth - 1)
            return f"{base}()" if base else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            base = self.resolve(node.left, depth - 1)
            return base if base == "pathlib.Path()" else None
        return None

    def _resolve_name(self, name: str, depth: int) -> str | None:
        found = self.binding(name)
        if found is None:
            return f"builtins.{name}" if name in _BUILTINS else None
        binding, owner = found
        if isinstance(binding, Imported):
            return binding.name
        if isinstance(binding, Assigned):
            return owner.resolve(binding.value, depth - 1)
        if isinstance(binding, Parameter) and isinstance(binding.annotation, ast.Name | ast.Attribute):
            outside = owner.outer or owner
            of_type = outside.resolve(binding.annotation, depth - 1)
            return f"{of_type}()" if of_type else None
        return None


def _parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (each for each in (arguments.vararg, arguments.kwarg) if each is not None)


class _Binder(ast.NodeVisitor):
    """Notes what the statements of one scope bind, without entering the scopes inside it."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            self._scope.bind(alias.asname or top, Imported(alias.name if alias.asname else top))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        origin = node.module or ""
        if node.level:
            parts = self._scope.package.split(".") if self._scope.package else []
            parts = parts[: len(parts) - node.level + 1]
            origin = ".".join([*parts, origin] if origin else parts)
        for alias in node.names:
            self._scope.bind(alias.asname or alias.name, Imported(f"{origin}.{alias.name}"))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._define(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._define(node)

    def _define(self, node: FunctionNode) -> None:
        self._scope.bind(node.name, Defined(node))
        self.visit_all(node.decorator_list)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.bind(node.name, Unclear())

    def visit_Lambda(self, node: ast.Lambda) -> None:
        return

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assign(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign([node.target], node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._assign([node.target], node.value)

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        for target in targets:
            if isinstance(target, ast.Name):
                self._bind_name(target.id, Assigned(value))
            else:
                self.visit(target)
        self.visit(value)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._bind_name(node.id, Unclear())

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._bind_name(node.name, Unclear())
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self._bind_name(node.name, Unclear())
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self._bind_name(node.name, Unclear())

    def visit_Global(self, node: ast.Global) -> None:
        self._borrow(node)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._borrow(node)

    def _borrow(self, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            self._scope.borrowed[name] = node
            self._scope.names.pop(name, None)

    def _bind_name(self, name: str, binding: Binding) -> None:
        if name not in self._scope.borrowed:
            self._scope.bind(name, binding)
