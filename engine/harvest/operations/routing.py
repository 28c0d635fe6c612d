"""What is addressed to a run that goes on as another reaches the live run of its chain.

A successor is inserted by the statement that closes its predecessor, so whoever finds a run closed finds the next one.
No sender hears "not found" or "closed" because a run has continued as new, or is tried again, at that moment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar
from uuid import UUID

from harvest.errors import ShardUnavailableError
from harvest.history.ids import ExecutionId
from harvest.history.states import State
from harvest.operations.asking import ask
from harvest.shards import Shards
from harvest.store import chains
from harvest.store.store import Store

# Each further hop means that the run has gone on once more between two statements.
MOST_HOPS: Final = 100
_MAY_GO_ON: Final = frozenset({State.CONTINUED_AS_NEW, State.FAILED})


class Reply(Protocol):
    """What a statement on one run answers: the run's state, None where there is none, and whether it was written."""

    @property
    def state(self) -> State | None:
        """The state that the run was found in."""

    @property
    def written(self) -> bool:
        """Whether the change was made."""


A = TypeVar("A", bound=Reply)


async def reach(store: Store, execution_id: UUID, act: Callable[[UUID], Awaitable[A]]) -> tuple[UUID, A]:
    """Do `act` on a run, or on the newest of its chain where it went on; returns which run that was, and the answer.

    `act` is repeated only after it has written nothing. Raises ShardUnavailableError when the chain goes on faster than
    it can be followed.
    """
    for _ in range(MOST_HOPS):
        answer = await act(execution_id)
        if answer.written or answer.state not in _MAY_GO_ON:
            return execution_id, answer
        newest = await chains.newest(store, execution_id)
        if newest is None or newest == execution_id:
            return execution_id, answer
        execution_id = newest
    raise ShardUnavailableError(
        f"execution {execution_id} goes on as another run faster than it can be reached; try again",
        shard_id=store.shard_id,
        reason="the run goes on as another",
    )


def routed(asked: UUID, reached: UUID) -> UUID | None:
    """The run that was reached, if it is another than the one that was asked for."""
    return None if asked == reached else reached


async def live_run(shards: Shards, execution_id: UUID) -> UUID:
    """The newest run of the chain that a run belongs to; itself where nothing has followed it."""
    store = shards.store_of(ExecutionId(int=execution_id.int))
    newest = await ask(shards, store.shard_id, partial(chains.newest, execution_id=execution_id))
    return newest or execution_id
