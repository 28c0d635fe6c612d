"""The rules as data: code, severity, what is found, why it matters, and what to use instead."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Severity = Literal["error", "warning"]


class Rule(Struct, frozen=True, kw_only=True):
    """One rule. `severity` is that of most of its findings; a pattern that may be right somewhere only warns.

    `finds` is for people who look the rule up; `why` and `instead` end each message.
    """

    code: str
    title: str
    severity: Severity
    finds: str
    why: str
    instead: str


_ALL: Final = (
    Rule(
        code="HVG001",
        title="wall clock",
        severity="error",
        finds="`datetime.now`, `date.today`, `time.time`, `time.monotonic`, `time.localtime()` and their like",
        why="a replay would see another time",
        instead="use ctx.now()",
    ),
    Rule(
        code="HVG002",
        title="chance",
        severity="error",
        finds="`random.…` without a generator of your own, `secrets.…`, `os.urandom`, `uuid.uuid1`, `uuid.uuid4`",
        why="a replay would draw another value",
        instead="use ctx.random()",
    ),
    Rule(
        code="HVG003",
        title="environment",
        severity="warning",
        finds="`os.environ`, `os.getenv`, `os.getpid`, `socket.gethostname`, `platform.…`, `sys.argv`",
        why="the worker that replays may have another",
        instead="pass it in as an argument, or read it by ctx.side_effect or in an activity",
    ),
    Rule(
        code="HVG004",
        title="I/O",
        severity="error",
        finds="`open`, files, sockets, `subprocess`, `requests`, `httpx`, `urllib`, `aiohttp`, database drivers, "
        "`asyncio.open_connection`",
        why="a replay would do it again, and may get another answer",
        instead="do it in an activity",
    ),
    Rule(
        code="HVG005",
        title="threads and processes",
        severity="error",
        finds="`threading.Thread`, executors, `multiprocessing`, `asyncio.to_thread`, `run_in_executor`",
        why="no replay can repeat how threads take turns",
        instead="do it in an activity",
    ),
    Rule(
        code="HVG006",
        title="blocking waits",
        severity="error",
        finds="`time.sleep`; a warning for `threading.Event().wait` and its like",
        why="it stops the worker with all its workflows, and survives no restart",
        instead="use `await ctx.sleep(…)`",
    ),
    Rule(
        code="HVG007",
        title="state outside of the workflow",
        severity="warning",
        finds="a module's dict, list or set that is changed, or read although the module changes it; `global`; "
        "`nonlocal` that reaches out of the workflow",
        why="other runs and replays in the same process share it",
        instead="keep it in local variables, or in a database that activities use",
    ),
    Rule(
        code="HVG008",
        title="order and addresses",
        severity="warning",
        finds="iterating over a set, `set.pop()`, `id(…)`, `hash(…)`",
        why="it differs from process to process",
        instead="sort the set first, or use a list or a dict",
    ),
    Rule(
        code="HVG009",
        title="printing and logging",
        severity="warning",
        finds="`print`, `logging.…`, loggers of the module, `sys.stdout.write`",
        why="it would be said again by each replay",
        instead="use ctx.log",
    ),
    Rule(
        code="HVG010",
        title="swallowed cancellation",
        severity="warning",
        finds="`except:`, `except BaseException` and `suppress(BaseException)` around an `await`, without a `raise`",
        why="the workflow could not be cancelled there",
        instead="catch Exception, or raise again",
    ),
    Rule(
        code="HVG011",
        title="an activity called as a function",
        severity="error",
        finds="`await charge(…)` where `charge` is declared with `@app.activity`, here or in a module of yours",
        why="it would run again with every replay",
        instead="use ctx.execute_activity(charge, …)",
    ),
)
RULES: Final = {rule.code: rule for rule in _ALL}
