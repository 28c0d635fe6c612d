"""The types that workers have registered, over all shards (answers 8). The console imports no user code."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.errors import ShardUnavailableError, WorkflowNotRegisteredError
from harvest.shards import Partial, Shards
from harvest.store import definitions as rows
from harvest.store.store import Store

CACHED_SECONDS: Final = 5.0
WORKFLOW: Final = "workflow"


class Definition(Struct, frozen=True, kw_only=True):
    """A workflow or activity type in its latest version; `live` says whether a worker has it now."""

    kind: str
    name: str
    version: int
    build: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    signals: dict[str, dict[str, Any]]
    updates: dict[str, dict[str, Any]]
    description: str
    live: bool
    seen_at: datetime


class _Catalogue:
    """The last answer of one `Shards`, and the lock that lets one read at a time refresh it."""

    def __init__(self) -> None:
        self.answer: Partial[Definition] | None = None
        self.versions: dict[tuple[str, int], Definition] = {}
        self.at = float("-inf")
        self.reading = asyncio.Lock()


_of_shards: WeakKeyDictionary[Shards, _Catalogue] = WeakKeyDictionary()


async def registered(shards: Shards, *, newer_than: float | None = None) -> Partial[Definition]:
    """Every type known in the last seven days, by kind and name; cached for 5 seconds.

    With `newer_than` (a monotonic time), an answer read before it does not do.
    """
    catalogue = _of_shards.setdefault(shards, _Catalogue())
    oldest = clock.monotonic() - CACHED_SECONDS if newer_than is None else newer_than
    async with catalogue.reading:
        if catalogue.answer is None or catalogue.at < oldest:
            started = clock.monotonic()
            catalogue.answer, catalogue.versions = await _read(shards)
            catalogue.at = started
        return catalogue.answer


async def find(shards: Shards, name: str, version: int | None = None) -> Definition:
    """A workflow type by name, in its latest version if none is given; one that was just registered is found at once.

    Raises WorkflowNotRegisteredError, or ShardUnavailableError when a shard that may know it does not answer.
    """
    known = await registered(shards)
    found = _named(shards, known, name, version)
    if found is None:
        known = await registered(shards, newer_than=clock.monotonic())
        found = _named(shards, known, name, version)
    if found is not None:
        return found
    if known.missing:
        raise ShardUnavailableError(
            f"no workflow type {_called(name, version)} is known on the shards that answer, but not all of them do",
            unavailable_shards=[{"shard_id": shard.shard_id, "reason": shard.reason} for shard in known.missing],
        )
    versions = sorted(each for called, each in _of_shards[shards].versions if called == name)
    names = sorted({each.name for each in known.rows if each.kind == WORKFLOW})
    close = difflib.get_close_matches(name, names, n=1)
    if versions:
        hint = f"; there is version {', '.join(map(str, versions))}"
    elif close:
        hint = f"; did you mean {close[0]!r}?"
    else:
        hint = "; a worker that has it must have run in the last 7 days"
    raise WorkflowNotRegisteredError(
        f"no workflow type {_called(name, version)} is registered{hint}",
        workflow_name=name,
        known=names,
        **({"version": version, "versions": versions} if version is not None else {}),
    )


def _called(name: str, version: int | None) -> str:
    return repr(name) if version is None else f"{name!r} version {version}"


def _named(shards: Shards, known: Partial[Definition], name: str, version: int | None) -> Definition | None:
    if version is not None:
        return _of_shards[shards].versions.get((name, version))
    return next((each for each in known.rows if each.kind == WORKFLOW and each.name == name), None)


async def _read(shards: Shards) -> tuple[Partial[Definition], dict[tuple[str, int], Definition]]:
    async def read(store: Store) -> list[Definition]:
        return [_definition(row) for row in await rows.registered(store)]

    answer = await shards.fan_out(read)
    latest: dict[tuple[str, str], Definition] = {}
    versions: dict[tuple[str, int], Definition] = {}
    for found in answer.rows:
        key = (found.kind, found.name)
        latest[key] = _later(latest[key], found) if key in latest else found
        if found.kind == WORKFLOW:
            exact = (found.name, found.version)
            versions[exact] = _later(versions[exact], found) if exact in versions else found
    return msgspec.structs.replace(answer, rows=[latest[key] for key in sorted(latest)]), versions


def _later(one: Definition, other: Definition) -> Definition:
    """The higher version, of two builds the one seen last; live if a worker of that version is, on any shard."""
    newer, older = sorted((one, other), key=lambda each: (each.version, each.seen_at), reverse=True)
    same = (newer.version, newer.build) == (older.version, older.build)
    return msgspec.structs.replace(newer, live=newer.live or (same and older.live))


def _definition(row: Mapping[str, Any]) -> Definition:
    schema = _schema(row["input_schema"])
    updates = schema.pop("x-updates", {})
    return Definition(
        kind=row["kind"],
        name=row["name"],
        version=row["version"],
        build=row["build"],
        input_schema=schema,
        output_schema=_schema(row["output_schema"]),
        signals=_schema(row["signals"]),
        updates=updates if isinstance(updates, dict) else {},
        description=row["description"],
        live=row["live"],
        seen_at=row["seen_at"],
    )


def _schema(stored: bytes) -> dict[str, Any]:
    """A stored JSON object; one that cannot be read is the schema of anything."""
    try:
        return msgspec.json.decode(stored, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
