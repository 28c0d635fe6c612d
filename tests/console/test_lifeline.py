"""A killed parent leaves nothing running, on systems with a death signal and on those without."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harvest import clock

CHILD = "import signal, threading\n{tie}\nprint('up', flush=True)\nthreading.Event().wait(60)\n"
WAYS = {
    "by watching the parent": (
        "child = subprocess.Popen([sys.executable, '-c', CHILD.format(tie=f'from harvest_console.lifeline import "
        "end_with_parent; end_with_parent(signal.SIGTERM, {os.getpid()})')], stdout=subprocess.PIPE)\n"
    ),
    "by the death signal": (
        "child = subprocess.Popen([sys.executable, '-c', CHILD.format(tie='')], stdout=subprocess.PIPE,"
        " preexec_fn=lifeline.parent_death_hook(signal.SIGTERM))\n"
    ),
    "by a pipe that breaks": (
        "child = subprocess.Popen([sys.executable, '-c', CHILD.format(tie='')], stdout=subprocess.PIPE)\n"
        "guard = lifeline.guard_by_pipe(child.pid, signal.SIGTERM)\n"
    ),
}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("way", WAYS)
def test_a_child_ends_when_its_parent_is_killed(way: str) -> None:
    head = f"import os, signal, subprocess, sys\nfrom harvest_console import lifeline\nCHILD = {CHILD!r}\n"
    tail = "child.stdout.readline()\nprint(child.pid, flush=True)\nchild.wait()\n"
    parent = subprocess.Popen([sys.executable, "-c", head + WAYS[way] + tail], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    end, tick = clock.monotonic() + 20, threading.Event()
    while alive(child):
        assert clock.monotonic() < end, f"the child lives on: {way}"
        tick.wait(0.05)
