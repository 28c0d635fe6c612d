"""`harvest replay`: whether today's code still goes the way of recorded histories."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from harvest_console.cli.loading import load_app, pin_hash_seed

if TYPE_CHECKING:
    from harvest.definitions.registry import Registry
    from harvest.testing import Verdict


@click.command()
@click.argument("app")
@click.argument(
    "targets",
    metavar="FILE_OR_FOLDER...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each history, a line each.")
def replay(app: str, targets: tuple[Path, ...], as_json: bool) -> None:
    """Replay exported histories with the workflows of APP, and show where code and history first part.

    Histories come from `harvest history export`; of a folder, every *.json in it and below is read. Exit
    status 1 when one of them does not replay.
    """
    pin_hash_seed()
    registry = load_app(app)
    verdicts = []
    for path in _files(targets):
        verdict = _verdict(path, registry)
        verdicts.append(verdict)
        click.echo(_as_json(path, verdict) if as_json else _as_text(path, verdict))
    clean = sum(verdict.is_clean for verdict in verdicts)
    if not as_json:
        click.echo(f"{clean:,} of {len(verdicts):,} histories replay", err=True)
    sys.exit(0 if verdicts and clean == len(verdicts) else 1)


def _files(targets: tuple[Path, ...]) -> Iterator[Path]:
    for target in targets:
        if target.is_dir():
            yield from sorted(target.rglob("*.json"))
        else:
            yield target


def _verdict(path: Path, registry: Registry) -> Verdict:
    from harvest.errors import HistoryDocumentError
    from harvest.testing import Verdict, decode_document, verify

    try:
        document = decode_document(path.read_bytes())
    except HistoryDocumentError as error:
        return Verdict(
            verdict="undecodable", workflow_name="", workflow_id="", version=0, execution_id="", message=error.message
        )
    return verify(document, registry)


def _as_json(path: Path, verdict: Verdict) -> str:
    return msgspec.json.encode({"file": str(path), **msgspec.to_builtins(verdict)}).decode()


def _as_text(path: Path, verdict: Verdict) -> str:
    told = f"{path}: {verdict.verdict}: {verdict.message}"
    if verdict.divergence is None:
        return told
    found = verdict.divergence
    return (
        f"{told}\n    {found.kind} at event {found.event_id} of {verdict.workflow_name} ({verdict.workflow_id})"
        f"\n    recorded: {found.expected}\n    now:      {found.actual}\n    code:     {found.line or '(none ran)'}"
    )
