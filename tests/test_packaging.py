"""What is shipped: the wheel, the image's own steps, and the deployment file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.timeout(600)

FOLDERS = {
    "templates": "harvest_console/templates",
    "static": "harvest_console/static",
    "migrations": "harvest/migrations",
}


def run(*command: str | Path, cwd: Path, **extra: str) -> str:
    """Run a command to its end; its output. A failure shows what it said."""
    names = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    environment = {name: value for name, value in os.environ.items() if name not in names} | extra
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make a fresh virtual environment; answers its folder of programs."""

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        return folder / "venv" / "bin"

    return make


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, environment: Callable[[str], Path]) -> Path:
    """The wheel, built from a copy of what is under version control."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE", "engine", "backend", *FOLDERS):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    run(environment("build") / "pip", "wheel", "-q", "--no-deps", "-w", target, source, cwd=target)
    (built,) = target.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_has_every_template_static_file_and_migration(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder, inside in FOLDERS.items():
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert files
        missing = [path for path in files if f"{inside}/{path.relative_to(ROOT / folder)}" not in names]
        assert not missing
    assert {"harvest/py.typed", "harvest_console/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "examples/"))]


@pytest.mark.slow
def test_the_wheel_runs_from_an_empty_folder(wheel: Path, environment: Callable[[str], Path], tmp_path: Path) -> None:
    programs = environment("wheel")
    run(programs / "pip", "install", "-q", "--no-deps", wheel, cwd=tmp_path)
    # What it depends on is taken from here, behind the wheel's own packages: the image's test installs it all anew.
    (library,) = (programs.parent / "lib").glob("python3*/site-packages")
    (library / "dependencies.pth").write_text(f"{Path(msgspec.__file__).parent.parent}\n")
    assert "migrate" in run(programs / "harvest", "--help", cwd=tmp_path)
    told = run(
        programs / "python",
        "-c",
        "from harvest.store.migrate import migrations_folder\n"
        "from harvest_console.rendering.resources import resource_folder\n"
        "print(migrations_folder(), resource_folder('templates'), resource_folder('static'), sep='\\n')",
        cwd=tmp_path,
    )
    for line, name in zip(told.splitlines(), ("migrations", "templates", "static"), strict=True):
        assert Path(line).is_relative_to(library)
        assert Path(line).name == name
        assert any(Path(line).iterdir())


def dockerfile() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = (line.strip() for line in text.splitlines())
    return [
        (word, rest) for line in lines if line and not line.startswith("#") for word, _, rest in [line.partition(" ")]
    ]


@pytest.mark.slow
def test_the_images_own_steps_install_a_harvest_that_runs(environment: Callable[[str], Path], tmp_path: Path) -> None:
    programs, work, ran = environment("image"), tmp_path / "app", []
    work.mkdir()
    for word, rest in dockerfile():
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                place = work / target / (source if target.endswith("/") else "")
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, place)
        elif word == "RUN" and rest.startswith("pip "):
            ran.append(rest)
            run("/bin/sh", "-c", rest, cwd=work, PATH=f"{programs}:{os.environ['PATH']}")
    assert len(ran) == 2
    assert all("--require-hashes" in step or "--no-deps" in step for step in ran)
    shutil.rmtree(work)
    command = msgspec.json.decode(dict(dockerfile())["ENTRYPOINT"], type=list[str])
    verb, *options = msgspec.json.decode(dict(dockerfile())["CMD"], type=list[str])
    assert "Durable workflows" in run(programs / command[0], "--help", cwd=tmp_path)
    told = run(programs / command[0], verb, "--help", cwd=tmp_path)
    assert all(option in told for option in options if option.startswith("--"))
    run(programs / "pip", "check", cwd=tmp_path)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The deployment file, with its anchors resolved."""
    import yaml

    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return loaded


def test_the_deployment_file_fits_the_compose_schema() -> None:
    command = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"]
    run(Path(sys.executable).with_name(command[0]), *command[1:], cwd=ROOT)


def test_the_deployment_has_two_databases_a_console_and_two_workers(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert len([name for name, service in services.items() if service["image"].startswith("postgres:")]) == 2
    assert services["worker"]["deploy"]["replicas"] == 2
    assert services["worker"]["command"][0] == "worker"
    assert services["console"]["command"][0] == "serve"
    assert services["console"]["ports"] == ["127.0.0.1:8400:8400"]


def test_every_part_of_the_deployment_knows_both_shards(compose: dict[str, Any]) -> None:
    from harvest_console.settings import database_urls

    for name in ("migrate", "console", "worker"):
        given = compose["services"][name]["environment"]["HARVEST_DATABASE_URLS"]
        urls = database_urls({"HARVEST_DATABASE_URLS": re.sub(r"\$\{[^}]*\}", "secret", given)})
        assert urls is not None
        assert [url.partition("@")[2] for url in urls.values()] == ["postgres-0/harvest", "postgres-1/harvest"]


def test_the_deployments_verbs_and_options_exist(compose: dict[str, Any]) -> None:
    for name in ("migrate", "console", "worker"):
        verb, *rest = compose["services"][name]["command"]
        told = run(sys.executable, "-m", "harvest_console.cli", verb, "--help", cwd=ROOT)
        assert all(word in told for word in rest if word.startswith("--") or verb == "migrate")


def test_no_lock_names_a_registry_and_every_line_has_hashes() -> None:
    for name in ("requirements.lock", "requirements-run.lock", "requirements-bench.lock"):
        text = (ROOT / name).read_text()
        assert "://" not in text
        pinned = re.findall(r"^[a-z0-9._-]+(?:\[[^]]*\])?==", text, re.MULTILINE)
        assert len(pinned) > 10
        assert len(re.findall(r"==[^\n]*\\\n    --hash=sha256:", text)) == len(pinned)


def test_the_image_installs_the_versions_that_are_tested() -> None:
    def pins(name: str) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==([^ \\]+)", (ROOT / name).read_text(), re.MULTILINE))

    tested, shipped = pins("requirements.lock"), pins("requirements-run.lock")
    assert shipped.items() <= tested.items()
    assert "pytest" not in shipped
