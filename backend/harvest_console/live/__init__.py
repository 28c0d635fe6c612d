"""The one event stream of a tab: hints that say what to read again, never data (console 5.4)."""

from harvest_console.live.hub import Hub
from harvest_console.live.routes import routers

__all__ = ["Hub", "routers"]
