"""Where commands find a bearer token. Imports nothing that is slow: `harvest workflow` runs in scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

DEFAULT_DATA_DIR: Final = ".harvest"
TOKEN_FILE: Final = "admin.token"


def find_token(environment: Mapping[str, str], data_dir: Path) -> str | None:
    """The bearer token for commands: HARVEST_ADMIN_TOKEN, else the development setup's in `data_dir`, else None."""
    given = environment.get("HARVEST_ADMIN_TOKEN")
    if given:
        return given
    try:
        return (data_dir / TOKEN_FILE).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
