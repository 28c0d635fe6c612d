"""One shard or two, with what tests deliver between them."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from msgspec import Raw, Struct

from harvest.history.data import Target
from harvest.history.deliveries import (
    Cancel,
    ChildClosed,
    ChildStart,
    ClosePolicy,
    DeliveryKind,
    ExternalAwait,
    ExternalCancel,
    ExternalSignal,
)
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.store.store import Store
from tests.store.kin import (
    a_deliverer,
    are_dense,
    deliver,
)

K = DeliveryKind
COMPLETED = b'{"output":42}'


class Site(Struct, frozen=True):
    """Where sources live, and where targets do."""

    shards: Shards
    near: Store
    far: Store

    @property
    def stores(self) -> list[Store]:
        return list(self.shards.stores.values())

    async def deliver(self, until: int = 0) -> None:
        await deliver(a_deliverer(self.shards, self.near), until=until)
        await are_dense(self.stores)


def a_start(parent: UUID, **changes: Any) -> ChildStart:
    settings: dict[str, Any] = {
        "workflow_name": "w", "workflow_id": uuid4().hex, "parent_id": str(parent), "root_id": str(parent),
    }  # fmt: skip
    return ChildStart(**settings | changes)


def a_closed(child: UUID, data: bytes = COMPLETED) -> ChildClosed:
    return ChildClosed(first_execution_id=str(child), kind=int(EventKind.CHILD_WORKFLOW_COMPLETED), data=Raw(data))


def a_signal(name: str = "s", payload: bytes = b"1", target: Target | None = None) -> ExternalSignal:
    return ExternalSignal(target=target or Target(execution_id="x"), name=name, payload=Raw(payload))


def do_to(kind: DeliveryKind) -> Struct:
    return {
        K.CHILD_CANCEL: Cancel(reason="r"),
        K.CLOSE_POLICY: ClosePolicy(action="request_cancel"),
        K.EXTERNAL_CANCEL: ExternalCancel(target=Target(execution_id="x"), reason="r"),
        K.EXTERNAL_SIGNAL: a_signal(),
        K.EXTERNAL_AWAIT: ExternalAwait(target=Target(execution_id="x")),
    }[kind]
