"""`harvest worker`: one worker process."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import click

from harvest_console import settings as configuration
from harvest_console.cli import loop
from harvest_console.cli.options import data_dir_option, set_up_logging
from harvest_console.lifeline import end_with_parent

_USAGE_ERROR = 2


@click.command()
@click.argument("app")
@data_dir_option
@click.option("--name", default=None, help="Name shown in the console; by default host and process.")
@click.option("--parent", type=int, default=None, hidden=True)
@click.option("--quiet-load", is_flag=True, hidden=True)
def worker(app: str, data_dir: Path, name: str | None, parent: int | None, quiet_load: bool) -> None:
    """Run the workflows and activities of APP, written `module:attribute`; the working folder is on the path.

    The databases are those of HARVEST_DATABASE_URLS, or those of a running `harvest dev`. SIGTERM and Ctrl-C let
    running activities end in their grace and stop cleanly.
    """
    _pin_hash_seed()
    set_up_logging()
    if parent is not None:
        end_with_parent(signal.SIGTERM, parent)
    urls = configuration.find_databases(os.environ, data_dir)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _load(app, quiet=quiet_load)
    loop.run(_work(app, urls, name))


def _load(app: str, *, quiet: bool) -> None:
    """Import APP first: whatever its module raises is the author's to see whole, and no reason to try again."""
    from harvest.errors import HarvestError
    from harvest.worker.main import load_registry

    module = app.partition(":")[0]
    try:
        importlib.import_module(module or "harvest")
        load_registry(app)
    except Exception as error:
        if quiet:
            sys.exit(_USAGE_ERROR)
        if isinstance(error, HarvestError):
            _refuse(f"{error.message} [{error.code}]{_place(error)}")
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            _refuse(f"there is no module {error.name!r} for {app!r}; write module:attribute, found from {os.getcwd()}")
        traceback.print_exc()
        _refuse(f"the module of {app!r} raised {type(error).__name__} while it was imported")


def _place(error: Exception) -> str:
    """Where in the author's code an error of a definition arose; empty when it was in none."""
    engine = os.path.dirname(importlib.import_module("harvest").__file__ or "")
    frames = traceback.extract_tb(error.__traceback__)
    ours = (engine, os.path.dirname(__file__), "<frozen", os.path.dirname(os.__file__))
    theirs = [frame for frame in frames if not frame.filename.startswith(ours)]
    return f", at {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""


def _refuse(message: str) -> NoReturn:
    click.echo(f"harvest: {message}", err=True)
    sys.exit(_USAGE_ERROR)


async def _work(app: str, urls: dict[int, str], name: str | None) -> None:
    from harvest.worker.main import run_worker

    stop: asyncio.Event = loop.stop_on_signals()
    await run_worker(app, urls, name=name, stop=stop)


def _pin_hash_seed() -> None:
    """Start again with PYTHONHASHSEED=0 unless it is set so: sets of strings must iterate alike in every worker."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
