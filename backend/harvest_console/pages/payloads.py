"""Payloads on pages: the first 2 kB laid out, the size, and where the rest is."""

from __future__ import annotations

from msgspec import Raw

from harvest.operations.views import Payload, Truncated
from harvest_console.rendering.json_text import HEAD_BYTES, Head, head_of


def payload_head(payload: Payload | None, limit: int = HEAD_BYTES) -> Head | None:
    """The first part of a payload that a view carries; None for none."""
    if payload is None:
        return None
    if isinstance(payload, Truncated):
        head = head_of(payload.head.encode(), limit)
        return Head(head.text, payload.bytes, True)
    return head_of(bytes(payload), limit)


def plain_text(payload: Payload | None) -> str:
    """A short value of an event's data as plain text: a string without its quotes, anything else as JSON."""
    if not isinstance(payload, Raw):
        return ""
    text = head_of(bytes(payload), 200).text
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
