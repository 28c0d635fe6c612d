"""`harvest shard health` and `harvest shard canary`: whether shards are ready for work, over the API."""

from __future__ import annotations

import sys
from typing import Any, Final

import click
import msgspec

from harvest_console.cli.remote import EXIT_STATUSES
from harvest_console.cli.workflow import Session, with_session

EXITS: Final = {"ready": 0, "degraded": 1, "unavailable": 3}
_HEALTH_STATUSES: Final = (
    "Exit status: 0 ready; 1 degraded, or refused; 2 used wrongly; 3 unavailable, or the console cannot be reached."
)


@click.group(epilog=EXIT_STATUSES)
def shard() -> None:
    """See whether shards are ready for work, and how the liveness probes go."""


@shard.command(epilog=_HEALTH_STATUSES)
@click.option("--candidate-shard", type=click.IntRange(0, 65_534), help="A shard that is to be added: its gate.")
@with_session
def health(session: Session, candidate_shard: int | None) -> None:
    """Show how ready each shard is, and why not; with a candidate, the exit status is of it alone."""
    answer = session.remote.get("admin", "shards", "health", candidate_shard=candidate_shard)
    session.show(answer)
    session.warn_of_missing_shards(answer)
    found: dict[str, Any] = msgspec.json.decode(answer.body)
    readiness = found["overall_readiness"] if candidate_shard is None else found["candidate_shard"]["readiness"]
    sys.exit(EXITS[readiness])


@shard.command()
@with_session
def canary(session: Session) -> None:
    """Show how the probes of each queue and writable shard go."""
    answer = session.remote.get("admin", "canary")
    session.show(answer)
    session.warn_of_missing_shards(answer)
