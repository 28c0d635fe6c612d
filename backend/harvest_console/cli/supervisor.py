"""Worker processes as children: started, watched, restarted after a crash, and ended together."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from harvest import clock
from harvest_console.lifeline import parent_death_hook

_log = logging.getLogger("harvest.dev")

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
STEADY_SECONDS = 30.0
_GRACE_SECONDS = 15.0
_USAGE_ERROR = 2


class WorkerProcess:
    """One `harvest worker` child. After a crash it is started again, each time after a longer pause.

    `misconfigured` is set when the very first start ends with a usage error: repeating it would mend nothing. Of
    several that cannot load the app, the first alone says why. One that ends well by itself, because people drained
    it, is not started again.
    """

    def __init__(
        self,
        number: int,
        app: str,
        environment: Mapping[str, str],
        misconfigured: asyncio.Event,
        *,
        arguments: Sequence[str] = (),
        drain: float = 0.0,
    ) -> None:
        self._number = number
        self._grace = max(_GRACE_SECONDS, drain + _GRACE_SECONDS / 2)
        self._command = [sys.executable, "-m", "harvest_console.cli", "worker", "run", app, *arguments]
        self._command += ["--parent", str(os.getpid())]
        self._environment = {**environment, "PYTHONHASHSEED": "0"}
        self._misconfigured = misconfigured
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id; None between a crash and the next start."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the child and watch over it."""
        self._watch = asyncio.create_task(self._keep_running(), name=f"worker-{self._number}")

    async def stop(self) -> None:
        """Ask the child to end, and end it if it has not done so within its grace."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        if self._watch is None:
            return
        done, _ = await asyncio.wait({self._watch}, timeout=self._grace)
        if not done:
            _log.warning("worker %s did not stop within %s s and is killed", self._number, self._grace)
            self.signal(signal.SIGKILL)
        await self._watch

    async def ended(self) -> None:
        """Wait until the child has ended and will not be started again."""
        if self._watch is not None:
            await asyncio.wait({self._watch})

    def signal(self, signum: signal.Signals) -> None:
        """Send the child a signal, if there is a child."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signum)

    async def _keep_running(self) -> None:
        pause, first = FIRST_PAUSE, True
        while not self._stopping.is_set():
            began = clock.monotonic()
            code = await self._run_once(quiet=first and self._number > 1)
            if self._stopping.is_set():
                return
            if code == 0:
                _log.info("worker %s has been drained", self._number)
                return
            if first and code == _USAGE_ERROR:
                if self._number == 1:
                    self._misconfigured.set()
                    return
                # The first is about to say why, and must have the time to.
                if await clock.wait_event(self._stopping, STEADY_SECONDS):
                    return
            first = False
            if clock.monotonic() - began > STEADY_SECONDS:
                pause = FIRST_PAUSE
            _log.warning("worker %s ended with status %s; starting it again in %.1f s", self._number, code, pause)
            await clock.wait_event(self._stopping, pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _run_once(self, *, quiet: bool) -> int:
        # A session of its own keeps a terminal's Ctrl-C from the child: the order of the end is the parent's to choose.
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            *(["--quiet-load"] if quiet else []),
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=parent_death_hook(signal.SIGTERM),
        )
        if self._stopping.is_set():
            self._process.send_signal(signal.SIGTERM)
        code = await self._process.wait()
        self._process = None
        return code
