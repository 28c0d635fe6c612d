"""Histories of every release replay with today's code, on every Python that is here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harvest.history.document import HistoryDocument, decode_document
from harvest.history.kinds import COMMANDS, EventKind
from harvest.testing import WorkflowEnvironment, verify
from tests import pythons
from tests.histories.workflows import SCENARIOS, Scenario, app, golden_patient

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.json"))


def _document(path: Path) -> HistoryDocument:
    return decode_document(path.read_bytes())


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recorded_history_replays(path: Path) -> None:
    verdict = verify(_document(path), app.registry)
    assert verdict.is_clean, verdict.message


@pytest.mark.parametrize("version", pythons.others())
def test_they_replay_on_another_python(version: str) -> None:
    try:
        python = pythons.python_of(version)
    except pythons.UnavailableError as error:
        pytest.skip(f"Python {version}: {error}")
    command = [python, "-m", "harvest_console.cli", "replay", "tests.histories.workflows:app", FOLDER, "--json"]
    env = pythons.environment_of(0)
    done = subprocess.run(command, cwd=pythons.ROOT, env=env, capture_output=True, text=True, check=False)
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == len(FILES), done.stderr
    assert [each for each in verdicts if each["verdict"] != "clean"] == []


def test_every_kind_of_event_is_among_them() -> None:
    found = {event.kind for path in FILES for event in _document(path).events}
    assert [kind.word for kind in EventKind if kind not in found] == []


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_scenario_is_recorded(scenario: Scenario) -> None:
    names = {re.sub(r"-\d+$", "", path.stem) for path in FILES}
    assert scenario.name in names, "record it with `python tools/record_histories.py`"


def test_they_name_no_folder_of_the_machine_that_recorded_them() -> None:
    places = (str(pythons.ROOT), sys.base_prefix, "/home/", "site-packages")
    assert [path.name for path in FILES if any(place in path.read_text() for place in places)] == []


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_the_environment_does_what_the_engine_did(scenario: Scenario) -> None:
    """What a worker wrote to a database, and what the time-skipping environment writes, are the same commands."""
    recorded = next(path for path in FILES if re.sub(r"-\d+$", "", path.stem) == scenario.name)
    async with WorkflowEnvironment(app) as env:
        for workflow_id in scenario.beside:
            await env.start(golden_patient, workflow_id=workflow_id)
        handle = await env.start(scenario.workflow, *scenario.args, workflow_id=scenario.name, **scenario.options)
        await scenario.act(handle)
        document = env.history(handle)
    was = _document(recorded)
    assert document.state == was.state
    assert _commands(document) == _commands(was)
    assert sorted(event.type for event in document.events) == sorted(event.type for event in was.events)


def _commands(document: HistoryDocument) -> list[tuple[str, int]]:
    """What the code asked for; the answer of an update is numbered by the event that admitted it, which may vary."""
    answers = {EventKind.UPDATE_COMPLETED, EventKind.UPDATE_FAILED}
    return sorted(
        (event.type, 0 if event.kind in answers else event.seq) for event in document.events if event.kind in COMMANDS
    )
