"""Checks functions and all that they call in their module; at import, the function that is declared."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.lint.finding import Finding
from harvest.definitions.lint.scopes import FunctionNode, Scope
from harvest.definitions.lint.sources import Source, parsed
from harvest.definitions.lint.visitor import FunctionVisitor

Root: TypeAlias = tuple[FunctionNode, Scope, str]


def check_function(function: Callable[..., Any], within: str) -> list[Finding]:
    """What a workflow's function, and the functions of its module that it calls, do against the rules.

    Empty for a function whose source cannot be read.
    """
    function = inspect.unwrap(function)
    code = function.__code__
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        source = parsed(code.co_filename, text, function.__globals__.get("__package__") or "")
    except (SyntaxError, ValueError):
        return []
    found = source.function_at(code.co_firstlineno, code.co_name)
    if found is None:
        return []
    return check_source(source, [(*found, within)], _is_live_activity)


def check_source(source: Source, roots: Sequence[Root], is_activity: Callable[[str], bool]) -> list[Finding]:
    """What is found below the roots; what several reach is told of the first."""
    found: dict[tuple[int, int, str], Finding] = {}
    for root, scope, within in roots:
        seen: set[int] = set()
        unread = [(root, scope)]
        while unread:
            function, outer = unread.pop()
            if id(function) in seen:
                continue
            seen.add(id(function))
            visitor = FunctionVisitor(
                source, function, outer, within=within, helper=function is not root, is_activity=is_activity
            )
            visitor.check()
            unread.extend(visitor.called)
            for finding in visitor.findings:
                found.setdefault((finding.line, finding.column, finding.rule), finding)
    return sorted(found.values())


def _is_live_activity(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    return isinstance(getattr(sys.modules.get(module), attribute, None), ActivityDefinition)
