"""`harvest serve`: the console alone, on databases that exist."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import click

from harvest_console import settings as configuration
from harvest_console.cli import loop
from harvest_console.cli.announcement import announced
from harvest_console.cli.listener import listen
from harvest_console.cli.options import address_options, data_dir_option, set_up_logging
from harvest_console.cli.signin_link import link_line, new_link
from harvest_console.settings import Settings

_CHECK_SECONDS = 2.0


@click.command()
@address_options
@data_dir_option
@click.option("--base-path", default="", help="Path below which a proxy serves the console, like /harvest.")
def serve(host: str, port: int, data_dir: Path, base_path: str) -> None:
    """Run the console on the databases of HARVEST_DATABASE_URLS, or on those of a running `harvest dev`.

    Sign in with the link that it prints (`harvest signin-link` makes another), or with HARVEST_ADMIN_TOKEN. Several
    consoles need the same HARVEST_SECRET_KEY. In --data-dir it leaves its address for `harvest signin-link`.
    """
    set_up_logging()
    token = configuration.admin_token(os.environ, host)
    urls = configuration.find_databases(os.environ, data_dir)
    listener = listen(host, port)
    settings = Settings(
        urls=urls,
        secret_key=configuration.secret_key(os.environ, data_dir),
        host=host,
        port=listener.getsockname()[1],
        admin_token=token,
        token_signin=token is not None,
        data_dir=data_dir,
        base_path=base_path.rstrip("/"),
        router=configuration.router(os.environ, urls),
        usage_ceiling_days=configuration.usage_ceiling_days(os.environ),
        canary=configuration.canary(os.environ),
    )
    with announced(data_dir, settings.base_url, urls):
        loop.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    from harvest.errors import SchemaLevelError, ShardUnavailableError, WrongShardError
    from harvest.store import migrate
    from harvest_console.app import create_app
    from harvest_console.cli.serving import serve as serve_app

    async def ready() -> None:
        try:
            click.echo(link_line(await new_link(settings.urls, settings.base_url)))
        except ShardUnavailableError as error:
            click.echo(f"no sign-in link yet: {error.message}; `harvest signin-link` makes one later", err=True)
        click.echo(f"ready {settings.base_url}")

    async def check(shard_id: int, url: str) -> None:
        async with asyncio.timeout(_CHECK_SECONDS):
            await migrate.check(url, shard_id)

    stop = loop.stop_on_signals()
    checks = await asyncio.gather(*(check(*item) for item in settings.urls.items()), return_exceptions=True)
    for problem in checks:
        if isinstance(
            problem, SchemaLevelError | WrongShardError
        ):  # a shard that is down is shown by the console instead
            raise problem
    await serve_app(create_app(settings), listener, stop, ready)
