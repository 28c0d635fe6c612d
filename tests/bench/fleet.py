"""A fleet of worker processes on one database, what it has done, and the processor time that it took."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

import msgspec

from harvest.errors import OwnerModeRefusedError
from harvest.history.ids import PARTITIONS
from harvest.operations import owner_mode, starting
from harvest.operations.actor import in_process
from harvest.shards import Shards
from tests.bench.engine_bench import encode
from tests.bench.engine_tables import connected
from tests.bench.fleet_worker import Given
from tests.bench.side import ROOT

LOOK_SECONDS: Final = 0.05
JOIN_SECONDS, SETTLE_SECONDS, END_SECONDS = 60.0, 60.0, 600.0
LINE_BYTES: Final = 64 * 1024 * 1024
TICKS: Final = os.sysconf("SC_CLK_TCK")
ACTOR: Final = in_process("bench")


class Member:
    """One worker process, and the line to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.id = UUID(int=0)

    @classmethod
    async def start(cls, url: str, given: Given) -> Self:
        """Start a process and wait until its worker has joined."""
        member = cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.bench.fleet_worker", url, msgspec.json.encode(given).decode()),
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": "0"},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES,
            )
        )
        member.id = UUID((await member.answer())["joined"])
        return member

    async def ask(self, line: str) -> dict[str, Any]:
        """Send a command and read the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """The next line of the process; raises EOFError when it has ended instead."""
        assert self.process.stdout is not None
        async with asyncio.timeout(JOIN_SECONDS):
            line = await self.process.stdout.readline()
        if not line:
            raise EOFError(f"a worker process has ended with {await self.process.wait()}")
        told: dict[str, Any] = msgspec.json.decode(line)
        return told


class Fleet:
    """Worker processes that have joined and claim nothing until `go`, and a client of the same database."""

    def __init__(self, url: str, shards: Shards, members: list[Member]) -> None:
        self.url = url
        self.shards = shards
        self.members = members

    async def own(self) -> None:
        """Turn owner mode on, as people do, and wait until each worker owns its share."""
        deadline = time.perf_counter() + SETTLE_SECONDS
        while True:
            try:
                await owner_mode.enable(self.shards, ACTOR, 0, reason="bench")
                break
            except OwnerModeRefusedError:
                # A worker that has just joined has not been seen to scan yet.
                if time.perf_counter() > deadline:
                    raise
                await asyncio.sleep(LOOK_SECONDS)
        target = PARTITIONS // len(self.members)
        while not all(target <= owned <= target + 2 for owned in await self._owned()):
            if time.perf_counter() > deadline:
                raise TimeoutError(f"the partitions are owned {await self._owned()}, not {target} each")
            await asyncio.sleep(LOOK_SECONDS)

    async def disown(self) -> None:
        """Turn owner mode off, if it is on, and wait until every worker knows."""
        await owner_mode.disable(self.shards, ACTOR, 0, reason="bench")
        while any(each["counters"]["partitions_owned"] for each in await self.told()):
            await asyncio.sleep(LOOK_SECONDS)

    async def _owned(self) -> list[int]:
        rows = await self.shards.store(0).read.fetch(
            "select owner, count(*) as n from harvest_partitions where owner is not null group by owner"
        )
        counts = {row["owner"]: row["n"] for row in rows}
        return [counts.get(member.id, 0) for member in self.members]

    async def enqueue(self, workflow: str, count: int, *arguments: object, first: int = 0) -> list[str]:
        """Queue runs with the same input; returns their workflow ids, which are numbered from `first` on."""
        # An input is the JSON value of the only parameter, or the array of several.
        body = encode(arguments[0] if len(arguments) == 1 else arguments or None)
        ids = [f"{workflow}-{number}" for number in range(first, first + count)]
        await starting.start_many(self.shards, workflow, ids, body)
        return ids

    async def execution_ids(self, workflow_ids: list[str]) -> list[UUID]:
        """The runs behind workflow ids, in their order."""
        rows = await self.shards.store(0).read.fetch(
            "select workflow_id, execution_id from harvest_executions where workflow_id = any($1)", workflow_ids
        )
        found = {row["workflow_id"]: row["execution_id"] for row in rows}
        return [found[each] for each in workflow_ids]

    async def go(self) -> None:
        """Let every worker claim."""
        await asyncio.gather(*(member.ask("go") for member in self.members))

    async def hold(self) -> None:
        """Let no worker claim, until the next `go`."""
        await asyncio.gather(*(member.ask("hold") for member in self.members))

    async def told(self) -> list[dict[str, Any]]:
        """What each worker tells of itself at this moment."""
        return list(await asyncio.gather(*(member.ask("counters") for member in self.members)))

    async def counters(self) -> list[dict[str, int]]:
        """The counters of each worker."""
        return [told["counters"] for told in await self.told()]

    async def closed(self, more: int, since: int) -> list[dict[str, Any]]:
        """Wait until `more` runs have closed since the fleet had closed `since`; what each worker tells then."""
        deadline = time.perf_counter() + END_SECONDS
        while True:
            told = await self.told()
            closed = sum(each["counters"]["closed"] for each in told) - since
            if closed >= more:
                return told
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{closed} of {more} runs have closed")
            await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def fleet(url: str, size: int, given: Given) -> AsyncIterator[Fleet]:
    """A fleet of `size` processes that have joined; they are stopped at the end."""
    starts = (Member.start(url, msgspec.structs.replace(given, name=f"{given.name}{n}")) for n in range(size))
    started = await asyncio.gather(*starts, return_exceptions=True)
    members = [each for each in started if isinstance(each, Member)]
    shards = await Shards.open({0: url})
    try:
        for each in started:
            if isinstance(each, BaseException):
                raise each
        yield Fleet(url, shards, members)
        await asyncio.gather(*(member.ask("stop") for member in members))
    finally:
        for member in members:
            if member.process.returncode is None and member.process.stdin is not None:
                member.process.stdin.close()
        for member in members:
            try:
                async with asyncio.timeout(JOIN_SECONDS):
                    await member.process.wait()
            except TimeoutError:
                member.process.kill()
        await shards.close()


def processor_seconds(pid: int) -> float:
    """Seconds of processor time, user and system, that a process and those of its children that are gone took."""
    fields = _stat(pid)
    return sum(int(field) for field in fields[11:15]) / TICKS


async def postmaster_of(url: str) -> int:
    """The server's first process, the parent of all others."""
    async with connected(url) as connection:
        return int(_stat(await connection.fetchval("select pg_backend_pid()"))[1])


def server_seconds(postmaster: int) -> float:
    """Processor time of the server: all its processes, those that are gone as well."""
    total = processor_seconds(postmaster)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = _stat(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == postmaster:
                total += sum(int(field) for field in fields[11:13]) / TICKS
    return total


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on, which follows the name in parentheses."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
