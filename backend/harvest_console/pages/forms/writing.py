"""From a filled form to the JSON text that will be stored. Numbers are copied as they were typed, digit by digit."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from harvest_console.pages.forms.fields import Field, Problem

_INTEGER: Final = re.compile(r"-?(?:0|[1-9]\d*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


def json_of_form(form: Field) -> tuple[str, list[Problem]]:
    """The JSON text of a form, and what cannot be written: with problems, the text holds `null` in their place."""
    problems: list[Problem] = []
    text = _text(form, problems)
    return ("null" if text is None else text), problems


def _text(field: Field, problems: list[Problem]) -> str | None:
    """JSON text of one field, None where the value is absent."""
    match field.kind:
        case "constant":
            return field.value
        case "nothing":
            return "null" if field.required else None
        case "object" | "tuple":
            if not field.included:
                return _empty(field)
            return _object(field, problems) if field.kind == "object" else _tuple(field, problems)
        case "array":
            if not field.children and field.can_be_left_out:
                return _empty(field)
            return "[" + ",".join(_text(child, problems) or "null" for child in field.children) + "]"
        case _:
            return _leaf(field, problems)


def _empty(field: Field) -> str | None:
    return "null" if field.required else None


def _object(field: Field, problems: list[Problem]) -> str:
    members = []
    for key, child in zip(field.keys, field.children, strict=True):
        text = _text(child, problems)
        if text is not None:
            members.append(f"{_string(key)}:{text}")
    return "{" + ",".join(members) + "}"


def _tuple(field: Field, problems: list[Problem]) -> str:
    items = [_text(child, problems) for child in field.children]
    while items and items[-1] is None:
        items.pop()
    return "[" + ",".join("null" if item is None else item for item in items) + "]"


def _leaf(field: Field, problems: list[Problem]) -> str | None:
    value = field.value.replace("\r\n", "\n")
    if not value:
        if field.can_be_left_out:
            return _empty(field)
        if field.kind == "text":
            return '""'
        problems.append(Problem(field.pointer, "Needed."))
        return "null"
    text, message = _written(field, value)
    if message:
        problems.append(Problem(field.pointer, message))
        return "null"
    return text


def _written(field: Field, value: str) -> tuple[str, str]:
    """JSON text of what was typed, or what is wrong with it."""
    stripped = value.strip()
    match field.kind:
        case "text":
            return _string(value), ""
        case "integer":
            right = _INTEGER.fullmatch(stripped)
            return stripped, "" if right else f"Must be a whole number, was {_quoted(stripped)}."
        case "number":
            right = _NUMBER.fullmatch(stripped)
            return stripped, "" if right else f"Must be a number, was {_quoted(stripped)}."
        case "boolean":
            right_word = stripped in ("true", "false")
            return stripped, "" if right_word else f"Must be true or false, was {_quoted(stripped)}."
        case "choice":
            known = any(choice.json == value for choice in field.choices)
            return value, "" if known else f"Must be one of the choices, was {_quoted(value)}."
        case _:
            return value, json_fault(value)


def json_fault(text: str) -> str:
    """What is wrong with JSON text, empty if nothing."""
    try:
        msgspec.json.decode(text.encode())
    except UnicodeEncodeError:
        return "Holds a lone surrogate, which UTF-8 cannot carry."
    except RecursionError:
        return "Is nested too deeply."
    except msgspec.DecodeError as error:
        return f"Is not JSON: {error}."
    return ""


def _string(value: str) -> str:
    return msgspec.json.encode(value).decode()


def _quoted(value: str) -> str:
    return f"“{value[:40]}…”" if len(value) > 40 else f"“{value}”"
