"""How answers become HTML: the template environment, times, payload text, assets and a reader's preferences."""

from harvest_console.rendering.answers import render, render_region
from harvest_console.rendering.urls import build_url

__all__ = ["build_url", "render", "render_region"]
