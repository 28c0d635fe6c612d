"""Registering handlers for signals, updates and queries."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from harvest.errors import DefinitionError
from harvest.replay.context.base import ContextBase
from harvest.replay.handlers import QueryHandler, SignalHandler, UpdateHandler, signature_of_handler
from harvest.replay.messages import refuse_second


class HandlerCalls(ContextBase):
    """The part of the context that says who answers."""

    __slots__ = ()

    def register_signal_handler(self, name: str, handler: Callable[..., Any]) -> None:
        """Have every signal of that name call `handler`, plain or async; those that have come already are first.

        Its parameters are the signal's payload, by their types. What it raises fails the run.
        """
        messages = self._run.messages
        self._run.check_may_act()
        refuse_second(name, messages.signals, "signal")
        messages.on_signal(SignalHandler(name, handler, signature_of_handler(name, handler, "signal")))

    def register_update_handler(
        self, name: str, handler: Callable[..., Any], *, validator: Callable[..., Any] | None = None
    ) -> None:
        """Have every update of that name answered by what `handler`, plain or async, returns or raises.

        `validator` takes the same arguments, may only look, and refuses an update by raising. It is called once, when
        the update comes: a replay goes by what it said. An update whose name has no handler when the workflow comes to
        rest is refused.
        """
        messages = self._run.messages
        self._run.check_may_act()
        refuse_second(name, messages.updates, "update")
        signature = signature_of_handler(name, handler, "update")
        if validator is not None and not callable(validator):
            raise DefinitionError(f"the validator of update {name!r} must be a function")
        if inspect.iscoroutinefunction(validator):
            raise DefinitionError(f"the validator of update {name!r} must be a plain function: it may only look")
        messages.on_update(UpdateHandler(name, handler, signature, validator))

    def register_query_handler(self, name: str, handler: Callable[..., Any]) -> None:
        """Have questions of that name answered by what `handler` returns.

        A plain function that only looks at what the workflow knows: it runs at moments that no history records.
        """
        messages = self._run.messages
        self._run.check_may_act()
        refuse_second(name, messages.queries, "query")
        messages.queries[name] = QueryHandler(name, handler, signature_of_handler(name, handler, "query"))

    def all_handlers_finished(self) -> bool:
        """Whether no signal or update handler is under way: worth waiting for before the workflow ends."""
        self._run.check_usable()
        return self._run.messages.running == 0
