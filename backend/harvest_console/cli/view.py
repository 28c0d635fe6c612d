"""`harvest view list`, `save` and `delete`: the saved views of the list, over the API."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from harvest_console.cli.remote import EXIT_STATUSES, RemoteError, UnreachableError
from harvest_console.cli.workflow import Session, with_session


@click.group(epilog=EXIT_STATUSES)
def view() -> None:
    """List, save and delete saved views: filters of the list under a name, for everybody."""


@view.command(name="list")
@with_session
def list_(session: Session) -> None:
    """Show every saved view, by name."""
    answer = session.remote.get("admin", "views")
    session.show(answer)
    session.warn_of_missing_shards(answer)


@view.command()
@click.argument("name")
@click.option(
    "--query",
    required=True,
    help='What follows the ? in the address of the page, like "state=FAILED&type=refund"; "" is the whole list.',
)
@with_session
def save(session: Session, name: str, query: str) -> None:
    """Save a filter of the list's page under NAME."""
    body = msgspec.json.encode({"name": name, "query": query.removeprefix("?")})
    session.show(session.remote.post("admin", "views", body=body))


@view.command()
@click.argument("name")
@with_session
def delete(session: Session, name: str) -> None:
    """Delete the saved view NAME; its id names it, too."""
    session.show(session.remote.delete("admin", "views", _id_of(session, name)))


def _id_of(session: Session, name: str) -> str:
    """The id of the view that is meant: one of this id, else of this name."""
    found: dict[str, Any] = msgspec.json.decode(session.remote.get("admin", "views").body)
    for key in ("view_id", "name"):
        for each in found["views"]:
            if each[key] == name:
                return str(each["view_id"])
    if found["unavailable_shards"]:
        reason = found["unavailable_shards"][0]["reason"]
        raise UnreachableError(f"whether there is a view {name!r} is not known: its shard does not answer ({reason})")
    raise RemoteError(f"there is no saved view {name!r}; `harvest view list` names all of them")
