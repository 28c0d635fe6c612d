"""`harvest worker`: one worker process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import click

from harvest_console import settings as configuration
from harvest_console.cli import loop
from harvest_console.cli.loading import load_app, pin_hash_seed
from harvest_console.cli.options import data_dir_option, set_up_logging
from harvest_console.lifeline import end_with_parent


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
    pin_hash_seed()
    set_up_logging()
    if parent is not None:
        end_with_parent(signal.SIGTERM, parent)
    urls = configuration.find_databases(os.environ, data_dir)
    load_app(app, quiet=quiet_load)
    loop.run(_work(app, urls, name))


async def _work(app: str, urls: dict[int, str], name: str | None) -> None:
    from harvest.worker.main import run_worker

    stop: asyncio.Event = loop.stop_on_signals()
    await run_worker(app, urls, name=name, stop=stop)
