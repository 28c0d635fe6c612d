"""Paths whose parts may hold a slash: `%2F` in a part stays in that part."""

from __future__ import annotations

from urllib.parse import unquote

# No id or name that we keep may hold a NUL, so it can stand for the slash between routing and reading.
_STAND_IN = "\x00"


def routable(raw_path: bytes, path: str) -> str:
    """The path to route by, from what was sent: encoded slashes are kept out of the router's sight.

    A path with an encoded NUL leads nowhere. `path` is taken where the server tells nothing else.
    """
    text = raw_path.partition(b"?")[0].decode("latin-1")
    if "%00" in text:
        return f"/{_STAND_IN}"
    return "/".join(unquote(part).replace("/", _STAND_IN) for part in text.split("/")) or path


def part(value: str) -> str:
    """A path parameter as the caller meant it."""
    return value.replace(_STAND_IN, "/")
