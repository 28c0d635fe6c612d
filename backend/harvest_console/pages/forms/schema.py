"""From a JSON Schema and the values typed so far to a tree of fields.

Objects, arrays, tuples, enums, numbers, booleans, strings, null beside them, and `$ref`, nested. Whatever else a schema
says becomes a field for JSON text: nothing that can be started by API cannot be started here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from harvest_console.pages.forms.fields import COUNT, INCLUDED, ROOT, TEXT, Choice, Field, pointer_part

Schema = Mapping[str, Any]

DEEPEST: Final = 6
MOST_ITEMS: Final = 100
MOST_FIELDS: Final = 400
_SIMPLE: Final = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
_LONG_WORDS: Final = frozenset({"note", "notes", "comment", "description", "message", "text", "body", "reason"})
_BOUNDS: Final = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("multipleOf", "a multiple of {}"),
    ("minLength", "{} or more characters"),
    ("maxLength", "{} characters at most"),
    ("pattern", "must match {}"),
)


def build_form(schema: Schema, values: Mapping[str, str] | None = None, *, title: str = "") -> Field:
    """The form of `schema`, filled with `values` by field name; without values an empty form."""
    return _Builder(schema, values or {}).field(schema, ROOT, title, required=True, depth=0)


class _Builder:
    """Walks one schema; knows its definitions, the values, and how many fields there are already."""

    def __init__(self, root: Schema, values: Mapping[str, str]) -> None:
        self._definitions: Mapping[str, Any] = root.get("$defs", {})
        self._values = values
        self._count = 0

    def field(self, schema: Schema, name: str, label: str, *, required: bool, depth: int) -> Field:
        self._count += 1
        plain, nullable = _without_null(self._resolved(schema))
        plain = self._resolved(plain)
        kind = _kind_of(plain)
        common: dict[str, Any] = {
            "name": name,
            "label": label,
            "required": required,
            "nullable": nullable,
            "hint": _hint(schema, plain, required=required),
            "value": self._value(name, schema, required=required),
        }
        # Left empty, such a field could mean null or its default: only JSON text can say which.
        ambiguous = nullable and not required and schema.get("default") is not None
        if ambiguous or depth > DEEPEST or self._count > MOST_FIELDS:
            kind = "json"
        if kind in ("json", "choice"):
            text = self._values.get(name + TEXT, common["value"])
            common["value"] = "" if text == "null" and nullable and kind == "choice" else text
        if kind == "object":
            return self._object(plain, common, depth)
        if kind == "tuple":
            return self._tuple(plain, common, depth)
        if kind == "array":
            return self._array(plain, common, depth)
        if kind == "choice":
            choices = tuple(_choice(value) for value in _options(plain))
            if len(choices) == 1 and required and not nullable:
                return Field(kind="constant", **{**common, "value": choices[0].json})
            return Field(kind="choice", choices=choices, **common)
        if kind == "text":
            value = common["value"]
            long = plain.get("maxLength", 0) > 200 or "\n" in value or len(value) > 80
            return Field(kind="text", multiline=long or label.lower() in _LONG_WORDS, **common)
        return Field(kind=kind, **common)

    def _value(self, name: str, schema: Schema, *, required: bool) -> str:
        """What was typed; in a new form the default of what cannot be left out."""
        if self._values or not required or "default" not in schema:
            return self._values.get(name, "")
        default = schema["default"]
        return default if isinstance(default, str) else msgspec.json.encode(default).decode()

    def _object(self, plain: Schema, common: dict[str, Any], depth: int) -> Field:
        needed = set(plain.get("required", ()))
        name = common["name"]
        children = tuple(
            self.field(member, f"{name}/{pointer_part(key)}", key, required=key in needed, depth=depth + 1)
            for key, member in plain["properties"].items()
        )
        return Field(
            kind="object", children=children, keys=tuple(plain["properties"]), included=self._included(common), **common
        )

    def _tuple(self, plain: Schema, common: dict[str, Any], depth: int) -> Field:
        items = plain["prefixItems"]
        labels = plain.get("x-parameters") or [str(place + 1) for place in range(len(items))]
        least = plain.get("minItems", len(items))
        name = common["name"]
        children = tuple(
            self.field(item, f"{name}/{place}", labels[place], required=place < least, depth=depth + 1)
            for place, item in enumerate(items)
        )
        return Field(kind="tuple", children=children, included=self._included(common), **common)

    def _array(self, plain: Schema, common: dict[str, Any], depth: int) -> Field:
        name = common["name"]
        count = self._values.get(name + COUNT, "")
        length = int(count) if count.isascii() and count.isdigit() else 0
        if not self._values and common["required"]:
            length = min(int(plain.get("minItems", 0)), MOST_ITEMS)
        label = common["label"] or "item"
        children = tuple(
            self.field(plain["items"], f"{name}/{place}", f"{label} {place + 1}", required=True, depth=depth + 1)
            for place in range(min(length, MOST_ITEMS))
        )
        return Field(kind="array", children=children, **common)

    def _included(self, common: dict[str, Any]) -> bool:
        if common["required"] and not common["nullable"]:
            return True
        return self._values.get(common["name"] + INCLUDED) == "on"

    def _resolved(self, schema: Schema) -> Schema:
        """Follow `$ref` into `$defs`; what else stands beside the reference is kept."""
        seen = 0
        while (reference := schema.get("$ref")) and seen < 10:
            target = self._definitions.get(str(reference).removeprefix("#/$defs/"), {})
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
            seen += 1
        return schema


def _without_null(schema: Schema) -> tuple[Schema, bool]:
    """The schema without its null, and whether it had one beside something else."""
    if "anyOf" in schema:
        others = [one for one in schema["anyOf"] if one.get("type") != "null"]
        nullable = len(others) < len(schema["anyOf"])
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        if len(others) == 1:
            return {**others[0], **rest}, nullable
        return {**rest, "anyOf": others}, nullable
    kinds = schema.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        others = [kind for kind in kinds if kind != "null"]
        return {**schema, "type": others[0] if len(others) == 1 else others}, True
    if None in schema.get("enum", ()) and len(schema["enum"]) > 1:
        return {**schema, "enum": [value for value in schema["enum"] if value is not None]}, True
    return schema, False


def _kind_of(plain: Schema) -> str:
    if "anyOf" in plain or "oneOf" in plain or "allOf" in plain:
        return "json"
    if "enum" in plain or "const" in plain:
        return "choice"
    kind = plain.get("type")
    if kind == "object" and isinstance(plain.get("properties"), dict):
        return "object"
    if kind == "array" and plain.get("prefixItems"):
        return "tuple"
    if kind == "array" and isinstance(plain.get("items"), dict) and plain["items"]:
        return "array"
    if kind == "null":
        return "nothing"
    return _SIMPLE.get(kind, "json") if isinstance(kind, str) else "json"


def _options(plain: Schema) -> list[Any]:
    return list(plain["enum"]) if "enum" in plain else [plain["const"]]


def _choice(value: Any) -> Choice:
    text = msgspec.json.encode(value).decode()
    return Choice(json=text, label=value if isinstance(value, str) else text)


def _hint(schema: Schema, plain: Schema, *, required: bool) -> str:
    """Description, bounds and default, as far as the schema tells them."""
    parts = [str(plain["description"])] if plain.get("description") else []
    parts += [text.format(plain[key]) for key, text in _BOUNDS if key in plain]
    if plain.get("format"):
        parts.append(_FORMATS.get(plain["format"], f"format {plain['format']}"))
    if not required and schema.get("default") not in (None, "", [], {}):
        parts.append(f"default {msgspec.json.encode(schema['default']).decode()}")
    text = "; ".join(part.rstrip(".") for part in parts)
    return text[:1].upper() + text[1:]


_FORMATS: Final = {
    "date-time": "date and time with its zone, like 2026-11-29T14:21:58Z",
    "date": "a date, like 2026-11-29",
    "time": "a time, like 14:21:58",
    "duration": "a duration, like PT1H30M",
    "uuid": "a UUID",
}
