"""`harvest dev`: databases, console and workers on this machine, from one command (answers 12)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from harvest.errors import ConfigurationError
from harvest_console import settings as configuration
from harvest_console.cli import loop, schema
from harvest_console.cli.data_folder import AlreadyRunningError, DataFolder
from harvest_console.cli.listener import listen
from harvest_console.cli.options import address_options, data_dir_option, set_up_logging
from harvest_console.cli.signin_link import link_line, new_link
from harvest_console.cli.supervisor import WorkerProcess
from harvest_console.settings import Settings, browser_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harvest.shards import ShardRouter, Shards

Crew = list[tuple[int, ...]]
_ALREADY_RUNNING = 3
_INTERRUPTED = 130
_MOST = 64
_WORKERS_START_SECONDS = 20.0


@click.command()
@click.argument("app")
@address_options
@click.option("--shards", type=click.IntRange(1, _MOST), help="Databases to start, when the data folder is new. [2]")
@click.option("--workers", type=click.IntRange(0, _MOST), default=2, show_default=True, help="Worker processes.")
@data_dir_option
def dev(app: str, host: str, port: int, shards: int | None, workers: int, data_dir: Path) -> None:
    """Run it all on this machine: databases, console, and workers with the workflows of APP (`module:attribute`).

    Ctrl-C stops everything; the next start finds all its data. HARVEST_DATABASE_URLS (0=postgresql://…,1=…) uses
    databases of yours instead of embedded ones.

    Where HARVEST_RESERVED_SHARDS names shards, --workers is how many work on the others, and each reserved shard gets
    one of its own; HARVEST_WORKER_SHARD_ASSIGNMENTS gives all of them the same shards instead.
    """
    set_up_logging()
    signal.signal(signal.SIGTERM, _interrupt)
    token = configuration.admin_token(os.environ, host)
    folder = DataFolder(data_dir)
    try:
        folder.take()
    except AlreadyRunningError as error:
        click.echo(error.message, err=True)
        sys.exit(_ALREADY_RUNNING)
    try:
        listener = listen(host, port)
        port = listener.getsockname()[1]
        folder.announce(browser_url(host, port))
        urls = folder.start_databases(configuration.database_urls(os.environ), shards)
        settings = Settings(
            urls=urls,
            secret_key=configuration.secret_key(os.environ, data_dir),
            host=host,
            port=port,
            admin_token=token or configuration.local_token(data_dir),
            token_signin=token is not None,
            data_dir=data_dir,
            router=configuration.router(os.environ, urls),
            usage_ceiling_days=configuration.usage_ceiling_days(os.environ),
            canary=configuration.canary(os.environ),
        )
        loop.run(_run(settings, app, workers, listener))
    except KeyboardInterrupt:
        click.echo("stopped before it was ready", err=True)
        sys.exit(_INTERRUPTED)
    finally:
        folder.let_go()


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


async def _run(settings: Settings, app: str, count: int, listener: socket.socket) -> None:
    misconfigured = asyncio.Event()
    environment = dict(os.environ)
    if configuration.database_urls(environment) is None:
        environment["HARVEST_DATABASE_URLS"] = ",".join(f"{shard}={url}" for shard, url in settings.urls.items())
    router = settings.router or configuration.router(environment, settings.urls)
    crew = crew_of(router, settings.urls, environment, count)
    workers = [
        WorkerProcess(
            number, app, environment, misconfigured, arguments=_shard_options(shards) if router.reserved else []
        )
        for number, shards in enumerate(crew, 1)
    ]

    def hurry() -> None:
        for worker in workers:
            worker.signal(signal.SIGKILL)

    stop = loop.stop_on_signals(hurry)
    await schema.bring_up(settings.urls)
    configuration.write_databases(settings.data_dir, settings.urls)
    watch = asyncio.create_task(_stop_when(misconfigured, stop))
    try:
        for worker in workers:
            await worker.start()
        await _serve_console(settings, listener, stop, crew)
    finally:
        watch.cancel()
        (settings.data_dir / configuration.DATABASES_FILE).unlink(missing_ok=True)
        await asyncio.gather(*(worker.stop() for worker in workers))
    if misconfigured.is_set():
        raise ConfigurationError(f"the workers cannot load {app!r}; the reason is above")


def crew_of(router: ShardRouter, urls: Mapping[int, str], environment: Mapping[str, str], count: int) -> Crew:
    """The shards of each worker process: as the environment says; else all, or the shared ones and one cell each.

    Raises ConfigurationError for shards that are named and have no database here.
    """
    from harvest.worker.assigning import assigned
    from harvest.worker.effective import resolve

    given = resolve(environment).shard_assignments
    if given or not router.reserved:
        return [assigned(given, router, urls)] * count
    shared = tuple(sorted(set(urls) - set(router.reserved)))
    cells = sorted(set(router.reserved) & set(urls)) if count else []
    return [*[shared] * count, *((shard,) for shard in cells)]


def _shard_options(shards: tuple[int, ...]) -> list[str]:
    return [part for shard in shards for part in ("--shard", str(shard))]


async def _stop_when(event: asyncio.Event, stop: asyncio.Event) -> None:
    await event.wait()
    stop.set()


async def _serve_console(settings: Settings, listener: socket.socket, stop: asyncio.Event, crew: Crew) -> None:
    from harvest.shards import Shards
    from harvest_console.app import create_app
    from harvest_console.cli.serving import serve

    async def ready() -> None:
        shards = await Shards.open(settings.urls, settings.router)
        try:
            await _workers_registered(shards, crew, stop)
        finally:
            await shards.close()
        if stop.is_set():  # also when the workers could not load the app: nothing is ready then
            return
        click.echo(link_line(await new_link(settings.urls, settings.base_url)))
        click.echo(f"ready {settings.base_url}")

    await serve(create_app(settings), listener, stop, ready)


async def _workers_registered(shards: Shards, crew: Crew, stop: asyncio.Event) -> None:
    """Wait until every shard knows its workers, so that a start right after "ready" finds its type; not for ever."""
    from harvest import clock
    from harvest.operations.overview import overview

    async def known() -> bool:
        answer = await overview(shards)
        return stop.is_set() or all(
            sum(worker.alive for worker in shard.workers) >= sum(shard.shard_id in its for its in crew)
            for shard in answer.shards
        )

    await clock.until(known, within=_WORKERS_START_SECONDS, every=0.1)
