"""`/w/{execution_id}/history`: what happened, in short or in full, of chosen kinds, and as a document to keep."""

from __future__ import annotations

from typing import Annotated, Final, get_args

from litestar import Response, get
from litestar.params import QueryParameter

from harvest.errors import InvalidRequestError
from harvest.history.document import PayloadPolicy
from harvest.history.ids import parse_execution_id
from harvest.operations import exporting, reading
from harvest.operations.views import is_open
from harvest.shards import Shards
from harvest_console.pages.frames import frame
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.pages.windows import COMPACT, Asked, read_window
from harvest_console.rendering import render, render_region

Kinds = Annotated[list[str] | None, QueryParameter(name="kind")]
POLICIES: Final[tuple[PayloadPolicy, ...]] = get_args(PayloadPolicy)


@get("/w/{execution:str}/history")
async def history_page(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    kinds: Kinds = None,
    view: str = COMPACT,
    dir: str = "",
    at: int | None = None,
    after: int | None = None,
    before: int | None = None,
) -> Page:
    """One window of it on a page. Raises InvalidRequestError, ExecutionNotFoundError and ShardUnavailableError."""
    execution_id = parse_execution_id(execution)
    asked = Asked(view=view, kinds=tuple(kinds or ()), direction=dir, at=at, after=after, before=before)
    run = await reading.get(shards, execution_id)
    window = await read_window(shards, execution_id, asked, newest_first=is_open(run.state), base=base_path(request))
    return render(request, "history.html", window=window, **frame(run, "history"))


@get(FRAGMENTS + "/w/{execution:str}/history")
async def history_region(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    kinds: Kinds = None,
    view: str = COMPACT,
    dir: str = "",
    at: int | None = None,
    after: int | None = None,
    before: int | None = None,
    brief: str = "",
) -> Page:
    """The same window again, of a run that goes on."""
    asked = Asked(
        view=view, kinds=tuple(kinds or ()), direction=dir, at=at, after=after, before=before, brief=bool(brief)
    )
    window = await read_window(shards, parse_execution_id(execution), asked, newest_first=True, base=base_path(request))
    return render_region(request, "regions/history_update.html", window=window)


@get("/w/{execution:str}/history.json")
async def history_document(shards: Shards, execution: str, payload_policy: str = "full") -> Response[bytes]:
    """The whole history as the document that replay reads, to keep.

    Raises InvalidRequestError, ExportTooLargeError, ExecutionNotFoundError and ShardUnavailableError.
    """
    execution_id = parse_execution_id(execution)
    policy = next((each for each in POLICIES if each == payload_policy), None)
    if policy is None:
        raise InvalidRequestError(
            f"payload_policy is {payload_policy[:40]!r}; it must be {', '.join(POLICIES)}", field="payload_policy"
        )
    content = await exporting.export_history(shards, execution_id, payload_policy=policy)
    name = f"{execution_id}-history{'' if policy == 'full' else f'-{policy}'}.json"
    return Response(
        content,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"},
    )


handlers = [history_page, history_region, history_document]
