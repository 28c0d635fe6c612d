"""`harvest workflow …`: executions over the API (reference 6)."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from harvest.operations.filter_language import search_attr_text
from harvest_console.cli.announcement import running_address
from harvest_console.cli.remote import (
    API_PATH,
    DEFAULT_URL,
    EXIT_STATUSES,
    Answer,
    Remote,
    RemoteError,
    StillOpenError,
    is_local,
)
from harvest_console.tokens import DEFAULT_DATA_DIR, find_token

_WAIT_EACH: Final = 25.0


class Session(msgspec.Struct, frozen=True):
    """Whom a command asks, and how it prints."""

    remote: Remote
    pretty: bool

    def show(self, answer: Answer) -> None:
        """Print an answer; numbers stay as they were stored."""
        body = msgspec.json.format(answer.body, indent=2) if self.pretty else answer.body
        click.echo(body)

    def warn_of_missing_shards(self, answer: Answer) -> None:
        """Name the shards that an answer does without on standard error."""
        for shard in msgspec.json.decode(answer.body).get("unavailable_shards", ()):
            click.echo(
                f"harvest: shard {shard['shard_id']} is not in this answer: {shard['reason']}",
                err=True,
            )


def with_session(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that all of them have, as a Session."""

    @click.option(
        "--base-url",
        envvar="HARVEST_URL",
        help="Where the API is [env HARVEST_URL]; by default that of the `harvest dev` that runs on --data-dir, else "
        f"{DEFAULT_URL}.",
    )
    @click.option("--token", envvar=["HARVEST_TOKEN", "HARVEST_ADMIN_TOKEN"], help="Bearer token [env HARVEST_TOKEN].")
    @click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=DEFAULT_DATA_DIR,
        show_default=True,
        help="Where a `harvest dev` on this machine keeps its address and the token that is taken without --token.",
    )
    @click.option("--actor", envvar="HARVEST_ACTOR", help="For whom you act; the audit log keeps it.")
    @click.option("--request-id", help="An id of yours for this request; the audit log keeps it.")
    @click.option("--output", type=click.Choice(["pretty-json", "json"]), default="pretty-json", show_default=True)
    @functools.wraps(command)
    def run(
        *,
        base_url: str | None,
        token: str | None,
        data_dir: Path,
        actor: str | None,
        request_id: str | None,
        output: str,
        **kwargs: Any,
    ) -> None:
        base_url = base_url or _api_of_dev(data_dir) or DEFAULT_URL
        # What `harvest dev` keeps in its folder is sent to this machine alone.
        token = token or (find_token(os.environ, data_dir) if is_local(base_url) else None)
        remote = Remote(base_url=base_url, token=token, actor=actor, request_id=request_id)
        command(Session(remote, pretty=output == "pretty-json"), **kwargs)

    return run


def _api_of_dev(data_dir: Path) -> str | None:
    address = running_address(data_dir)
    return None if address is None else address + API_PATH


def json_text(what: str, text: str | None, file: Path | None) -> bytes | None:
    """JSON from an option or a file (`-` is standard input), as the bytes that were given; None for neither."""
    if text is not None and file is not None:
        raise click.UsageError(f"--{what}-json and --{what}-file exclude each other")
    if text is not None:
        data, source = text.encode(errors="surrogateescape"), f"--{what}-json"
    elif file is not None:
        data = sys.stdin.buffer.read() if str(file) == "-" else _read(file)
        source = str(file)
    else:
        return None
    try:
        data.decode()
        msgspec.json.decode(data)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source} is not UTF-8: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise click.UsageError(f"{source} is not JSON: {error}. A text needs quotes inside: '\"text\"'") from None
    return data


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from None


def json_options(what: str, help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The pair --WHAT-json and --WHAT-file."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        command = click.option(
            f"--{what}-file", type=click.Path(path_type=Path), help="The same from a file; - is stdin."
        )(command)
        return click.option(f"--{what}-json", help=help)(command)

    return add


def located(name: str | None, target: str, *more: str) -> list[str]:
    """The path of an execution: by its id, or by type and workflow id."""
    return ["workflows", *(("by-id", name, target) if name else (target,)), *more]


def _execution_id(session: Session, name: str | None, target: str) -> str:
    """The execution id; asked for where the target is the workflow id of a type."""
    if name is None:
        return target
    found = msgspec.json.decode(session.remote.get(*located(name, target)).body, type=dict[str, Any])
    return str(found["execution_id"])


