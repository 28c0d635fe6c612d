"""What every page knows: addresses, assets, the reader's preferences, and times in the reader's zone."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from litestar import Request
from markupsafe import Markup

from harvest import clock
from harvest_console.auth import csrf_token
from harvest_console.auth.caller import NOBODY, caller_of
from harvest_console.rendering.assets import ASSETS
from harvest_console.rendering.preferences import read_preferences
from harvest_console.rendering.times import epoch_millis, instant_text, iso_text, span_text, whole_span_text, zone_named
from harvest_console.rendering.urls import build_url

FRAGMENTS: Final = "/_f"
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_TIME = Markup('<time datetime="{iso}" title="{title}">{text}</time>')
_EXACT_TIME = Markup('<time datetime="{iso}">{text}</time>')
_SINCE = Markup('<span data-since="{millis}">{text}</span>')
_UNTIL = Markup('<span data-until="{millis}">{text}</span>')


class PageTools:
    """The names that templates use, bound to one request."""

    def __init__(self, request: Request[Any, Any, Any]) -> None:
        self._request = request
        self._base: str = request.app.state.settings.base_path
        self.preferences = read_preferences(request.cookies)
        self.zone = zone_named(self.preferences.zone)
        self.now = clock.now()

    def context(self) -> dict[str, Any]:
        """Everything a template may use beside what its page gives it."""
        return {
            "base": self._base,
            "url": self.url,
            "fragment": self.fragment,
            "asset": lambda name: self._base + ASSETS.path(name),
            "csrf": csrf_token(self._request),
            "reader": self._reader(),
            "here": self._here(),
            "section": "",
            "topics": "",
            "preferences": self.preferences,
            "zone": self.preferences.zone,
            "now": self.now,
            "now_millis": epoch_millis(self.now),
            "when": self.when,
            "since": self.since,
            "until": self.until,
            "waiting": self.waiting,
            "span": lambda start, end: span_text((end - start).total_seconds()),
        }

    def _reader(self) -> str:
        caller = caller_of(self._request)
        return caller.actor.name if caller else NOBODY

    def _here(self) -> str:
        query = self._request.url.query
        path = self._request.url.path.removeprefix(self._base)
        return path + (f"?{query}" if query else "")

    def url(self, path: str, **parameters: object) -> str:
        """An address of this console."""
        return build_url(self._base, path, **parameters)

    def fragment(self, path: str, **parameters: object) -> str:
        """The address of a region; never the same as that of a page (console 5.1)."""
        return build_url(self._base, FRAGMENTS + path, **parameters)

    def when(self, at: datetime, *, millis: bool = False, zone: bool = False) -> Markup:
        """An instant in the reader's zone; `zone` adds the name where no heading tells it."""
        text = instant_text(at, self.zone, self.now, millis=millis)
        if millis:
            return _EXACT_TIME.format(iso=iso_text(at), text=text)
        local = at.astimezone(self.zone).isoformat(sep=" ", timespec="milliseconds")
        return _TIME.format(iso=iso_text(at), title=local, text=f"{text} {self.zone_short(at)}" if zone else text)

    def zone_short(self, at: datetime) -> str:
        """The zone's short name at an instant: UTC, CET."""
        return at.astimezone(self.zone).tzname() or self.preferences.zone

    def since(self, at: datetime) -> Markup:
        """How long ago an instant was; counts on in the browser."""
        seconds = (self.now - at).total_seconds()
        return _SINCE.format(millis=epoch_millis(at), text=whole_span_text(max(0, int(seconds))))

    def until(self, at: datetime) -> Markup:
        """How long it is until an instant; counts down in the browser."""
        seconds = (at - self.now).total_seconds()
        text = f"in {whole_span_text(int(seconds))}" if seconds >= 1 else "due now"
        return _UNTIL.format(millis=epoch_millis(at), text=text)

    def waiting(self, text: str) -> Markup:
        """What a run waits for; an instant in it is told in the reader's zone."""
        parts: list[Markup | str] = []
        end = 0
        for match in _INSTANT.finditer(text):
            parts += [text[end : match.start()], self.when(datetime.fromisoformat(match.group()), zone=True)]
            end = match.end()
        return Markup("").join([*parts, text[end:]])
