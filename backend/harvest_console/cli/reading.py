"""`harvest workflow tree`, `children`, `run-chain`, `timeline`, `count`, and `harvest history export` (reference 6)."""

from __future__ import annotations

from pathlib import Path

import click

from harvest_console.cli.remote import EXIT_STATUSES
from harvest_console.cli.workflow import BY_NAME, Session, filter_options, filter_query, with_session, workflow


def _path(name: str | None, target: str, *more: str) -> list[str]:
    """The path of what is read of an execution: by its id, or by type and workflow id."""
    return ["workflows", *(("by-id", name, target) if name else (target,)), *more]


@workflow.command()
@click.argument("execution")
@BY_NAME
@click.option("--max-depth", type=click.IntRange(1, 50), help="Levels below it; 20 if not given.")
@click.option("--max-nodes", type=click.IntRange(1, 10_000), help="Runs altogether; 1,000 if not given.")
@click.option("--summary", is_flag=True, help="The figures alone.")
@with_session
def tree(
    session: Session,
    execution: str,
    workflow_name: str | None,
    max_depth: int | None,
    max_nodes: int | None,
    summary: bool,
) -> None:
    """Show the tree of runs below an execution, over all shards."""
    answer = session.remote.get(
        *_path(workflow_name, execution, "tree"),
        max_depth=max_depth,
        max_nodes=max_nodes,
        summary="true" if summary else None,
    )
    session.show(answer)
    session.warn_of_missing_shards(answer)


@workflow.command()
@click.argument("execution")
@BY_NAME
@click.option("--status", multiple=True, help="RUNNING, COMPLETED, FAILED, …; may be given several times.")
@click.option("--child-name", help="Only children of this type.")
@click.option("--depth", type=click.IntRange(0, 5), help="Levels of descendants below each child; none if not given.")
@click.option("--limit", type=click.IntRange(1, 200), help="Children of the page; 50 if not given.")
@click.option("--cursor", help="`next_cursor` of the page before.")
@with_session
def children(
    session: Session,
    execution: str,
    workflow_name: str | None,
    status: tuple[str, ...],
    child_name: str | None,
    depth: int | None,
    limit: int | None,
    cursor: str | None,
) -> None:
    """Show the children of an execution, one page, over all shards."""
    answer = session.remote.get(
        *_path(workflow_name, execution, "children"),
        status=",".join(status) or None,
        workflow_name=child_name,
        depth=depth,
        limit=limit,
        cursor=cursor,
    )
    session.show(answer)
    session.warn_of_missing_shards(answer)


@workflow.command(name="run-chain")
@click.argument("execution")
@BY_NAME
@click.option(
    "--before", type=click.IntRange(1), help="Only runs numbered below this; `next_cursor` of the page before."
)
@click.option("--limit", type=click.IntRange(1, 1000), help="Runs of the page; 100 if not given.")
@with_session
def run_chain(
    session: Session, execution: str, workflow_name: str | None, before: int | None, limit: int | None
) -> None:
    """Show the runs of an execution's chain: continued as new, or tried again."""
    session.show(session.remote.get(*_path(workflow_name, execution, "run-chain"), before=before, limit=limit))


@workflow.command()
@click.argument("execution")
@BY_NAME
@click.option("--after-step", type=click.IntRange(0), help="Only steps after this; `next_cursor` of the page before.")
@click.option("--before-step", type=click.IntRange(1), help="Only steps right before this one.")
@click.option("--limit", type=click.IntRange(1, 500), help="Steps of the page; 200 if not given.")
@with_session
def timeline(
    session: Session,
    execution: str,
    workflow_name: str | None,
    after_step: int | None,
    before_step: int | None,
    limit: int | None,
) -> None:
    """Show the steps of an execution with their times, and what took the longest."""
    session.show(
        session.remote.get(
            *_path(workflow_name, execution, "timeline"), after_step=after_step, before_step=before_step, limit=limit
        )
    )


@workflow.command()
@click.option(
    "--group-by", type=click.Choice(["state", "workflow_name", "state,workflow_name"]), help="Count in groups."
)
@filter_options
@click.option("--limit-groups", type=click.IntRange(1, 500), help="Groups that are told apart; 50 if not given.")
@with_session
def count(session: Session, **query: object) -> None:
    """Count executions over all shards, to a cap."""
    answer = session.remote.get("workflows", "count", **filter_query(query))
    session.show(answer)
    session.warn_of_missing_shards(answer)


@click.group(epilog=EXIT_STATUSES)
def history() -> None:
    """Take histories out of the databases."""


@history.command()
@click.argument("execution")
@BY_NAME
@click.option(
    "--payload-policy",
    type=click.Choice(["full", "redacted", "omit"]),
    help="Whether payloads are in it, their sizes, or nothing of them; full if not given.",
)
@click.option("--max-bytes", type=click.IntRange(1), help="Refuse a document that has more.")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the document here and print nothing.",
)
@with_session
def export(
    session: Session,
    execution: str,
    workflow_name: str | None,
    payload_policy: str | None,
    max_bytes: int | None,
    file: Path | None,
) -> None:
    """Print the whole history of an execution as a document that `harvest replay` and golden tests read."""
    answer = session.remote.get(
        *_path(workflow_name, execution, "history", "export"), payload_policy=payload_policy, max_bytes=max_bytes
    )
    if file is None:
        session.show(answer)
        return
    try:
        file.write_bytes(answer.body)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror}") from None
