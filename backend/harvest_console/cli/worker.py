"""`harvest worker …`: running one, and the fleet over the API (reference 6)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

import click
import msgspec

from harvest import clock
from harvest_console.cli.remote import EXIT_STATUSES, Answer, StillOpenError
from harvest_console.cli.workflow import Session, with_session
from harvest_console.cli.working import run

_LOOK_SECONDS: Final = 0.5


class _Workers(click.Group):
    """Its verbs; whatever begins otherwise runs a worker."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `APP …` and `--option … APP` as `run`."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Workers,
    epilog=EXIT_STATUSES,
    subcommand_metavar="APP [OPTIONS] | COMMAND [ARGS]...",
)
def worker() -> None:
    """Run a worker with the workflows of APP (`harvest worker run --help`), or look after those that run."""


worker.add_command(run)


@worker.command(name="list")
@click.option("--queue", help="Only those that serve this queue.")
@click.option("--shard", type=click.IntRange(0), help="Only those of this shard.")
@click.option("--status", type=click.Choice(["active", "draining", "stopped"]), help="Only these.")
@click.option("--health", type=click.Choice(["healthy", "stale"]), help="Only these.")
@click.option("--limit", type=click.IntRange(1, 500), help="How many; 100 if not given.")
@with_session
def list_(session: Session, shard: int | None, **query: Any) -> None:
    """List workers over all shards: those that drain first."""
    answer = session.remote.get("workers", shard_id=shard, **query)
    session.show(answer)
    session.warn_of_missing_shards(answer)


@worker.command()
@click.argument("worker")
@with_session
def get(session: Session, worker: str) -> None:
    """Show one worker, by its id or its name: shards, definitions, configuration, report."""
    session.show(session.remote.get("workers", _worker_id(session, worker)))


@worker.command()
@with_session
def health(session: Session) -> None:
    """Show how many workers are healthy, stale and draining, and which definitions nobody has the code for."""
    answer = session.remote.get("workers", "health")
    session.show(answer)
    session.warn_of_missing_shards(answer)


@worker.command()
@click.argument("worker")
@click.option("--limit", type=click.IntRange(1, 500), help="How many; 100 if not given.")
@with_session
def pinned(session: Session, worker: str, limit: int | None) -> None:
    """Show the runs that others leave to a worker now."""
    session.show(session.remote.get("workers", _worker_id(session, worker), "pinned", limit=limit))


@worker.command(name="drain-preview")
@click.argument("worker", required=False)
@with_session
def drain_preview(session: Session, worker: str | None) -> None:
    """Show what draining a worker would do; of each of them if none is named."""
    worker_id = None if worker is None else _worker_id(session, worker)
    answer = session.remote.get("workers", "drain-preview", worker_id=worker_id)
    session.show(answer)
    session.warn_of_missing_shards(answer)


@worker.command()
@click.argument("worker")
@click.option("--deadline", metavar="WHEN", help="Until when what runs may go on: seconds from now, or an instant.")
@click.option("--wait", type=click.FloatRange(0), default=0.0, help="Seconds to wait for its end.", show_default=True)
@click.option("--reason", default="", help="Why; the audit log keeps it.")
@with_session
def drain(session: Session, worker: str, deadline: str | None, wait: float, reason: str) -> None:
    """Have a worker finish what runs, hand over and end. WORKER is its id, or its name if only one has it."""
    worker_id = _worker_id(session, worker)
    body = {"deadline_at": _instant(deadline), "reason": reason}
    answer = session.remote.post("workers", worker_id, "drain", body=msgspec.json.encode(body))
    if wait > 0:
        answer = _ended(session, worker_id, wait)
    session.show(answer)


@worker.command()
@click.argument("worker")
@click.option("--reason", default="", help="Why; the audit log keeps it.")
@with_session
def evict(session: Session, worker: str, reason: str) -> None:
    """Have a worker let go of its parked runs: the next decision of each is cold."""
    body = msgspec.json.encode({"reason": reason})
    session.show(session.remote.post("workers", _worker_id(session, worker), "evict", body=body))


def _ended(session: Session, worker_id: str, seconds: float) -> Answer:
    """The worker once it has stopped. Raises StillOpenError when it has not within `seconds`."""

    async def has_stopped() -> bool:
        answer = session.remote.get("workers", worker_id)
        return bool(msgspec.json.decode(answer.body)["status"] == "stopped")

    if not asyncio.run(clock.until(has_stopped, within=seconds, every=_LOOK_SECONDS)):
        raise StillOpenError(f"worker {worker_id} still drains")
    return session.remote.get("workers", worker_id)


def _worker_id(session: Session, text: str) -> str:
    """The id of a worker that is named by it, or by a name that one alone has which has not stopped."""
    if len(text) == len("00000000-0000-4000-8000-000000000000") and text.count("-") == 4:
        return text
    found = msgspec.json.decode(session.remote.get("workers", limit=500).body)["workers"]
    named = [each for each in found if each["name"] == text]
    living = [each for each in named if each["status"] != "stopped"] or named
    if len(living) == 1:
        return str(living[0]["worker_id"])
    if not living:
        raise click.UsageError(f"no worker is called {text!r}; `harvest worker list` shows those there are")
    raise click.UsageError(f"{len(living)} workers are called {text!r}; name one by its id")


def _instant(text: str | None) -> str | None:
    """An instant from seconds from now, or as it was given."""
    if text is None:
        return None
    try:
        return (clock.now() + timedelta(seconds=float(text))).isoformat()
    except (ValueError, OverflowError):
        return text
