"""Which shard a run lives on (seed `sharding.md`, answers 2). Rules only: no I/O but the log of refusals."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from hashlib import sha256
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from harvest.errors import (
    ConfigurationError,
    NoWritableShardError,
    PlacementError,
    ShardUnavailableError,
)
from harvest.history.ids import RESERVED_SHARD, ExecutionId, pick_shard, shard_of
from harvest.shards.placement import AUTOMATIC, Placement, check_key

MOST_FORWARDS: Final = 4
_TRIES: Final = 10_000
_log = logging.getLogger("harvest.shards")


class ShardRouter(Struct, frozen=True):
    """The shards of a deployment, and what decides where a run lives. Checked when built.

    `readable` shards are read; of those, `writable` ones take new runs. `default` has what belongs to no shard. On a
    `reserved` shard (a cell) lands only what is placed there by name. `residency` leads a declared key to its shard,
    and `forwards` a shard that is gone to the one that has its runs now.

    Raises ConfigurationError that names the field at fault in `fields["field"]`.
    """

    readable: tuple[int, ...]
    writable: tuple[int, ...]
    default: int
    residency: dict[str, int] = {}
    reserved: tuple[int, ...] = ()
    forwards: dict[int, int] = {}

    def __post_init__(self) -> None:
        _check_sets(self)
        _check_reserved(self)
        for key, shard in self.residency.items():
            _check_residency(self, key, shard)
        for gone, shard in self.forwards.items():
            if gone in self.readable:
                raise _wrong("forwards", f"shard {gone} is forwarded to {shard} but is readable; it can be one of them")
            if shard not in self.readable and shard not in self.forwards:
                raise _wrong("forwards", f"shard {gone} is forwarded to {shard}, which is not readable")
            self._forwarded(gone)

    @classmethod
    def of(cls, shards: Collection[int]) -> ShardRouter:
        """A router over shards that are all readable and writable; the lowest is the default."""
        ordered = tuple(sorted(shards))
        return cls(readable=ordered, writable=ordered, default=ordered[0] if ordered else 0)

    @property
    def shared(self) -> tuple[int, ...]:
        """The readable shards that runs may land on by themselves."""
        return tuple(shard for shard in self.readable if shard not in self.reserved)

    @property
    def digest(self) -> str:
        """What all processes of a deployment must agree on, in 12 characters."""
        return sha256(msgspec.json.encode(self.topology(), order="deterministic")).hexdigest()[:12]

    def topology(self) -> dict[str, Any]:
        """Every field in a stable order, under the names of `GET /admin/config`."""
        return {
            "default_shard": self.default,
            "readable_shards": sorted(self.readable),
            "reserved_shards": sorted(self.reserved),
            "residency_map": dict(sorted(self.residency.items())),
            "shard_forwards": {str(gone): shard for gone, shard in sorted(self.forwards.items())},
            "writable_shards": sorted(self.writable),
        }

    def pick(self, name: str, key: str) -> int:
        """The shard that a hash leads to: over the readable, again over the writable if that one drains.

        Raises NoWritableShardError.
        """
        writable = [shard for shard in self.shared if shard in self.writable]
        if not writable:
            raise NoWritableShardError(
                "no shard is accepting new workflows: all of them are being drained", reason="drained"
            )
        picked = pick_shard(self.shared, name, key)
        return picked if picked in writable else pick_shard(writable, name, key)

    def place(self, workflow_name: str, key: str, placement: Placement = AUTOMATIC, *, repeats: bool = False) -> int:
        """The shard of a new workflow, as `resolve`; a refusal is in the log with what is configured."""
        try:
            return self.resolve(workflow_name, key, placement, repeats=repeats)
        except PlacementError as error:
            _log.warning(
                "placement of workflow %r refused: %s; configured: %s", workflow_name, error.message, self.topology()
            )
            raise

    def resolve(self, workflow_name: str, key: str, placement: Placement = AUTOMATIC, *, repeats: bool = False) -> int:
        """Where a workflow would be placed. `repeats`: it may be there already, so the shard need not take new ones.

        Raises PlacementError for a wish that this deployment does not grant, and NoWritableShardError. Callers may be
        less trusted than operators: an error names what they asked for, never what is configured (seed `sharding.md`).
        """
        placement.check()
        if placement.is_automatic:
            return self.pick(workflow_name, key)
        shard = self._wanted(placement)
        if shard not in self.readable:
            raise PlacementError(
                f"shard {shard} is not a placeable shard for this deployment", field="shard_id", reason="unknown_shard"
            )
        if shard not in self.writable and not repeats:
            raise _draining(placement)
        return shard

    def _wanted(self, placement: Placement) -> int:
        key = placement.residency_key
        if key is None:
            assert placement.shard_id is not None
            return placement.shard_id
        if key not in self.residency:
            raise PlacementError(
                f"residency key {key!r} is not declared for this deployment",
                field="residency_key",
                reason="undeclared_key",
            )
        return self.residency[key]

    def id_for(self, workflow_name: str, shard_id: int, ids: Iterable[str]) -> str:
        """The first of `ids` that leads to this shard by itself: an unpinned start of the same id finds the run.

        To a shard that drains or is reserved no id leads: then it is the first.
        """
        first = ""
        reachable = shard_id in self.shared and shard_id in self.writable
        for chosen in islice(ids, _TRIES if reachable else 1):
            first = first or chosen
            if reachable and self.pick(workflow_name, chosen) == shard_id:
                return chosen
        return first

    def locate(self, execution_id: ExecutionId) -> int:
        """The shard of an existing execution: where it started. Raises ShardUnavailableError for an unknown one."""
        shard = shard_of(execution_id)
        if shard == RESERVED_SHARD:
            return self.default
        found = self._forwarded(shard)
        if found not in self.readable:
            raise ShardUnavailableError(
                f"execution {execution_id} started on shard {shard}, which this deployment does not read",
                shard_id=shard,
                reason="not configured",
            )
        return found

    def _forwarded(self, shard: int) -> int:
        found = shard
        for _ in range(MOST_FORWARDS + 1):
            if found not in self.forwards:
                return found
            found = self.forwards[found]
        raise _wrong(
            "forwards",
            f"shard {shard} is forwarded in a circle, or over more than {MOST_FORWARDS} steps; forward it straight to "
            "the shard that has its runs now",
        )

    def warnings(self, pools: Collection[int]) -> list[str]:
        """What is allowed, and is worth a word at boot: a roll-out that is under way, or one that was forgotten."""
        return [
            *(
                f"shard {each} is readable but has no database here; of a worker here, deliveries to it wait"
                for each in self.readable
                if each not in pools
            ),
            *(f"shard {each} has a database here but is not readable" for each in pools if each not in self.readable),
            *(
                f"residency key {key!r} leads to shard {shard}, which takes no new workflows: starts are refused"
                for key, shard in sorted(self.residency.items())
                if shard not in self.writable
            ),
            *(["no shard is writable: every start is refused"] if not self.writable else []),
        ]


def _draining(placement: Placement) -> PlacementError:
    if placement.residency_key is not None:
        return PlacementError(
            f"residency key {placement.residency_key!r} is not currently accepting new workflows; its shard is being "
            "drained",
            field="residency_key",
            reason="draining",
        )
    return PlacementError(
        f"shard {placement.shard_id} is not currently accepting new workflows; it is being drained",
        field="shard_id",
        reason="draining",
    )


def _check_sets(router: ShardRouter) -> None:
    if not router.readable:
        raise _wrong("readable", "no shard is configured; name at least one database")
    for name in ("readable", "writable", "reserved", "forwards"):
        shards: Collection[int] = getattr(router, name)
        if any(not 0 <= shard < RESERVED_SHARD for shard in shards):
            raise _wrong(name, f"shards are numbered 0 to {RESERVED_SHARD - 1}; it has {_list(shards)}")
        if len(set(shards)) < len(shards):
            raise _wrong(name, f"the {name} shards name one of them twice: {_list(shards)}")
    for name in ("writable", "reserved"):
        left = sorted(set(getattr(router, name)) - set(router.readable))
        if left:
            raise _wrong(name, f"shard {left[0]} is {name} but not readable; make it readable too")
    if router.default not in router.readable:
        raise _wrong(
            "default", f"the default shard {router.default} is not among the readable shards {_list(router.readable)}"
        )


def _check_reserved(router: ShardRouter) -> None:
    if router.default in router.reserved:
        raise _wrong(
            "reserved",
            f"shard {router.default} is the default and reserved; the default shard is for everybody, reserve another",
        )
    if router.writable and not set(router.writable) - set(router.reserved):
        raise _wrong("reserved", "every writable shard is reserved; at least one must take runs that are not pinned")


def _check_residency(router: ShardRouter, key: str, shard: int) -> None:
    try:
        check_key(key)
    except PlacementError as error:
        raise _wrong("residency", f"the residency map has a key that cannot be one: {error.message}") from None
    if shard not in router.readable:
        raise _wrong(
            "residency",
            f"residency key {key!r} leads to shard {shard}, which is not among the readable shards "
            f"{_list(router.readable)}",
        )


def _wrong(field: str, message: str) -> ConfigurationError:
    return ConfigurationError(message, field=field)


def _list(shards: Collection[int]) -> str:
    return ", ".join(map(str, sorted(shards)))
