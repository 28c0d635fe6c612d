"""A history as a document of its own, outside any database: what replay, golden histories and archives read.

The form is kept for years: a field is never renamed, never changes its meaning and is never taken away. What is added
later has a default, and readers skip what they do not know. Another form has another number in `harvest_history`.

    {"harvest_history": 1, "workflow_name": "order_flow", …, "events": [
    {"event_id": 1, "type": "WorkflowStarted", "kind": 1, "at": "2026-05-01T12:00:00Z", "data": "{\\"seed\\": 7, …}"}]}

`data` is the stored JSON inside a text, so that no tool that formats or sorts the document changes a byte of it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.errors import HistoryDocumentError
from harvest.history.events import Event, kind_word
from harvest.history.payload import CODEC_JSON

FORM: Final = 1
PayloadPolicy = Literal["full", "redacted", "omit"]


class DocumentEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event, as its row is. `kind` counts; `type` is its word for people. `at` is database time in UTC.

    `seq` is the number of the command that it records or resolves. `data` has the exact text of its fields;
    `data_base64` is in its place where the bytes are no UTF-8 or are sealed (`codec` is then above 1).
    """

    event_id: int
    type: str
    kind: int
    at: datetime
    seq: int = 0
    format: int = 1
    codec: int = CODEC_JSON
    data: str | None = None
    data_base64: str | None = None


class HistoryDocument(Struct, frozen=True, kw_only=True):
    """One run's history from its first event on, without a gap and in order.

    `decided_through` is the last event that a committed decision has consumed; 0 where none was made yet. A document
    of another `payload_policy` than `full` lacks what users put in, and cannot be replayed; so does one whose payloads
    were erased, at `erased_at`.
    """

    harvest_history: int = FORM
    payload_policy: PayloadPolicy = "full"
    exported_at: datetime | None = None
    workflow_name: str
    workflow_id: str
    version: int
    execution_id: UUID
    tenant: str = "default"
    state: str
    queue: str = "default"
    build: str = ""
    parent_id: UUID | None = None
    root_id: UUID | None = None
    first_execution_id: UUID | None = None
    previous_execution_id: UUID | None = None
    started_at: datetime
    closed_at: datetime | None = None
    decided_through: int
    erased_at: datetime | None = None
    events: list[DocumentEvent] = []


class _Form(Struct, frozen=True):
    harvest_history: int


_encoder: Final = msgspec.json.Encoder()


def document_event(
    *, event_id: int, kind: int, seq: int, at: datetime, payload: bytes, format: int = 1, codec: int = CODEC_JSON
) -> DocumentEvent:
    """An event of a document from the columns of its row."""
    text = _text(payload) if codec == CODEC_JSON else None
    return DocumentEvent(
        event_id=event_id,
        type=kind_word(kind),
        kind=kind,
        at=at,
        seq=seq,
        format=format,
        codec=codec,
        data=text,
        data_base64=b64encode(payload).decode() if text is None else None,
    )


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def encode_event(event: DocumentEvent) -> bytes:
    """One event as it stands in the document."""
    return _encoder.encode(event)


def assemble(head: HistoryDocument, events: Iterable[bytes]) -> bytes:
    """The document of a head that has no events, and of events that are encoded; a line for each event."""
    opening, closing = _encoder.encode(head).rsplit(b"[]", 1)
    return opening + b"[\n" + b",\n".join(events) + b"\n]" + closing + b"\n"


def encode_document(document: HistoryDocument) -> bytes:
    """The whole document as UTF-8 JSON, a line for each event."""
    head = msgspec.structs.replace(document, events=[])
    return assemble(head, [encode_event(event) for event in document.events])


def decode_document(content: bytes) -> HistoryDocument:
    """Read a document. Raises HistoryDocumentError for what is none, of a newer form, or has a gap."""
    try:
        form = msgspec.json.decode(content, type=_Form).harvest_history
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HistoryDocumentError(f"this is no exported history: {error}") from None
    if form != FORM:
        raise HistoryDocumentError(
            f"the history is exported in form {form}; this release reads form {FORM}", form=form, known=FORM
        )
    try:
        document = msgspec.json.decode(content, type=HistoryDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HistoryDocumentError(f"the exported history is damaged: {error}") from None
    for expected, event in enumerate(document.events, 1):
        if event.event_id != expected:
            raise HistoryDocumentError(
                f"event {expected} is missing in the exported history: event {event.event_id} stands in its place",
                event_id=expected,
            )
    return document


def payload_of(event: DocumentEvent) -> bytes:
    """The exact bytes of an event's data. Raises HistoryDocumentError."""
    if event.data is not None:
        return event.data.encode()
    try:
        return b64decode(event.data_base64 or "", validate=True)
    except Base64Error as error:
        raise HistoryDocumentError(f"data_base64 of event {event.event_id} is damaged: {error}") from None


def events_of(document: HistoryDocument) -> list[Event]:
    """The events as replay takes them. Raises HistoryDocumentError where data is sealed."""
    sealed = next((event for event in document.events if event.codec != CODEC_JSON), None)
    if sealed is not None:
        raise HistoryDocumentError(
            f"event {sealed.event_id} is sealed with codec {sealed.codec}: export the history with its data opened",
            event_id=sealed.event_id,
        )
    return [Event(event.event_id, event.kind, event.seq, event.at, payload_of(event)) for event in document.events]
