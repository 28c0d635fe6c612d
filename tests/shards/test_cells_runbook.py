"""`docs/operations/cells.md` runs as it is written: its commands, in their order, on two databases."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harvest.shards import Shards, configured
from tests.console.conftest import TOKEN, settings
from tests.console.serving import served
from tests.console.test_dev import environment

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "operations" / "cells.md"
SETTINGS = {"HARVEST_RESERVED_SHARDS": "1", "HARVEST_RESIDENCY_MAP": "cell-a=1"}
# Workers go on in the background; what follows needs both, and a topology that every process has told.
JOINED = """
until [ "$(curl -s "$HARVEST_URL/workers?health=healthy" -H "Authorization: Bearer $HARVEST_TOKEN" | jq '.workers | length')" = 2 ]
do sleep 0.2; done
until [ "$(curl -s "$HARVEST_URL/admin/topology" -H "Authorization: Bearer $HARVEST_TOKEN" | jq '.processes | length')" = 4 ]
do sleep 0.2; done
"""  # noqa: E501

pytestmark = [
    pytest.mark.slow,
    pytest.mark.prove_shards,
    pytest.mark.skipif(shutil.which("jq") is None or shutil.which("curl") is None, reason="the page uses curl and jq"),
]


def script() -> str:
    """The page's commands as one script that ends at the first that fails."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"]
    for block in blocks:
        if block.startswith("harvest worker examples.shop:app"):
            lines += [f"{line} --poll-interval 0.2 >&2 &" for line in block.splitlines()] + [JOINED]
        else:
            lines.append(f"echo '# {block.split()[0]}'\n{block}")
    return "\n".join(lines)


def test_the_page_has_the_commands_of_every_step() -> None:
    text = script()
    for needed in (
        "harvest migrate run",
        "HARVEST_RESERVED_SHARDS=1",
        "--shard 1",
        "--residency-key cell-a",
        "harvest shard health",
        "diff <(",
    ):
        assert needed in text


async def test_its_commands_do_what_it_says(new_database: Callable[[str], str]) -> None:
    urls = {0: new_database("runbook_shared"), 1: new_database("runbook_cell")}
    router = configured(SETTINGS, urls)
    async with served(settings(urls, router=router)) as one, served(settings(urls, router=router)) as two:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", script()),
            cwd=ROOT,
            env=environment(
                {
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                    "SHARED_URL": urls[0],
                    "CELL_URL": urls[1],
                    "HARVEST_URL": f"{one}/api/harvest",
                    "HARVEST_TOKEN": TOKEN,
                    "REPLICA_A": f"{one}/api/harvest",
                    "REPLICA_B": f"{two}/api/harvest",
                }
            ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, (said + errors).decode()
    lines = said.decode().splitlines()
    assert "1" in lines, "the start over HTTP landed in the cell"
    assert "[]" in lines, "no field differs"
    assert "[0,1]" in lines, "every writable shard is covered"
    shards = await Shards.open(urls)
    for shard_id, found in ((0, []), (1, ["acme-42", "acme-43"])):
        rows = await shards.store(shard_id).read.fetch("select workflow_id from harvest_executions order by 1")
        assert [row["workflow_id"] for row in rows if row["workflow_id"].startswith("acme")] == found
    await shards.close()
