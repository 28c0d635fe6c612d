"""Checks files that nobody has imported: `harvest lint`."""

from __future__ import annotations

import ast
import os
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from harvest.definitions.lint.checking import Root, check_source
from harvest.definitions.lint.finding import Finding
from harvest.definitions.lint.scopes import FunctionNode, Imported
from harvest.definitions.lint.sources import Source, declaration, is_declared, package_of, parsed
from harvest.errors import ConfigurationError

_CONTEXT: Final = "WorkflowContext"
_NOT_OURS: Final = frozenset({"node_modules", "site-packages", "__pycache__"})
_REEXPORTS: Final = 5


class Report(Struct, frozen=True):
    """What was found in so many workflows of so many files."""

    findings: list[Finding]
    workflows: int
    files: int


def check_paths(targets: Sequence[str]) -> Report:
    """Check files, folders and modules, each `path` or `dotted.name` or `dotted.name:attribute`; nothing is imported.

    A folder is read with all that is below it, but for hidden folders and virtual environments. Raises
    ConfigurationError for a target that is not there, and for a file that this Python cannot read.
    """
    findings: list[Finding] = []
    workflows = files = 0
    paths = dict.fromkeys(path for target in targets for path in _files_of(target))
    activities = _WrittenActivities(dict.fromkeys([os.getcwd(), *(package_of(path)[1] for path in paths)]))
    for path in paths:
        source = _read(path)
        roots = list(_roots(source))
        findings += check_source(source, _declared_first(roots), activities)
        workflows += sum(1 for root in roots if root[2].startswith("workflow "))
        files += 1
    return Report(sorted(findings), workflows, files)


class _WrittenActivities:
    """Whether a dotted name is declared as an activity in the file where it would be imported from."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._known: dict[str, bool] = {}
        self._folders = list(folders)

    def __call__(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = self._is_written(name, _REEXPORTS)
        return self._known[name]

    def _is_written(self, name: str, depth: int) -> bool:
        module, _, attribute = name.rpartition(".")
        path = _module_path(module, self._folders) if module and depth else None
        if path is None:
            return False
        try:
            source = _read(os.path.join(path, "__init__.py") if os.path.isdir(path) else path)
        except ConfigurationError:
            return False
        binding = source.module.names.get(attribute)
        if isinstance(binding, Imported):
            return self._is_written(binding.name, depth - 1)
        return source.declares_activity(attribute)


def _read(path: str) -> Source:
    try:
        with tokenize.open(path) as file:
            text = file.read()
        return parsed(path, text, package_of(path)[0])
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        line = f" line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigurationError(f"{path}{line} cannot be read as Python: {reason}") from error


def _files_of(target: str) -> Iterator[str]:
    path = target
    if not os.path.exists(path):
        found = _module_path(target.partition(":")[0], [os.getcwd(), *sys.path])
        if found is None:
            raise ConfigurationError(f"there is no file, folder or module {target!r}")
        path = os.path.relpath(found)
        path = found if path.startswith(os.pardir) else path
    if os.path.isfile(path):
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(each for each in folders if not _is_foreign(folder, each))
        yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py"))


def _is_foreign(folder: str, name: str) -> bool:
    hidden = name.startswith(".") or name in _NOT_OURS
    return hidden or os.path.isfile(os.path.join(folder, name, "pyvenv.cfg"))


def _module_path(module: str, folders: Iterable[str]) -> str | None:
    """A module's file, or a package's folder, found without importing its parents."""
    for folder in folders:
        path = os.path.join(folder or os.curdir, *module.split("."))
        if os.path.isfile(f"{path}.py"):
            return f"{path}.py"
        if os.path.isfile(os.path.join(path, "__init__.py")):
            return path
    return None


def _roots(source: Source) -> Iterator[Root]:
    """Every declared workflow, and every function that takes a workflow's context."""
    called = dict(_declared_by_calls(source.tree))
    for function, scope in source.functions:
        decorator = declaration(function, "workflow")
        if decorator is not None:
            maker: ast.expr | None = decorator
        elif function.name in called:
            maker = called[function.name]
        elif not is_declared(function, "activity") and _takes_context(function):
            yield function, scope, f"{function.name}()"
            continue
        else:
            continue
        options = {each.arg: each.value for each in maker.keywords} if isinstance(maker, ast.Call) else {}
        if not _is_true(options.get("allow_nondeterministic_apis")):
            yield function, scope, f"workflow {_text(options.get('name')) or function.name!r}"


def _declared_by_calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Names in `app.workflow(function)` and `app.workflow(name=…)(function)`, with the call that has the options."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name):
            maker = node.func if isinstance(node.func, ast.Call) else node
            if isinstance(maker.func, ast.Attribute) and maker.func.attr == "workflow":
                yield node.args[0].id, maker


def _declared_first(roots: list[Root]) -> list[Root]:
    return sorted(roots, key=lambda root: not root[2].startswith("workflow "))


def _takes_context(function: FunctionNode) -> bool:
    arguments = function.args
    annotations = (each.annotation for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    return any(each is not None and ast.unparse(each).strip("'\"").endswith(_CONTEXT) for each in annotations)


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _text(value: ast.expr | None) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
