"""`harvest legal-hold set`, `get` and `release`: runs whose payloads must not be erased, over the API (reference 6)."""

from __future__ import annotations

import click
import msgspec

from harvest_console.cli.remote import EXIT_STATUSES
from harvest_console.cli.workflow import Session, with_session


@click.group(name="legal-hold", epilog=EXIT_STATUSES)
def legal_hold() -> None:
    """Hold runs, so that their payloads are not erased, and release them."""


@legal_hold.command(name="set")
@click.argument("execution")
@click.option("--reason", required=True, help="Why; the hold and the audit log keep it.")
@click.option("--until", help="When it ends by itself, like 2027-01-31T00:00:00Z; when it is released if not given.")
@with_session
def set_(session: Session, execution: str, reason: str, until: str | None) -> None:
    """Hold an execution; a hold that is in force stays as it is."""
    body = msgspec.json.encode({"reason": reason, "hold_until": until})
    session.show(session.remote.post("workflows", execution, "legal-hold", body=body))


@legal_hold.command()
@click.argument("execution")
@with_session
def get(session: Session, execution: str) -> None:
    """Show the hold of an execution; `held` is false where there is none."""
    session.show(session.remote.get("workflows", execution, "legal-hold"))


@legal_hold.command()
@click.argument("execution")
@click.option("--reason", default="", help="Why; the audit log keeps it.")
@with_session
def release(session: Session, execution: str, reason: str) -> None:
    """Release an execution from its hold."""
    body = msgspec.json.encode({"reason": reason})
    session.show(session.remote.post("workflows", execution, "legal-hold", "release", body=body))
