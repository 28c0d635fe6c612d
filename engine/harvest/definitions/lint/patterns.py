"""Which calls and names break which rule, as data. Names are those of the module that defines them.

`()` in a name stands for what a call returns: `pathlib.Path().read_text`. What is never right in a workflow is an
error, most of it refused to a running one anyway; what may be right somewhere only warns. None exempts a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct


class Pattern(Struct, frozen=True):
    """What one dotted name means. `most_arguments` limits it to calls with at most so many arguments."""

    rule: str
    instead: str | None = None
    warns: bool = False
    most_arguments: int | None = None


def _below(prefix: str, names: str) -> Iterable[str]:
    return (f"{prefix}.{name}" for name in names.split())


_CLOCKS: Final = {
    **dict.fromkeys(
        _below("datetime.datetime", "now utcnow today"),
        Pattern("HVG001"),
    ),
    "datetime.date.today": Pattern("HVG001", "use ctx.now().date()"),
    **dict.fromkeys(
        _below(
            "time",
            "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns thread_time "
            "thread_time_ns clock_gettime clock_gettime_ns",
        ),
        Pattern("HVG001"),
    ),
    **dict.fromkeys(_below("time", "localtime gmtime ctime asctime"), Pattern("HVG001", most_arguments=0)),
    "time.strftime": Pattern("HVG001", "use ctx.now().strftime(…)", most_arguments=1),
    **dict.fromkeys(_below("pendulum", "now today yesterday tomorrow"), Pattern("HVG001")),
    **dict.fromkeys(_below("arrow", "now utcnow"), Pattern("HVG001")),
    "django.utils.timezone.now": Pattern("HVG001"),
}

_CHANCE: Final = {
    "random.*": Pattern("HVG002"),
    "random.Random": Pattern("HVG002", most_arguments=0),
    "random.Random().*": None,
    "secrets.*": Pattern("HVG002"),
    "secrets.compare_digest": None,
    **dict.fromkeys(_below("os", "urandom getrandom"), Pattern("HVG002")),
    **dict.fromkeys(_below("uuid", "uuid1 uuid4 uuid6 uuid7"), Pattern("HVG002", "use ctx.uuid4()")),
    "numpy.random.*": Pattern("HVG002", warns=True),
    **dict.fromkeys(
        _below("numpy.random", "default_rng RandomState SeedSequence"), Pattern("HVG002", warns=True, most_arguments=0)
    ),
    **dict.fromkeys(_below("numpy.random", "Generator PCG64 Philox"), None),
    **dict.fromkeys(_below("numpy.random", "default_rng().* RandomState().* Generator().*"), None),
}

_ENVIRONMENT: Final = {
    **dict.fromkeys(
        _below("os", "getenv getenvb getcwd getpid getppid uname cpu_count getlogin getuid gethostname"),
        Pattern("HVG003"),
    ),
    **dict.fromkeys(_below("socket", "gethostname getfqdn"), Pattern("HVG003")),
    "platform.*": Pattern("HVG003"),
    "getpass.getuser": Pattern("HVG003"),
    "uuid.getnode": Pattern("HVG003"),
    "multiprocessing.cpu_count": Pattern("HVG003"),
}

_REFUSED_IO: Final = dict.fromkeys(
    [
        *_below("builtins", "open input"),
        *_below("io", "open open_code"),
        *_below(
            "os",
            "open listdir scandir walk fwalk mkdir makedirs remove unlink rename renames replace rmdir removedirs link "
            "symlink truncate chmod chown utime kill killpg system popen fork forkpty posix_spawn posix_spawnp execv "
            "execve execvp execvpe execl execle execlp spawnv spawnve spawnvp spawnl spawnlp startfile",
        ),
        *_below("subprocess", "run Popen call check_call check_output getoutput getstatusoutput"),
        *_below("socket", "socket create_connection create_server socketpair"),
        *_below("socket", "getaddrinfo gethostbyname gethostbyname_ex gethostbyaddr"),
        *_below("urllib.request", "urlopen urlretrieve build_opener"),
        *_below("http.client", "HTTPConnection HTTPSConnection"),
        *_below("smtplib", "SMTP SMTP_SSL"),
        *_below("ftplib", "FTP FTP_TLS"),
        *_below("shutil", "copy copy2 copyfile copytree move rmtree make_archive unpack_archive"),
        *_below("tempfile", "TemporaryFile NamedTemporaryFile TemporaryDirectory SpooledTemporaryFile mkstemp mkdtemp"),
        *_below("glob", "glob iglob"),
        *_below("asyncio", "open_connection start_server open_unix_connection start_unix_server"),
        *_below("asyncio", "create_subprocess_exec create_subprocess_shell"),
        *_below("requests", "get post put patch delete head options request Session session"),
        *_below("httpx", "get post put patch delete head options request stream Client AsyncClient"),
        *_below("aiohttp", "ClientSession request"),
        *_below("urllib3", "request PoolManager"),
        *_below("aiofiles", "open"),
        *_below("anyio", "open_file connect_tcp run_process open_process"),
        *_below("sqlite3", "connect"),
        *_below("asyncpg", "connect create_pool"),
        *_below("psycopg", "connect Connection.connect AsyncConnection.connect"),
        *_below("psycopg2", "connect"),
        *_below("pymysql", "connect"),
        *_below("aiosqlite", "connect"),
        *_below(
            "pathlib.Path()",
            "open read_text read_bytes write_text write_bytes iterdir glob rglob mkdir rmdir unlink rename replace "
            "touch chmod symlink_to hardlink_to",
        ),
    ],
    Pattern("HVG004"),
)

_LOOKING_IO: Final = dict.fromkeys(
    [
        *_below("os", "stat lstat access path.exists path.isfile path.isdir path.getmtime path.getsize"),
        *_below("pathlib.Path()", "exists is_file is_dir is_symlink stat lstat resolve"),
        *_below("shutil", "which disk_usage"),
        *_below("boto3", "client resource Session"),
        *_below("pymongo", "MongoClient AsyncMongoClient"),
        *_below("redis", "Redis from_url asyncio.Redis asyncio.from_url"),
        *_below("sqlalchemy", "create_engine ext.asyncio.create_async_engine"),
    ],
    Pattern("HVG004", warns=True),
)

_THREADS: Final = dict.fromkeys(
    [
        *_below("threading", "Thread Timer"),
        *_below("_thread", "start_new_thread"),
        *_below("concurrent.futures", "ThreadPoolExecutor ProcessPoolExecutor InterpreterPoolExecutor"),
        *_below("concurrent.futures", "thread.ThreadPoolExecutor process.ProcessPoolExecutor"),
        *_below("multiprocessing", "Process Pool Manager Pipe Queue pool.Pool pool.ThreadPool"),
        *_below("asyncio", "to_thread run_coroutine_threadsafe"),
        *_below("anyio", "to_thread.run_sync to_process.run_sync"),
        *_below("asgiref.sync", "sync_to_async async_to_sync"),
        *_below("starlette.concurrency", "run_in_threadpool"),
        *_below("litestar.concurrency", "sync_to_thread"),
    ],
    Pattern("HVG005"),
)

_WAITS: Final = {
    "time.sleep": Pattern("HVG006"),
    **dict.fromkeys(
        [
            *_below("threading", "Event().wait Condition().wait Barrier().wait Thread().join"),
            *_below("queue", "Queue().get SimpleQueue().get"),
            *_below("select", "select"),
            *_below("signal", "pause sigwait"),
        ],
        Pattern("HVG006", warns=True),
    ),
}

_TELLING: Final = dict.fromkeys(
    [
        *_below("builtins", "print"),
        *_below("pprint", "pprint pp"),
        *(
            f"{logger}.{level}"
            for logger in ("logging", "logging.getLogger()", "structlog.get_logger()", "loguru.logger")
            for level in ("debug", "info", "warning", "warn", "error", "critical", "exception", "log")
        ),
        *_below("sys", "stdout.write stderr.write"),
    ],
    Pattern("HVG009"),
)

CALLS: Final[dict[str, Pattern | None]] = {
    **_CLOCKS,
    **_CHANCE,
    **_ENVIRONMENT,
    **_REFUSED_IO,
    **_LOOKING_IO,
    **_THREADS,
    **_WAITS,
    **_TELLING,
    **dict.fromkeys(
        _below("builtins", "id hash"), Pattern("HVG008", "use a key of the object's own, such as an id in its data")
    ),
}
# Methods that are what they are called, whatever they are called on.
METHODS: Final = {"run_in_executor": Pattern("HVG005")}
READS: Final = {
    **dict.fromkeys(_below("os", "environ environb"), Pattern("HVG003")),
    "sys.argv": Pattern("HVG003"),
}


def call_pattern(name: str, arguments: int) -> Pattern | None:
    """What a call of `name` with so many arguments breaks, if anything; the longest name that fits decides."""
    parts = name.split(".")
    keys = [name] + [".".join(parts[:length]) + ".*" for length in range(len(parts) - 1, 0, -1)]
    key = next((key for key in keys if key in CALLS), None)
    pattern = CALLS[key] if key is not None else None
    if pattern is None or (pattern.most_arguments is not None and arguments > pattern.most_arguments):
        return None
    return pattern
