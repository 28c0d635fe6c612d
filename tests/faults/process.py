"""Worker processes of the fault tests, to be frozen and killed: `python -m tests.faults.process` runs one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import msgspec

from harvest import clock
from harvest.store import fleet
from harvest.worker import watch
from harvest.worker.main import run_worker
from harvest.worker.options import WorkerOptions

ROOT = Path(__file__).parent.parent.parent


class WorkerProcess:
    """One worker process on these databases. Ends with the block it is used in, however it was treated."""

    def __init__(
        self, urls: Mapping[int, str] | str, log: Path, *, name: str = "w", build: str = "b", **env: str
    ) -> None:
        self.urls = {0: urls} if isinstance(urls, str) else dict(urls)
        self.log = log
        self.name = name
        self.build = build
        self.env = env
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        given = msgspec.json.encode({"urls": self.urls, "name": self.name, "build": self.build}).decode()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.process", given],
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": "0", **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def signal(self, signum: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signum)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    async def ended(self, within: float) -> int:
        """Wait for its own end; its exit status."""
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), within)

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Start it again whenever it ends, as `harvest dev` does."""

        async def keep() -> None:
            while True:
                await asyncio.to_thread(self.process.wait)
                self.start()

        keeping = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeping.cancel()
            self.kill()
            await asyncio.gather(keeping, return_exceptions=True)
            self.kill()

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGCONT)
        self.kill()


class _Given(msgspec.Struct):
    urls: dict[int, str]
    name: str
    build: str


async def _main(given: _Given) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    options = WorkerOptions(
        name=given.name,
        build=given.build,
        poll_interval=0.2,
        scan_interval=0.2,
        drain_timeout=float(os.environ.get("HARVEST_TEST_DRAIN", "1")),
        # Short, so that lost workers are found sooner than after ten seconds.
        owner_lease_ttl=float(os.environ.get("HARVEST_TEST_LEASE", fleet.LEASE_SECONDS)),
    )
    await run_worker("tests.faults.app:app", given.urls, name=given.name, stop=stop, options=options)


def _shift_clock(seconds: float) -> None:
    """This process's wall clock is so much ahead of the machine's."""
    real = time.time_ns
    clock._time_ns = lambda: real() + int(seconds * 1e9)


if __name__ == "__main__":
    if "HARVEST_TEST_CLOCK" in os.environ:
        _shift_clock(float(os.environ["HARVEST_TEST_CLOCK"]))
    if "HARVEST_TEST_HURRY" in os.environ:
        watch.LONG_STEP, watch.LAST_WORD = 0.5, 1.0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    asyncio.run(_main(msgspec.json.decode(sys.argv[1], type=_Given)))
