"""`harvest lint`: what workflow code does that cannot be replayed, without running any of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from harvest.definitions.lint import Report


@click.command()
@click.argument("targets", metavar="MODULE_OR_PATH...", nargs=-1, required=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def lint(targets: tuple[str, ...], form: str) -> None:
    """Look for what cannot be replayed in the workflows of files, folders and modules; nothing is imported.

    Exit status 1 when something was found, 2 when a target cannot be read. `# harvest: allow HVG001` on a line allows
    it there.
    """
    from harvest.definitions.lint import check_paths

    report = check_paths(targets)
    if form == "json":
        click.echo(_as_json(report))
    else:
        for each in report.findings:
            click.echo(f"{each.file}:{each.line}:{each.column}: {each.severity} {each.rule} {each.message}")
        click.echo(_summary(report), err=True)
    sys.exit(1 if report.findings else 0)


def _as_json(report: Report) -> str:
    errors = _errors(report)
    document = {
        "findings": [msgspec.to_builtins(finding) | {"message": finding.message} for finding in report.findings],
        "errors": errors,
        "warnings": len(report.findings) - errors,
        "workflows": report.workflows,
        "files": report.files,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _summary(report: Report) -> str:
    where = f"{_counted(report.workflows, 'workflow')} of {_counted(report.files, 'file')}"
    if not report.findings:
        return f"nothing found in {where}"
    errors = _errors(report)
    return f"{_counted(errors, 'error')} and {_counted(len(report.findings) - errors, 'warning')} in {where}"


def _errors(report: Report) -> int:
    return sum(finding.severity == "error" for finding in report.findings)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
