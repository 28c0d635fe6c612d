"""Types are kept from the declaration to the result: strict mypy reads a file as an author would write it."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

USAGE = Path(__file__).with_name("typed_usage.py")
ROOT = USAGE.parent.parent.parent


def test_exactly_the_wrong_lines_are_errors() -> None:
    said, trouble, _ = api.run(
        ["--strict", "--config-file", str(ROOT / "pyproject.toml"), "--follow-imports=silent", str(USAGE)]
    )
    assert not trouble, trouble
    found = {int(line) for line in re.findall(rf"{USAGE.name}:(\d+): error", said)}
    wrong = {n for n, line in enumerate(USAGE.read_text().splitlines(), 1) if "# wrong" in line}
    assert len(wrong) == 11
    assert found == wrong, said
