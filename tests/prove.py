"""`make prove PART=main-job`: run a part's heavy tests at full scale and write what they measured to docs/proof.

A test of the part is marked (`prove_main_job`) and notes its seeds and figures with the fixture `proof`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

ROOT = Path(__file__).parent.parent
NO_TESTS = 5
_SECONDS_EACH = 3600


class Note(msgspec.Struct, frozen=True):
    """One line that a test wrote: what was measured, and its figures and seeds."""

    test: str
    name: str
    figures: dict[str, Any]


class Outcome(msgspec.Struct, frozen=True):
    """How one test ended."""

    test: str
    passed: bool
    seconds: float
    message: str = ""


def main(arguments: Sequence[str]) -> int:
    """Run the part named by the one argument. The exit status is 0 only if every test of it ran and passed."""
    if len(arguments) != 1:
        print("python -m tests.prove PART, for example main-job", file=sys.stderr)
        return 2
    part = arguments[0]
    with tempfile.TemporaryDirectory(prefix="hvp-") as folder:
        notes_file = Path(folder) / "notes.jsonl"
        notes_file.touch()
        environment = {**os.environ, "HARVEST_PROOF_FILE": str(notes_file), "HARVEST_SCALE": "full"}
        outcomes, broken = [], False
        # Two runs: Playwright's loop and pytest-asyncio do not share a process.
        for number, where in enumerate((["--ignore=tests/browser", "tests"], ["tests/browser"])):
            report = Path(folder) / f"report-{number}.xml"
            code = _run_pytest(part, where, report, environment)
            broken = broken or code not in (0, NO_TESTS)
            outcomes += _outcomes(report)
        notes = [msgspec.json.decode(line, type=Note) for line in notes_file.read_bytes().splitlines()]
    if not outcomes:
        print(f"no test is marked {_marker(part)}", file=sys.stderr)
        return 1
    page = ROOT / "docs" / "proof" / f"{part}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(part, outcomes, notes, _machine()))
    print(f"written: {page.relative_to(ROOT)}")
    return 1 if broken or not all(outcome.passed for outcome in outcomes) else 0


def _marker(part: str) -> str:
    return "prove_" + part.replace("-", "_")


def _run_pytest(part: str, where: list[str], report: Path, environment: dict[str, str]) -> int:
    command = [sys.executable, "-m", "pytest", "-v", "-m", _marker(part), f"--junitxml={report}"]
    return subprocess.run(
        [*command, f"--timeout={_SECONDS_EACH}", *where], cwd=ROOT, env=environment, check=False
    ).returncode


def _outcomes(report: Path) -> list[Outcome]:
    if not report.exists():
        return []
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        trouble = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        message = trouble.get("message", "").splitlines()[:1] if trouble is not None else []
        name = f"{case.get('classname')}::{case.get('name')}"
        found.append(Outcome(name, trouble is None, float(case.get("time", 0)), "".join(message)))
    return found


def _machine() -> list[str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    dirty = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"commit {commit or 'none'}{' with changes' if dirty else ''}",
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    ]


def render(part: str, outcomes: Sequence[Outcome], notes: Sequence[Note], machine: Sequence[str]) -> str:
    """The page: each test with its outcome, then what it noted."""
    passed = sum(outcome.passed for outcome in outcomes)
    lines = [f"# Proof: {part}", "", "Written by `make prove`; not edited by hand.", ""]
    lines += [f"- {fact}" for fact in machine]
    lines += [f"- {passed} of {len(outcomes)} tests passed", ""]
    for outcome in outcomes:
        lines += [f"## {outcome.test.rpartition('::')[2]}", ""]
        said = f"**failed**: {outcome.message}" if not outcome.passed else "passed"
        lines += [f"`{outcome.test}` {said}, {outcome.seconds:.1f} s", ""]
        own = [note for note in notes if note.test == outcome.test]
        if own:
            lines += ["| what | figures |", "| --- | --- |"]
            lines += [f"| {_cell(note.name)} | {_cell(_figures(note.figures))} |" for note in own]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _figures(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_figure(value)}" for name, value in figures.items())


def _figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
