"""A form as data: a tree of fields. Names are `v` and the JSON pointer of what a field holds."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from msgspec import Struct

ROOT: Final = "v"
# Beside the value of a field: whether it is there at all, how many items it has, its JSON text.
INCLUDED: Final = "?"
COUNT: Final = "#"
TEXT: Final = "="


class Choice(Struct, frozen=True):
    """One of the values that a field may have, as JSON text, and how it is shown."""

    json: str
    label: str


class Problem(Struct, frozen=True):
    """What is wrong with the value at a JSON pointer."""

    pointer: str
    message: str


class Field(Struct, frozen=True, kw_only=True):
    """One control or group of controls.

    `kind` is object, tuple, array, text, integer, number, boolean, choice, constant, json or nothing. `value` is the
    text in the control; of a constant its JSON. `included` matters to objects that may be left out.
    """

    kind: str
    name: str
    label: str
    required: bool = True
    nullable: bool = False
    hint: str = ""
    value: str = ""
    included: bool = True
    multiline: bool = False
    choices: tuple[Choice, ...] = ()
    children: tuple[Field, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def pointer(self) -> str:
        """The JSON pointer of the value."""
        return self.name[len(ROOT) :]

    @property
    def id(self) -> str:
        """An id for the control that holds no space, and works after `#` as it is."""
        return quote(self.name, safe="/")

    @property
    def can_be_left_out(self) -> bool:
        """Whether the value may be absent or null."""
        return not self.required or self.nullable


def pointer_part(key: str) -> str:
    """A member's name as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
