"""Tie a child's life to its parent's, so that a parent killed with SIGKILL leaves nothing running."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 1.0
_libc = ctypes.CDLL(None, use_errno=True) if LINUX else None


def parent_death_hook(signum: signal.Signals) -> Callable[[], None] | None:
    """A `preexec_fn` after which the child gets `signum` when its parent ends; None where the system has no such thing.

    Linux sends the signal when the *thread* that started the child ends: start from the main thread only.
    """
    if _libc is None:
        return None
    prctl, parent, number = _libc.prctl, os.getpid(), int(signum)

    def hook() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended between fork and prctl
            os._exit(1)

    return hook


def end_with_parent(signum: signal.Signals, parent: int) -> None:
    """Send this process `signum` once `parent` (its parent's process id) is gone, by watching for it each second.

    The way for systems without a death signal; harmless beside one.
    """

    def watch() -> None:
        tick = threading.Event()
        while os.getppid() == parent:
            tick.wait(_POLL_SECONDS)
        os.kill(os.getpid(), signum)

    threading.Thread(target=watch, name="harvest-lifeline", daemon=True).start()


def guard_by_pipe(pid: int, signum: signal.Signals) -> subprocess.Popen[bytes]:
    """Start a shell that sends `signum` to `pid` when the pipe from this process breaks, however this process ends.

    For programs that are not ours, on systems without a death signal. End the returned process first
    when `pid` was stopped in the ordinary way.
    """
    script = f'cat >/dev/null; kill -{int(signum)} "$1"'
    return subprocess.Popen(["/bin/sh", "-c", script, "sh", str(pid)], stdin=subprocess.PIPE, start_new_session=True)
