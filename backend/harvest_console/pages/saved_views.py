"""`/views`: the saved views of the list, and the forms that save, rename and delete one."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Final
from urllib.parse import parse_qs
from uuid import UUID

from litestar import get, post
from litestar.params import QueryParameter
from litestar.response import Redirect
from msgspec import Struct

from harvest.errors import (
    HarvestError,
    InvalidRequestError,
    LimitError,
    SavedViewExistsError,
    SavedViewNotFoundError,
    ShardUnavailableError,
)
from harvest.operations import saved_views
from harvest.operations.actor import Actor
from harvest.operations.saved_views import SavedView
from harvest.shards import Partial, Shards
from harvest_console.pages.conditions import Condition, conditions
from harvest_console.pages.list_query import LIST, Query, read_query
from harvest_console.pages.types import AnyRequest, Page, base_path, posted
from harvest_console.rendering import build_url, render

VIEWS: Final = "/views"
_DID: Final = {"renamed": "It was renamed.", "deleted": "It was deleted."}
# What is told on the form itself; anything else is an error page.
_REFUSALS: Final = (InvalidRequestError, LimitError, SavedViewExistsError)


class ViewRow(Struct, frozen=True, kw_only=True):
    """A view with its address and its conditions in words; `is_shown` when it is the one that the page shows."""

    view: SavedView
    url: str
    conditions: list[Condition]
    is_shown: bool = False


def view_rows(found: Partial[SavedView], base: str, shown: str | None = None) -> list[ViewRow]:
    """The views as rows; `shown` is the query string of the list that is being looked at."""
    kept = None if shown is None else saved_views.checked_query(shown)
    return [
        ViewRow(
            view=view,
            url=f"{build_url(base, LIST)}?{view.query}",
            conditions=conditions(query_of(view.query), base),
            is_shown=view.query == kept,
        )
        for view in found.rows
    ]


def query_of(text: str) -> Query:
    """The query of a query string; what is not right in it is left out, as the list does."""
    return read_query(parse_qs(text.removeprefix("?"), keep_blank_values=True, max_num_fields=200))[0]


@get("/views")
async def views_page(request: AnyRequest, shards: Shards, did: str = "") -> Page:
    """All of them."""
    found = await saved_views.list_views(shards)
    base = base_path(request)
    return render(
        request,
        "saved_views.html",
        section="workflows",
        found=found,
        rows=view_rows(found, base),
        most=saved_views.MOST_VIEWS,
        did=_DID.get(did, ""),
    )


@get("/views/new")
async def new_view_page(request: AnyRequest, kept: Annotated[str, QueryParameter(name="query")] = "") -> Page:
    """The form that saves the filter of a query string."""
    return _form(request, query=kept)


@post("/views")
async def save_view(request: AnyRequest, shards: Shards, actor: Actor) -> Page | Redirect:
    """Save it, and show the list that it stands for."""
    fields = await posted(request)
    name, query = fields.get("name", ""), query_of(fields.get("query", "")).query_string
    try:
        saved = await saved_views.save_view(shards, actor, name=name, query=query)
    except _REFUSALS as error:
        return _form(request, query=query, name=name, refused=error)
    return Redirect(f"{build_url(base_path(request), LIST)}?{saved.view.query}", status_code=303)


@get("/views/{view:str}")
async def view_page(request: AnyRequest, shards: Shards, view: str) -> Page:
    """The form that renames a view, and the one that deletes it. Raises SavedViewNotFoundError."""
    return _view(request, await _find(shards, view))


@post("/views/{view:str}/rename")
async def rename_view(request: AnyRequest, shards: Shards, actor: Actor, view: str) -> Page | Redirect:
    """Give it another name."""
    name = (await posted(request)).get("name", "")
    found = await _find(shards, view)
    try:
        await saved_views.rename_view(shards, actor, found.view_id, name=name)
    except _REFUSALS as error:
        return _view(request, found, name=name, refused=error)
    return Redirect(build_url(base_path(request), VIEWS, did="renamed"), status_code=303)


@post("/views/{view:str}/delete")
async def delete_view(request: AnyRequest, shards: Shards, actor: Actor, view: str) -> Redirect:
    """Delete it; one that is gone already is no error of whoever pressed twice."""
    with suppress(SavedViewNotFoundError):
        await saved_views.delete_view(shards, actor, _id(view))
    return Redirect(build_url(base_path(request), VIEWS, did="deleted"), status_code=303)


async def _find(shards: Shards, text: str) -> SavedView:
    """The view of an address. Raises SavedViewNotFoundError, ShardUnavailableError when nobody can tell."""
    view_id, found = _id(text), await saved_views.list_views(shards)
    for missing in found.missing:
        raise ShardUnavailableError(
            f"saved views cannot be read: shard {missing.shard_id} does not answer: {missing.reason}",
            shard_id=missing.shard_id,
            reason=missing.reason,
        )
    for view in found.rows:
        if view.view_id == view_id:
            return view
    raise SavedViewNotFoundError(f"there is no saved view {view_id}", view_id=str(view_id))


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequestError(f"{text[:40]!r} is no id of a view", field="view_id") from None


def _form(request: AnyRequest, *, query: str, name: str = "", refused: HarvestError | None = None) -> Page:
    base, shown = base_path(request), query_of(query)
    return render(
        request,
        "saved_view_new.html",
        status=refused.status if refused else 200,
        section="workflows",
        query=shown.query_string,
        conditions=conditions(shown, base),
        back_url=shown.url(base),
        name=name,
        refused=refused.message if refused else "",
        name_characters=saved_views.NAME_CHARACTERS,
    )


def _view(
    request: AnyRequest, view: SavedView, *, name: str | None = None, refused: HarvestError | None = None
) -> Page:
    base = base_path(request)
    context: dict[str, Any] = {
        "view": view,
        "conditions": conditions(query_of(view.query), base),
        "open_url": f"{build_url(base, LIST)}?{view.query}",
        "name": view.name if name is None else name,
        "refused": refused.message if refused else "",
        "name_characters": saved_views.NAME_CHARACTERS,
    }
    return render(request, "saved_view.html", status=refused.status if refused else 200, section="workflows", **context)


handlers = [views_page, new_view_page, save_view, view_page, rename_view, delete_view]
