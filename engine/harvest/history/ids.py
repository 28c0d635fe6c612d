"""Execution ids, partitions, and the weight that places a new execution on a shard (design 3, answers 2)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from harvest import clock
from harvest.errors import InvalidRequestError

ExecutionId = uuid.UUID

RESERVED_SHARD: Final = 65535
PARTITIONS: Final = 512
ID_DIGITS: Final = 32
_NOISE: Final = (1 << 62) - 1
_HEXADECIMAL: Final = frozenset("0123456789abcdef")


def mint_execution_id(shard_id: int) -> ExecutionId:
    """A fresh UUID version 8: 16 bits of the shard where the run starts, 44 bits of milliseconds, the rest random."""
    if not 0 <= shard_id < RESERVED_SHARD:
        raise InvalidRequestError(f"shard {shard_id} is out of range; shards are 0 to {RESERVED_SHARD - 1}")
    noise = int.from_bytes(clock.random_bytes(9)) & _NOISE
    return _version_8(shard_id, clock.unix_milliseconds(), noise)


def derive_execution_id(shard_id: int, parent: ExecutionId, seq: int, milliseconds: int) -> ExecutionId:
    """The id of the child that command `seq` of `parent` asks for: the same on every replay, so known at once."""
    noise = int.from_bytes(sha256(parent.bytes + seq.to_bytes(8)).digest()[:8]) & _NOISE
    return _version_8(shard_id, milliseconds, noise)


def _version_8(shard_id: int, milliseconds: int, noise: int) -> ExecutionId:
    """128 bits: shard 16 | ms 32 high | version 4 | ms 12 low | variant 2 | noise 62."""
    milliseconds &= (1 << 44) - 1
    return uuid.UUID(
        int=(shard_id << 112)
        | ((milliseconds >> 12) << 80)
        | (8 << 76)
        | ((milliseconds & 0xFFF) << 64)
        | (0b10 << 62)
        | noise
    )


def shard_of(execution_id: ExecutionId) -> int:
    """The shard where the execution started: its first 16 bits."""
    return execution_id.int >> 112


def parse_execution_id(text: str) -> ExecutionId:
    """Read an id as URLs and the API carry it; raises InvalidRequestError."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise InvalidRequestError(
            f"{text[:80]!r} is not an execution id; it must look like 00000000-0000-8000-8000-000000000000",
            field="execution_id",
        ) from None


def ids_beginning(prefix: str, field: str = "exec_id_prefix") -> tuple[ExecutionId, ExecutionId]:
    """The first and the last id that begin with these hexadecimal digits, with or without an id's dashes.

    Raises InvalidRequestError naming the `field` that holds anything else.
    """
    digits = prefix.replace("-", "").lower()
    if digits and len(digits) <= ID_DIGITS and set(digits) <= _HEXADECIMAL:
        first, last = (uuid.UUID(digits.ljust(ID_DIGITS, filling)) for filling in "0f")
        if "-" not in prefix or str(first).startswith(prefix.lower()):
            return first, last
    raise InvalidRequestError(
        f"{field} is {prefix[:80]!r}; it must be the first hexadecimal digits of an execution id, like 0001019a or "
        "0001019a-3c",
        field=field,
    )


def partition_of(workflow_id: str) -> int:
    """First 9 bits of SHA-256 of the workflow id."""
    digest = sha256(workflow_id.encode()).digest()
    return (digest[0] << 1) | (digest[1] >> 7)


def business_key(tenant: str, workflow_name: str, workflow_id: str) -> uuid.UUID:
    """First 16 bytes of SHA-256 over tenant, name and id, NUL between them: what uniqueness is checked by."""
    text = f"{tenant}\x00{workflow_name}\x00{workflow_id}"
    return uuid.UUID(bytes=sha256(text.encode()).digest()[:16])


def shard_weight(shard_id: int, workflow_name: str, workflow_id: str) -> int:
    """Rendezvous weight: first 8 bytes, big-endian, of SHA-256(int4send(shard) || name || 0x00 || id)."""
    text = shard_id.to_bytes(4) + workflow_name.encode() + b"\x00" + workflow_id.encode()
    return int.from_bytes(sha256(text).digest()[:8])


def pick_shard(shards: Iterable[int], workflow_name: str, workflow_id: str) -> int:
    """The shard of the highest weight; ties go to the lower number."""
    return max(sorted(shards), key=lambda shard: shard_weight(shard, workflow_name, workflow_id))
