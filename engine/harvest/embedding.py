"""The engine inside a program of your own: a client and workers in one asyncio process."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg
import msgspec

from harvest import clock
from harvest.app import Harvest
from harvest.errors import ConfigurationError, ShardUnavailableError
from harvest.shards import ShardRouter
from harvest.store import migrate as schema
from harvest.store.pool import LOST
from harvest.worker.main import keep_working, named_build
from harvest.worker.options import WorkerOptions

_log = logging.getLogger("harvest.embedding")
_LONGEST_PAUSE: Final = 60.0


@asynccontextmanager
async def running(
    app: Harvest,
    urls: Mapping[int, str] | str | None = None,
    *,
    workers: int = 1,
    options: WorkerOptions | None = None,
    migrate: bool = False,
    start_timeout: float = 10.0,
    router: ShardRouter | None = None,
) -> AsyncIterator[Harvest]:
    """Connect `app` and run its workflows and activities in this process, until the block ends.

    `urls` and `router` are as for `Harvest.connect`; without any, a connected app stays as it is. `workers=0` makes a
    client only; more than one seldom helps, as they share a processor. With `migrate`, the databases are first brought
    to this release's schema. At the end running activities get `options.drain_timeout` seconds, then their work is
    handed back.

    The block is entered when the workers are at work. Where no database answers within `start_timeout` seconds it is
    entered all the same, and they begin when one does. Raises ConfigurationError where no database is known,
    SchemaLevelError and WrongShardError for one that this release cannot work with, and ShardUnavailableError when
    one that is to be migrated does not answer.
    """
    if workers < 0:
        raise ConfigurationError(f"workers is {workers}; it must be 0 or more")
    ours = urls is not None or not app.databases
    if ours:
        await app.connect(urls, router=router)
    try:
        databases = app.databases
        if migrate:
            await _migrate(databases)
        crew = _Crew(app, databases, _numbered(options or WorkerOptions(), app, workers))
        try:
            await crew.start(start_timeout)
            yield app
        finally:
            await crew.stop()
    finally:
        if ours:
            await app.close()


class _Crew:
    """The workers of one process, each kept at work by a task until they are told to stop."""

    def __init__(self, app: Harvest, urls: Mapping[int, str], options: list[WorkerOptions]) -> None:
        self._app = app
        self._urls = urls
        self._router = app.router
        self._options = options
        self._stop = asyncio.Event()
        self._entered = False
        self._begun = [asyncio.Event() for _ in options]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, within: float) -> None:
        """Begin; wait until all work, `within` seconds at most. Raises what keeps one from it for good."""
        self._tasks = [asyncio.create_task(self._work(*each)) for each in zip(self._options, self._begun, strict=True)]
        waiting = asyncio.create_task(self._all_begun())
        await asyncio.wait([waiting, *self._tasks], timeout=within, return_when=asyncio.FIRST_COMPLETED)
        late = not waiting.done()
        waiting.cancel()
        for task in self._tasks:
            if task.done():
                task.result()
        self._entered = True
        if late:
            _log.warning("no worker could start within %g s; they go on trying", within)

    async def _all_begun(self) -> None:
        for begun in self._begun:
            await begun.wait()

    async def stop(self) -> None:
        """Let the workers drain and end."""
        self._stop.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, options: WorkerOptions, begun: asyncio.Event) -> None:
        """Once the block is entered nothing ends it but the stop, or people who drain it: the program lives on."""
        pause = 1.0
        while not self._stop.is_set():
            try:
                ended = await keep_working(
                    self._app.registry,
                    self._urls,
                    options=options,
                    stop=self._stop,
                    on_start=begun.set,
                    router=self._router,
                )
                if ended == "drained":
                    return
            except Exception:
                if not self._entered:
                    raise
                _log.exception("worker %s has failed; it begins again in %g s", options.display_name, pause)
                await clock.wait_event(self._stop, clock.jittered(pause))
                pause = min(pause * 2, _LONGEST_PAUSE)


def _numbered(options: WorkerOptions, app: Harvest, workers: int) -> list[WorkerOptions]:
    """Each worker's options: the build that the deployment or the code names, and a name of its own."""
    if not options.build:
        options = named_build(options, _build_of(app))
    if workers < 2:
        return [options] * workers
    return [
        msgspec.structs.replace(options, name=f"{options.display_name}-{number}") for number in range(1, workers + 1)
    ]


def _build_of(app: Harvest) -> str:
    """A build's name where the deployment gives none: a digest of the files that declare workflows and activities."""
    functions = [each.function for each in app.registry.workflows.values()]
    functions += [each.function for each in app.registry.activities.values()]
    codes = (getattr(inspect.unwrap(function), "__code__", None) for function in functions)
    paths = {code.co_filename for code in codes if code is not None}
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if os.path.isfile(path)):
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:12]


async def _migrate(urls: Mapping[int, str]) -> None:
    for shard_id, url in urls.items():
        try:
            if await schema.schema_level(url) != schema.SCHEMA_LEVEL:
                await schema.upgrade(url, shard_id=shard_id)
            else:
                await schema.name_shard(url, shard_id)
        except (*LOST, asyncpg.PostgresError) as error:
            raise ShardUnavailableError(
                f"the database of shard {shard_id} cannot be migrated: {error}", shard_id=shard_id
            ) from error
