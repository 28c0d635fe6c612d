"""Workflows that every worker has the code for without declaring them. They are not published: no form offers them."""

from __future__ import annotations

from typing import Any, Final

from harvest.definitions.options import WorkflowOptions
from harvest.definitions.workflow import WorkflowDefinition, define_workflow
from harvest.history.built_in import CANARY


async def _canary(ctx: Any) -> None:
    """Ends at once: whoever has started it sees that tasks of its queue are taken, decided and committed."""


BUILT_IN: Final[dict[tuple[str, int], WorkflowDefinition[..., Any]]] = {
    (CANARY, 1): define_workflow(
        _canary,
        name=CANARY,
        version=1,
        options=WorkflowOptions(),
        signals=None,
        allow_nondeterministic_apis=True,
    )
}
