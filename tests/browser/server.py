"""`harvest dev examples.shop:app` as a process of its own, and its API for what a test needs beside the browser."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "browser-tests-token-0123456789abcdef"
START_SECONDS = 90.0


class DevServer:
    """A running development setup. `link` signs in once; `base` is the console's address."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lines: list[str] = []
        self._ready = threading.Event()
        command = [sys.executable, "-m", "harvest_console.cli", "dev", "examples.shop:app", "--port", "0"]
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(data_dir)],
            cwd=ROOT,
            env={**os.environ, "HARVEST_ADMIN_TOKEN": TOKEN},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        if not self._ready.wait(START_SECONDS) or self._process.poll() is not None:
            self.stop()
            raise RuntimeError("harvest dev did not get ready:\n" + "\n".join(self._lines[-30:]))
        said = "\n".join(self._lines)
        self.base = re.search(r"^ready (http://\S+)$", said, re.M)[1]  # type: ignore[index]
        self.link = re.search(r"http://\S+/signin\?token=\S+", said)[0]  # type: ignore[index]

        try:
            self.until(self._knows_the_shop)
        except RuntimeError:
            self.stop()
            raise

    def _knows_the_shop(self) -> bool:
        try:
            self.call("GET", "/workflows/registered/order_flow/schema")
        except RuntimeError:
            return False
        return True

    def until(self, condition: Callable[[], bool], *, within: float = 30.0) -> None:
        """Ask until `condition` holds; raises when it does not within that many seconds."""
        pause = threading.Event()
        for _ in range(int(within / 0.05)):
            if condition():
                return
            pause.wait(0.05)
        said = "\n".join(self._lines[-30:])
        raise RuntimeError(f"it did not come true within {within:.0f} s; the server said:\n{said}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip("\n"))
            if line.startswith("ready "):
                self._ready.set()
        self._ready.set()

    def stop(self) -> None:
        """Ctrl-C, and SIGKILL if that does not do."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)

    @property
    def urls(self) -> dict[int, str]:
        """The databases of its shards."""
        found: dict[str, str] = json.loads((self._data_dir / "databases.json").read_text())
        return {int(shard_id): url for shard_id, url in found.items()}

    def kill_shard(self, shard_id: int) -> None:
        """SIGKILL the database server of a shard."""
        os.kill(self.postmaster(shard_id), signal.SIGKILL)

    def postmaster(self, shard_id: int) -> int:
        """The process of the database server of a shard."""
        url = self.urls[shard_id]
        for pid_file in self._data_dir.rglob("postmaster.pid"):
            lines = pid_file.read_text().splitlines()
            if quote(lines[4], safe="") in url or lines[4] in url:
                return int(lines[0])
        raise RuntimeError(f"no server of shard {shard_id} was found in {self._data_dir}")

    def call(self, method: str, path: str, body: bytes | None = None) -> Any:
        """One request to the API; raises on a refusal, with its text."""
        request = Request(
            f"{self.base}/api/harvest{path}",
            data=body,
            method=method,
            headers={"authorization": f"Bearer {TOKEN}", "content-type": "application/json"},
        )
        try:
            with urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error

    def start(self, workflow_name: str, given: Any, **more: Any) -> str:
        """Start a run and return its execution id."""
        body = json.dumps({"input": given, **more}).encode()
        return str(self.call("POST", f"/workflows/{workflow_name}/start", body)["execution_id"])

    def signal(self, execution_id: str, name: str, payload: bytes) -> None:
        """Send a signal with exactly this JSON text."""
        self.call("POST", f"/workflows/{execution_id}/signal/{quote(name, safe='')}", payload)

    def ended(self, execution_id: str) -> str:
        """Wait until a run has ended; returns its state."""
        return str(self.call("GET", f"/workflows/{execution_id}/result?wait=30")["state"])
