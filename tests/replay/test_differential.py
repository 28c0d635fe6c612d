"""Design 9, row 1: random programs, histories and cuts decide alike warm, cold, and cold in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from harvest.history.kinds import COMMANDS, RESOLVING, EventKind
from tests import pythons
from tests.replay import differential
from tests.replay.batch import Batch
from tests.scale import scale

FIRST_SEED = int(os.environ.get("HARVEST_SEED", "1"))
PROGRAMS = int(os.environ.get("HARVEST_PROGRAMS", scale(2_000, 100_000)))
BATCH = scale(500, 1_000)
HASH_SEED = 4242
PROCESSES = os.cpu_count() or 1


def _explained(seed: int, error: str) -> str:
    def fails(block: differential.program.Block) -> bool:
        try:
            differential.check(seed, block)
        except Exception:
            return True
        return False

    smallest = differential.shrink(seed, fails)
    return f"seed {seed} (HARVEST_SEED={seed} begins there): {error}\nthe smallest program that fails: {smallest}"


def _told(python: Path | str, module: str, *arguments: str) -> str:
    """What a module prints in a process of its own, with another hash seed."""
    done = subprocess.run(
        [str(python), "-m", module, *arguments],
        cwd=pythons.ROOT,
        env=pythons.environment_of(HASH_SEED if module.endswith("cold_side") else 0),
        stdout=subprocess.PIPE,
        text=True,
        timeout=3_600,
        check=True,
    )
    return done.stdout


def _checked(first: int, count: int, folder: Path) -> Batch:
    file = str(folder / f"{first}.json")
    return msgspec.json.decode(_told(sys.executable, "tests.replay.batch", str(first), str(count), file), type=Batch)


def _replayed(python: Path | str, file: Path) -> int:
    *differs, replayed = _told(python, "tests.replay.cold_side", str(file)).splitlines()
    assert not differs, f"{python} with another hash seed decides differently: {differs[:3]}"
    return int(replayed)


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Batch], Path]:
    """All programs, checked warm against cold; their histories are left in a folder."""
    folder = tmp_path_factory.mktemp("cases")
    firsts = range(FIRST_SEED, FIRST_SEED + PROGRAMS, BATCH)
    with ThreadPoolExecutor(PROCESSES) as threads:
        done = list(threads.map(lambda f: _checked(f, min(BATCH, FIRST_SEED + PROGRAMS - f), folder), firsts))
    return done, folder


@pytest.mark.prove_main_job
@pytest.mark.prove_whole_core
@pytest.mark.timeout(14_400)
def test_24_warm_equals_cold(batches: tuple[list[Batch], Path], proof: Callable[..., None]) -> None:
    done, _ = batches
    failed = {seed: error for batch in done for seed, error in batch.failed.items()}
    if failed:
        pytest.fail(_explained(*min(failed.items())))
    decisions, events = sum(batch.decisions for batch in done), sum(batch.events for batch in done)
    # A generator that draws nothing of interest would prove nothing.
    assert events > 15 * PROGRAMS
    assert decisions > 3 * PROGRAMS
    kinds = sum((Counter(batch.kinds) for batch in done), Counter[int]())
    assert set(kinds) >= {int(kind) for kind in COMMANDS | RESOLVING} | {int(EventKind.WORKFLOW_CONTINUED_AS_NEW)}
    proof(
        "programs, warm equal to cold",
        first_seed=FIRST_SEED,
        programs=PROGRAMS,
        runs=sum(batch.runs for batch in done),
        decisions=decisions,
        events=events,
        replays=sum(batch.replays for batch in done),
        queries_compared=sum(batch.answers for batch in done),
    )


@pytest.mark.prove_main_job
@pytest.mark.prove_whole_core
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("version", [f"{sys.version_info[0]}.{sys.version_info[1]}", *pythons.others()])
def test_24_cold_elsewhere_equals_cold_here(
    version: str, batches: tuple[list[Batch], Path], proof: Callable[..., None]
) -> None:
    """In another process, with another hash seed, by every Python that is installed."""
    python: Path | str = sys.executable
    if version in pythons.others():
        try:
            python = pythons.python_of(version)
        except pythons.UnavailableError as error:
            pytest.skip(str(error))
    with ThreadPoolExecutor(PROCESSES) as threads:
        replayed = sum(threads.map(lambda file: _replayed(python, file), batches[1].iterdir()))
    assert replayed >= PROGRAMS
    proof("histories, cold in another process equal to cold here", python=version, histories=replayed)


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
