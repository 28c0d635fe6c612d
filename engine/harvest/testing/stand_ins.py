"""Workflows that a test has put in the place of declared ones."""

from __future__ import annotations

from typing import Any

from harvest.definitions.options import workflow_options
from harvest.definitions.signature import Parameter, Signature
from harvest.definitions.workflow import WorkflowDefinition
from harvest.replay.context import WorkflowContext
from harvest.testing.mocking import Call, Mock, carry_out, never, real, unclaimed


def stand_in(mock: Mock, declared: WorkflowDefinition[..., Any] | None) -> WorkflowDefinition[..., Any]:
    """A workflow of the same name that does what the mock says; one that is not declared takes its input as it is."""

    async def run(ctx: WorkflowContext, *arguments: Any) -> Any:
        outcome = mock.next()
        mock.calls.append(Call(arguments, ctx.info.attempt))
        if outcome is never or outcome is unclaimed:
            await ctx.wait_condition(lambda: False)
        if outcome is real and declared is not None:
            return await declared.function(ctx, *arguments)
        return await carry_out(outcome, list(arguments))

    what = f"workflow {mock.name!r}"
    return WorkflowDefinition(
        run,
        name=mock.name,
        version=1 if declared is None else declared.version,
        options=workflow_options(queue="default", execution_timeout=None) if declared is None else declared.options,
        signature=Signature([Parameter("input", Any, None)], Any, what=what)
        if declared is None
        else declared.signature,
        signals={} if declared is None else declared.signals,
    )
