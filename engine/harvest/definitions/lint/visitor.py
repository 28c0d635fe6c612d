"""Reads one function of a workflow and notes what breaks a rule."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final

from harvest.definitions.lint.finding import Finding
from harvest.definitions.lint.patterns import METHODS, READS, call_pattern
from harvest.definitions.lint.rules import RULES, Severity
from harvest.definitions.lint.scopes import Assigned, Defined, FunctionNode, Imported, Scope
from harvest.definitions.lint.sets import ORDER_FREE, is_set, iterated
from harvest.definitions.lint.sources import Source, declares, is_declared
from harvest.definitions.lint.state import changed_names, place

_TEXT_LENGTH: Final = 50
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_FREE_PLACES: Final = frozenset({"side_effect", "execute_local_activity"})


class FunctionVisitor(ast.NodeVisitor):
    """Visits a function and those inside it. `findings` is what it found, `called` the module's functions it calls.

    What is handed to `ctx.side_effect` or runs as a local activity is not read: there is the place for what no replay
    could repeat.
    """

    def __init__(
        self,
        source: Source,
        function: FunctionNode,
        outer: Scope,
        *,
        within: str,
        helper: bool,
        is_activity: Callable[[str], bool],
    ) -> None:
        self.findings: list[Finding] = []
        self.called: list[tuple[FunctionNode, Scope]] = []
        self._source = source
        self._function = function
        self._scope = self._root = source.scope(function, outer)
        self._within = f"{within}, through {function.name}()," if helper else within
        self._is_activity = is_activity
        self._free: set[str | int] = _handed_over(function)
        self._order_free: set[int] = set()
        self._changed: set[str] = set()
        self._read: dict[str, tuple[ast.Name, int]] = {}

    def check(self) -> None:
        """Read the function."""
        for statement in self._function.body:
            self.visit(statement)
        for name, (node, line) in self._read.items():
            if name not in self._changed:
                self._note("HVG007", node, f"reads {name}, which line {line} changes")

    def visit(self, node: ast.AST) -> None:
        """Look at one node and at what is in it."""
        if isinstance(node, _FUNCTIONS):
            self._enter(node)
            return
        if isinstance(node, ast.Call):
            self._check_call(node)
        elif isinstance(node, ast.Attribute | ast.Name):
            self._check_read(node)
        elif isinstance(node, ast.Try | ast.TryStar):
            self._check_handlers(node)
        self._check_state(node)
        self._check_order(node)
        self.generic_visit(node)

    def _enter(self, node: FunctionNode | ast.Lambda) -> None:
        if isinstance(node, ast.Lambda):
            if id(node) in self._free:
                return
        elif node.name in self._free or is_declared(node, "activity"):
            return
        before, self._scope = self._scope, self._source.scope(node, self._scope)
        for statement in [node.body] if isinstance(node, ast.Lambda) else node.body:
            self.visit(statement)
        self._scope = before

    # Calls and names

    def _check_call(self, node: ast.Call) -> None:
        name = self._scope.resolve(node.func)
        if name in ORDER_FREE:
            self._order_free.update(id(argument) for argument in node.args)
        if self._calls_activity(node.func, name):
            text = ast.unparse(node.func)
            self._note("HVG011", node, f"calls activity {text}()", f"use ctx.execute_activity({text}, …)")
            return
        self._follow(node.func)
        method = METHODS.get(node.func.attr) if isinstance(node.func, ast.Attribute) else None
        pattern = (call_pattern(name, len(node.args) + len(node.keywords)) if name else None) or method
        if pattern is not None:
            text = ast.unparse(node.func)
            shown = text if len(text) <= _TEXT_LENGTH else name or text[:_TEXT_LENGTH]
            self._note(pattern.rule, node, f"calls {shown}()", pattern.instead, warns=pattern.warns)
        if name == "contextlib.suppress" and any(self._catches_all(argument) for argument in node.args):
            self._note("HVG010", node, "swallows cancellation by suppress(BaseException)")

    def _calls_activity(self, called: ast.expr, name: str | None) -> bool:
        if isinstance(called, ast.Name):
            binding, _ = self._scope.binding(called.id) or (None, None)
            if isinstance(binding, Defined):
                return is_declared(binding.function, "activity")
            if isinstance(binding, Assigned):
                return declares(binding.value, "activity")
            return isinstance(binding, Imported) and self._is_activity(binding.name)
        return isinstance(called, ast.Attribute) and name is not None and self._is_activity(name)

    def _follow(self, called: ast.expr) -> None:
        if not isinstance(called, ast.Name):
            return
        binding, owner = self._scope.binding(called.id) or (None, None)
        if isinstance(binding, Defined) and owner is not None and not owner.within(self._root):
            self.called.append((binding.function, owner))

    def _check_read(self, node: ast.Attribute | ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            return
        name = self._scope.resolve(node)
        pattern = READS.get(name) if name else None
        if pattern is not None:
            self._note(pattern.rule, node, f"reads {ast.unparse(node)}", pattern.instead, warns=pattern.warns)
        if isinstance(node, ast.Name):
            owner = self._scope.owner(node.id)
            line = self._source.changes.get(place(node.id, owner)) if owner is not None else None
            if line is not None and owner is not None and not owner.within(self._root):
                self._read.setdefault(node.id, (node, line))

    # State, order, cancellation

    def _check_state(self, node: ast.AST) -> None:
        for name, owner in changed_names(node, self._scope):
            if not owner.within(self._root):
                self._changed.add(name)
                self._note("HVG007", node, f"changes {name}, which is declared outside of it")

    def _check_order(self, node: ast.AST) -> None:
        if id(node) in self._order_free:
            return
        for each in iterated(node, self._scope):
            if is_set(each, self._scope):
                text = ast.unparse(each)
                what = text if len(text) <= _TEXT_LENGTH else "a set"
                self._note("HVG008", each, f"takes the elements of {what} in the order of a set")

    def _check_handlers(self, node: ast.Try | ast.TryStar) -> None:
        if not any(_awaits(statement) for statement in node.body):
            return
        for handler in node.handlers:
            if handler.type is None or self._catches_all(handler.type):
                caught = f"except {ast.unparse(handler.type)}:" if handler.type else "except:"
                if not any(_raises(statement) for statement in handler.body):
                    self._note("HVG010", handler, f"swallows cancellation by `{caught}`", first_line_only=True)
                return

    def _catches_all(self, caught: ast.expr) -> bool:
        if isinstance(caught, ast.Tuple):
            return any(self._catches_all(each) for each in caught.elts)
        return self._scope.resolve(caught) == "builtins.BaseException"

    def _note(
        self,
        code: str,
        node: ast.AST,
        does: str,
        instead: str | None = None,
        *,
        warns: bool = False,
        first_line_only: bool = False,
    ) -> None:
        rule = RULES[code]
        severity: Severity = "warning" if warns else rule.severity
        line: int = getattr(node, "lineno", self._function.lineno)
        last = line if first_line_only else getattr(node, "end_lineno", line)
        if self._source.allows(code, line, last):
            return
        self.findings.append(
            Finding(
                file=self._source.path,
                line=line,
                column=getattr(node, "col_offset", 0) + 1,
                rule=code,
                severity=severity,
                within=self._within,
                does=does,
                why=rule.why,
                instead=instead or rule.instead,
            )
        )


def _handed_over(function: FunctionNode) -> set[str | int]:
    """What the function hands to where nothing need replay: names of functions, and lambdas by their identity."""
    found: set[str | int] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FREE_PLACES:
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                found.add(argument.id if isinstance(argument, ast.Name) else id(argument))
    return found


def _awaits(node: ast.AST) -> bool:
    if isinstance(node, _FUNCTIONS):
        return False
    if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
        return True
    return any(_awaits(child) for child in ast.iter_child_nodes(node))


def _raises(node: ast.AST) -> bool:
    if isinstance(node, _FUNCTIONS):
        return False
    return isinstance(node, ast.Raise) or any(_raises(child) for child in ast.iter_child_nodes(node))
