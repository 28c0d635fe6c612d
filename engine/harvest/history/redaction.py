"""An event's data without what users put into it: its shape stays, and decodes as before."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from harvest.history.data import Failure
from harvest.history.events import DATA_OF, EMPTY, encode_data
from harvest.history.kinds import EventKind

# Free text that people or code wrote. A digest of few possible arguments tells which of them it was.
REDACTED_TEXTS: Final = frozenset({"reason", "message", "digest"})


def redact(kind: int, payload: bytes, policy: Literal["redacted", "omit"]) -> bytes:
    """The data of an event without its payloads: `redacted` leaves their sizes, `omit` nothing of them.

    Names, ids, numbers and times stay. Data that this release cannot read is left out as a whole.
    """
    try:
        held = msgspec.json.decode(payload, type=DATA_OF[EventKind(kind)])
    except (ValueError, KeyError, RecursionError, msgspec.MsgspecError):
        return EMPTY
    return encode_data(_without(held, policy))


def _without(held: Struct, policy: str) -> Struct:
    changed: dict[str, Any] = {}
    for field in msgspec.structs.fields(held):
        value = getattr(held, field.name)
        if isinstance(value, Raw):
            changed[field.name] = _stand_in(value) if policy == "redacted" else field.default
        elif isinstance(value, Failure):
            changed[field.name] = _failure(value)
        elif field.name in REDACTED_TEXTS:
            changed[field.name] = ""
    return msgspec.structs.replace(held, **changed)


def _stand_in(value: Raw) -> Raw:
    data = bytes(value)
    return value if data == b"null" else Raw(b'{"redacted_bytes":%d}' % len(data))


def _failure(failure: Failure) -> Failure:
    cause = _failure(failure.cause) if failure.cause else None
    return msgspec.structs.replace(failure, message="", traceback="", cause=cause)
