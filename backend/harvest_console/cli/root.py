"""The root of the command line: which verbs there are, and how an error reaches the person."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

import click

VERBS = {
    "dev": ("harvest_console.cli.dev:dev", "Run everything on this machine: databases, console and workers."),
    "serve": ("harvest_console.cli.serve:serve", "Run the console on databases that exist."),
    "signin-link": (
        "harvest_console.cli.signin_link:signin_link",
        "Print another link that signs a browser in to the console.",
    ),
    "worker": ("harvest_console.cli.worker:worker", "Run a worker with the workflows of an app."),
    "lint": ("harvest_console.cli.lint:lint", "Look for what workflow code must not do, without running it."),
    "replay": ("harvest_console.cli.replay:replay", "Replay exported histories with the code of an app."),
    "migrate": ("harvest_console.cli.migrate:migrate", "Bring the databases to this release's schema, or show theirs."),
    "workflow": ("harvest_console.cli.verbs:workflow", "Start, list, look at, signal, query and end workflows."),
    "shard": ("harvest_console.cli.shard:shard", "See whether shards are ready for work, and how the probes go."),
    "owner-mode": (
        "harvest_console.cli.owner_mode:owner_mode",
        "See whether each partition has an owner, and turn that on and off.",
    ),
    "usage": ("harvest_console.cli.usage:usage", "Show what each group of runs has used in a window of time."),
    "history": ("harvest_console.cli.reading:history", "Take histories out of the databases."),
    "erasure": ("harvest_console.cli.erasing:erasure", "List, read and check the receipts of erased payloads."),
    "legal-hold": ("harvest_console.cli.legal_hold:legal_hold", "Keep a run's payloads from being erased."),
    "view": ("harvest_console.cli.view:view", "List, save and delete the saved views of the list."),
}


class LazyGroup(click.Group):
    """A group that knows its verbs' help texts without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of `VERBS`."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb."""
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="harvest-workflows", prog_name="harvest")
def root() -> None:
    """Durable workflows on PostgreSQL, with a console."""


def main() -> NoReturn:
    """Run the command line. A typed error is printed as one line with its code; the exit status is then 2."""
    try:
        root(prog_name="harvest")
    except Exception as error:
        from harvest.errors import HarvestError  # the engine is slow to import, and `--help` needs nothing of it

        if not isinstance(error, HarvestError):
            raise
        click.echo(f"harvest: {error.message} [{error.code}]", err=True)
        sys.exit(2)
    sys.exit(0)
