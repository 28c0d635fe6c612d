"""docs/faults.md is true: every fault is listed once, and every test that it names is there, by its number."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
ROW = re.compile(r"^\| (\d+)( ★)? \| (.+?) \| (.+?) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
STARRED = {
    1, 2, 3, 6, 7, 10, 12, 13, 17, 21, 24, 25, 26, 27, 28, 30, 33, 35, 38, 39, 42, 48, 49, 50, 52, 54, 56, 57, 62, 63,
    64,
}  # fmt: skip
ROWS = {int(number): (bool(star), held) for number, star, _, held in ROW.findall(PAGE)}


def held_by(number: int) -> list[tuple[str, str]]:
    return TEST.findall(ROWS[number][1])


def test_each_fault_is_listed_once_and_in_order() -> None:
    assert [int(row[0]) for row in ROW.findall(PAGE)] == list(range(1, 66))
    assert {number for number, (star, _) in ROWS.items() if star} == STARRED


@pytest.mark.parametrize("number", ROWS)
def test_a_fault_is_held_by_tests_of_its_number_or_cannot_arise(number: int) -> None:
    if not held_by(number):
        assert ROWS[number][1].startswith("Cannot arise: ")
    for path, name in held_by(number):
        assert f"{number:02}" in re.findall(r"\d\d", name.partition("_")[2].rstrip("_")), name
        function = functions_of(path).get(name)
        assert function is not None, f"{path} has no {name}"
        marks = [ast.unparse(each) for each in function.decorator_list]
        assert not [mark for mark in marks if "skip" in mark or "xfail" in mark], name


def functions_of(path: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
