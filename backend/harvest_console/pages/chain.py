"""`/w/{execution_id}/runs`: every run of the chain that a run belongs to, continued as new or tried again."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from litestar import get
from msgspec import Struct

from harvest.errors import HarvestError
from harvest.history.ids import parse_execution_id
from harvest.operations import chains, reading
from harvest.operations.chains import ChainRun, RunChain
from harvest.shards import Shards
from harvest_console.pages.frames import frame
from harvest_console.pages.payloads import plain_text
from harvest_console.pages.types import AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render

WINDOW: Final = 50
_OUTCOMES: Final = {"continued_as_new": "continued as new", "retried": "tried again"}
_MOST: Final = 2**31 - 1


class RunRow(Struct, frozen=True, kw_only=True):
    """One run of a chain. `attempt` counts the tries since the chain last went on as new, None where nobody knows."""

    run: ChainRun
    attempt: int | None
    outcome: str
    is_current: bool


@get("/w/{execution:str}/runs")
async def chain_page(request: AnyRequest, shards: Shards, execution: str, before: int | None = None) -> Page:
    """The newest runs, or those before a number. Raises ExecutionNotFoundError and ShardUnavailableError."""
    execution_id = parse_execution_id(execution)
    run = await reading.get(shards, execution_id)
    bound = None if before is None else min(max(1, before), _MOST)
    chain = await chains.run_chain(shards, execution_id, before=bound, limit=WINDOW)
    first = await _attempt_of(shards, chain.runs[0]) if chain.runs else None
    base, page = base_path(request), f"/w/{execution_id}/runs"
    newest = chain.runs[-1].sequence if chain.runs else 0
    following = newest + WINDOW + 1
    newer = build_url(base, page, before=following if following <= chain.total_runs else None)
    return render(
        request,
        "chain.html",
        **frame(run, "chain"),
        chain=chain,
        rows=run_rows(chain, execution_id, first)[::-1],
        newer_url=newer if newest < chain.total_runs else None,
        older_url=build_url(base, page, before=chain.next_cursor) if chain.next_cursor is not None else None,
    )


def run_rows(chain: RunChain, current: UUID, first_attempt: int | None) -> list[RunRow]:
    """The rows of a window, oldest first, when the first of them is the `first_attempt`th try."""
    rows: list[RunRow] = []
    attempt = first_attempt
    for run in chain.runs:
        rows.append(
            RunRow(
                run=run,
                attempt=attempt,
                outcome=_OUTCOMES.get(run.outcome or "", ""),
                is_current=run.exec_id == current,
            )
        )
        attempt = 1 if run.outcome != "retried" else (None if attempt is None else attempt + 1)
    return rows


async def _attempt_of(shards: Shards, run: ChainRun) -> int | None:
    """Which try a run is, from its first event; the page does without when it cannot be read."""
    try:
        first = (await reading.history(shards, run.exec_id, limit=1)).events
    except HarvestError:
        return None
    if not first:
        return None
    text = plain_text(first[0].data.get("attempt"))
    return int(text) if text.isascii() and text.isdigit() else 1


handlers = [chain_page]
