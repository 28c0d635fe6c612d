"""Write docs/errors.md from the error tree of engine and console: `python tools/errors_doc.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from harvest.errors import HarvestError, every_error

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "errors.md"
INTRODUCTION = """\
# Errors

Made from the code by `python tools/errors_doc.py`; a test holds the two equal.

Every error that Harvest raises on purpose has a code and a slug that stay the same. The API answers with problem+json:
`code`, `type` made of the slug, `title`, `status`, `detail` and the fields of the occurrence. "Again" says whether
repeating the same request can help. An error without a status of its own is raised in your code or blocks a run; if it
reaches the API, it is a 500.
"""


def declared() -> Iterator[type[HarvestError]]:
    """Every class of the tree, those of the console too."""
    for path in (ROOT / "backend").rglob("*.py"):
        if '"HVT-' in path.read_text():
            import_module(".".join(path.relative_to(ROOT / "backend").with_suffix("").parts))
    return (error for error in every_error() if error.__module__.startswith("harvest"))


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION, "| code | slug | class | status | again | meaning |", "| --- " * 6 + "|"]
    for error in sorted(declared(), key=lambda each: each.code):
        meaning = " ".join(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].split()).replace("|", "\\|")
        again = "yes" if error.retryable else "no"
        lines.append(f"| {error.code} | `{error.slug}` | `{error.__name__}` | {error.status} | {again} | {meaning} |")
    return "\n".join(lines) + "\n"


def problems(errors: list[type[HarvestError]]) -> list[str]:
    """What is wrong with a tree: every class has a code and a slug of its own, and a text."""
    found = []
    seen: dict[str, type[HarvestError]] = {}
    for error in errors:
        for mark in (error.code, error.slug):
            if mark in seen and seen[mark] is not error:
                found.append(f"{error.__name__} has {mark}, and so has {seen[mark].__name__}")
            seen[mark] = error
        if not error.__doc__:
            found.append(f"{error.__name__} does not say what it means")
    return found


if __name__ == "__main__":
    PAGE.write_text(page())
