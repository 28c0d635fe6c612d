"""`harvest migrate`: the schema of every shard."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from harvest_console import settings as configuration
from harvest_console.cli.options import data_dir_option, set_up_logging


@click.group()
def migrate() -> None:
    """Bring the databases to this release's schema, or show what they have."""


@migrate.command("run")
@data_dir_option
def run(data_dir: Path) -> None:
    """Apply what is missing to every shard. Safe to run twice, and from several machines at once."""
    set_up_logging()
    asyncio.run(_run(configuration.find_databases(os.environ, data_dir)))


@migrate.command("status")
@data_dir_option
def status(data_dir: Path) -> None:
    """Show each shard's schema level beside this release's. Exit status 1 if one differs or does not answer."""
    raise SystemExit(asyncio.run(_status(configuration.find_databases(os.environ, data_dir))))


async def _run(urls: dict[int, str]) -> None:
    from harvest.store.migrate import SCHEMA_LEVEL, upgrade

    for shard_id, url in urls.items():
        await upgrade(url, shard_id=shard_id)
        click.echo(f"shard {shard_id}: level {SCHEMA_LEVEL}")


async def _status(urls: dict[int, str]) -> int:
    from harvest.store.migrate import SCHEMA_LEVEL, schema_level

    answers = await asyncio.gather(*(schema_level(url) for url in urls.values()), return_exceptions=True)
    same = True
    for shard_id, answer in zip(urls, answers, strict=True):
        if isinstance(answer, BaseException):
            click.echo(f"shard {shard_id}: no answer ({answer or type(answer).__name__})")
        else:
            click.echo(f"shard {shard_id}: level {answer}, this release has {SCHEMA_LEVEL}")
        same = same and answer == SCHEMA_LEVEL
    return 0 if same else 1
