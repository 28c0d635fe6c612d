"""`/shards/key`: where the runs of a business key are, what each shard answered, and where a new one would go."""

from __future__ import annotations

from typing import Any, Final

from litestar import get

from harvest.errors import HarvestError, InvalidRequestError, LimitError
from harvest.operations import resolving
from harvest.operations.resolving import PlacedAt, Resolution
from harvest.shards import Partial, Shards
from harvest_console.pages.types import AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render

RULES: Final = {
    "only_open": "It is the only open run of the key.",
    "newest_open": "Several runs of the key are open: it is the newest of them.",
    "newest_ended": "No run of the key is open: it is the newest that has ended.",
    "none": "Every shard answered, and none has a run of this key.",
    "unknown": "No open run was found, but not every shard was looked at: one of those may have it.",
}


@get("/shards/key")
async def key_page(request: AnyRequest, shards: Shards, workflow_name: str = "", workflow_id: str = "") -> Page:
    """The form alone, or with what was found."""
    found: Partial[Resolution] | None = None
    problem: HarvestError | None = None
    if workflow_name or workflow_id:
        try:
            found = await resolving.inspect(shards, workflow_name, workflow_id)
        except (InvalidRequestError, LimitError) as error:
            problem = error
    resolution = found.rows[0] if found else None
    return render(
        request,
        "key.html",
        status=200 if problem is None else problem.status,
        section="shards",
        workflow_name=workflow_name,
        workflow_id=workflow_id,
        problem=problem,
        problem_text=_said(problem) if problem else "",
        found=found,
        key=resolution,
        rule=RULES[resolution.rule] if resolution else "",
        why=placed_text(resolution.placement) if resolution else "",
        here_url=build_url(base_path(request), "/shards/key", workflow_name=workflow_name, workflow_id=workflow_id),
    )


def _said(problem: HarvestError) -> str:
    """What is wrong, by the names of the fields."""
    return problem.message.replace("workflow_name", "the type").replace("workflow_id", "the workflow id")


def placed_text(placed: PlacedAt) -> str:
    """Why a new run of the key would go where it would."""
    reasons = {
        "hash": "Its hash leads there.",
        "draining": (
            f"Its hash leads to shard {placed.hashed_shard_id}, which takes no new runs; "
            "over the writable shards it leads here."
        ),
        "no_writable_shard": "No shard takes new runs: a start is refused.",
    }
    missing = "" if placed.has_database or placed.shard_id is None else " It has no database here: a start would fail."
    return reasons[placed.why] + missing


handlers: list[Any] = [key_page]
