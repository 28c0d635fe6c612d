"""From JSON text back to the values of a form, for the step from the raw tab to the fields."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from harvest_console.pages.forms.fields import COUNT, INCLUDED, ROOT, TEXT, pointer_part
from harvest_console.pages.forms.schema import MOST_ITEMS, Schema, build_form
from harvest_console.pages.forms.writing import json_of_form

MOST_CHARACTERS: Final = 64 * 1024


class _Number(str):
    """A number as it is written."""


def values_of_json(text: str, schema: Schema) -> dict[str, str] | None:
    """The values of a form for `schema` that stand for `text`; None if the form cannot hold all of it exactly."""
    if len(text) > MOST_CHARACTERS:
        return None
    try:
        value = _loads(text)
    except (ValueError, RecursionError):
        return None
    values: dict[str, str] = {}
    _flatten(value, ROOT, values)
    written, problems = json_of_form(build_form(schema, values))
    same = not problems and _comparable(_loads(written)) == _comparable(value)
    return values if same else None


def _loads(text: str) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_refuse)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _flatten(value: Any, name: str, values: dict[str, str]) -> None:
    """Every value under its own name, as what a control shows and as JSON text: the form takes what it needs."""
    values[name + TEXT] = _dumps(value)
    if isinstance(value, dict):
        values[name + INCLUDED] = "on"
        for key, member in value.items():
            _flatten(member, f"{name}/{pointer_part(key)}", values)
    elif isinstance(value, list):
        values[name + INCLUDED] = "on"
        values[name + COUNT] = str(len(value))
        for place, item in enumerate(value[:MOST_ITEMS]):
            _flatten(item, f"{name}/{place}", values)
    elif isinstance(value, bool):
        values[name] = "true" if value else "false"
    elif isinstance(value, str):
        values[name] = str(value)


def _dumps(value: Any) -> str:
    """JSON text with every number as it was written."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_dumps(str(key))}: {_dumps(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_dumps, value)) + "]"
    return str(value) if isinstance(value, _Number) else msgspec.json.encode(value).decode()


def _comparable(value: Any) -> Any:
    """What two texts are compared by: to a form, a member that is null or an empty array is one left out."""
    if isinstance(value, dict):
        return {key: _comparable(member) for key, member in value.items() if member is not None and member != []}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return ("number", str(value)) if isinstance(value, _Number) else value
