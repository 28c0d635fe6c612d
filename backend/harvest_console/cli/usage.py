"""`harvest usage`: what each workflow type, or each value of a search attribute, has used in a window of time."""

from __future__ import annotations

import click
import msgspec

from harvest_console.cli.remote import EXIT_STATUSES
from harvest_console.cli.workflow import Session, with_session
from harvest_console.usage_text import shards_named, usage_csv, usage_table


@click.command(epilog=EXIT_STATUSES)
@click.option("--from", "since", required=True, help="An instant like 2026-06-01T00:00:00Z, or a span back like 24h.")
@click.option("--to", "until", required=True, help="The same, or now. Both ends are included.")
@click.option("--group-by", help="workflow_name, or search_attr:KEY. [workflow_name]")
@click.option("--json", "as_json", is_flag=True, help="Print the API's answer.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a table for a spreadsheet.")
@with_session
def usage(session: Session, since: str, until: str, group_by: str | None, as_json: bool, as_csv: bool) -> None:
    """Show starts, outcomes, activities and language models by group, from what is stored, over all shards."""
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    # `from` is a word of the language.
    window = {"from": since, "to": until}
    answer = session.remote.get("admin", "usage", group_by=group_by, **window)
    report = msgspec.json.decode(answer.body)
    if as_json:
        session.show(answer)
    elif as_csv:
        click.echo(usage_csv(report).encode(), nl=False)
    else:
        click.echo(f"{report['from']} to {report['to']}, by {report['group_by']}")
        click.echo(usage_table(report["groups"]) if report["groups"] else "nothing was used")
        if missing := report["unavailable_shards"]:
            click.echo(f"{report['status']}, not in these numbers: {shards_named(missing)}")
    session.warn_of_missing_shards(answer)
    if report["status"] == "unavailable":
        raise SystemExit(3)
