"""Starting workflows as children."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Generic, ParamSpec, TypeVar, overload

from harvest.definitions.children import ChildOptions, ChildPlacement
from harvest.definitions.workflow import WorkflowDefinition
from harvest.history.data import Target
from harvest.history.ids import ExecutionId, derive_execution_id
from harvest.history.limits import check_text
from harvest.replay.context.activities import encoded
from harvest.replay.context.external import ExternalCalls, signal_command
from harvest.replay.loop import WorkflowFuture
from harvest.replay.placing import place
from harvest.replay.relations import CancelChild, CancelExternal, StartChild
from harvest.replay.run import Run

P = ParamSpec("P")
R = TypeVar("R")


class ChildHandle(Generic[R]):
    """A child that was asked for: await it for its result, signal it, cancel it.

    A detached child's result cannot be awaited here; `ctx.await_external_workflow` can wait for its end.
    """

    __slots__ = ("_command", "_future", "_run")

    def __init__(self, run: Run, command: StartChild, future: WorkflowFuture | None) -> None:
        self._run = run
        self._command = command
        self._future = future

    @property
    def execution_id(self) -> ExecutionId:
        """The id of the child's first run."""
        return self._command.child_id

    @property
    def workflow_id(self) -> str:
        """The id in its business key."""
        return self._command.workflow_id

    def __await__(self) -> Generator[Any, Any, R]:
        """The result. Raises ChildWorkflowError when it did not complete. Turning away leaves the child running."""
        if self._future is None:
            raise TypeError("a detached child is not awaited; use ctx.await_external_workflow(handle.execution_id)")
        return asyncio.shield(self._future).__await__()

    @property
    def done(self) -> bool:
        """Whether its end is known here."""
        return self._future is not None and self._future.done()

    async def signal(self, name: str, payload: Any = None) -> None:
        """Send it a signal, and wait until it has arrived. Raises ExternalWorkflowError."""
        target = Target(execution_id=str(self._command.child_id))
        await self._run.ask(self._run.externals, signal_command(self._run, target, name, payload))

    def cancel(self) -> None:
        """Ask it to end. Who awaits it sees CancelledError at once."""
        if self._future is not None:
            self._future.cancel()
        else:
            run = self._run
            target = Target(execution_id=str(self._command.child_id))
            run.ask(run.externals, CancelExternal(run.next_sequence(), target, "cancelled by its parent"))


class ChildCalls(ExternalCalls):
    """The part of the context that starts children. `workflow.with_options(...)` changes options for one call."""

    __slots__ = ()

    @overload
    async def execute_child_workflow(
        self, workflow: WorkflowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def execute_child_workflow(self, workflow: str, *args: Any) -> Any: ...
    async def execute_child_workflow(self, workflow: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a workflow as a child and return its result.

        Raises ChildWorkflowError when it did not complete, and TimeoutError when the `deadline` of its options passes.
        Cancelling this call, or its deadline, asks the child to end.
        """
        deadline = workflow.child.deadline if isinstance(workflow, WorkflowDefinition) else None
        _, future = self._start(workflow, args, kwargs, waits=True)
        assert future is not None
        if deadline is None:
            return await future
        async with asyncio.timeout(deadline):
            return await future

    @overload
    async def start_child_workflow(
        self, workflow: WorkflowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> ChildHandle[R]: ...
    @overload
    async def start_child_workflow(self, workflow: str, *args: Any) -> ChildHandle[Any]: ...
    async def start_child_workflow(self, workflow: Any, *args: Any, **kwargs: Any) -> ChildHandle[Any]:
        """Ask for a child and go on at once with a handle to it; it begins once this decision is committed."""
        command, future = self._start(workflow, args, kwargs)
        return ChildHandle(self._run, command, future)

    def _start(
        self, workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, waits: bool = False
    ) -> tuple[StartChild, WorkflowFuture | None]:
        if isinstance(workflow, str):
            name, version = check_text(workflow, what="workflow name"), 0
            options, signature = ChildOptions(), None
        elif isinstance(workflow, WorkflowDefinition):
            name, version, options, signature = workflow.name, workflow.version, workflow.child, workflow.signature
        else:
            raise TypeError(f"a child is a declared workflow or its name, not {type(workflow).__name__}")
        if waits and options.detached:
            raise TypeError("a detached child is not awaited; use ctx.start_child_workflow")
        data, digest = encoded(signature, args, kwargs, name)
        run = self._run
        seq = run.next_sequence()
        parent = run.identity.execution_id
        recorded = run.recorded_child(seq)
        child_id, refused = (recorded, "") if recorded is not None else _placed(run, seq, name, options.placement)
        command = StartChild(
            seq=seq,
            child_id=child_id,
            workflow_name=name,
            workflow_id=options.workflow_id or f"{parent}/{seq}",
            version=version,
            input=data,
            digest=digest,
            options=options,
            signature=signature,
            refused=refused,
        )
        run.had_children = True
        if options.detached:
            run.asked.ask(command)
            return command, None
        future = run.ask(run.children, command, CancelChild(seq, command))
        if recorded is not None or (options.placement.kind != "parent_shard" and not run.replaying):
            run.asked.stand(command.key)
        return command, future


def _placed(run: Run, seq: int, workflow_name: str, placement: ChildPlacement) -> tuple[ExecutionId, str]:
    """The id of a new child, with its shard in it, and why that is refused.

    What is asked for on a replay and is not in history was taken back at once, or blocks the run: nobody is asked.
    """
    parent = run.identity.execution_id
    wanted = ChildPlacement.ParentShard if run.replaying else placement
    placed = place(run.placer, wanted, parent, workflow_name, seq)
    milliseconds = int(run.now_at.timestamp() * 1000)
    return derive_execution_id(placed.shard_id, parent, seq, milliseconds), placed.refused
