"""`harvest workflow erase-payloads` and `harvest erasure list`, `get`, `verify`, over the API (reference 6)."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Final

import click
import msgspec

from harvest_console.cli.remote import EXIT_STATUSES, LateError, RemoteError
from harvest_console.cli.workflow import Session, with_session, workflow

PHRASE: Final = "erase"
# The run itself may take a minute, and so may the last of those below it that is begun in time.
LIMIT_SECONDS: Final = 90.0
# The one blocker of a plan that refuses nothing: erasing again erases what has ended below the run since.
_HARMLESS: Final = "already_erased"


@workflow.command(name="erase-payloads")
@click.argument("execution")
@click.option("--reason", help="Why; the receipt and the audit log keep it. Needed unless with --dry-run.")
@click.option("--yes", is_flag=True, help="Do not ask: a script means it.")
@click.option("--dry-run", is_flag=True, help="Show what would be erased and what keeps it from that; 1 if anything.")
@with_session
def erase_payloads(session: Session, execution: str, reason: str | None, yes: bool, dry_run: bool) -> None:
    """Erase what an execution that has ended was given and what it made, for ever, and of the runs below it.

    The exit status is 1 where it is erased, but not all of those were looked at; run it again for the rest.
    """
    if not dry_run and not reason:
        raise click.UsageError("--reason is missing: say why, for the receipt and the audit log")
    if dry_run or not yes:
        answer = session.remote.get("workflows", execution, "erasure")
        plan: dict[str, Any] = msgspec.json.decode(answer.body)
        refused = bool(set(plan["blockers"]) - {_HARMLESS})
        if dry_run:
            session.show(answer)
            sys.exit(RemoteError.exit_code if refused else 0)
        if not refused and (plan["erased"] is None or plan["children"]):
            _ask(plan)
    body = msgspec.json.encode({"reason": reason})
    try:
        answer = session.remote.post("workflows", execution, "erase-payloads", body=body, limit_seconds=LIMIT_SECONDS)
    except LateError as error:
        raise LateError(
            f"{error.message}. If one is there, the erasure may still go on: repeat the command, it shows the receipt"
        ) from None
    session.show(answer)
    if incomplete := msgspec.json.decode(answer.body)["incomplete"]:
        click.echo(f"harvest: not all below it was erased: {incomplete}", err=True)
        sys.exit(RemoteError.exit_code)


def _ask(plan: dict[str, Any]) -> None:
    """Tell what goes, and have it typed that it may."""
    click.echo(
        f"{plan['workflow_name']} {plan['workflow_id']} ({plan['execution_id']}, {plan['state']}): "
        f"{plan['events']:,} events with {plan['payload_bytes']:,} bytes of payloads, and {plan['children']:,} runs "
        "below it. What is erased cannot be read again by anybody.",
        err=True,
    )
    for reason, count in Counter(each["reason"] for each in plan["skipped_children"]).items():
        click.echo(f"Not erased with it: {count:,} runs below it ({reason}).", err=True)
    if click.prompt(f"Type {PHRASE} to go on", default="", show_default=False, err=True) != PHRASE:
        raise RemoteError("nothing was erased")


@click.group(epilog=EXIT_STATUSES)
def erasure() -> None:
    """List, read and check the receipts of erased payloads."""


@erasure.command(name="list")
@click.option("--limit", type=click.IntRange(1, 200), help="Receipts of the page; 50 if not given.")
@click.option("--cursor", help="`next_cursor` of the page before.")
@with_session
def list_(session: Session, limit: int | None, cursor: str | None) -> None:
    """Show the receipts, newest first, one page, over all shards."""
    answer = session.remote.get("admin", "erasures", limit=limit, cursor=cursor)
    session.show(answer)
    session.warn_of_missing_shards(answer)


@erasure.command()
@click.argument("receipt")
@with_session
def get(session: Session, receipt: str) -> None:
    """Show one receipt: what was erased, by whom, when and why."""
    session.show(session.remote.get("admin", "erasures", receipt))


@erasure.command()
@click.argument("receipt")
@with_session
def verify(session: Session, receipt: str) -> None:
    """Check that an execution is still as its receipt says; the exit status is 1 where it is not."""
    answer = session.remote.post("admin", "erasures", receipt, "verify", body=b"{}")
    session.show(answer)
    if not msgspec.json.decode(answer.body)["matches"]:
        sys.exit(RemoteError.exit_code)
