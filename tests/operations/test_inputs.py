"""The check of an input against its schema: it says what is wrong, and takes no longer than the input is long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from harvest.definitions.signature import signature_of
from harvest.errors import InputInvalidError
from harvest.operations.inputs import check_input


class Leaf(Struct, tag=True):
    """The end of a branch."""

    number: int


class Branch(Struct, tag=True):
    """A node with others below it."""

    below: list[Node]


class Twig(Struct, tag=True):
    """Another of the same shape."""

    below: list[Node]


Node = Leaf | Branch | Twig


async def grows(tree: Node) -> None: ...


SCHEMA = signature_of(grows, skip=0, what="grows").input_schema()


def _nested(depth: int, leaf: Any) -> bytes:
    value = leaf
    for number in range(depth):
        value = {"type": ("Branch", "Twig")[number % 2], "below": [value]}
    return msgspec.json.encode(value)


def test_a_deep_tagged_union_is_checked_at_once() -> None:
    """Trying every alternative at every level would take longer than anybody lives."""
    check_input(_nested(25, {"type": "Leaf", "number": 1}), SCHEMA, what="the input")


@pytest.mark.parametrize(
    ("leaf", "pointer", "words"),
    [
        ({"type": "Leaf", "number": "one"}, "/below/0/below/0/number", "'one' is not of type 'integer'"),
        ({"type": "Fruit"}, "/below/0/below/0", "'type' must be one of Leaf, Branch, Twig"),
        ({"number": 1}, "/below/0/below/0", "'type' must be one of"),
        (7, "/below/0/below/0", "7 is not valid"),
    ],
)
def test_what_is_wrong_is_said_of_the_alternative_that_is_meant(leaf: Any, pointer: str, words: str) -> None:
    with pytest.raises(InputInvalidError) as refused:
        check_input(_nested(2, leaf), SCHEMA, what="the input")
    (problem,) = refused.value.fields["problems"]
    assert problem["pointer"] == pointer
    assert words in problem["message"]
