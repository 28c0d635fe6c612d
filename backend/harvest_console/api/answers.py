"""Requests read into structs and answers written from them: strict, and with numbers as they were stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from litestar import Request, Response

from harvest.errors import InvalidRequestError
from harvest.shards import MissingShard, Partial

S = TypeVar("S", bound=msgspec.Struct)
AnyRequest = Request[Any, Any, Any]
JSON: Final = "application/json"
_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CSV: Final = frozenset({"state", "status"})
_REPEATED: Final = frozenset({"search_attr", "search_attr_filter"})


class UnavailableShard(msgspec.Struct, frozen=True):
    """A shard that the answer does without, and why."""

    shard_id: int
    reason: str


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    """A JSON answer; payloads in it go out as the bytes that were stored."""
    return Response(msgspec.json.encode(content), status_code=status, media_type=JSON, headers=dict(headers or {}))


def unavailable(missing: tuple[MissingShard, ...]) -> list[UnavailableShard]:
    """The missing shards as answers name them."""
    return [UnavailableShard(shard.shard_id, shard.reason) for shard in missing]


def status_fields(partial: Partial[Any]) -> dict[str, Any]:
    """`status` and `unavailable_shards`, which every answer over several shards has."""
    return {"status": partial.status, "unavailable_shards": unavailable(partial.missing)}


def read_query(request: AnyRequest, kind: type[S]) -> S:
    """The query string as `kind`; raises InvalidRequestError naming the parameter that is unknown or wrong."""
    raw = request.scope["query_string"].decode("latin-1")
    if _BAD_ESCAPE.search(raw):
        raise InvalidRequestError("the query string has a % that is not followed by two hexadecimal digits")
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise InvalidRequestError(f"the query string is malformed: {error}") from None
    values: dict[str, Any] = {name: [] for name, _ in pairs if name in _REPEATED}
    for name, value in pairs:
        if name in _REPEATED:
            values[name].append(value)
        elif name not in values:
            values[name] = value
        elif name in _CSV:
            values[name] += f",{value}"
        else:
            raise InvalidRequestError(f"the query parameter {name!r} is given twice", field=name)
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid("query", str(error)) from None


def read_body(body: bytes, kind: type[S]) -> S:
    """The JSON body as `kind`; an empty body is an empty object. Raises InvalidRequestError naming the field."""
    try:
        body.decode()
        return msgspec.json.decode(body or b"{}", type=kind)
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the body is not UTF-8: {error}") from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise _invalid("body", str(error)) from None


def _invalid(part: str, message: str) -> InvalidRequestError:
    where = _WHERE.search(message)
    if where is None or not where[1]:
        return InvalidRequestError(f"the {part} is not valid: {_WHERE.sub('', message)}")
    return InvalidRequestError(f"{where[1]}: {message[: where.start()]}", field=where[1])
