"""`harvest signin-link`: another sign-in link for a console that runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import click

from harvest_console import settings as configuration
from harvest_console.cli.announcement import running_address, serving_address
from harvest_console.cli.options import data_dir_option
from harvest_console.settings import DEFAULT_PORT, browser_url

_DEFAULT = browser_url("127.0.0.1", DEFAULT_PORT)


@click.command("signin-link")
@click.option(
    "--console-url",
    help="Where the console is, base path included; by default that of the running `harvest dev`, or of the newest "
    f"`harvest serve` with the same --data-dir and databases, else {_DEFAULT}.",
)
@data_dir_option
def signin_link(console_url: str | None, data_dir: Path) -> None:
    """Print a link that signs one browser in to the console, once and within 10 minutes.

    The databases are those of HARVEST_DATABASE_URLS, or those of a running `harvest dev`.
    """
    urls = configuration.find_databases(os.environ, data_dir)
    if console_url is None:
        console_url = _running(urls, data_dir)
    if console_url is None:
        console_url = _DEFAULT
        click.echo(
            f"no console of these databases was found to run with {data_dir}, so the link leads to {_DEFAULT}; "
            "--console-url names another",
            err=True,
        )
    click.echo(asyncio.run(new_link(urls, console_url.rstrip("/"))))


def _running(urls: Mapping[int, str], data_dir: Path) -> str | None:
    """The address of a console that runs on this machine; one of other databases would not know the link."""
    address = running_address(data_dir) if configuration.database_urls(os.environ) is None else None
    return address or serving_address(data_dir, urls)


async def new_link(urls: Mapping[int, str], base_url: str) -> str:
    """Make a link by connections of its own; raises ShardUnavailableError when no shard answers."""
    from harvest.operations import signin
    from harvest.shards import Shards

    shards = await Shards.open(urls)
    try:
        return await signin.create_link(shards, base_url)
    finally:
        await shards.close()


def link_line(link: str) -> str:
    """A link as `dev` and `serve` announce it."""
    return f"sign in, once and within 10 minutes: {link}"
