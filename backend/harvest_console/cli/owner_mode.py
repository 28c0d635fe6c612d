"""`harvest owner-mode status`, `enable` and `disable`: owner mode of the shards, over the API."""

from __future__ import annotations

import click
import msgspec

from harvest_console.cli.remote import EXIT_STATUSES, Answer
from harvest_console.cli.workflow import Session, with_session

SHARD = click.option("--shard", type=click.IntRange(0), required=True, help="The shard.")
REASON = click.option("--reason", required=True, help="Why; the audit log keeps it.")


@click.group(name="owner-mode", epilog=EXIT_STATUSES)
def owner_mode() -> None:
    """See whether each partition has an owner that decides all of its runs, and turn that on and off."""


@owner_mode.command()
@click.option("--shard", type=click.IntRange(0), help="This shard alone.")
@with_session
def status(session: Session, shard: int | None) -> None:
    """Show owner mode and what it needs, shard by shard."""
    answer = session.remote.get("admin", "owner-mode")
    if shard is not None:
        answer = _only(answer, shard)
    session.show(answer)
    session.warn_of_missing_shards(answer)


def _only(answer: Answer, shard: int) -> Answer:
    found = msgspec.json.decode(answer.body)
    for name in ("shards", "unavailable_shards"):
        found[name] = [each for each in found[name] if each["shard_id"] == shard]
    if not found["shards"] and not found["unavailable_shards"]:
        raise click.UsageError(f"there is no shard {shard}")
    return Answer(answer.status, msgspec.json.encode(found))


@owner_mode.command()
@SHARD
@REASON
@with_session
def enable(session: Session, shard: int, reason: str) -> None:
    """Turn owner mode on, if the workers that live now allow it."""
    session.show(_turn(session, shard, True, reason))


@owner_mode.command()
@SHARD
@REASON
@with_session
def disable(session: Session, shard: int, reason: str) -> None:
    """Turn owner mode off: workers claim as before."""
    session.show(_turn(session, shard, False, reason))


def _turn(session: Session, shard: int, enabled: bool, reason: str) -> Answer:
    body = msgspec.json.encode({"enabled": enabled, "reason": reason})
    return session.remote.post("admin", "shards", str(shard), "owner-mode", body=body)
