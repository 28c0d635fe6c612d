"""Waiting for signals and conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, overload

from harvest.replay.context.base import ContextBase, seconds

T = TypeVar("T")


class MessageCalls(ContextBase):
    """The part of the context that waits for what others say."""

    __slots__ = ()

    @overload
    async def wait_for_signal(self, name: str, as_type: type[T], *, timeout: timedelta | float | None = None) -> T: ...
    @overload
    async def wait_for_signal(self, name: str, *, timeout: timedelta | float | None = None) -> Any: ...
    async def wait_for_signal(self, name: str, as_type: Any = Any, *, timeout: timedelta | float | None = None) -> Any:
        """The next signal of that name, in the order of arrival. Raises TimeoutError after `timeout`."""
        self._run.check_may_act()
        if self._run.messages.buffers.get(name):
            return self._take(name, as_type)
        future = self._run.messages.wait(name, as_type)
        if timeout is None:
            return await future
        async with asyncio.timeout(seconds(timeout)):
            return await future

    def try_receive_signal(self, name: str, as_type: Any = Any) -> Any | None:
        """A signal that has already come, or None."""
        self._run.check_may_act()
        return self._take(name, as_type) if self._run.messages.buffers.get(name) else None

    def drain_signals(self, name: str, as_type: Any = Any) -> list[Any]:
        """All signals of that name that have come, oldest first."""
        self._run.check_may_act()
        return [self._take(name, as_type) for _ in range(len(self._run.messages.buffers.get(name) or ()))]

    def _take(self, name: str, as_type: Any) -> Any:
        value = self._run.messages.take(name, as_type)
        self._run.check_usable()
        return value

    async def wait_condition(self, condition: Callable[[], bool], *, timeout: timedelta | float | None = None) -> None:
        """Wait until `condition()` holds; it is looked at whenever the workflow comes to rest. Raises TimeoutError."""
        self._run.check_may_act()
        if condition():
            return
        future = self._run.wait_for(condition)
        if timeout is None:
            await future
            return
        async with asyncio.timeout(seconds(timeout)):
            await future
