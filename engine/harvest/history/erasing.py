"""What is left of recorded data when a run is erased: its shape decodes as before, and nobody's words are in it.

Kinds, ids, numbers, times and names stay, so that lists, timelines and counts are as they were.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Raw

from harvest.history.data import Failure
from harvest.history.events import DATA_OF, encode_data
from harvest.history.kinds import EventKind
from harvest.history.payload import CODEC_JSON, NULL

ERASED: Final = b'{"_harvest_erased":true}'
ERASED_TEXT: Final = "(erased)"
# Free text that people or code wrote.
_TEXTS: Final = frozenset(
    {
        (EventKind.WORKFLOW_TERMINATED, "reason"),
        (EventKind.WORKFLOW_CANCELLED, "reason"),
        (EventKind.WORKFLOW_CANCEL_REQUESTED, "reason"),
        (EventKind.EXTERNAL_CANCEL_REQUESTED, "reason"),
        (EventKind.WORKFLOW_EXECUTION_PAUSED, "reason"),
        (EventKind.EXTERNAL_SIGNAL_FAILED, "message"),
        (EventKind.EXTERNAL_CANCEL_FAILED, "message"),
    }
)
_UNREADABLE: Final = (ValueError, KeyError, RecursionError, msgspec.MsgspecError)


def erased_event(kind: int, payload: bytes, codec: int = CODEC_JSON) -> tuple[bytes, int]:
    """The data of an event without what users put into it, and how many values went. What is erased stays as it is.

    Data that this release cannot read, a sealed one too, is replaced as a whole: nobody knows what is in it.
    """
    if payload == ERASED:
        return payload, 0
    if codec != CODEC_JSON:
        return ERASED, 1
    try:
        held = msgspec.json.decode(payload, type=DATA_OF[EventKind(kind)])
    except _UNREADABLE:
        return ERASED, 1
    changed: dict[str, Any] = {}
    gone = 0
    for field in msgspec.structs.fields(held):
        value = getattr(held, field.name)
        put, values = _erased_field(kind, field.name, value)
        if values:
            changed[field.name] = put
            gone += values
    return encode_data(msgspec.structs.replace(held, **changed)), gone


def erased_value(value: bytes | None) -> tuple[bytes | None, int]:
    """What stands for a value of its own, such as a result; one that is absent or null stays so."""
    if value is None or value in (NULL, ERASED):
        return value, 0
    return ERASED, 1


def erased_failure(stored: bytes | None) -> tuple[bytes | None, int]:
    """A recorded failure with its types alone; one that cannot be read has a type that says so."""
    if stored is None:
        return None, 0
    try:
        failure = msgspec.json.decode(stored, type=Failure)
    except _UNREADABLE:
        return encode_data(Failure(type="Undecodable", message=ERASED_TEXT)), 1
    put, gone = _erased_failure(failure)
    return encode_data(put), gone


class Digest:
    """A digest of a run as it is in the database, taken in slices: every event in order, then its details."""

    def __init__(self) -> None:
        self._hash: Any = sha256()

    def event(self, event_id: int, kind: int, payload: bytes) -> None:
        """Take in the next event."""
        self._hash.update(b"%d/%d/%d:" % (event_id, kind, len(payload)))
        self._hash.update(payload)

    def detail(self, name: str, value: bytes | None) -> None:
        """Take in a value of the details."""
        self._hash.update(b"%b/%d:" % (name.encode(), -1 if value is None else len(value)))
        self._hash.update(value or b"")

    def hex(self) -> str:
        """The digest of what was taken in so far."""
        digest: str = self._hash.hexdigest()
        return digest


class KeyedDigest(Digest):
    """One that confirms no guess of what was there to whoever lacks the key: an HMAC, of the run's id first.

    The id keeps two runs with the same content, erased with one key, apart.
    """

    def __init__(self, key: bytes, execution_id: UUID) -> None:
        super().__init__()
        self._hash = hmac.new(key, execution_id.bytes, sha256)


def _erased_field(kind: int, name: str, value: Any) -> tuple[Any, int]:
    if isinstance(value, Raw):
        put, gone = erased_value(bytes(value))
        return Raw(put or NULL), gone
    if isinstance(value, Failure):
        return _erased_failure(value)
    # A digest of few possible arguments tells which of them it was.
    if name == "digest" and value:
        return "", 1
    if (kind, name) in _TEXTS and value not in ("", ERASED_TEXT):
        return ERASED_TEXT, 1
    return value, 0


def _erased_failure(failure: Failure) -> tuple[Failure, int]:
    cause, gone = _erased_failure(failure.cause) if failure.cause else (None, 0)
    gone += (failure.message != ERASED_TEXT) + bool(failure.traceback)
    return msgspec.structs.replace(failure, message=ERASED_TEXT, traceback="", cause=cause), gone
