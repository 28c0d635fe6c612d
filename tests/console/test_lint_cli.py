"""`harvest lint`: lines for people, JSON for tools, and the exit status for a pipeline."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from harvest_console.cli.root import root

FLOWS = """\
import time

@app.workflow
async def flow(ctx):
    print(time.time())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with two modules: one breaks rules, one does not."""
    (tmp_path / "flows.py").write_text(FLOWS)
    (tmp_path / "calm.py").write_text("@app.workflow\nasync def flow(ctx): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lint(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["lint", *arguments])


def test_findings_are_lines_with_their_place_and_the_status_is_one(folder: Path) -> None:
    result = lint("flows:app", "calm.py")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "flows.py:5:5: warning HVG009 workflow 'flow' calls print(): it would be said again by each replay; "
        "use ctx.log",
        "flows.py:5:11: error HVG001 workflow 'flow' calls time.time(): a replay would see another time; use ctx.now()",
    ]
    assert result.stderr == "1 error and 1 warning in 2 workflows of 2 files\n"


def test_warnings_alone_have_the_status_too(folder: Path) -> None:
    (folder / "flows.py").write_text(FLOWS.replace("time.time()", ""))
    assert lint("flows.py").exit_code == 1


def test_where_nothing_is_found_the_status_is_nought(folder: Path) -> None:
    result = lint("calm.py")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing found in 1 workflow of 1 file\n")


def test_json_is_one_document(folder: Path) -> None:
    result = lint("flows.py", "--format", "json")
    assert result.exit_code == 1
    document = msgspec.json.decode(result.stdout)
    assert {key: document[key] for key in document if key != "findings"} == {
        "errors": 1,
        "warnings": 1,
        "workflows": 1,
        "files": 1,
    }
    assert document["findings"][1] == {
        "file": "flows.py",
        "line": 5,
        "column": 11,
        "rule": "HVG001",
        "severity": "error",
        "within": "workflow 'flow'",
        "does": "calls time.time()",
        "why": "a replay would see another time",
        "instead": "use ctx.now()",
        "message": "workflow 'flow' calls time.time(): a replay would see another time; use ctx.now()",
    }


def test_a_target_that_is_not_there_is_refused(folder: Path) -> None:
    result = lint("absent.py")
    assert "no file, folder or module 'absent.py'" in str(result.exception)


def test_the_examples_replay_alike() -> None:
    result = lint(str(Path(__file__).parents[2] / "examples"))
    assert result.exit_code == 0, result.stdout
