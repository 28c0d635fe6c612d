"""The one template environment: everything is escaped, and a name that does not exist is an error."""

from __future__ import annotations

import re
from typing import Final

import jinja2
from markupsafe import Markup, escape

from harvest.history.erasing import ERASED_TEXT
from harvest_console.rendering.figures import rate_text, share_text, short_span_text
from harvest_console.rendering.json_text import TOMBSTONE, size_text
from harvest_console.rendering.names import short_id
from harvest_console.rendering.resources import resource_folder
from harvest_console.rendering.states import close_text, policy_text, severity_class, state_class, state_text
from harvest_console.rendering.times import span_text

_TICKS: Final = re.compile(r"(`{1,2})([^`]+)\1")
_CODE: Final = Markup("<code>{}</code>")
_ERASED: Final = Markup('<span class="state erased">erased</span>')


def clip(text: str, most: int = 80) -> str:
    """At most `most` characters of a text, with an ellipsis where it was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def sentence(text: str) -> str:
    """An error's message as a sentence of a page."""
    ended = text if text.endswith((".", "!", "?")) else f"{text}."
    return ended[:1].upper() + ended[1:]


def ticks(text: str) -> Markup:
    """A docstring's text with what stands between backticks as code."""
    shown, end = Markup(), 0
    for match in _TICKS.finditer(text):
        shown += escape(text[end : match.start()]) + _CODE.format(match[2])
        end = match.end()
    return shown + escape(text[end:])


def with_erased(text: str) -> Markup:
    """A payload's or failure's text with the word "erased" and its mark where a value was."""
    return _ERASED if text == ERASED_TEXT else _ERASED.join(escape(part) for part in TOMBSTONE.split(text))


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_folder("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters["state_class"] = state_class
    environment.filters["state_text"] = state_text
    environment.filters["severity_class"] = severity_class
    environment.filters["short_id"] = short_id
    environment.filters["policy_text"] = policy_text
    environment.filters["close_text"] = close_text
    environment.filters["size"] = size_text
    environment.filters["clip"] = clip
    environment.filters["sentence"] = sentence
    environment.filters["ticks"] = ticks
    environment.filters["with_erased"] = with_erased
    environment.filters["milliseconds"] = lambda number: span_text(number / 1000)
    environment.filters["share"] = share_text
    environment.filters["rate"] = rate_text
    environment.filters["short_ms"] = lambda number: short_span_text(number / 1000)
    environment.filters["thousands"] = lambda number: f"{number:,}"
    return environment


ENVIRONMENT = _environment()
