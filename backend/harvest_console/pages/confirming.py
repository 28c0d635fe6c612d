"""Pages that ask before an act on one run: the facts, a reason, perhaps a typed phrase, and the way back."""

from __future__ import annotations

from typing import Any, Final

from litestar.response import Redirect
from msgspec import Struct

from harvest.errors import ExecutionClosedError, InvalidRequestError, LimitError
from harvest.history.ids import parse_execution_id
from harvest.history.limits import REASON_CHARACTERS
from harvest.operations import reading
from harvest.operations.views import ExecutionDetail, is_open
from harvest.shards import Shards
from harvest_console.pages.types import AnyRequest, Page, base_path, posted
from harvest_console.rendering import build_url, render
from harvest_console.rendering.states import shown_state

NEEDED: Final = "Needed: it is kept in the audit log with your name."
# What is told on the page itself; anything else is an error page.
REFUSALS: Final = (ExecutionClosedError, InvalidRequestError, LimitError)


class Confirmation(Struct, frozen=True, kw_only=True):
    """What was typed so far, and what is wrong with it by field name."""

    reason: str = ""
    phrase: str = ""
    problems: dict[str, str] = {}


async def typed(request: AnyRequest, *, reason_needed: bool = True, phrase: str = "") -> Confirmation:
    """The posted form with what is missing in it; `phrase` is what has to be typed word by word."""
    fields = await posted(request)
    reason, said = fields.get("reason", "").strip(), fields.get("phrase", "").strip()
    problems = {}
    if not reason and reason_needed:
        problems["reason"] = NEEDED
    elif len(reason) > REASON_CHARACTERS:
        problems["reason"] = f"At most {REASON_CHARACTERS} characters, this has {len(reason)}."
    if phrase and said != phrase:
        problems["phrase"] = f"Type the word {phrase} to confirm."
    return Confirmation(reason=reason, phrase=said, problems=problems)


async def confirm_page(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    template: str,
    typed: Confirmation,
    *,
    reason_needed: bool = True,
    phrase: str = "",
    status: int = 200,
    refused: str = "",
) -> Page:
    """The page before the act, drawn again with what is wrong. Raises as `reading.get` does."""
    run = await reading.get(shards, parse_execution_id(execution))
    return run_page(
        request,
        template,
        run,
        status=status,
        typed=typed,
        refused=refused,
        reason_needed=reason_needed,
        phrase=phrase,
    )


def run_page(request: AnyRequest, template: str, run: ExecutionDetail, *, status: int = 200, **context: Any) -> Page:
    """A page with a form about one run, which stands beside the run's facts."""
    return render(
        request,
        template,
        status=status,
        section="workflows",
        run=run,
        is_open=is_open(run.state),
        shown=shown_state(run.state, run.blocked.code if run.blocked else None),
        **context,
    )


def back(request: AnyRequest, execution_id: object, did: str) -> Redirect:
    """To the run, which says what was done."""
    return Redirect(build_url(base_path(request), f"/w/{execution_id}", did=did), status_code=303)
