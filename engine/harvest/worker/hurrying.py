"""Hurries the code of a run that is let go: cleanup that computes, or waits by spinning, must not hold the worker."""

from __future__ import annotations

import ctypes
import threading
from typing import Final

from harvest import clock
from harvest.replay import guard
from harvest.replay.unwinding import HurriedError, Patience

HURRY_SECONDS: Final = 0.03
PROCESSOR_SECONDS: Final = 0.02
LONGEST_SECONDS: Final = 0.08
AGAIN_SECONDS: Final = 0.02
IDLE_SECONDS: Final = 10.0


class Hurry(Patience):
    """Strikes the thread that lets go of a run once that has taken 30 ms, and again each 20 ms until it is over.

    Where others keep the processor from that thread, it has 80 ms. The hurry has a thread of its own, which begins with
    the first run and ends when none has been let go for ten seconds.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self._thread_id = 0
        self._processor: float | None = None
        self._armed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pause = threading.Event()
        self._next_for: float | None = None
        self._next = 0.0

    def begin(self) -> None:
        """A run is let go in this thread from now on, until `due` is None again."""
        self._thread_id = threading.get_ident()
        self._processor = clock.processor_seconds(self._thread_id)
        self.struck = False
        self.due = clock.monotonic() + HURRY_SECONDS
        if not self._armed.is_set():
            with self._lock:
                if self._thread is None:
                    # Nobody is struck while a thread begins, which takes as long as the machine is busy.
                    self.due = None
                    self._begin_thread()
                    self.due = clock.monotonic() + HURRY_SECONDS
                self._armed.set()

    def _begin_thread(self) -> None:
        step = guard.pause()
        try:
            self._thread = threading.Thread(target=self._run, name="harvest-hurry", daemon=True)
            self._thread.start()
        finally:
            guard.leave(step)

    def _run(self) -> None:
        while self._armed.wait(IDLE_SECONDS) or not self._ended():
            pause = self._look()
            if pause is not None:
                self._pause.wait(pause)
                continue
            self._armed.clear()
            if self.due is not None:
                self._armed.set()

    def _ended(self) -> bool:
        with self._lock:
            if self._armed.is_set():
                return False
            self._thread = None
            return True

    def _look(self) -> float | None:
        """Strike if it is time; returns the seconds until the next look, None while nobody is let go."""
        due = self.due
        if due is None:
            return None
        if due != self._next_for:
            self._next_for, self._next = due, due
        now = clock.monotonic()
        if now >= self._next:
            self._next = now + AGAIN_SECONDS
            if self._has_had_its_time(now - due):
                self._strike(due)
        return max(0.001, self._next - now)

    def _has_had_its_time(self, late: float) -> bool:
        if self.struck or self._processor is None or late >= LONGEST_SECONDS - HURRY_SECONDS:
            return True
        used = clock.processor_seconds(self._thread_id)
        return used is None or used - self._processor >= PROCESSOR_SECONDS

    def _strike(self, due: float) -> None:
        strike, thread = _set_exception, ctypes.c_ulong(self._thread_id)
        # Nothing comes between the look and the call: no other thread runs meanwhile.
        if self.due is due:
            self.struck = True
            strike(thread, _ERROR)


_set_exception: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
_ERROR: Final = ctypes.py_object(HurriedError)
