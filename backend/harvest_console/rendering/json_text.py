"""Payloads as text: laid out from the exact bytes, number by number as they were written, never parsed into floats."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

HEAD_BYTES: Final = 2048
PAGE_BYTES: Final = 64 * 1024

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_SHORT: Final = 72
# What stands where a value was erased (`harvest.history.erasing`), as it is laid out here.
TOMBSTONE: Final = re.compile(r'\{\s*"_harvest_erased":\s*true\s*\}')
# A container without another inside that fits on one line.
_FLAT = re.compile(rb'[\[{](?:[^\[\]{}"]|"(?:[^"\\]|\\.)*")*[\]}]', re.DOTALL)


class Head(Struct, frozen=True):
    """The first part of a payload. `size` is that of the whole in bytes; `cut` tells whether there is more."""

    text: str
    size: int
    cut: bool

    @property
    def erased(self) -> bool:
        """Whether the payload was erased as a whole."""
        return TOMBSTONE.fullmatch(self.text) is not None


def head_of(data: bytes, limit: int = HEAD_BYTES) -> Head:
    """Lay out JSON text until about `limit` characters are written; what is not JSON is shown as it is stored."""
    layout, place, end = _Layout(limit), 0, min(len(data), limit * 2)
    while not layout.full and (match := _TOKEN.search(data, place, end)):
        place = match.end()
        if match.group() in (b"[", b"{") and layout.depth:
            flat = _FLAT.match(data[match.start() : match.start() + _SHORT])
            if flat:
                place = match.start() + flat.end()
                layout.add_flat(_TOKEN.findall(flat.group()))
                continue
        layout.add(match.group())
    text = layout.text()
    cut = layout.full or place < end == limit * 2 or len(data) > limit * 2
    if not text:
        return Head(data[:limit].decode("utf-8", "backslashreplace"), len(data), len(data) > limit)
    return Head(text, len(data), cut)


class _Layout:
    """Writes tokens with two spaces a level."""

    def __init__(self, limit: int) -> None:
        self.depth = 0
        self.full = False
        self._limit = limit
        self._parts: list[str] = []
        self._size = 0
        self._fresh = False

    def add(self, token: bytes) -> None:
        """Write one token where it belongs."""
        word = _decoded(token)
        if word in ("]", "}"):
            self.depth -= 1
            self._write(word if self._fresh else self._break() + word)
            self._fresh = False
            return
        lead = self._break() if self._fresh else ""
        self._fresh = word in ("[", "{")
        if self._fresh:
            self.depth += 1
            self._write(lead + word)
        elif word == ",":
            self._write(word + self._break())
        else:
            self._write(lead + (": " if word == ":" else word))

    def add_flat(self, tokens: list[bytes]) -> None:
        """Write a whole container on one line, as people do."""
        lead = self._break() if self._fresh else ""
        self._fresh = False
        words = [_decoded(token) for token in tokens]
        spaced = {",": ", ", ":": ": ", "{": "{ ", "}": " }"} if len(words) > 2 else {}
        self._write(lead + "".join(spaced.get(word, word) for word in words))

    def text(self) -> str:
        """What has been written."""
        return "".join(self._parts)

    def _break(self) -> str:
        return "\n" + "  " * min(self.depth, 40)

    def _write(self, text: str) -> None:
        room = self._limit - self._size
        if len(text) > room:
            text, self.full = text[:room], True
        self._parts.append(text)
        self._size += len(text)


def _decoded(token: bytes) -> str:
    """A string token with its escapes as the characters they stand for, where those can be seen."""
    if token[:1] == b'"' and b"\\" in token:
        try:
            return msgspec.json.encode(msgspec.json.decode(token)).decode()
        except msgspec.MsgspecError:
            pass
    return token.decode("utf-8", "backslashreplace")


def size_text(count: int) -> str:
    """`214 B`, `88 kB`, `5.0 MB`."""
    if count < 1000:
        return f"{count} B"
    if count < 999_500:
        return f"{count / 1000:.1f} kB" if count < 9_950 else f"{count / 1000:.0f} kB"
    return f"{count / 1_000_000:.1f} MB"
