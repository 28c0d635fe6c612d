"""What the pages for operators name is there: every command with its options, every setting, every page of ours."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import msgspec
import pytest

from harvest.worker.options import WorkerOptions
from harvest_console.cli.root import root

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "operations").glob("*.md"))
RUNBOOKS = ["owner-mode.md", "rolling-deploys.md", "sizing.md"]


def commands(page: Path) -> list[str]:
    """Every line that begins with `harvest`, in blocks of code and within the text."""
    text = page.read_text()
    blocks = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found = [*blocks, *re.findall(r"`([^`\n]+)`", prose)]
    return [line.partition(" #")[0] for line in found if line.startswith("harvest ")]


def check(command: click.Command, words: list[str], line: str) -> None:
    """Fail unless the command knows these words: its verbs, and the options of the last one."""
    with click.Context(command) as context:
        if isinstance(command, click.Group):
            verb = command.get_command(context, words[0]) if words else None
            if verb is None and words and type(command).parse_args is not click.Group.parse_args:
                verb, words = command.get_command(context, "run"), ["run", *words]
            if verb is not None:
                check(verb, words[1:], line)
                return
            assert not words, f"{line}: there is no {words[0]!r}"
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    assert not unknown, f"{line}: no option {', '.join(unknown)}"


@pytest.mark.parametrize("runbook", PAGES, ids=lambda path: path.stem)
def test_the_commands_of_a_page_exist(runbook: Path) -> None:
    for line in commands(runbook):
        check(root, shlex.split(line)[1:], line)


def test_the_runbooks_are_there_and_name_commands() -> None:
    for name in RUNBOOKS:
        assert len(commands(ROOT / "docs" / "operations" / name)) >= 2


def test_the_check_finds_what_is_not_there() -> None:
    for line in ("harvest owner-mode toggle", "harvest worker drain NAME --force", "harvest migrate undo"):
        with pytest.raises(AssertionError):
            check(root, line.split()[1:], line)


def test_the_settings_of_the_sizing_page_exist() -> None:
    text = (ROOT / "docs" / "operations" / "sizing.md").read_text()
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) | set(re.findall(r"^## `(\w+)`", text, re.MULTILINE))
    assert len(named) >= 10
    assert named <= set(WorkerOptions.__struct_fields__)
    defaults = {field.name: field.default for field in msgspec.structs.fields(WorkerOptions)}
    for name, told in re.findall(r"^\| `(\w+)` \| ([\d,]+) ", text, re.MULTILINE):
        if "MiB" not in text.partition(f"| `{name}` | ")[2].partition("|")[0]:
            assert defaults[name] == int(told.replace(",", "")), name


def test_the_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "operations" / "README.md").read_text()
    assert [page.name for page in PAGES if page.name != "README.md" and f"({page.name})" not in index] == []
