"""A module's source: parsed once, with its scopes, its functions and the comments that allow what a rule forbids."""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Final

from harvest.definitions.lint.scopes import Assigned, Defined, FunctionNode, Scope, ScopeNode
from harvest.definitions.lint.state import Place, changes_of

_ALLOW: Final = re.compile(r"harvest:\s*allow\s+(HVG\d{3}(?:[\s,]+HVG\d{3})*)")
_CODE: Final = re.compile(r"HVG\d{3}")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class Source:
    """One module. Raises SyntaxError when it is no Python that this interpreter reads."""

    def __init__(self, path: str, text: str, package: str) -> None:
        self.path = path
        self._text = text
        self.tree = ast.parse(text, path)
        self.module = Scope(self.tree, None, package)
        self._scopes: dict[int, Scope] = {}

    def scope(self, node: ScopeNode, outer: Scope) -> Scope:
        """The scope of a function or lambda inside `outer`; made once."""
        found = self._scopes.get(id(node))
        if found is None:
            found = self._scopes[id(node)] = Scope(node, outer, self.module.package)
        return found

    @cached_property
    def functions(self) -> list[tuple[FunctionNode, Scope]]:
        """Every function with the scope that it is declared in."""
        return list(self._functions_in(self.tree, self.module))

    def _functions_in(self, node: ast.AST, scope: Scope) -> Iterator[tuple[FunctionNode, Scope]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FUNCTIONS):
                yield child, scope
                yield from self._functions_in(child, self.scope(child, scope))
            elif isinstance(child, ast.Lambda):
                yield from self._functions_in(child, self.scope(child, scope))
            else:
                yield from self._functions_in(child, scope)

    def function_at(self, line: int, name: str) -> tuple[FunctionNode, Scope] | None:
        """The function whose code begins on a line, decorators included."""
        return self._by_place.get((line, name))

    @cached_property
    def _by_place(self) -> dict[tuple[int, str], tuple[FunctionNode, Scope]]:
        return {(first_line(node), node.name): (node, scope) for node, scope in self.functions}

    @cached_property
    def changes(self) -> dict[Place, int]:
        """What functions of the module change that is not their own, with the first line that does."""
        return changes_of([(function, self.scope(function, outer)) for function, outer in self.functions])

    @cached_property
    def allowed(self) -> dict[int, frozenset[str]]:
        """The rules that a comment allows, by line."""
        if "harvest:" not in self._text:
            return {}
        found = {}
        for token in tokenize.generate_tokens(io.StringIO(self._text).readline):
            match = _ALLOW.search(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                found[token.start[0]] = frozenset(_CODE.findall(match.group(1)))
        return found

    def allows(self, rule: str, first: int, last: int) -> bool:
        """Whether a comment on one of these lines allows what the rule forbids."""
        return bool(self.allowed) and any(rule in self.allowed.get(line, ()) for line in range(first, last + 1))

    def declares_activity(self, name: str) -> bool:
        """Whether the module makes an activity of this name of its own."""
        binding = self.module.names.get(name)
        if isinstance(binding, Defined):
            return is_declared(binding.function, "activity")
        return isinstance(binding, Assigned) and declares(binding.value, "activity")


def first_line(node: FunctionNode) -> int:
    """The line where a function's code begins: that of its first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def is_declared(function: FunctionNode, as_what: str) -> bool:
    """Whether a function is decorated with `@app.activity` or `@app.workflow`, bare or with options."""
    return declaration(function, as_what) is not None


def declaration(function: FunctionNode, as_what: str) -> ast.expr | None:
    """The decorator that declares it as a workflow or activity."""
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Attribute) and called.attr == as_what:
            return decorator
    return None


def declares(value: ast.expr, as_what: str) -> bool:
    """Whether a value is `app.activity(function)` or `app.activity(…)(function)`."""
    if not isinstance(value, ast.Call) or not value.args:
        return False
    maker = value.func.func if isinstance(value.func, ast.Call) else value.func
    return isinstance(maker, ast.Attribute) and maker.attr == as_what


@lru_cache(maxsize=4)
def parsed(path: str, text: str, package: str) -> Source:
    """The source of a module; the latest few are kept. Raises SyntaxError, or ValueError for text with NULs."""
    return Source(path, text, package)


def package_of(path: str) -> tuple[str, str]:
    """The dotted package that a file is in (empty for none), and the folder from which it is imported."""
    folder = os.path.dirname(os.path.abspath(path))
    parts: list[str] = []
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, _, name = folder.rpartition(os.sep)
        parts.insert(0, name)
    return ".".join(parts), folder or os.sep
