"""What cannot be replayed is refused within a step, naming what to do instead, and nowhere else (design 3)."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import logging.handlers
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from random import randint
from time import monotonic
from typing import Any

import pytest

from harvest import Harvest
from harvest.errors import DefinitionError
from harvest.replay import guard
from harvest.replay.context import WorkflowContext
from tests.replay.driving import Driven
from tests.replay.oracle import let_go_of_all
from tests.replay.player import as_workflow

LISTED = str(Path(__file__).parent)

FORBIDDEN: dict[str, tuple[Callable[[], Any], str]] = {
    "time.time": (lambda: time.time(), "ctx.now()"),
    "time.monotonic": (lambda: time.monotonic(), "ctx.now()"),
    "time.perf_counter": (lambda: time.perf_counter(), "ctx.now()"),
    "monotonic, imported by name": (lambda: monotonic(), "ctx.now()"),
    "time.sleep": (lambda: time.sleep(0), "ctx.sleep"),
    "random.random": (lambda: random.random(), "ctx.random()"),
    "random.shuffle": (lambda: random.shuffle([1, 2]), "ctx.random()"),
    "randint, imported by name": (lambda: randint(1, 2), "ctx.random()"),
    "secrets.token_hex": (lambda: secrets.token_hex(), "ctx.random()"),
    "uuid.uuid4": (lambda: uuid.uuid4(), "ctx.uuid4()"),
    "uuid.uuid1": (lambda: uuid.uuid1(), "ctx.uuid4()"),
    "os.urandom": (lambda: os.urandom(4), "ctx.random()"),
    "open": (lambda: open(__file__).close(), "activity"),
    "Path.read_text": (lambda: Path(__file__).read_text(), "activity"),
    "os.listdir": (lambda: os.listdir(LISTED), "activity"),
    "os.scandir": (lambda: os.scandir(LISTED), "activity"),
    "tempfile": (lambda: tempfile.mkdtemp(), "activity"),
    "socket": (lambda: socket.socket(), "activity"),
    "socket.create_connection": (lambda: socket.create_connection(("127.0.0.1", 1)), "activity"),
    "socket.getaddrinfo": (lambda: socket.getaddrinfo("localhost", 1), "activity"),
    "subprocess.run": (lambda: subprocess.run(["true"], check=False), "activity"),
    "os.system": (lambda: os.system("true"), "activity"),
    "Thread.start": (lambda: threading.Thread(target=int).start(), "activity"),
    "asyncio.to_thread": (lambda: asyncio.get_running_loop().run_in_executor(None, int), "activity"),
    "asyncio.new_event_loop": (lambda: asyncio.new_event_loop(), "activity"),
}


@Harvest().activity(name="charging")
async def charge(cents: int) -> int:
    return cents


async def test_an_activity_cannot_be_called_in_a_step_as_if_it_were_a_function() -> None:
    async def calls_it(ctx: WorkflowContext) -> int:
        return await charge(5)  # type: ignore[operator, no-any-return]  # harvest: allow HVG011

    failure = Driven(calls_it).failure
    assert failure.type == "ForbiddenInWorkflowError"
    assert "activity 'charging'" in failure.message
    assert "use ctx.execute_activity(charge, …)" in failure.message
    assert await charge(5) == 5, "outside it is the function itself"  # type: ignore[operator]


# These need a running loop, leave something behind, or have nobody to connect to.
ONLY_IN_A_STEP = {"asyncio.to_thread", "asyncio.new_event_loop", "tempfile", "socket.create_connection"}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("what", FORBIDDEN)
def test_it_is_refused_in_a_step(what: str) -> None:
    call, instead = FORBIDDEN[what]

    async def does_it(ctx: WorkflowContext) -> None:
        call()

    failure = Driven(does_it).failure
    let_go_of_all()
    gc.collect()  # what was half made, such as a loop, complains here
    assert failure.type == "ForbiddenInWorkflowError", failure
    assert instead in failure.message


@pytest.mark.parametrize("what", [what for what in FORBIDDEN if what not in ONLY_IN_A_STEP])
def test_it_works_outside(what: str) -> None:
    async def parked(ctx: WorkflowContext) -> None:
        await ctx.execute_activity("work")

    one = Driven(parked)
    FORBIDDEN[what][0]()
    one.completed(1)
    FORBIDDEN[what][0]()


def test_other_threads_go_on_while_a_step_runs() -> None:
    """Activities and leases have threads of their own; a step in this one is nothing to them."""
    failed: list[BaseException] = []
    allowed = [
        "time.time", "time.sleep", "random.random", "uuid.uuid4", "os.urandom", "open", "socket", "Thread.start",
    ]  # fmt: skip

    def works() -> None:
        try:
            for what in allowed:
                FORBIDDEN[what][0]()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=works)

    go = threading.Event()
    ready = threading.Thread(target=lambda: (go.wait(10), thread.start()))
    ready.start()

    async def waits_for_the_thread(ctx: WorkflowContext) -> bool:
        go.set()
        ready.join(10)
        thread.join(10)
        return thread.is_alive()

    assert Driven(waits_for_the_thread).result is False
    assert not failed


def test_a_module_can_be_imported_in_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "imported_in_a_step"
    package.mkdir()
    (package / "__init__.py").write_text("import time, uuid\nSTARTED = time.time()\nID = uuid.uuid4()\n")
    (package / "inner.py").write_text("VALUE = open(__file__).read()[:5]\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    async def imports(ctx: WorkflowContext) -> str:
        module = importlib.import_module("imported_in_a_step.inner")
        return str(module.VALUE)

    assert Driven(imports).result == "VALUE"


def test_a_traceback_can_be_printed_in_a_step() -> None:
    async def prints(ctx: WorkflowContext) -> str:
        try:
            raise ValueError("no")
        except ValueError:
            return traceback.format_exc()

    sys.modules["linecache"].clearcache()
    assert "raise ValueError" in Driven(prints).result


def test_a_logging_handler_may_write_where_it_likes(tmp_path: Path) -> None:
    class Stamping(logging.handlers.RotatingFileHandler):
        def emit(self, record: logging.LogRecord) -> None:
            record.msg = f"{time.time():.0f} {record.msg}"
            super().emit(record)

    logger = logging.getLogger("harvest.workflow")
    handler = Stamping(tmp_path / "log.txt", maxBytes=10, backupCount=1, delay=True)
    logger.addHandler(handler)

    async def logs(ctx: WorkflowContext) -> None:
        ctx.log.warning("first")
        ctx.log.warning("second")

    try:
        assert Driven(logs).outcome is not None
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert "second" in (tmp_path / "log.txt").read_text()


def test_what_the_collector_runs_is_let_through() -> None:
    """It is somebody else's cleanup, which happens to come in this step."""
    times: list[float] = []

    class Stamped:
        def __del__(self) -> None:
            times.append(time.time())

    def watching(phase: str, info: dict[str, int]) -> None:
        times.append(time.perf_counter())

    async def collects(ctx: WorkflowContext) -> int:
        gc.collect()
        return 1

    cycle = Stamped()
    cycle.itself = cycle  # type: ignore[attr-defined]
    del cycle
    gc.callbacks.append(watching)
    try:
        assert Driven(collects).result == 1
    finally:
        gc.callbacks.remove(watching)
    assert len(times) >= 3


