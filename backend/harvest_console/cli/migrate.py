"""`harvest migrate`: the schema of every shard."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from harvest.errors import HarvestError
from harvest_console import settings as configuration
from harvest_console.cli import schema
from harvest_console.cli.options import data_dir_option, set_up_logging


@click.group()
def migrate() -> None:
    """Bring the databases to this release's schema, or show what they have."""


@migrate.command("run")
@data_dir_option
def run(data_dir: Path) -> None:
    """Apply what is missing to every shard. Safe to run twice, and from several machines at once."""
    set_up_logging()
    urls = configuration.find_databases(os.environ, data_dir)
    asyncio.run(schema.bring_up(urls))
    _show(asyncio.run(schema.levels(urls)))


@migrate.command("status")
@data_dir_option
def status(data_dir: Path) -> None:
    """Show each shard's schema level beside this release's.

    Exit status 1 if one differs or does not answer, or a database is another shard than it is configured as.
    """
    sys.exit(_show(asyncio.run(schema.levels(configuration.find_databases(os.environ, data_dir)))))


def _show(levels: dict[int, int | Exception]) -> int:
    from harvest.store.migrate import SCHEMA_LEVEL

    for shard_id, level in levels.items():
        if isinstance(level, HarvestError):
            click.echo(f"shard {shard_id}: {level.message}")
        elif isinstance(level, Exception):
            click.echo(f"shard {shard_id}: no answer ({schema.reason(level)})")
        else:
            click.echo(f"shard {shard_id}: level {level}, this release has {SCHEMA_LEVEL}")
    return 0 if all(level == SCHEMA_LEVEL for level in levels.values()) else 1
