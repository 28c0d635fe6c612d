"""`harvest worker`: one worker process."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path

import click

from harvest_console import settings as configuration
from harvest_console.cli import loop
from harvest_console.cli.options import data_dir_option, set_up_logging
from harvest_console.lifeline import end_with_parent


@click.command()
@click.argument("app")
@data_dir_option
@click.option("--name", default=None, help="Name shown in the console; by default host and process.")
@click.option("--parent", type=int, default=None, hidden=True)
def worker(app: str, data_dir: Path, name: str | None, parent: int | None) -> None:
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
    _load(app)
    loop.run(_work(app, urls, name))


def _load(app: str) -> None:
    """Import APP first: whatever its module raises is the author's to see whole, and no reason to try again."""
    try:
        importlib.import_module(app.partition(":")[0])
    except Exception:
        traceback.print_exc()
        click.echo(f"harvest: {app!r} cannot be imported; write module:attribute, found from {os.getcwd()}", err=True)
        sys.exit(2)


async def _work(app: str, urls: dict[int, str], name: str | None) -> None:
    from harvest.worker.main import run_worker

    stop: asyncio.Event = loop.stop_on_signals()
    await run_worker(app, urls, name=name, stop=stop)


def _pin_hash_seed() -> None:
    """Start again with PYTHONHASHSEED=0 unless it is set so: sets of strings must iterate alike in every worker."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
