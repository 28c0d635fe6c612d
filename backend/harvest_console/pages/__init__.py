"""The console's pages: one controller a page, each parses, calls operations and renders (design 1)."""

from harvest_console.pages.errors import error_page
from harvest_console.pages.routing import routers

__all__ = ["error_page", "routers"]
