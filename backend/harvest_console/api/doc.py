"""What the OpenAPI document says of a route, beside its path; written with the route."""

from __future__ import annotations

from msgspec import Struct

from harvest.errors import HarvestError


class Doc(Struct, frozen=True):
    """A route's entry: the structs of its query, body and answers, and the refusals that are its own.

    `any_body` says that the body is any JSON value; `keyed` that an idempotency key may be sent; `stream` that the
    answer is a stream of events.
    """

    summary: str
    tag: str = "workflow"
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    any_body: bool = False
    keyed: bool = False
    stream: bool = False
    answers: dict[int, type[Struct] | None] = {}
    refusals: tuple[type[HarvestError], ...] = ()
