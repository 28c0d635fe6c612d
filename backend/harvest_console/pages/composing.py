"""What pages that send a payload have in common: the steps of a form, what is wrong with it, its key, its preview."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from harvest import clock
from harvest.errors import (
    ExecutionClosedError,
    IdempotencyConflictError,
    InputInvalidError,
    InvalidRequestError,
    LimitError,
    PayloadError,
)
from harvest.operations.inputs import check_input
from harvest_console.pages.forms import ADD, REMOVE, SHOW, PayloadForm, Problem, with_schema_problems
from harvest_console.pages.types import AnyRequest, Page
from harvest_console.rendering import render_region
from harvest_console.rendering.json_text import head_of

Schema = dict[str, Any]
# Names of what a run takes, each with the JSON Schema of its payload.
Declared = dict[str, Schema]
# What a person can mend in the form of what is sent to a run; anything else is an error page.
MENDABLE: Final = (InvalidRequestError, LimitError, PayloadError, IdempotencyConflictError, ExecutionClosedError)


def new_key() -> str:
    """The idempotency key of a form: sent twice, it acts once."""
    return f"ui-{clock.random_bytes(12).hex()}"


def title_of(schema: Schema, otherwise: str) -> str:
    """What a form's one value is called: the only parameter that the handler has."""
    names = schema.get("x-parameters") or [otherwise]
    return str(names[0]) if len(names) == 1 else otherwise


def drawn_again(payload: PayloadForm, schema: Schema, fields: Mapping[str, str]) -> tuple[int, PayloadForm] | None:
    """Status and form to draw instead of sending it: after one of the form's own buttons, or with what is wrong.

    Stepping between tabs tells what is wrong with JSON text; half-filled fields are nobody's mistake yet.
    """
    if fields.keys() & {SHOW, ADD, REMOVE}:
        return 200, payload if payload.tab == "raw" else payload.with_problems(())
    if payload.problems:
        return 422, with_schema_problems(payload, schema)
    return None


def refused(payload: PayloadForm, error: InputInvalidError) -> PayloadForm:
    """The form with what an operation found wrong in what was typed."""
    problems = [Problem(one["pointer"], one["message"]) for one in error.fields.get("problems", ())]
    return payload.with_problems(problems or [Problem("", error.message)])


def checked(payload: PayloadForm, schema: Schema) -> PayloadForm:
    """The form with what the run's own handler would refuse: told here, it is not in a history first."""
    try:
        check_input(payload.complete.encode(), schema, what="the form")
    except InputInvalidError as error:
        return refused(payload, error)
    return payload


def preview(payload: PayloadForm) -> dict[str, Any]:
    """What the panel beside a form shows."""
    return {"preview": head_of(payload.complete.encode()), "unfinished": payload.incomplete}


def preview_region(request: AnyRequest, payload: PayloadForm, preview_url: str) -> Page:
    """The panel beside a form, for the form as it stands."""
    return render_region(request, "regions/preview.html", **preview(payload), preview_url=preview_url)
