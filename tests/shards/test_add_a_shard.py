"""`docs/operations/add-a-shard.md` step by step: its commands, on real databases, with a console and a worker."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import msgspec
import pytest

from harvest import Harvest
from harvest.operations import add_shard, starting
from harvest.operations.actor import in_process
from harvest.operations.shard_health import ReasonCode
from harvest.shards import Shards, configured
from harvest.worker.main import keep_working
from harvest_console.embedded import EmbeddedPostgres
from harvest_console.settings import database_urls
from tests.console.conftest import TOKEN, settings
from tests.console.serving import served
from tests.console.test_dev import environment
from tests.support import FAST, eventually

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "operations" / "add-a-shard.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.prove_shards,
    pytest.mark.skipif(shutil.which("jq") is None or shutil.which("curl") is None, reason="the page uses curl and jq"),
]

app = Harvest()


@app.workflow
async def landed(ctx: object) -> None:
    pass


def blocks(step: int) -> list[str]:
    """The commands of one step, block by block."""
    section = re.search(rf"^## {step}\. .*?(?=^## )", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert section is not None
    return re.findall(r"^```sh\n(.*?)^```", section[0], re.DOTALL | re.MULTILINE)


class Operator:
    """Who follows the page: what was exported so far stays, and every process is started again with it."""

    def __init__(self, old_url: str, new_url: str) -> None:
        self.exports: list[str] = []
        self.variables: dict[str, str] = {}
        self._given = {"OLD_URL": old_url, "NEW_URL": new_url, "HARVEST_TOKEN": TOKEN}

    async def run(self, block: str, address: str = "", *, status: int = 0) -> str:
        """Run a block and keep what it exports; its output."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        given = self._given | {"PATH": path, "HARVEST_URL": f"{address}/api/harvest"}
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", "\n".join(["set -euo pipefail", *self.exports, block, "env | grep ^HARVEST_ >&2 || true"])),
            cwd=ROOT,
            env=environment(given),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == status, (said + errors).decode()
        self.exports += [line for line in block.splitlines() if line.startswith("export ")]
        if status == 0:
            found = (line.split("=", 1) for line in errors.decode().splitlines() if line.startswith("HARVEST_"))
            self.variables = {name: value for name, value in found if name not in ("HARVEST_TOKEN", "HARVEST_URL")}
        return said.decode()

    @property
    def urls(self) -> dict[int, str]:
        """The databases that processes are started with now."""
        return database_urls(self.variables) or {}

    @asynccontextmanager
    async def console(self) -> AsyncIterator[str]:
        """A console that was started with what is exported."""
        router = configured(self.variables, self.urls)
        async with served(settings(self.urls, router=router)) as address:
            yield address

    @asynccontextmanager
    async def worker(self, variables: Mapping[str, str] | None = None) -> AsyncIterator[None]:
        """A worker that was started with these variables, else with what is exported."""
        found = self.variables if variables is None else variables
        urls = database_urls(found) or {}
        begun, stop = asyncio.Event(), asyncio.Event()
        options = msgspec.structs.replace(FAST, name="w-1")
        working = asyncio.create_task(
            keep_working(
                app.registry, urls, options=options, stop=stop, on_start=begun.set, router=configured(found, urls)
            )
        )
        await begun.wait()
        try:
            yield
        finally:
            stop.set()
            await working


async def start_many(operator: Operator, prefix: str) -> set[int]:
    """Start runs as a process with what is exported would; the shards where they live."""
    shards = await Shards.open(operator.urls, configured(operator.variables, operator.urls))
    try:
        started = [
            await starting.start(shards, in_process("test"), workflow_name="landed", workflow_id=f"{prefix}-{number}")
            for number in range(20)
        ]
        return {each.shard_id for each in started}
    finally:
        await shards.close()


async def states(operator: Operator, candidate: int = 1) -> dict[str, str]:
    """Each check of the page's checklist, as it stands."""
    shards = await Shards.open(operator.urls, configured(operator.variables, operator.urls))
    try:
        found = await add_shard.checklist(shards, candidate)
        return {check.key: check.state for step in found.steps for check in step.checks}
    finally:
        await shards.close()


def test_the_page_has_four_steps_and_names_every_reason() -> None:
    assert [len(blocks(step)) for step in (1, 2, 3, 4)] == [1, 1, 1, 4]
    table = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert [code for code, _ in table] == [code.value for code in ReasonCode]


async def test_its_four_steps_bring_a_new_database_to_work(
    new_database: Callable[[str], str], postgres_server: EmbeddedPostgres
) -> None:
    old_url, new_url = new_database("adding_old"), postgres_server.ensure_database("adding_new")
    operator = Operator(old_url, new_url)
    before = {"HARVEST_DATABASE_URLS": f"0={old_url}"}

    await operator.run(blocks(1)[0])
    connection = await asyncpg.connect(new_url)
    assert await connection.fetchval("select shard_id from harvest_meta") == 1
    await connection.close()

    await operator.run(blocks(2)[0])
    async with operator.console() as address:
        async with operator.worker(before):
            degraded = await operator.run(blocks(3)[0], address, status=1)
            assert msgspec.json.decode(degraded)["candidate_shard"]["reason_codes"] == ["no_live_worker"]
            assert (await states(operator))["writable"] == "blocked"
        async with operator.worker():
            ready = await operator.run(blocks(3)[0], address)
            assert msgspec.json.decode(ready)["candidate_shard"]["readiness"] == "ready"
            assert await start_many(operator, "early") == {0}

            async def at_the_flip() -> bool:
                found = await states(operator)
                return found["writable"] == "waiting" and found["assigned"] == "done"

            await eventually(at_the_flip)

    flip, assigned, dispatched, stranded = blocks(4)
    await operator.run(flip)
    async with operator.console() as address, operator.worker():
        assert await start_many(operator, "late") == {0, 1}
        assert (await operator.run(assigned, address)).split() == ["[0,1]"]
        assert "stranded_pending" in await operator.run(stranded, address)

        async def counted() -> bool:
            said = await operator.run(f"{dispatched.strip()} || true", address)
            return bool(said.strip()) and float(said.split()[-1]) > 0

        await eventually(counted)

        async def verified() -> bool:
            found = await states(operator)
            return {state for key, state in found.items() if key != "alert"} == {"done"}

        await eventually(verified)
