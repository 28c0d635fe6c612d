"""The one place that writes addresses: ids and names go into the query, percent-encoded, never into the path."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote


def build_url(base: str, path: str, **parameters: object) -> str:
    """`base` + `path` + query. None and empty values are left out; a list repeats its name; spaces become %20."""
    pairs = []
    for name, value in parameters.items():
        values: Iterable[object] = value if isinstance(value, (list, tuple)) else (value,)
        pairs += [f"{name}={quote(str(one), safe='')}" for one in values if one is not None and one != ""]
    return base + path + ("?" + "&".join(pairs) if pairs else "")
