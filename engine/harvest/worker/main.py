"""A worker process: incarnations one after another, until it is told to stop."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from harvest import clock
from harvest.errors import ConfigurationError, ShardUnavailableError
from harvest.shards import ShardRouter, Shards, configured, warn_at_boot
from harvest.store.pool import LOST
from harvest.worker.effective import DEFAULT, resolve
from harvest.worker.options import WorkerOptions
from harvest.worker.report import Ending
from harvest.worker.worker import Worker

if TYPE_CHECKING:
    from harvest.definitions.registry import Registry

_log = logging.getLogger("harvest.worker")


def load_registry(app_path: str) -> Registry:
    """Import `module:attribute` and return its registry; raises ConfigurationError saying what is wrong."""
    module_name, _, attribute = app_path.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"{app_path!r} does not name an application; write module:attribute")
    module = importlib.import_module(module_name)
    app = getattr(module, attribute, None)
    registry = getattr(app, "registry", None)
    if registry is None:
        raise ConfigurationError(f"{module_name!r} has no Harvest application named {attribute!r}")
    found: Registry = registry
    return found


def build_of(app_path: str) -> str:
    """A build's name where the deployment gives none: a digest of the application's module file."""
    path = getattr(sys.modules.get(app_path.partition(":")[0]), "__file__", None)
    if path is None:
        return ""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:12]


async def run_worker(
    app_path: str,
    urls: Mapping[int, str],
    *,
    name: str | None = None,
    stop: asyncio.Event,
    options: WorkerOptions | None = None,
) -> Ending:
    """Import the application and work until `stop` is set or people drain the worker; see `keep_working`.

    Without `options`, they come from HARVEST_WORKER_* variables, with `name` before them.
    """
    registry = load_registry(app_path)
    options = options or resolve(os.environ, name=name)
    if not options.build:
        options = named_build(options, build_of(app_path))
    router = configured(os.environ, urls)
    warn_at_boot(router, urls)
    return await keep_working(registry, urls, options=options, stop=stop, router=router)


def named_build(options: WorkerOptions, build: str) -> WorkerOptions:
    """The options with the build's name that was found out where none was given: that counts as the default."""
    return msgspec.structs.replace(options, build=build, origins={**options.origins, "build": DEFAULT})


async def keep_working(
    registry: Registry,
    urls: Mapping[int, str],
    *,
    options: WorkerOptions,
    stop: asyncio.Event,
    on_start: Callable[[], None] | None = None,
    router: ShardRouter | None = None,
) -> Ending:
    """Work until `stop` is set. A lost lease ends the incarnation and begins another; an absent database is awaited.

    Without a `router` every shard takes new runs. `on_start` is called whenever an incarnation has begun to work.
    Returns `drained` when people wanted the worker to end: it is not to be started again; else `stopped`.
    """
    delay = 0.2
    while not stop.is_set():
        shards = await Shards.open(urls, router)
        worker = Worker(registry, shards, options)
        try:
            await worker.start()
            delay = 0.2
            if on_start is not None:
                on_start()
            await _first(stop.wait(), worker.lost.wait(), worker.drain_asked.wait())
        except (ShardUnavailableError, *LOST, asyncpg.PostgresError) as error:
            _log.warning("the worker cannot start yet: %s", error)
            await clock.wait_event(stop, clock.jittered(delay))
            delay = min(delay * 2, 5.0)
        finally:
            await worker.stop()
            await shards.close()
        if worker.drain_asked.is_set():
            return "drained"
    return "stopped"


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
