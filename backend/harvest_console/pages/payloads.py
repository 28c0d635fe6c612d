"""Payloads on pages: the first 2 kB laid out, the size, and where the rest is."""

from __future__ import annotations

from typing import Final

import msgspec

from harvest.operations.views import Payload, Truncated
from harvest_console.rendering.json_text import HEAD_BYTES, Head, head_of

_PLAIN: Final = 200


def payload_head(payload: Payload | None, limit: int = HEAD_BYTES) -> Head | None:
    """The first part of a payload that a view carries; None for none."""
    if payload is None:
        return None
    if isinstance(payload, Truncated):
        head = head_of(payload.head.encode(), limit)
        return Head(head.text, payload.bytes, True)
    return head_of(bytes(payload), limit)


def plain_text(payload: Payload | None) -> str:
    """At most 200 characters of a value of an event's data: a string as what it says, anything else as JSON."""
    if payload is None:
        return ""
    if isinstance(payload, Truncated):
        return payload.head.removeprefix('"')[:_PLAIN]
    data = bytes(payload)
    if data.startswith(b'"'):
        try:
            return msgspec.json.decode(data, type=str)[:_PLAIN].replace("\x00", "\N{REPLACEMENT CHARACTER}")
        except msgspec.MsgspecError:
            pass
    return head_of(data, _PLAIN).text


def said_text(payload: Payload | None, limit: int = HEAD_BYTES) -> Head | None:
    """The first part of what code says in a payload: text as it reads, anything else laid out; None for none."""
    if payload is None:
        return None
    if not isinstance(payload, Truncated) and (data := bytes(payload)).startswith(b'"'):
        try:
            text = msgspec.json.decode(data, type=str).replace("\x00", "\N{REPLACEMENT CHARACTER}")
        except msgspec.MsgspecError:
            return payload_head(payload, limit)
        return Head(text[:limit], len(data), len(text) > limit)
    return payload_head(payload, limit)
