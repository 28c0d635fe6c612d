"""A form between two requests: which tab is open, what was typed, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from harvest_console.pages.forms.fields import COUNT, ROOT, Field, Problem
from harvest_console.pages.forms.reading import values_of_json
from harvest_console.pages.forms.schema import MOST_ITEMS, Schema, build_form
from harvest_console.pages.forms.writing import json_fault, json_of_form
from harvest_console.rendering.json_text import PAGE_BYTES, head_of

FIELDS: Final = "fields"
RAW: Final = "raw"
# Names of buttons: open the other tab, add an item to an array, take one away.
SHOW: Final = "show"
ADD: Final = "add"
REMOVE: Final = "remove"


class PayloadForm(Struct, frozen=True, kw_only=True):
    """What a template draws: `form` on the tab of fields, `raw` on the tab of JSON text.

    `complete` is the JSON text so far, `incomplete` tells that something in it is still missing; `note` says why the
    other tab could not be opened.
    """

    tab: str
    form: Field
    raw: str
    complete: str
    has_fields: bool
    incomplete: bool = False
    problems: tuple[Problem, ...] = ()
    note: str = ""

    def problem_at(self, field: Field) -> str:
        """What is wrong with one field; empty if nothing."""
        return " ".join(problem.message for problem in self.problems if problem.pointer == field.pointer)

    def with_problems(self, problems: Iterable[Problem]) -> PayloadForm:
        """The same form with what somebody else found wrong."""
        return msgspec.structs.replace(self, problems=tuple(problems))


def new_form(schema: Schema, title: str, tab: str = "") -> PayloadForm:
    """A form nobody has typed in yet."""
    form = build_form(schema, title=title)
    return _state(form, tab or FIELDS, head_of(json_of_form(form)[0].encode(), PAGE_BYTES).text)


def posted_form(schema: Schema, title: str, post: Mapping[str, str]) -> PayloadForm:
    """The form that was posted, after what its buttons ask for: another tab, one item more or less."""
    ours = (ROOT + "/", ROOT + COUNT)
    values = {name: value for name, value in post.items() if name == ROOT or name.startswith(ours)}
    if name := post.get(ADD):
        values[name + COUNT] = str(min(_count(values, name) + 1, MOST_ITEMS))
    if name := post.get(REMOVE):
        values = _without_item(values, name)
    raw = post.get("raw", "").replace("\r\n", "\n")
    tab = RAW if post.get("tab") == RAW else FIELDS
    wanted = post.get(SHOW, tab)
    if tab == RAW:
        return _from_raw(schema, title, raw, wanted)
    form = build_form(schema, values or {ROOT + COUNT: ""}, title=title)
    text, problems = json_of_form(form)
    if wanted == RAW and not problems:
        raw = head_of(text.encode(), PAGE_BYTES).text
        return _state(form, RAW, raw)
    return _state(form, FIELDS, raw, problems, text)


def _from_raw(schema: Schema, title: str, raw: str, wanted: str) -> PayloadForm:
    fault = json_fault(raw)
    empty = build_form(schema, title=title)
    if fault:
        return _state(empty, RAW, raw, [Problem("", fault)])
    if wanted != FIELDS:
        return _state(empty, RAW, raw)
    values = values_of_json(raw, schema)
    if values is None:
        return _state(empty, RAW, raw, note="The fields cannot hold this exactly, so it stays as JSON text.")
    return _state(build_form(schema, values, title=title), FIELDS, raw)


def _state(
    form: Field, tab: str, raw: str, problems: Iterable[Problem] = (), complete: str | None = None, *, note: str = ""
) -> PayloadForm:
    has_fields = form.kind not in ("json", "nothing")
    tab = tab if has_fields or form.kind == "nothing" else RAW
    written, missing = json_of_form(form)
    if complete is None:
        complete = raw if tab == RAW else written
    return PayloadForm(
        tab=tab,
        form=form,
        raw=raw,
        complete=complete,
        has_fields=has_fields,
        incomplete=bool(json_fault(complete)) if tab == RAW else bool(missing),
        problems=tuple(problems),
        note=note,
    )


def _count(values: Mapping[str, str], name: str) -> int:
    text = values.get(name + COUNT, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _without_item(values: Mapping[str, str], name: str) -> dict[str, str]:
    """The values without the array item of that name; the items behind it move up."""
    array, _, place = name.rpartition("/")
    if not array or not (place.isascii() and place.isdigit()):
        return dict(values)
    left: dict[str, str] = {}
    for key, value in values.items():
        head, _, tail = key.removeprefix(array + "/").partition("/")
        mark = head.strip("0123456789")
        number = head[: len(head) - len(mark)] if mark else head
        if not key.startswith(array + "/") or not number.isdigit() or int(number) < int(place):
            left[key] = value
        elif int(number) > int(place):
            left[f"{array}/{int(number) - 1}{mark}" + (f"/{tail}" if tail else "")] = value
    left[array + COUNT] = str(max(0, _count(values, array) - 1))
    return left
