"""The determinism rules: what each finds, what none finds, and what a declaration refuses."""

from __future__ import annotations

import importlib.util
import logging
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harvest.definitions.lint import RULES, Finding, check_paths
from harvest.errors import ConfigurationError, DefinitionError
from tools import lint_doc

HEAD = """\
import asyncio, collections, contextlib, datetime as dt, logging, os, pathlib, random, secrets, subprocess, sys
import concurrent.futures, multiprocessing, platform, socket, threading, time, urllib.request, uuid
from datetime import date, datetime
from pathlib import Path
from random import randint as draw
from time import sleep as nap
from harvest import Harvest, WorkflowContext

app = Harvest()
log = logging.getLogger(__name__)
PRICES = {"pen": 1}
seen = []
counts: dict = collections.defaultdict(int)
total = 0

@app.activity
async def charge(cents: int) -> int:
    return time.time_ns()

async def paid(cents: int) -> int:
    return cents

by_call = app.activity(name="other")(paid)

def count(word):
    counts[word] += 1

"""
Check = Callable[[str], list[Finding]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Check a workflow with this body; the module around it is HEAD."""

    def checked(body: str) -> list[Finding]:
        path = tmp_path / "flows.py"
        path.write_text(
            HEAD + "@app.workflow\nasync def flow(ctx, names: set[str], here: Path):\n" + textwrap.indent(body, "    ")
        )
        return check_paths([str(path)]).findings

    return checked


FOUND = {
    "datetime.now()": ("HVG001", "error", "ctx.now()"),
    "dt.datetime.utcnow()": ("HVG001", "error", "ctx.now()"),
    "date.today()": ("HVG001", "error", "ctx.now().date()"),
    "dt.datetime.now(dt.UTC)": ("HVG001", "error", "ctx.now()"),
    "time.time()": ("HVG001", "error", "ctx.now()"),
    "time.localtime()": ("HVG001", "error", "ctx.now()"),
    "clock = time.monotonic\nclock()": ("HVG001", "error", "ctx.now()"),
    "import time as t\nt.perf_counter()": ("HVG001", "error", "ctx.now()"),
    "random.random()": ("HVG002", "error", "ctx.random()"),
    "draw(1, 6)": ("HVG002", "error", "ctx.random()"),
    "random.Random()": ("HVG002", "error", "ctx.random()"),
    "secrets.token_hex()": ("HVG002", "error", "ctx.random()"),
    "os.urandom(4)": ("HVG002", "error", "ctx.random()"),
    "uuid.uuid4()": ("HVG002", "error", "ctx.uuid4()"),
    "os.environ['HOME']": ("HVG003", "warning", "argument"),
    "os.environ.get('HOME')": ("HVG003", "warning", "argument"),
    "os.getenv('HOME')": ("HVG003", "warning", "argument"),
    "socket.gethostname()": ("HVG003", "warning", "argument"),
    "platform.system()": ("HVG003", "warning", "argument"),
    "sys.argv[1]": ("HVG003", "warning", "argument"),
    "with open('x') as file:\n    pass": ("HVG004", "error", "in an activity"),
    "Path('x').read_text()": ("HVG004", "error", "in an activity"),
    "here.write_bytes(b'')": ("HVG004", "error", "in an activity"),
    "(pathlib.Path('x') / 'y').unlink()": ("HVG004", "error", "in an activity"),
    "here.exists()": ("HVG004", "warning", "in an activity"),
    "os.path.exists('x')": ("HVG004", "warning", "in an activity"),
    "import requests\nrequests.get('http://x')": ("HVG004", "error", "in an activity"),
    "import httpx\nasync with httpx.AsyncClient() as client:\n    pass": ("HVG004", "error", "in an activity"),
    "import aiohttp\naiohttp.ClientSession()": ("HVG004", "error", "in an activity"),
    "urllib.request.urlopen('http://x')": ("HVG004", "error", "in an activity"),
    "socket.create_connection(('x', 1))": ("HVG004", "error", "in an activity"),
    "subprocess.run(['true'])": ("HVG004", "error", "in an activity"),
    "await asyncio.open_connection('x', 1)": ("HVG004", "error", "in an activity"),
    "threading.Thread(target=int).start()": ("HVG005", "error", "in an activity"),
    "concurrent.futures.ThreadPoolExecutor()": ("HVG005", "error", "in an activity"),
    "multiprocessing.Pool()": ("HVG005", "error", "in an activity"),
    "await asyncio.to_thread(int)": ("HVG005", "error", "in an activity"),
    "await asyncio.get_running_loop().run_in_executor(None, int)": ("HVG005", "error", "in an activity"),
    "time.sleep(1)": ("HVG006", "error", "await ctx.sleep"),
    "nap(1)": ("HVG006", "error", "await ctx.sleep"),
    "ready = threading.Event()\nready.wait()": ("HVG006", "warning", "await ctx.sleep"),
    "seen.append(1)": ("HVG007", "warning", "local variables"),
    "PRICES['ink'] = 2": ("HVG007", "warning", "local variables"),
    "del PRICES['pen']": ("HVG007", "warning", "local variables"),
    "global total\ntotal += 1": ("HVG007", "warning", "local variables"),
    "return counts['pen']": ("HVG007", "warning", "local variables"),
    "for name in names:\n    pass": ("HVG008", "warning", "sort the set"),
    "for name in {'a', 'b'}:\n    pass": ("HVG008", "warning", "sort the set"),
    "both = names | {'x'}\nreturn list(both)": ("HVG008", "warning", "sort the set"),
    "return [name for name in set('ab')]": ("HVG008", "warning", "sort the set"),
    "return ','.join(names)": ("HVG008", "warning", "sort the set"),
    "await asyncio.gather(*{charge})": ("HVG008", "warning", "sort the set"),
    "names.pop()": ("HVG008", "warning", "sort the set"),
    "return id(ctx)": ("HVG008", "warning", "object's own"),
    "return hash('x')": ("HVG008", "warning", "object's own"),
    "print('x')": ("HVG009", "warning", "ctx.log"),
    "log.info('x')": ("HVG009", "warning", "ctx.log"),
    "logging.warning('x')": ("HVG009", "warning", "ctx.log"),
    "try:\n    await ctx.sleep(1)\nexcept:\n    pass": ("HVG010", "warning", "raise again"),
    "try:\n    await ctx.sleep(1)\nexcept (OSError, BaseException) as e:\n    x = e": (
        "HVG010",
        "warning",
        "raise again",
    ),
    "with contextlib.suppress(BaseException):\n    await ctx.sleep(1)": ("HVG010", "warning", "raise again"),
    "await charge(5)": ("HVG011", "error", "use ctx.execute_activity(charge, …)"),
    "await by_call(5)": ("HVG011", "error", "use ctx.execute_activity(by_call, …)"),
    "def inner():\n    return time.time()\ninner()": ("HVG001", "error", "ctx.now()"),
    "return sorted([1], key=lambda _: time.time())": ("HVG001", "error", "ctx.now()"),
}


@pytest.mark.parametrize("body", FOUND)
def test_a_rule_finds_it_and_says_what_to_use_instead(check: Check, body: str) -> None:
    (finding,) = check(body)
    assert (finding.rule, finding.severity) == FOUND[body][:2]
    assert FOUND[body][2] in finding.message


def test_every_rule_is_tried_here() -> None:
    assert {rule for rule, _, _ in FOUND.values()} == set(RULES) == {f"HVG{n:03}" for n in range(1, 12)}


HARMLESS = [
    "ctx.now()\nctx.now().strftime('%H')\ntime.strftime('%H', time.gmtime(5))\ndatetime(2026, 1, 1)",
    "random.Random(5).random()\nctx.random().random()\nsecrets.compare_digest('a', 'b')\nuuid.UUID(int=5)",
    "await asyncio.sleep(5)\nawait ctx.sleep(5)\nasyncio.get_running_loop().time()",
    "asyncio.create_task(ctx.sleep(1))\nawait asyncio.gather(ctx.sleep(1))",
    "await ctx.execute_activity(charge, 5)",
    "ctx.log.info('x')",
    "return PRICES['pen']",
    "mine = []\nmine.append(1)\nmine[0] = 2\ndef add():\n    mine.append(1)\nadd()",
    "n = 0\ndef add():\n    nonlocal n\n    n += 1\nadd()",
    "for name in sorted(names):\n    pass\nreturn len(names), sorted(n for n in names), 'a' in names",
    "return sum(x for x in {1, 2}), max([n for n in names]), set(n for n in names)",
    "for key in {'a': 1}:\n    pass\nfor each in [1]:\n    pass",
    "async for _ in ctx.x():\n    pass\nxs = [1]\nxs.pop()",
    "try:\n    await ctx.sleep(1)\nexcept BaseException:\n    ctx.log.info('x')\n    raise",
    "try:\n    await ctx.sleep(1)\nexcept Exception:\n    pass",
    "try:\n    await ctx.sleep(1)\nexcept (TimeoutError, asyncio.CancelledError):\n    return 1",
    "try:\n    int('x')\nexcept:\n    pass",
    "def open(name):\n    return name\nopen('x')",
    "time = ctx\ntime.sleep(5)",
    "class datetime:\n    now = int\ndatetime.now()",
    "ctx.side_effect(lambda: uuid.uuid4())\ndef token():\n    return secrets.token_hex()\nctx.side_effect(token)",
    "'/'.join(['a'])\nPath('a') / 'b'\nstr(here.name)",
    "charge_card = charge\nreturn charge_card.options",
]


@pytest.mark.parametrize("body", HARMLESS)
def test_nothing_is_found_in_what_replays_alike(check: Check, body: str) -> None:
    assert check(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "datetime.now()  # harvest: allow HVG001",
        "time.sleep(  # harvest: allow HVG006\n    1,\n)",
        "time.sleep(\n    1,\n)  # because; harvest: allow HVG006",
        "print(os.environ)  # harvest: allow HVG003, HVG009",
        "try:\n    await ctx.sleep(1)\nexcept:  # harvest: allow HVG010\n    pass",
    ],
)
def test_a_comment_allows_a_rule_on_its_line(check: Check, body: str) -> None:
    assert check(body) == []


def test_a_comment_allows_only_what_it_names(check: Check) -> None:
    body = "print(datetime.now())  # harvest: allow HVG009\nprint('x')\nx = '# harvest: allow HVG009'; print(x)"
    assert [(finding.rule, finding.line - len(HEAD.splitlines()) - 2) for finding in check(body)] == [
        ("HVG001", 1),
        ("HVG009", 2),
        ("HVG009", 3),
    ]


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))


def test_functions_that_the_workflow_calls_are_read_and_activities_are_not(tmp_path: Path) -> None:
    write(
        tmp_path,
        flows="""
        import time
        from harvest import Harvest, WorkflowContext
        app = Harvest()

        @app.activity
        async def stamp() -> float:
            return deep()

        @app.workflow(name="late")
        async def flow(ctx: WorkflowContext) -> float:
            await ctx.execute_activity(stamp)
            return helper() + await step(ctx)

        def helper():
            return deep()

        def deep():
            return time.time()

        def unused():
            return time.time()

        async def step(ctx: "WorkflowContext") -> float:
            time.sleep(1)

        async def nobody_calls(ctx: WorkflowContext) -> float:
            time.sleep(1)
        """,
    )
    found = check_paths([str(tmp_path / "flows.py")]).findings
    assert [(finding.line, finding.within) for finding in found] == [
        (19, "workflow 'late', through deep(),"),
        (25, "workflow 'late', through step(),"),
        (28, "nobody_calls()"),
    ]
    assert (
        found[0].message == "workflow 'late', through deep(), calls time.time(): a replay would see another time; "
        "use ctx.now()"
    )


def test_a_workflow_that_is_declared_by_a_call_is_read_and_one_that_opts_out_is_not(tmp_path: Path) -> None:
    write(
        tmp_path,
        flows="""
        import time
        from harvest import Harvest
        app = Harvest()

        async def first(ctx): time.time()
        async def second(ctx): time.time()
        app.workflow(first)
        app.workflow(name="two")(second)

        @app.workflow(allow_nondeterministic_apis=True)
        async def third(ctx): time.time()
        """,
    )
    report = check_paths([str(tmp_path)])
    assert [finding.within for finding in report.findings] == ["workflow 'first'", "workflow 'two'"]


def test_an_activity_of_another_module_is_known_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        shop__in____init__="from .work import charge",
        shop__in__work="raise RuntimeError('imported')\n@app.activity(name='x')\nasync def charge(): ...\n",
        shop__in__flows="""
        from shop import charge, work
        from .work import charge as other
        from .absent import nothing

        @app.workflow
        async def flow(ctx):
            await charge()
            await work.charge()
            await other()
            await nothing()
        """,
    )
    monkeypatch.chdir(tmp_path)
    for target in ("shop", "shop.flows", "shop.flows:app", str(tmp_path), "shop/flows.py"):
        found = check_paths([target]).findings
        assert [(finding.rule, finding.line) for finding in found] == [("HVG011", 8), ("HVG011", 9), ("HVG011", 10)]
    assert "shop" not in sys.modules


def test_folders_are_read_without_what_is_not_the_authors(tmp_path: Path) -> None:
    bad = "@app.workflow\nasync def flow(ctx): print('x')\n"
    write(tmp_path, a=bad, b__in__c=bad, venv__in__d=bad, node_modules__in__e=bad)
    write(tmp_path / "b", **{".hidden__in__f": bad})
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    report = check_paths([str(tmp_path), str(tmp_path / "a.py")])
    assert [Path(finding.file).relative_to(tmp_path).as_posix() for finding in report.findings] == ["a.py", "b/c.py"]
    assert (report.workflows, report.files) == (2, 2)


def test_a_target_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ndef (:\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\x00")
    with pytest.raises(ConfigurationError, match=r"broken\.py line 2 cannot be read as Python"):
        check_paths([str(tmp_path / "broken.py")])
    with pytest.raises(ConfigurationError, match=r"binary\.py.* cannot be read"):
        check_paths([str(tmp_path / "binary.py")])
    with pytest.raises(ConfigurationError, match=r"no file, folder or module 'no\.such'"):
        check_paths(["no.such"])


# At import


def imported(path: Path, text: str) -> ModuleType:
    path.write_text(HEAD + textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_error_is_refused_at_import_and_names_file_line_and_rule(tmp_path: Path) -> None:
    path = tmp_path / "refused.py"
    with pytest.raises(DefinitionError) as caught:
        imported(
            path,
            """
            @app.workflow
            async def flow(ctx: WorkflowContext) -> None:
                later()
                time.sleep(1)

            def later():
                return uuid.uuid4()
            """,
        )
    lines = path.read_text().splitlines()
    line = caught.value.fields["line"]
    assert "time.sleep" in lines[line - 1]
    assert caught.value.fields == {"file": str(path), "line": line, "rule": "HVG006"}
    assert str(caught.value) == (
        f"workflow 'flow' calls time.sleep() on line {line} of {path}: it stops the worker with all its workflows, and "
        f"survives no restart; use `await ctx.sleep(…)` (HVG006); 1 more: run `harvest lint {path}`"
    )


def test_an_activity_that_was_imported_is_known_at_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lint_activities", imported(tmp_path / "lint_activities.py", ""))
    with pytest.raises(DefinitionError, match=r"calls activity pay\(\) on .* use ctx\.execute_activity\(pay, …\)"):
        imported(
            tmp_path / "importing.py",
            """
            from lint_activities import charge as pay

            @app.workflow
            async def flow(ctx: WorkflowContext) -> None:
                await pay(5)
            """,
        )


def test_warnings_are_one_line_in_the_log_at_import(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "harvest.lint"):
        imported(
            tmp_path / "warned.py",
            """
            @app.workflow
            async def flow(ctx: WorkflowContext) -> None:
                print("x")
                seen.append(1)

            @app.workflow
            async def calm(ctx: WorkflowContext) -> None:
                ctx.log.info("x")
            """,
        )
    (line,) = caplog.messages
    assert line.startswith("workflow 'flow' may not replay alike (HVG009 on line ")
    assert "HVG007 on line " in line
    assert line.endswith(f"`harvest lint {tmp_path / 'warned.py'}` says why")


def test_a_workflow_can_opt_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = imported(
        tmp_path / "free.py",
        """
        @app.workflow(allow_nondeterministic_apis=True)
        async def flow(ctx: WorkflowContext) -> None:
            print(datetime.now())
        """,
    )
    assert module.app.registry.latest("flow") is not None
    assert caplog.messages == []


def test_a_function_without_source_is_taken_as_it_is() -> None:
    names: dict[str, object] = {}
    exec("import time\nasync def flow(ctx): time.time()", names)
    exec("from harvest import Harvest\ndeclared = Harvest().workflow(flow)", names)
    assert getattr(names["declared"], "name", None) == "flow"


def test_the_page_is_the_rules() -> None:
    assert lint_doc.PAGE.read_text() == lint_doc.page(), "run python tools/lint_doc.py"
