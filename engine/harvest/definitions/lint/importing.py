"""The rules at import: an error refuses the declaration, warnings are one line in the log."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from harvest.definitions.lint.checking import check_function
from harvest.definitions.lint.finding import Finding
from harvest.errors import DefinitionError

_log = logging.getLogger("harvest.lint")


def refuse(function: Callable[..., Any], what: str) -> None:
    """Check a workflow's source; raises DefinitionError naming file, line and what to use instead."""
    findings = check_function(function, what)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise _refusal(errors)
    if findings:
        first = findings[0]
        places = ", ".join(f"{finding.rule} on line {finding.line}" for finding in findings)
        _log.warning("%s may not replay alike (%s); `harvest lint %s` says why", what, places, _shown(first.file))


def _refusal(errors: list[Finding]) -> DefinitionError:
    first = errors[0]
    file = _shown(first.file)
    more = f"; {len(errors) - 1} more: run `harvest lint {file}`" if len(errors) > 1 else ""
    return DefinitionError(
        f"{first.within} {first.does} on line {first.line} of {file}: "
        f"{first.why}; {first.instead} ({first.rule}){more}",
        file=first.file,
        line=first.line,
        rule=first.rule,
    )


def _shown(path: str) -> str:
    """A path as people in this folder write it."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith(os.pardir) else relative
