"""What an execution's history says: its timeline, and the history as a document."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from litestar import Response
from msgspec import Meta, Struct

from harvest.errors import ExecutionNotFoundError, ExportTooLargeError, ShardUnavailableError
from harvest.history.document import HistoryDocument, PayloadPolicy
from harvest.operations import exporting, timelines
from harvest.operations.exporting import MOST_BYTES
from harvest.operations.reading import HistoryPage
from harvest.operations.timelines import MOST_STEPS, Timeline
from harvest.shards import Shards
from harvest_console.api.answers import JSON, answer, read_query
from harvest_console.api.doc import Doc
from harvest_console.api.executions import history_answer
from harvest_console.api.pairs import AnyRequest, read_pair
from harvest_console.api.shapes import HistoryQuery

_MISSING = (ExecutionNotFoundError, ShardUnavailableError)


class TimelineQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A window of steps: those after `after_step`, or those right before `before_step`. Both are ids of steps."""

    after_step: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    before_step: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_STEPS)] = 200


class ExportQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of payloads, and how large the document may be."""

    payload_policy: PayloadPolicy = "full"
    max_bytes: Annotated[int, Meta(ge=1, le=MOST_BYTES)] = MOST_BYTES


async def _timeline(request: AnyRequest, shards: Shards, execution_id: UUID) -> Response[bytes]:
    """Without payloads; the rollup is of all steps, whatever the window."""
    query = read_query(request, TimelineQuery)
    return answer(
        await timelines.timeline(
            shards, execution_id, after_step=query.after_step, before_step=query.before_step, limit=query.limit
        )
    )


async def _export(request: AnyRequest, shards: Shards, execution_id: UUID) -> Response[bytes]:
    """Events in order, each with the exact text of its data: what replay reads."""
    query = read_query(request, ExportQuery)
    content = await exporting.export_history(
        shards, execution_id, payload_policy=query.payload_policy, max_bytes=query.max_bytes
    )
    name = f"{execution_id}-history.json"
    return Response(content, media_type=JSON, headers={"content-disposition": f'attachment; filename="{name}"'})


handlers = [
    *read_pair(
        "/timeline",
        Doc(
            "The steps of an execution with their times.",
            query=TimelineQuery,
            answers={200: Timeline},
            refusals=_MISSING,
        ),
        _timeline,
    ),
    *read_pair(
        "/history/export",
        Doc(
            "The whole history as a document.",
            query=ExportQuery,
            answers={200: HistoryDocument},
            refusals=(*_MISSING, ExportTooLargeError),
        ),
        _export,
    ),
    *read_pair(
        "/history",
        Doc("A window of the history.", query=HistoryQuery, answers={200: HistoryPage}, refusals=_MISSING),
        history_answer,
        by_id_only=True,
    ),
]
