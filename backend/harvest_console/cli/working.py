"""`harvest worker APP`: one worker process, or several under one parent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from harvest.errors import ConfigurationError
from harvest_console import settings as configuration
from harvest_console.cli import loop
from harvest_console.cli.loading import load_app, pin_hash_seed
from harvest_console.cli.options import data_dir_option, set_up_logging
from harvest_console.cli.supervisor import WorkerProcess
from harvest_console.lifeline import end_with_parent

_MOST: Final = 64
_CUT_OFF: Final = 130
_Address = tuple[int | None, str]
# What `WorkerOptions` has beside name, queues, shards and residents; each has a variable HARVEST_WORKER_…, too.
_OPTIONS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("build", str, "The build's name; by default a digest of the app's module."),
    ("workflow-slots", click.IntRange(0), "Runs held at once; with 0 it decides nothing. [2000]"),
    ("activity-slots", click.IntRange(1), "Activities under way at once. [400]"),
    ("threads", click.IntRange(1), "Those of them that are not async. [32]"),
    ("max-concurrent-sessions", click.IntRange(0), "Worker sessions that are open here at once. [100]"),
    ("batch", click.IntRange(1), "Decisions that are committed in one statement. [100]"),
    ("claim-batch", click.IntRange(1), "Tasks of a queue that are taken in one statement. [200]"),
    ("lease-ttl", click.FloatRange(0), "Seconds for which a wake keeps a parked run for this worker; 0: not. [5]"),
    ("workflow-cache-size", click.IntRange(0), "Parked runs kept in memory. [50000]"),
    ("workflow-cache-bytes", click.IntRange(0), "Bytes of memory that they may take. [512 MiB]"),
    ("owner-lease-ttl", click.FloatRange(1), "Seconds that the worker's own lease lasts. [10]"),
    ("poll-interval", click.FloatRange(0, min_open=True), "Seconds within which a lost wake is made up for. [1]"),
    ("scan-interval", click.FloatRange(0, min_open=True), "Seconds between looks for timeouts and deadlines. [0.5]"),
    ("drain-timeout", click.FloatRange(0), "Seconds that running activities get at the end. [5]"),
)


def worker_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of `WorkerOptions`, each None where it was not given."""
    for name, kind, help in reversed(_OPTIONS):
        command = click.option(f"--{name}", type=kind, default=None, help=help)(command)
    command = click.option(
        "--resident-workflows/--no-resident-workflows",
        default=None,
        help="Keep the code of parked runs, or only their histories. [keep]",
    )(command)
    command = click.option(
        "--shard",
        "shard_assignments",
        type=click.IntRange(0),
        multiple=True,
        help="A shard to work on; may be given several times. [all with a database here]",
    )(command)
    return click.option("--queue", "queues", multiple=True, help="A task queue; may be given several times. [default]")(
        command
    )


