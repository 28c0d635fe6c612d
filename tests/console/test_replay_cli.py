"""`harvest replay` over exported histories."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harvest import Harvest, WorkflowContext
from harvest.testing import WorkflowEnvironment, encode_document

APP = """
from harvest import Harvest, WorkflowContext
app = Harvest()

@app.workflow
async def naps(ctx: WorkflowContext, minutes: int) -> int:
    await ctx.sleep(minutes * {seconds})
    return minutes
"""


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A folder with an application, and a history of it beside one that is none."""
    (tmp_path / "napping.py").write_text(APP.format(seconds=60))
    (tmp_path / "changed.py").write_text(APP.format(seconds=61))
    app = Harvest()

    @app.workflow
    async def naps(ctx: WorkflowContext, minutes: int) -> int:
        await ctx.sleep(minutes * 60)
        return minutes

    histories = tmp_path / "histories" / "0.1.0"
    histories.mkdir(parents=True)
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(naps, 3, workflow_id="n")
        await handle.result()
        (histories / "naps.json").write_bytes(encode_document(env.history(handle)))
    return tmp_path


def _replay(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harvest_console.cli", "replay", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


async def test_what_replays_ends_with_status_0(folder: Path) -> None:
    done = _replay(folder, "napping:app", "histories")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "histories/0.1.0/naps.json: clean: all 4 events replay\n"
    assert "1 of 1 histories replay" in done.stderr


async def test_what_does_not_names_both_sides_and_the_line(folder: Path) -> None:
    done = _replay(folder, "changed:app", "histories/0.1.0/naps.json")
    assert done.returncode == 1
    assert "diverged: event 2 records timer of 180 s (number 1)" in done.stdout
    assert "now:      timer of 183 s (number 1)" in done.stdout
    assert f"code:     {folder}/changed.py:7 in naps" in done.stdout


async def test_json_is_for_tools(folder: Path) -> None:
    (folder / "histories" / "other.json").write_text("{}")
    done = _replay(folder, "changed:app", "histories", "--json")
    naps, other = (json.loads(line) for line in done.stdout.splitlines())
    assert (naps["verdict"], naps["divergence"]["kind"]) == ("diverged", "TimerMismatch")
    assert (other["file"], other["verdict"]) == ("histories/other.json", "undecodable")


async def test_an_application_that_is_not_there_ends_with_status_2(folder: Path) -> None:
    done = _replay(folder, "nowhere:app", "histories")
    assert done.returncode == 2
    assert "there is no module 'nowhere'" in done.stderr
