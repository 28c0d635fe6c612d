"""What a start brings along, checked before it is stored: the input by its JSON Schema, search attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec
from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from harvest.errors import InputInvalidError, InvalidRequestError
from harvest.history import payload


def with_defaults(data: bytes, schema: Mapping[str, Any]) -> bytes:
    """An input that is left out, where every parameter has a default."""
    several = schema.get("type") == "array" and len(schema.get("x-parameters", ())) > 1
    return b"[]" if data == payload.NULL and several and schema.get("minItems") == 0 else data


def check_input(data: bytes, schema: Mapping[str, Any], *, what: str) -> None:
    """Check JSON text against a declared schema; raises InputInvalidError with a pointer for each problem."""
    payload.check_text(data, what=what)
    if data == payload.NULL and "default" in schema and len(schema.get("x-parameters", ())) == 1:
        return
    validator: Validator = _Validator(dict(schema), format_checker=_FORMATS)
    try:
        found = sorted(
            validator.iter_errors(msgspec.json.decode(data)), key=lambda error: list(map(str, error.absolute_path))
        )
    except RecursionError:
        raise InputInvalidError(f"{what} is nested too deeply to be checked against its schema", problems=[]) from None
    problems = [{"pointer": _pointer(error.absolute_path), "message": error.message[:500]} for error in found]
    if problems:
        first = problems[0]
        raise InputInvalidError(
            f"{what} does not fit its schema: {first['pointer'] or '/'}: {first['message']}", problems=problems[:20]
        )


def _any_of(validator: Any, alternatives: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """The tag of a tagged union says which alternative is meant.

    Trying them all takes time exponential in the depth of the value, and tells what is wrong with each.
    """
    discriminator = schema.get("discriminator")
    if discriminator is None or not isinstance(value, dict):
        yield from Draft202012Validator.VALIDATORS["anyOf"](validator, alternatives, value, schema)
        return
    name, mapping = discriminator["propertyName"], discriminator["mapping"]
    meant = mapping.get(str(value.get(name)))
    if meant is None:
        yield ValidationError(f"{name!r} must be one of {', '.join(mapping)}")
    else:
        yield from validator.descend(value, {"$ref": meant})


_Validator: Final = extend(Draft202012Validator, {"anyOf": _any_of})  # type: ignore[no-untyped-call]


def _pointer(path: Iterable[str | int]) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _formats() -> FormatChecker:
    """The formats that msgspec writes into schemas, checked by what will decode them."""
    checker = FormatChecker(formats=())
    for name, as_type in (
        ("date-time", datetime),
        ("date", date),
        ("time", time),
        ("duration", timedelta),
        ("uuid", UUID),
        ("decimal", Decimal),
    ):
        checker.checks(name, raises=msgspec.ValidationError)(partial(_converts, as_type=as_type))
    return checker


def _converts(value: object, *, as_type: type) -> bool:
    if isinstance(value, str):
        msgspec.convert(value, as_type)
    return True


_FORMATS: Final = _formats()


def search_attributes(attributes: Mapping[str, Any]) -> str:
    """Search attributes as the text of a jsonb value, which cannot hold every JSON text."""
    text = payload.encode(dict(attributes), what="search_attrs").decode()
    if "\\u0000" in text:
        raise InvalidRequestError("search_attrs hold a NUL character, which cannot be searched", field="search_attrs")
    return text
