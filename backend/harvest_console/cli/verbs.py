"""Every verb of `harvest workflow`: importing a module of verbs adds them to the group."""

from harvest_console.cli import changing, erasing, inspecting, reading
from harvest_console.cli.workflow import workflow

__all__ = ["changing", "erasing", "inspecting", "reading", "workflow"]
