"""Static files under addresses that hold a digest of their content, so they may be cached for ever (toolbox 1.2)."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from harvest_console.rendering.resources import resource_folder

TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


class Assets:
    """A dictionary of what may be served: built once, so no request ever names a file on disk."""

    def __init__(self, root: Path) -> None:
        self._files: dict[str, Path] = {}
        self._paths: dict[str, str] = {}
        for path in sorted(root.rglob("*")):
            if path.suffix in TYPES:
                digest = sha256(path.read_bytes()).hexdigest()[:16]
                self._files[path.name] = path
                self._paths[path.name] = f"/static/{digest}/{path.name}"

    def path(self, name: str) -> str:
        """The address of a file below the base path; KeyError for a file that does not exist."""
        return self._paths[name]

    def content(self, digest: str, name: str) -> tuple[bytes, str] | None:
        """The bytes and content type behind an address, None if the digest is not that of today's file."""
        if self._paths.get(name) != f"/static/{digest}/{name}":
            return None
        path = self._files[name]
        return path.read_bytes(), TYPES[path.suffix]


ASSETS = Assets(resource_folder("static"))