@click.command(name="run")
@click.argument("app")
@data_dir_option
@click.option("--name", default=None, help="Name shown in the console; by default host and process.")
@click.option("--processes", type=click.IntRange(1, _MOST), default=1, show_default=True, help="Worker processes.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Serve /metrics for Prometheus on this port.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address that the port is on.")
@worker_options
@click.option("--parent", type=int, default=None, hidden=True)
@click.option("--quiet-load", is_flag=True, hidden=True)
def run(
    app: str,
    data_dir: Path,
    name: str | None,
    processes: int,
    metrics_port: int | None,
    metrics_host: str,
    parent: int | None,
    quiet_load: bool,
    queues: tuple[str, ...],
    shard_assignments: tuple[int, ...],
    **given: Any,
) -> None:
    """Run the workflows and activities of APP, written `module:attribute`; the working folder is on the path.

    The databases are those of HARVEST_DATABASE_URLS, or those of a running `harvest dev`. SIGTERM and Ctrl-C let
    running activities end in their grace and stop cleanly; so does `harvest worker drain`. Every option may be set by
    a variable HARVEST_WORKER_… in its place, like HARVEST_WORKER_ACTIVITY_SLOTS=50.

    A worker that is told its shards works on those alone; where a shard is reserved, each worker must be told.

    With --processes, each is started again after a crash. A second SIGTERM or Ctrl-C ends them at once.

    Metrics are also sent by OTLP where OTEL_EXPORTER_OTLP_ENDPOINT is set, and spans with them. With --processes, the
    second serves its metrics on the port after --metrics-port, and so on.
    """
    given |= {"name": name, "queues": queues or None, "shard_assignments": shard_assignments or None}
    if processes > 1:
        set_up_logging()
        loop.run(_parent(app, data_dir, processes, (metrics_port, metrics_host), given))
        return
    pin_hash_seed()
    set_up_logging()
    if parent is not None:
        end_with_parent(signal.SIGTERM, parent)
    urls = configuration.find_databases(os.environ, data_dir)
    load_app(app, quiet=quiet_load)
    loop.run(_work(app, urls, (metrics_port, metrics_host), given))


async def _work(app: str, urls: dict[int, str], metrics: _Address, given: Mapping[str, Any]) -> None:
    from harvest.worker.effective import resolve
    from harvest.worker.exporting import exporting
    from harvest.worker.main import run_worker

    stop: asyncio.Event = loop.stop_on_signals()
    with exporting(*metrics):
        await run_worker(app, urls, options=resolve(os.environ, **given), stop=stop)


async def _parent(app: str, data_dir: Path, processes: int, metrics: _Address, given: Mapping[str, Any]) -> None:
    """Keep children at work until a signal, or until each has ended by itself."""
    from harvest.worker.assigning import assigned
    from harvest.worker.effective import resolve

    options = resolve(os.environ, **given)
    environment = dict(os.environ)
    urls = configuration.find_databases(environment, data_dir)
    assigned(options.shard_assignments, configuration.router(environment, urls), urls)
    if configuration.database_urls(environment) is None:
        environment["HARVEST_DATABASE_URLS"] = ",".join(f"{shard}={url}" for shard, url in urls.items())
    misconfigured = asyncio.Event()
    workers = [
        WorkerProcess(
            number,
            app,
            environment,
            misconfigured,
            arguments=_arguments(given, number, metrics),
            drain=options.drain_timeout,
        )
        for number in range(1, processes + 1)
    ]
    cut_off = False

    def hurry() -> None:
        nonlocal cut_off
        cut_off = True
        for worker in workers:
            worker.signal(signal.SIGKILL)

    stop = loop.stop_on_signals(hurry)
    for worker in workers:
        await worker.start()
    waits: list[asyncio.Future[Any]] = [
        asyncio.gather(*(worker.ended() for worker in workers)),
        asyncio.ensure_future(stop.wait()),
        asyncio.ensure_future(misconfigured.wait()),
    ]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*(worker.stop() for worker in workers))
    for wait in waits:
        wait.cancel()
    if misconfigured.is_set():
        raise ConfigurationError(f"the workers cannot load {app!r}; the reason is above")
    if cut_off:
        sys.exit(_CUT_OFF)


def _arguments(given: Mapping[str, Any], number: int, metrics: _Address) -> list[str]:
    """The options of one child, as the parent was given them; its name has its number, and so has its port."""
    port, host = metrics
    found = [] if port is None else ["--metrics-port", str(port + number - 1), "--metrics-host", host]
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if name == "queues":
            found += [part for queue in value for part in ("--queue", queue)]
        elif name == "shard_assignments":
            found += [part for shard in value for part in ("--shard", str(shard))]
        elif name == "name":
            found += [flag, f"{value}-{number}"]
        elif isinstance(value, bool):
            found.append(flag if value else f"--no-{flag.removeprefix('--')}")
        else:
            found += [flag, str(value)]
    return found
