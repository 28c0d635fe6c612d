"""Design 9, row 1: random programs, histories and cuts decide alike warm, cold, and cold in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.replay import differential
from tests.replay.oracle import Recording
from tests.scale import scale

FIRST_SEED = int(os.environ.get("HARVEST_SEED", "1"))
PROGRAMS = scale(2_000, 100_000)
ROOT = Path(__file__).parent.parent.parent


def _explained(seed: int, error: Exception) -> str:
    def fails(block: differential.program.Block) -> bool:
        try:
            differential.check(seed, block)
        except Exception:
            return True
        return False

    smallest = differential.shrink(seed, fails)
    return f"seed {seed} (HARVEST_SEED={seed} begins there): {error}\nthe smallest program that fails: {smallest}"


def _cold_elsewhere(recordings: list[Recording], folder: Path) -> list[int]:
    """What each recording comes to in a process with another hash seed."""
    file = folder / "cases.json"
    file.write_bytes(msgspec.json.encode([differential.case_of(recording) for recording in recordings]))
    told = subprocess.run(
        [sys.executable, "-m", "tests.replay.cold_side", str(file)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    return [int(line) for line in told.stdout.split()]


@pytest.mark.prove_main_job
@pytest.mark.timeout(7200)
def test_warm_equals_cold(tmp_path: Path, proof: Callable[..., None]) -> None:
    decisions = replays = events = 0
    batch: list[tuple[int, Recording]] = []
    for seed in range(FIRST_SEED, FIRST_SEED + PROGRAMS):
        try:
            recording = differential.check(seed)
        except Exception as error:
            pytest.fail(_explained(seed, error))
        decisions += len(recording.decisions)
        events += len(recording.events)
        replays += len(recording.states) + len(recording.decisions)
        batch.append((seed, recording))
        if len(batch) == 2_000 or seed == FIRST_SEED + PROGRAMS - 1:
            told = _cold_elsewhere([one for _, one in batch], tmp_path)
            for (number, one), elsewhere in zip(batch, told, strict=True):
                here = differential.fingerprint_here(one)
                assert elsewhere == here, f"seed {number}: another process with another hash seed decides differently"
            batch.clear()
    # A generator that draws nothing of interest would prove nothing.
    assert events > 15 * PROGRAMS
    assert decisions > 3 * PROGRAMS
    proof(
        "programs, warm equal to cold",
        first_seed=FIRST_SEED,
        programs=PROGRAMS,
        decisions=decisions,
        events=events,
        replays=replays,
    )


def test_the_programs_use_every_statement() -> None:
    statements = {name for seed in range(300) for name in _names(differential.drawn(seed))}
    assert statements == {kind.__name__ for kind in differential.program.STATEMENTS}


def _names(block: differential.program.Block) -> set[str]:
    found: set[str] = set()
    for statement in block:
        found.add(type(statement).__name__)
        for field in statement.__struct_fields__:
            value = getattr(statement, field)
            if isinstance(value, list):
                for part in value if field == "branches" else [value]:
                    found |= _names([one for one in part if isinstance(one, differential.program.STATEMENTS)])
    return found