BY_NAME = click.option("--workflow-name", help="Take the argument as the workflow id of this type.")


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a filter, which `filter_query` makes a query of. All of them must hold."""
    for option in reversed(
        (
            click.option("--state", multiple=True, help="RUNNING, COMPLETED, FAILED, …; may be given several times."),
            click.option("--workflow-name", help="Only this type."),
            click.option("--workflow-id", help="Only this id."),
            click.option("--exec-id-prefix", help="Only execution ids that begin so, like 0001019a or 0001019a-3c."),
            click.option("--started-after", help="An instant with its zone, like 2026-05-01T10:00:00Z."),
            click.option("--started-before", help="The same; exclusive."),
            click.option("--owner", help="Only those that this owner looks after."),
            click.option("--severity", help="Only those of this severity, sev1 to sev4."),
            click.option(
                "--search-attr",
                multiple=True,
                metavar="KEY=VALUE",
                help="Only with this search attribute; may be given several times. 5 is a number, '\"5\"' a text.",
            ),
            click.option(
                "--search-attr-filter",
                multiple=True,
                metavar="KEY:OP:VALUE",
                help="The same with an operator: eq, ne, gt, gte, lt, lte, in (a,b), or KEY:exists.",
            ),
            click.option("--filter", help="An expression: \"attrs.tenant = 'acme' AND started_at > -24h\"."),
        )
    ):
        command = option(command)
    return command


def filter_query(given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a filter as the API takes them."""
    pairs = given["search_attr"]
    for pair in pairs:
        if "=" not in pair:
            raise click.UsageError(f"--search-attr {pair!r} has no =; write KEY=VALUE")
    return given | {
        "state": ",".join(given["state"]) or None,
        "search_attr": [search_attr_text(*pair.split("=", 1)) for pair in pairs] or None,
        "search_attr_filter": list(given["search_attr_filter"]) or None,
    }


@click.group(epilog=EXIT_STATUSES)
def workflow() -> None:
    """Start, list, look at, signal, update, query, hold, end and erase workflows."""


@workflow.command(name="list")
@filter_options
@click.option("--order", type=click.Choice(["desc", "asc"]), help="By start; newest first unless asc.")
@click.option("--limit", type=click.IntRange(1, 200), help="Rows of the page.")
@click.option("--cursor", help="`next_cursor` of the page before.")
@with_session
def list_(session: Session, limit: int | None, **query: Any) -> None:
    """List executions, one page, over all shards."""
    answer = session.remote.get("workflows", page_size=limit, **filter_query(query))
    session.show(answer)
    session.warn_of_missing_shards(answer)


@workflow.command()
@click.argument("execution")
@BY_NAME
@with_session
def get(session: Session, execution: str, workflow_name: str | None) -> None:
    """Show one execution: state, payloads, what it waits for."""
    session.show(session.remote.get(*located(workflow_name, execution)))


@workflow.command()
@click.argument("execution")
@BY_NAME
@click.option("--after", type=int, help="Only events after this event id.")
@click.option("--before", type=int, help="Only events before this event id.")
@click.option("--limit", type=click.IntRange(1, 1000), help="Events of the page; 100 if not given.")
@click.option("--order", type=click.Choice(["asc", "desc"]), help="Oldest first unless desc.")
@with_session
def history(session: Session, execution: str, workflow_name: str | None, **query: Any) -> None:
    """Show a window of an execution's history."""
    found = _execution_id(session, workflow_name, execution)
    session.show(session.remote.get("workflows", found, "history", **query))


@workflow.command()
@click.argument("execution")
@BY_NAME
@click.option("--wait", type=click.FloatRange(0), default=0.0, help="Seconds to wait for the end.", show_default=True)
@with_session
def result(session: Session, execution: str, workflow_name: str | None, wait: float) -> None:
    """Show how an execution ended; waits for it with --wait."""
    path = located(workflow_name, execution, "result")
    while True:
        step = min(wait, _WAIT_EACH)
        answer = session.remote.get(*path, wait=f"{step:.6f}s")
        wait -= step
        if answer.status != 204 or wait <= 0:
            break
    if answer.status == 204:
        raise StillOpenError(f"execution {execution} is still open")
    session.show(answer)
    if msgspec.json.decode(answer.body).get("state") != "COMPLETED":
        sys.exit(RemoteError.exit_code)
