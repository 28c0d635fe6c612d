"""Runs one side of a comparison in a process of its own and reads the JSON object that it prints last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
DBOS_PYTHON_VARIABLE: Final = "HARVEST_BENCH_PYTHON"


class SideFailed(Exception):
    """A side ended badly, printed no result or took too long; the text says which and shows its last words."""


def dbos_python() -> str:
    """The interpreter that has dbos; raises SideFailed when there is none, saying how to make one."""
    return bench_python("dbos 3.4")


def bench_python(package: str) -> str:
    """The interpreter that has what we are compared with; raises SideFailed when there is none."""
    chosen = Path(os.environ.get(DBOS_PYTHON_VARIABLE) or ROOT / ".venv-bench" / "bin" / "python")
    if not chosen.exists():
        raise SideFailed(
            f"{chosen} does not exist: `make bench` makes it; {DBOS_PYTHON_VARIABLE} may name another with {package}"
        )
    return str(chosen)


def run_side(module: str, *arguments: str, python: str = sys.executable, timeout: float = 600.0) -> dict[str, Any]:
    """Run `python -m tests.bench.MODULE ARGUMENTS`, `timeout` seconds at most; raises SideFailed."""
    command = [python, "-m", f"tests.bench.{module}", *arguments]
    what = f"{module} {arguments[0] if arguments else ''}".strip()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise SideFailed(f"{what} did not end within {timeout:.0f} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        raise SideFailed(f"{what} ended with {process.returncode}:\n{err[-4000:]}")
    try:
        result: dict[str, Any] = msgspec.json.decode(out.rstrip().rpartition("\n")[2].encode(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise SideFailed(f"{what} printed no JSON object at its end ({error}): {out[-500:]!r}") from error
    return result
