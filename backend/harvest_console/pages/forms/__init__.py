"""Forms made from the JSON Schemas that workers register, and the exact JSON text that a filled form stands for."""

from harvest_console.pages.forms.checking import with_schema_problems
from harvest_console.pages.forms.fields import Field, Problem
from harvest_console.pages.forms.state import ADD, REMOVE, SHOW, PayloadForm, new_form, posted_form

__all__ = [
    "ADD",
    "REMOVE",
    "SHOW",
    "Field",
    "PayloadForm",
    "Problem",
    "new_form",
    "posted_form",
    "with_schema_problems",
]
