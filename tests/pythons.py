"""The other Pythons of this machine, each with an environment of its own for what the engine needs."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".tools" / "pythons"
VERSIONS = ((3, 11), (3, 12), (3, 13))
_SHOWS_VERSION = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"


class UnavailableError(Exception):
    """Why there is no such Python here, or none that can import the engine."""


def others() -> list[str]:
    """Versions beside the one that runs, such as `3.12`; whether they are here is another question."""
    return [f"{major}.{minor}" for major, minor in VERSIONS if (major, minor) != sys.version_info[:2]]


@functools.cache
def python_of(version: str) -> Path:
    """A Python of this version that can import the engine: `environment_of` is what to run it with.

    Its packages come from uv's cache; at full scale they may be fetched. Raises UnavailableError.
    """
    uv = shutil.which("uv", path=f"{ROOT / '.tools' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise UnavailableError("there is no uv to make an environment with")
    folder = FOLDER / version
    python = folder / "bin" / "python"
    if not (folder / ".synced").exists():
        _run([uv, "venv", "-q", "--allow-existing", "--offline", "--python", str(_interpreter(version)), str(folder)])
        offline = [] if os.environ.get("HARVEST_SCALE") == "full" else ["--offline"]
        lock = str(ROOT / "requirements-run.lock")
        _run([uv, "pip", "sync", "-q", *offline, "-p", str(python), "--require-hashes", lock])
        (folder / ".synced").touch()
    return python


def environment_of(hash_seed: int) -> dict[str, str]:
    """The environment in which such a Python finds the engine and the tests."""
    path = os.pathsep.join((str(ROOT / "engine"), str(ROOT / "backend"), str(ROOT)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(hash_seed)}


def _interpreter(version: str) -> Path:
    for candidate in _candidates(version):
        told = subprocess.run([candidate, "-c", _SHOWS_VERSION], capture_output=True, text=True, check=False)
        found = re.fullmatch(r"(\S+) (.+)\n", told.stdout)
        if found and found[1] == version:
            return Path(found[2])
    raise UnavailableError(f"there is no Python {version} here")


def _candidates(version: str) -> list[str]:
    """Names on the path, and what pyenv has, whose shims answer only for chosen versions."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    return [*([named] if named else []), *map(str, sorted(kept.glob(f"{version}.*/bin/python"), reverse=True))]


def _run(command: list[str]) -> None:
    env = {**os.environ, "UV_LINK_MODE": "copy", "UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise UnavailableError(f"`uv {command[1]}` fails: {last.strip()}")
