"""`harvest workflow query`, `handlers`, `stack` and `awaitables`: asking a run's code over the API (reference 6)."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from msgspec import Raw

from harvest_console.cli.workflow import BY_NAME, Session, json_options, json_text, with_session, workflow


def _path(name: str | None, target: str, *more: str) -> list[str]:
    """The path of what is asked of an execution: by its id, or by type and workflow id."""
    return ["workflows", *(("by-id", name, target) if name else (target,)), *more]


@workflow.command()
@click.argument("execution")
@click.argument("query_name")
@BY_NAME
@json_options("args", "The arguments as JSON: one value, or an array of several.")
@with_session
def query(
    session: Session,
    execution: str,
    query_name: str,
    workflow_name: str | None,
    args_json: str | None,
    args_file: Path | None,
) -> None:
    """Ask the query QUERY_NAME of an execution; nothing is changed by it."""
    args = json_text("args", args_json, args_file)
    path = _path(workflow_name, execution, "query", query_name)
    if args is None:
        session.show(session.remote.get(*path))
    else:
        session.show(session.remote.post(*path, body=msgspec.json.encode({"args": Raw(args)})))


@workflow.command()
@click.argument("execution")
@BY_NAME
@with_session
def handlers(session: Session, execution: str, workflow_name: str | None) -> None:
    """Show which signals, queries and updates an execution has handlers for now."""
    session.show(session.remote.get(*_path(workflow_name, execution, "handlers")))


@workflow.command()
@click.argument("execution")
@BY_NAME
@with_session
def stack(session: Session, execution: str, workflow_name: str | None) -> None:
    """Show where an execution's code waits, with file and line."""
    session.show(session.remote.get(*_path(workflow_name, execution, "stack")))


@workflow.command()
@click.argument("execution")
@BY_NAME
@with_session
def awaitables(session: Session, execution: str, workflow_name: str | None) -> None:
    """Show everything that an execution waits for, and since when."""
    session.show(session.remote.get(*_path(workflow_name, execution, "awaitables")))
