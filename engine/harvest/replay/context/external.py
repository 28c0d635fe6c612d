"""Reaching runs that somebody else started."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from harvest.errors import InvalidRequestError
from harvest.history import payload as payloads
from harvest.history.data import Target
from harvest.history.ids import parse_execution_id
from harvest.history.limits import REASON_CHARACTERS, WORKFLOW_ID_BYTES, check_text
from harvest.replay.context.base import ContextBase
from harvest.replay.relations import AwaitExternal, CancelExternal, SignalExternal
from harvest.replay.run import Run


class ExternalCalls(ContextBase):
    """The part of the context that signals, cancels and awaits other runs; each call returns when that was done.

    An execution id stands for the current run of its chain. All raise ExternalWorkflowError with a `reason_code`:
    target_unknown, target_terminal, or not_completed.
    """

    __slots__ = ()

    async def signal_external_workflow(self, execution_id: UUID | str, name: str, payload: Any = None) -> None:
        """Signal a run by its execution id."""
        await self._signal(_by_id(execution_id), name, payload)

    async def signal_external_workflow_by_id(
        self, workflow_name: str, workflow_id: str, name: str, payload: Any = None
    ) -> None:
        """Signal the open run of a workflow id."""
        await self._signal(_by_key(workflow_name, workflow_id), name, payload)

    async def cancel_external_workflow(self, execution_id: UUID | str, reason: str = "") -> None:
        """Ask a run to end, by its execution id."""
        await self._cancel(_by_id(execution_id), reason)

    async def cancel_external_workflow_by_id(self, workflow_name: str, workflow_id: str, reason: str = "") -> None:
        """Ask the open run of a workflow id to end."""
        await self._cancel(_by_key(workflow_name, workflow_id), reason)

    async def await_external_workflow(self, execution_id: UUID | str) -> Any:
        """Wait for the end of a run, by its execution id, and return its result.

        Raises ExternalWorkflowError where there is no such run, where it did not complete, and where its result was
        erased: `fields["reason_code"]` is target_unknown, not_completed or payloads_erased.
        """
        return await self._await(_by_id(execution_id))

    async def await_external_workflow_by_id(self, workflow_name: str, workflow_id: str) -> Any:
        """Wait for the end of the run that a workflow id means now, and return its result.

        Raises as `await_external_workflow` does.
        """
        return await self._await(_by_key(workflow_name, workflow_id))

    async def _signal(self, target: Target, name: str, payload: Any) -> None:
        await self._run.ask(self._run.externals, signal_command(self._run, target, name, payload))

    async def _cancel(self, target: Target, reason: str) -> None:
        run = self._run
        check_text(reason, what="reason", most=4 * REASON_CHARACTERS, empty=True)
        await run.ask(run.externals, CancelExternal(run.next_sequence(), target, reason[:REASON_CHARACTERS]))

    async def _await(self, target: Target) -> Any:
        run = self._run
        return await run.ask(run.externals, AwaitExternal(run.next_sequence(), target))


def signal_command(run: Run, target: Target, name: str, payload: Any) -> SignalExternal:
    """The command that sends a signal."""
    check_text(name, what="signal name")
    data = payloads.encode(payload, what=f"signal {name!r}")
    digest = payloads.digest(payloads.encode_canonical(payload))
    return SignalExternal(run.next_sequence(), target, name, data, digest)


def _by_id(execution_id: UUID | str) -> Target:
    found = execution_id if isinstance(execution_id, UUID) else parse_execution_id(execution_id)
    return Target(execution_id=str(found))


def _by_key(workflow_name: str, workflow_id: str) -> Target:
    if not workflow_id.strip():
        raise InvalidRequestError("workflow_id is empty; name the run", field="workflow_id")
    check_text(workflow_id, what="workflow_id", most=WORKFLOW_ID_BYTES)
    return Target(workflow_name=check_text(workflow_name, what="workflow_name"), workflow_id=workflow_id)
