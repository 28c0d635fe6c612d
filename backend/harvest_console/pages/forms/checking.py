"""Everything that is wrong with a form in one round: what cannot be written, and what its schema refuses."""

from __future__ import annotations

from harvest.errors import HarvestError, InputInvalidError
from harvest.operations.inputs import check_input
from harvest_console.pages.forms.fields import Problem
from harvest_console.pages.forms.schema import Schema
from harvest_console.pages.forms.state import PayloadForm


def with_schema_problems(form: PayloadForm, schema: Schema) -> PayloadForm:
    """The form with what its schema says of the rest, where it has problems already."""
    if not form.problems:
        return form
    try:
        check_input(form.complete.encode(), schema, what="the form")
    except InputInvalidError as error:
        found = [Problem(one["pointer"], one["message"]) for one in error.fields.get("problems", ())]
    except (HarvestError, UnicodeEncodeError):
        return form
    else:
        return form
    # What could not be written stands as null, which is neither its fault nor that of what it is a part of.
    known = [problem.pointer for problem in form.problems]
    new = [one for one in found if not any(f"{pointer}/".startswith(f"{one.pointer}/") for pointer in known)]
    return form.with_problems([*form.problems, *new])
