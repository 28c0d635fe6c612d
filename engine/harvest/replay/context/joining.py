"""Doing several things at once: the first that ends, and many of one kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, Generic, TypeVar, overload

from msgspec import Struct

from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import HarvestError, InvalidRequestError
from harvest.replay.context.activities import ActivityCalls
from harvest.replay.context.children import ChildCalls

R = TypeVar("R")


class Winner(Struct, Generic[R], frozen=True):
    """What ended first: its place among what was raced, and its result."""

    index: int
    value: R


class JoiningCalls(ActivityCalls, ChildCalls):
    """The part of the context that joins branches."""

    __slots__ = ()

    @overload
    async def race(self, *branches: Awaitable[R]) -> Winner[R]: ...
    @overload
    async def race(self, *branches: Awaitable[Any]) -> Winner[Any]: ...
    async def race(self, *branches: Awaitable[Any]) -> Winner[Any]:
        """Wait for the first branch that ends, in the order of history, and cancel the others.

        Raises what the winner raised. Losers are cancelled and waited for, so that their cleanup is done.
        """
        try:
            self._run.check_may_act()
        except BaseException:
            # Whoever keeps this error keeps them: they must not be found never awaited, long after.
            for branch in branches:
                if asyncio.iscoroutine(branch):
                    branch.close()
            raise
        if not branches:
            raise InvalidRequestError("race needs at least one branch")
        tasks = [asyncio.ensure_future(branch) for branch in branches]
        ended: list[int] = []
        for index, task in enumerate(tasks):
            task.add_done_callback(lambda _, index=index: ended.append(index))  # type: ignore[misc]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            first = ended[0]
        finally:
            losers = [task for task in tasks if not task.done()]
            for task in losers:
                task.cancel()
            if losers:
                await asyncio.wait(losers)
        for task in tasks:
            if not task.cancelled():
                task.exception()
        return Winner(first, tasks[first].result())

    async def fan_out(
        self,
        what: ActivityDefinition[[Any], R] | WorkflowDefinition[[Any], R],
        items: Iterable[Any],
        *,
        at_once: int | None = None,
    ) -> list[R]:
        """Run an activity or a child workflow for each item, `at_once` at a time; results in the order of the items.

        The first failure cancels the rest and is raised.
        """
        limited = _limited(items, at_once)
        results: list[Any] = []
        try:
            async with asyncio.TaskGroup() as group:
                results = [group.create_task(self._one(what, item, limit)) for item, limit in limited]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in results]

    async def fan_out_collect(
        self,
        what: ActivityDefinition[[Any], R] | WorkflowDefinition[[Any], R],
        items: Iterable[Any],
        *,
        at_once: int | None = None,
    ) -> list[R | HarvestError | TimeoutError]:
        """As `fan_out`, but every item has its turn: where one failed, its error stands in place of its result.

        A child that ran into its deadline has a TimeoutError.
        """

        async def outcome(item: Any, limit: asyncio.Semaphore | None) -> R | HarvestError | TimeoutError:
            try:
                result: R = await self._one(what, item, limit)
                return result
            except (HarvestError, TimeoutError) as error:
                return error

        limited = _limited(items, at_once)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(outcome(item, limit)) for item, limit in limited]
        return [task.result() for task in tasks]

    async def _one(self, what: Any, item: Any, limit: asyncio.Semaphore | None) -> Any:
        call = self.execute_activity if isinstance(what, ActivityDefinition) else self.execute_child_workflow
        if limit is None:
            return await call(what, item)
        async with limit:
            return await call(what, item)


def _limited(items: Iterable[Any], at_once: int | None) -> list[tuple[Any, asyncio.Semaphore | None]]:
    if at_once is not None and at_once < 1:
        raise InvalidRequestError(f"at_once is {at_once}; at least one must run")
    limit = None if at_once is None else asyncio.Semaphore(at_once)
    return [(item, limit) for item in items]