def test_the_standard_library_may_look_at_clocks_of_its_own() -> None:
    async def counts(ctx: WorkflowContext) -> int:
        record = logging.LogRecord("x", 10, "", 0, "", (), None)
        return int(record.created > 0)

    assert Driven(counts).result == 1


def test_the_guard_is_off_after_a_step_that_failed() -> None:
    async def fails(ctx: WorkflowContext) -> None:
        raise ValueError("no")

    assert Driven(fails).failure.type == "ValueError"
    assert guard._step.active is False
    assert time.time() > 0


def _helper() -> datetime:
    return datetime.now()  # noqa: DTZ005


def _innocent() -> int:
    return 1


class _Calendar:
    def now(self) -> int:
        return 5


calendar = _Calendar()


def test_a_clock_in_the_source_is_refused_when_it_is_declared() -> None:
    async def direct(ctx: WorkflowContext) -> None:
        datetime.now()  # noqa: DTZ005

    async def through_a_helper(ctx: WorkflowContext) -> None:
        _innocent()
        _helper()

    async def local_import(ctx: WorkflowContext) -> None:
        import datetime as dt

        dt.datetime.utcnow()  # noqa: DTZ003

    for function in (direct, through_a_helper, local_import):
        with pytest.raises(DefinitionError, match=r"ctx\.now\(\)") as caught:
            as_workflow(function, "clocked")
        line = caught.value.fields["line"]
        assert "now()" in Path(__file__).read_text().splitlines()[line - 1].replace("utcnow()", "now()")


def test_other_things_named_now_are_not() -> None:
    async def asks(ctx: WorkflowContext) -> int:
        return calendar.now() + _innocent()

    assert Driven(asks).result == 6
