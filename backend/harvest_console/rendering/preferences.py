"""What a reader chose for this browser: theme, time zone, keyboard shortcuts. Kept in cookies, not in the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from litestar.datastructures import Cookie
from msgspec import Struct

from harvest_console.rendering.times import DEFAULT_ZONE, known_zones

THEMES: Final = ("system", "light", "dark")
YEAR: Final = 365 * 86400


class Preferences(Struct, frozen=True):
    """A reader's choices; what is damaged or unknown in the cookies counts as not chosen."""

    theme: str = "system"
    zone: str = DEFAULT_ZONE
    keys: bool = True


def read_preferences(cookies: Mapping[str, str]) -> Preferences:
    """Preferences from the cookies of a request."""
    theme, zone = cookies.get("hv_theme", ""), cookies.get("hv_zone", "").replace("%2F", "/")
    return Preferences(
        theme=theme if theme in THEMES else "system",
        zone=zone if zone in known_zones() else DEFAULT_ZONE,
        keys=cookies.get("hv_keys") != "off",
    )


def preference_cookies(form: Mapping[str, str], *, path: str, secure: bool) -> list[Cookie]:
    """The cookies that keep what a posted form chooses; unknown values are ignored."""
    chosen = {}
    if form.get("theme") in THEMES:
        chosen["hv_theme"] = form["theme"]
    if form.get("zone") in known_zones():
        chosen["hv_zone"] = form["zone"].replace("/", "%2F")
    if form.get("keys") in ("on", "off"):
        chosen["hv_keys"] = form["keys"]
    return [
        Cookie(key=name, value=value, max_age=YEAR, path=path or "/", secure=secure, httponly=True, samesite="lax")
        for name, value in chosen.items()
    ]
