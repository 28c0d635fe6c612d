"""`docs/guides/placement.md`: its example of two regions runs as it is written, and its programs do what it says."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harvest import ShardRouter
from tests.console.conftest import TOKEN
from tests.console.test_dev import HARVEST, environment, until

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "placement.md").read_text()
PORT = "8400"


def blocks(language: str, heading: str) -> list[str]:
    """The blocks of code below a heading."""
    section = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, heading
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


@pytest.fixture
def shell(new_database: Callable[[str], str], tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Run lines as they stand, with `harvest` on the path; the port and the folder for keys are the test's own."""
    (tmp_path / "harvest").write_text(f'#!/bin/sh\nexec {" ".join(HARVEST)} "$@"\n')
    (tmp_path / "harvest").chmod(0o755)
    variables = environment(
        {
            "EU_DATABASE_URL": new_database("guide_eu"),
            "US_DATABASE_URL": new_database("guide_us"),
            "HARVEST_ADMIN_TOKEN": TOKEN,
        }
    )
    variables["PATH"] = f"{tmp_path}:{variables['PATH']}"
    (exports, *_) = blocks("sh", "Two regions, from the start")
    running: list[subprocess.Popen[str]] = []
    port = ""

    def run(lines: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", f"{exports}\n{lines.replace(PORT, port or PORT)}"],
            cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def serve(command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["bash", "-euc", f"{exports}\nexec {command}"],
            cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        running.append(process)
        return process

    once, serving, working = blocks("sh", "Two regions, from the start")[1].splitlines()
    run(once)
    console = serve(f"{serving.replace(PORT, '0')} --data-dir {tmp_path}")
    assert console.stdout is not None
    address = next(line for line in console.stdout if line.startswith("ready ")).split()[1]
    port = address.rpartition(":")[2]
    variables["HARVEST_URL"] = f"{address}/api/harvest"
    serve(working)
    registered = f'curl -sf "$HARVEST_URL/workflows/registered/order_flow/schema" -H "Authorization: Bearer {TOKEN}"'
    until(lambda: subprocess.run(["bash", "-c", registered], env=variables, capture_output=True).returncode == 0)
    try:
        yield run
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.communicate(timeout=30)


def documents(text: str) -> list[Any]:
    """The JSON documents of an output, one after another."""
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


@pytest.mark.slow
def test_two_regions_as_they_are_written(shell: Callable[[str], str]) -> None:
    _, _, starts, proofs, config = blocks("sh", "Two regions, from the start")
    european, american = documents(shell(starts))
    assert (european["shard_id"], american["shard_id"]) == (0, 1)
    assert (european["execution_id"][:4], american["execution_id"][:4]) == ("0000", "0001")
    shown, listed = documents(shell(proofs))
    assert (shown["execution_id"], shown["shard_id"]) == (european["execution_id"], 0)
    assert [(row["execution_id"], row["shard_id"]) for row in listed["workflows"]] == [(american["execution_id"], 1)]
    (told,) = documents(shell(config))
    assert told["shard_topology"]["residency_map"] == {"eu": 0, "us": 1}
    for line in blocks("sh", "Placing a start")[0].splitlines():
        (begun,) = documents(shell(line))
        assert begun["shard_id"] == (0 if "eu" in line else 1)


def test_the_router_of_the_guide_is_that_of_its_variables() -> None:
    (program,) = blocks("python", "The shards of a deployment")
    found: dict[str, Any] = {}
    exec(program, found)
    assert found["router"] == ShardRouter(readable=(0, 1), writable=(0, 1), default=0, residency={"eu": 0, "us": 1})
