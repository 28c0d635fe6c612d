"""Saved views of the list: all of them, saved, renamed, deleted."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from litestar import Request, Response, delete, get, patch, post
from msgspec import Meta, Struct

from harvest.errors import (
    InvalidRequestError,
    LimitError,
    OutcomeUnknownError,
    SavedViewExistsError,
    SavedViewNotFoundError,
    ShardUnavailableError,
)
from harvest.operations import saved_views
from harvest.operations.actor import Actor
from harvest.operations.saved_views import NAME_CHARACTERS, QUERY_BYTES, Saved, SavedView
from harvest.shards import Shards
from harvest_console.api.answers import UnavailableShard, answer, read_body, read_query, status_fields
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import Availability, NoQuery
from harvest_console.paths import part

AnyRequest = Request[Any, Any, Any]
_TAG = "saved views"
_NAME = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)]


class SavedViewsAnswer(Struct, frozen=True, kw_only=True):
    """Every view by name; they are on the default shard, which `unavailable_shards` names when it does not answer."""

    views: list[SavedView]
    status: Availability
    unavailable_shards: list[UnavailableShard]


class SavedViewBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A name, and the query string of the list's page that it stands for."""

    name: _NAME
    query: Annotated[str, Meta(max_length=QUERY_BYTES)]


class RenameBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The name that a view gets."""

    name: _NAME


@get("/admin/views", opt={"doc": Doc("The saved views.", tag=_TAG, query=NoQuery, answers={200: SavedViewsAnswer})})
async def list_views(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """All of them, by name."""
    read_query(request, NoQuery)
    found = await saved_views.list_views(shards)
    return answer(SavedViewsAnswer(views=found.rows, **status_fields(found)))


@post(
    "/admin/views",
    status_code=201,
    opt={
        "doc": Doc(
            "Save a view.",
            tag=_TAG,
            query=NoQuery,
            body=SavedViewBody,
            answers={201: Saved, 200: Saved},
            refusals=(
                InvalidRequestError,
                LimitError,
                SavedViewExistsError,
                ShardUnavailableError,
                OutcomeUnknownError,
            ),
        )
    },
)
async def save_view(request: AnyRequest, shards: Shards, actor: Actor, body: bytes) -> Response[bytes]:
    """201 for a new one; 200 where the same filter had this name already."""
    read_query(request, NoQuery)
    wanted = read_body(body, SavedViewBody)
    saved = await saved_views.save_view(shards, actor, name=wanted.name, query=wanted.query)
    return answer(saved, 201 if saved.newly_saved else 200)


@patch(
    "/admin/views/{view_id:str}",
    opt={
        "doc": Doc(
            "Rename a saved view.",
            tag=_TAG,
            query=NoQuery,
            body=RenameBody,
            answers={200: SavedView},
            refusals=(
                InvalidRequestError,
                SavedViewNotFoundError,
                SavedViewExistsError,
                ShardUnavailableError,
                OutcomeUnknownError,
            ),
        )
    },
)
async def rename_view(request: AnyRequest, shards: Shards, actor: Actor, view_id: str, body: bytes) -> Response[bytes]:
    """Its filter stays."""
    read_query(request, NoQuery)
    wanted = read_body(body, RenameBody)
    return answer(await saved_views.rename_view(shards, actor, _id(view_id), name=wanted.name))


@delete(
    "/admin/views/{view_id:str}",
    status_code=200,
    opt={
        "doc": Doc(
            "Delete a saved view.",
            tag=_TAG,
            query=NoQuery,
            answers={200: SavedView},
            refusals=(InvalidRequestError, SavedViewNotFoundError, ShardUnavailableError, OutcomeUnknownError),
        )
    },
)
async def delete_view(request: AnyRequest, shards: Shards, actor: Actor, view_id: str) -> Response[bytes]:
    """Answers what it was."""
    read_query(request, NoQuery)
    return answer(await saved_views.delete_view(shards, actor, _id(view_id)))


def _id(text: str) -> UUID:
    text = part(text)
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequestError(f"{text[:40]!r} is no id of a view; it is a UUID", field="view_id") from None


handlers = [list_views, save_view, rename_view, delete_view]
