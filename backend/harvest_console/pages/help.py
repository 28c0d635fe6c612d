"""`/help`: the keyboard shortcuts, for who opens the link without scripts, and how a filter is written."""

from __future__ import annotations

from litestar import get

from harvest.history.states import State
from harvest.operations.filter_language import MOST_BYTES, MOST_DEPTH, MOST_PREDICATES, MOST_VALUES
from harvest.store.filters import SEVERITIES
from harvest_console.pages.types import AnyRequest, Page
from harvest_console.rendering import render


@get("/help/keys", sync_to_thread=False)
def keys_page(request: AnyRequest) -> Page:
    """The same table as the dialog."""
    return render(request, "keys.html")


@get("/help/filters", sync_to_thread=False)
def filters_page(request: AnyRequest) -> Page:
    """The language of filters: fields, operators, examples and limits."""
    return render(
        request,
        "filters.html",
        section="workflows",
        states=[state.name for state in State if state is not State.MIGRATED],
        severities=SEVERITIES,
        limits=(MOST_BYTES, MOST_DEPTH, MOST_PREDICATES, MOST_VALUES),
    )


handlers = [keys_page, filters_page]
