"""`/w/{execution_id}/updates/{update_id}`: what was asked, and how the run's code answered; still open, it is live."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from litestar import get
from msgspec import Struct
from msgspec.structs import replace

from harvest.errors import HarvestError, PayloadsErasedError, UpdateFailedError, UpdateRejectedError
from harvest.history.erasing import ERASED
from harvest.history.ids import parse_execution_id
from harvest.operations import reading, updating
from harvest.operations.views import EventView, is_open
from harvest.shards import Shards
from harvest_console.pages.payloads import payload_head, plain_text
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page
from harvest_console.rendering import render, render_region
from harvest_console.rendering.json_text import Head, head_of
from harvest_console.rendering.states import shown_state

ANSWER_BYTES: Final = 16 * 1024
ADMITTED: Final = "UpdateAdmitted"
_DID: Final = {"repeated": "This was sent before; nothing was done twice."}


class Question(Struct, frozen=True, kw_only=True):
    """What was asked, from the event that admitted it."""

    event_id: int
    name: str
    input: Head | None
    actor: str
    at: datetime


class Reply(Struct, frozen=True, kw_only=True):
    """How it was answered: completed, rejected or failed; admitted while it is not. `event_id` tells so in that run."""

    execution_id: UUID
    stage: str
    output: Head | None = None
    failure: str = ""
    event_id: int = 0
    at: datetime | None = None
    question: Question | None = None


@get("/w/{execution:str}/updates/{update:str}")
async def answer_page(request: AnyRequest, shards: Shards, execution: str, update: str, did: str = "") -> Page:
    """The page. Raises UpdateNotFoundError and as `reading.get` does."""
    context = await _context(shards, execution, update)
    run, reply = context["run"], context["reply"]
    topics = f"run:{run.shard_id}.{run.partition}" if reply.stage == "admitted" else ""
    return render(request, "update_answer.html", section="workflows", topics=topics, did=_DID.get(did, ""), **context)


@get(FRAGMENTS + "/w/{execution:str}/updates/{update:str}")
async def answer_region(request: AnyRequest, shards: Shards, execution: str, update: str) -> Page:
    """The answer, read again."""
    return render_region(request, "regions/update_answer_update.html", **await _context(shards, execution, update))


async def _context(shards: Shards, execution: str, update_id: str) -> dict[str, Any]:
    execution_id = parse_execution_id(execution)
    reply = await _reply(shards, execution_id, update_id)
    run = await reading.get(shards, reply.execution_id)
    return {
        "run": run,
        "is_open": is_open(run.state),
        "shown": shown_state(run.state, run.blocked.code if run.blocked else None),
        "update_id": update_id,
        "reply": reply,
    }


async def _reply(shards: Shards, execution_id: UUID, update_id: str) -> Reply:
    try:
        found = await updating.result(shards, execution_id, update_id)
    except (UpdateRejectedError, UpdateFailedError) as error:
        stage = "rejected" if isinstance(error, UpdateRejectedError) else "failed"
        failure = error.fields.get("failure")
        return await _told(
            shards,
            Reply(
                execution_id=UUID(error.fields["execution_id"]),
                stage=stage,
                failure=f"{failure['type']}: {failure['message']}" if failure else error.message,
                event_id=error.fields["event_id"],
            ),
        )
    except PayloadsErasedError as error:
        return await _told(
            shards,
            Reply(
                execution_id=UUID(error.fields["execution_id"]),
                stage="completed",
                output=head_of(ERASED, ANSWER_BYTES),
                event_id=error.fields["event_id"],
            ),
        )
    output = None if found.output is None else head_of(found.output, ANSWER_BYTES)
    reply = Reply(execution_id=found.execution_id, stage=found.stage, output=output, event_id=found.event_id)
    return await _told(shards, reply)


async def _told(shards: Shards, reply: Reply) -> Reply:
    """The reply with what was asked and when; the page does without what cannot be read."""
    event = await _event(shards, reply.execution_id, reply.event_id)
    if event is None:
        return reply
    asked = event if event.type == ADMITTED else await _event(shards, reply.execution_id, event.seq)
    return replace(
        reply,
        at=None if event.type == ADMITTED else event.at,
        question=_question(asked) if asked and asked.type == ADMITTED else None,
    )


async def _event(shards: Shards, execution_id: UUID, event_id: int) -> EventView | None:
    try:
        page = await reading.history(shards, execution_id, after=event_id - 1, before=event_id + 1, limit=1)
    except HarvestError:
        return None
    return page.events[0] if page.events else None


def _question(event: EventView) -> Question:
    return Question(
        event_id=event.event_id,
        name=plain_text(event.data.get("name")),
        input=payload_head(event.data.get("input")),
        actor=plain_text(event.data.get("actor")),
        at=event.at,
    )


handlers = [answer_page, answer_region]
