"""Runs that are let go are hurried, and nothing else is."""

from __future__ import annotations

import threading

import pytest

from harvest import clock
from harvest.worker.hurrying import Hurry


def test_nobody_is_struck_while_the_hurrying_thread_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine that takes longer than a run is given, in the very thread that would be struck."""
    begin = threading.Thread.start

    def begin_late(thread: threading.Thread) -> None:
        begin(thread)
        end = clock.monotonic() + 0.3
        while clock.monotonic() < end:
            pass

    hurry = Hurry()
    monkeypatch.setattr(threading.Thread, "start", begin_late)
    try:
        hurry.begin()
        assert not hurry.struck
        assert hurry.due is not None
        assert hurry.due > clock.monotonic(), "its time counts from when somebody can hurry it"
    finally:
        hurry.due = None
