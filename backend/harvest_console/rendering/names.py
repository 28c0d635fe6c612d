"""Names of runs as people read them."""

from __future__ import annotations

import re
from typing import Final

# What a child is called that was given no name: its parent's execution id, and the number of the command.
_UNNAMED: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(/\d+)", re.ASCII)


def short_id(workflow_id: str) -> str:
    """`…/3` for a child that was given no name beside its parent; any other workflow id as it is."""
    match = _UNNAMED.fullmatch(workflow_id)
    return f"…{match[1]}" if match else workflow_id
