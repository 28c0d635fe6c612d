"""`harvest workflow start`, `signal`, `update`, `cancel`, `pause` and the other verbs that change runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import Raw

from harvest_console.cli.remote import Answer, RemoteError, StillOpenError
from harvest_console.cli.workflow import BY_NAME, Session, json_options, json_text, located, with_session, workflow

REUSE: Final = ("allow_duplicate", "reject_duplicate", "allow_duplicate_failed_only", "terminate_if_running")
CONFLICT: Final = ("unspecified", "fail", "use_existing", "terminate_existing")
_LAST_SHARD: Final = 65_534
REASON = click.option("--reason", default="", help="Why; the history and the audit log keep it.")


@workflow.command()
@click.argument("workflow_name")
@click.option("--workflow-id", help="Its business id; unique while the run is open.")
@click.option("--version", type=click.IntRange(1), help="This version exactly, and not the latest that is registered.")
@click.option("--queue", help="The task queue, if not the type's own.")
@click.option("--priority", type=int, help="Higher is taken first.")
@json_options("input", "The input as JSON.")
@json_options("memo", "A note kept with the run, as JSON.")
@json_options("search-attrs", "Search attributes, a JSON object.")
@click.option("--execution-timeout-secs", type=float, help="The run's deadline, from its start.")
@click.option("--chain-execution-timeout-secs", type=float, help="The same over all runs that follow it, too.")
@click.option("--retry-json", help='How a failed run is tried again, a JSON object: {"max_attempts": 3, …}.')
@click.option("--reuse-policy", type=click.Choice(REUSE), help="When an earlier run of the id has ended.")
@click.option("--conflict-policy", type=click.Choice(CONFLICT), help="When a run of the id is open.")
@click.option("--idempotency-key", help="Starting again with the same key gives the same run.")
@click.option("--shard-id", type=click.IntRange(0, _LAST_SHARD), help="Place it, and all that follow, on this shard.")
@click.option("--residency-key", help="The same by a key of the deployment's residency map.")
@with_session
def start(
    session: Session,
    workflow_name: str,
    input_json: str | None,
    input_file: Path | None,
    memo_json: str | None,
    memo_file: Path | None,
    search_attrs_json: str | None,
    search_attrs_file: Path | None,
    retry_json: str | None,
    idempotency_key: str | None,
    **plain: Any,
) -> None:
    """Start a workflow of type WORKFLOW_NAME."""
    if plain["shard_id"] is not None and plain["residency_key"] is not None:
        raise click.UsageError("--shard-id and --residency-key exclude each other: give one of them")
    body: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    for name, data in (
        ("input", json_text("input", input_json, input_file)),
        ("memo", json_text("memo", memo_json, memo_file)),
        ("search_attrs", json_text("search-attrs", search_attrs_json, search_attrs_file)),
        ("retry", json_text("retry", retry_json, None)),
    ):
        if data is not None:
            body[name] = Raw(data)
    path = ("workflows", workflow_name, "start")
    session.show(session.remote.post(*path, body=msgspec.json.encode(body), idempotency_key=idempotency_key))


@workflow.command(name="start-batch")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--atomic/--each", default=False, help="All of them in one transaction, or each by itself.", show_default=True
)
@with_session
def start_batch(session: Session, file: Path, atomic: bool) -> None:
    """Start the runs of FILE, a JSON array of {workflow_name, workflow_id, input, idempotency_key, …}; - is stdin."""
    items = Raw(json_text("items", None, file) or b"[]")
    body = msgspec.json.encode({"items": items, "atomic": atomic})
    answer = session.remote.post("workflows", "batch_start", body=body)
    session.show(answer)
    if msgspec.json.decode(answer.body).get("failed"):
        sys.exit(RemoteError.exit_code)


@workflow.command()
@click.argument("execution")
@click.argument("signal_name")
@BY_NAME
@json_options("payload", "The payload as JSON; null if not given.")
@click.option("--idempotency-key", help="Signalling again with the same key delivers it once.")
@with_session
def signal(
    session: Session,
    execution: str,
    signal_name: str,
    workflow_name: str | None,
    payload_json: str | None,
    payload_file: Path | None,
    idempotency_key: str | None,
) -> None:
    """Send the signal SIGNAL_NAME to an execution."""
    body = json_text("payload", payload_json, payload_file) or b"null"
    path = located(workflow_name, execution, "signal", signal_name)
    session.show(session.remote.post(*path, body=body, idempotency_key=idempotency_key))


@workflow.command()
@click.argument("execution")
@click.argument("update_name")
@BY_NAME
@json_options("input", "What the handler is given, as JSON; null if not given.")
@click.option("--wait", type=click.Choice(["admitted", "completed"]), help="Until when; completed if not given.")
@click.option("--timeout-secs", type=click.FloatRange(0, 30), help="How long to wait for the answer; 30 if not given.")
@click.option("--idempotency-key", help="Sending it again with the same key finds the same update.")
@with_session
def update(
    session: Session,
    execution: str,
    update_name: str,
    workflow_name: str | None,
    input_json: str | None,
    input_file: Path | None,
    idempotency_key: str | None,
    **query: Any,
) -> None:
    """Send the update UPDATE_NAME to an execution, and show what its handler answers."""
    body = msgspec.json.encode({"input": Raw(json_text("input", input_json, input_file) or b"null")})
    path = located(workflow_name, execution, "update", update_name)
    session.show(session.remote.post(*path, body=body, idempotency_key=idempotency_key, **query))


@workflow.command(name="update-result")
@click.argument("execution")
@click.argument("update_id")
@BY_NAME
@click.option("--wait", type=click.FloatRange(0, 30), default=0.0, show_default=True, help="Seconds to wait for it.")
@with_session
def update_result(session: Session, execution: str, update_id: str, workflow_name: str | None, wait: float) -> None:
    """Show how the update UPDATE_ID of an execution was answered."""
    path = located(workflow_name, execution, "update", update_id, "result")
    answer = session.remote.get(*path, wait=f"{wait:.6f}s")
    if answer.status == 202:
        raise StillOpenError(f"update {update_id} of execution {execution} is not answered yet")
    session.show(answer)


@workflow.command()
@click.argument("execution")
@BY_NAME
@REASON
@with_session
def cancel(session: Session, execution: str, workflow_name: str | None, reason: str) -> None:
    """Ask an execution to end in its own time."""
    session.show(_for_a_reason(session, "cancel", workflow_name, execution, reason))


@workflow.command()
@click.argument("execution")
@BY_NAME
@REASON
@with_session
def terminate(session: Session, execution: str, workflow_name: str | None, reason: str) -> None:
    """End an execution at once; its code does not run again."""
    session.show(_for_a_reason(session, "terminate", workflow_name, execution, reason))


@workflow.command()
@click.argument("execution")
@BY_NAME
@REASON
@with_session
def pause(session: Session, execution: str, workflow_name: str | None, reason: str) -> None:
    """Hold an execution: nothing of it goes on until `resume`."""
    session.show(_for_a_reason(session, "pause", workflow_name, execution, reason))


@workflow.command()
@click.argument("execution")
@BY_NAME
@with_session
def resume(session: Session, execution: str, workflow_name: str | None) -> None:
    """Let a paused execution go on."""
    session.show(session.remote.post(*located(workflow_name, execution, "resume"), body=b"{}"))


def _for_a_reason(session: Session, verb: str, workflow_name: str | None, execution: str, reason: str) -> Answer:
    path = located(workflow_name, execution, verb)
    return session.remote.post(*path, body=msgspec.json.encode({"reason": reason}))
