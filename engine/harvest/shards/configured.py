"""The router of a deployment, as the environment describes it."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Mapping
from typing import Final

from harvest.errors import ConfigurationError
from harvest.shards.router import ShardRouter

_log = logging.getLogger("harvest.shards")
_DIGITS: Final = 5
_VARIABLES: Final = {
    "readable": "HARVEST_READABLE_SHARDS",
    "writable": "HARVEST_WRITABLE_SHARDS",
    "default": "HARVEST_DEFAULT_SHARD",
    "residency": "HARVEST_RESIDENCY_MAP",
    "reserved": "HARVEST_RESERVED_SHARDS",
    "forwards": "HARVEST_SHARD_FORWARDS",
}
_ABOUT_SHARDS: Final = ("SHARD", "RESIDENCY", "FORWARD")
# A worker reads its own, and refuses those that it does not know.
_OF_WORKERS: Final = "HARVEST_WORKER_"
_WORKER_SHARDS: Final = "HARVEST_WORKER_SHARD_ASSIGNMENTS"
# Kubernetes gives each container such variables of every service, also of one that is called harvest-shard-1.
_OF_SERVICES: Final = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_(TCP|UDP|SCTP)\w*)")


def configured(environment: Mapping[str, str], shards: Collection[int]) -> ShardRouter:
    """The router of HARVEST_READABLE_SHARDS, …_WRITABLE_…, …_RESERVED_…, HARVEST_DEFAULT_SHARD, HARVEST_RESIDENCY_MAP
    (`eu=0,us=1`) and HARVEST_SHARD_FORWARDS (`3=0`).

    A list is numbers like `0,1`, or `none`. Without them all `shards`, those with a database, are readable; all
    readable ones are writable, and the lowest of them that is not reserved is the default. Raises ConfigurationError
    that names the variable, also for one about shards that nobody reads: a name that is misspelt would change nothing.
    """
    _check_names(environment)
    readable = _numbers(environment, "HARVEST_READABLE_SHARDS", tuple(sorted(shards)))
    reserved = _numbers(environment, "HARVEST_RESERVED_SHARDS", ())
    shared = [shard for shard in readable if shard not in reserved]
    default = _numbers(environment, "HARVEST_DEFAULT_SHARD", (min(shared or readable, default=0),))
    if len(default) != 1:
        raise ConfigurationError("HARVEST_DEFAULT_SHARD must be one number")
    writable = _numbers(environment, "HARVEST_WRITABLE_SHARDS", readable)
    residency = _pairs(environment, "HARVEST_RESIDENCY_MAP")
    forwards = {
        _number("HARVEST_SHARD_FORWARDS", gone): shard
        for gone, shard in _pairs(environment, "HARVEST_SHARD_FORWARDS").items()
    }
    try:
        return ShardRouter(
            readable=readable,
            writable=writable,
            default=default[0],
            residency=residency,
            reserved=reserved,
            forwards=forwards,
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{_VARIABLES[error.fields['field']]}: {error.message}", **error.fields) from None


def _check_names(environment: Mapping[str, str]) -> None:
    known = (*_VARIABLES.values(), _WORKER_SHARDS)
    for name in sorted(environment):
        if (
            not name.startswith("HARVEST_")
            or name in known
            or name.startswith(_OF_WORKERS)
            or _OF_SERVICES.fullmatch(name)
            or not any(word in name for word in _ABOUT_SHARDS)
        ):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise ConfigurationError(f"there is no setting {name[:80]}; {remedy}", field=name[:80])


def warn_at_boot(router: ShardRouter, databases: Collection[int]) -> None:
    """Log what of the router is allowed and worth a word; for the start of a process that has these databases."""
    for warning in router.warnings(databases):
        _log.warning("%s", warning)


def _numbers(environment: Mapping[str, str], variable: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """`none` is the empty list: a variable that is set to nothing counts as not set."""
    text = environment.get(variable, "").strip()
    if not text:
        return default
    if text == "none":
        return ()
    return tuple(_number(variable, part) for part in text.split(","))


def _pairs(environment: Mapping[str, str], variable: str) -> dict[str, int]:
    pairs: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in environment.get(variable, "").split(","))):
        key, separator, number = part.rpartition("=")
        if not separator:
            raise ConfigurationError(f"{variable} has the part {part[:80]!r}; it must look like key=shard,key=shard")
        if key.strip() in pairs:
            raise ConfigurationError(f"{variable} names {key.strip()[:80]!r} twice")
        pairs[key.strip()] = _number(variable, number)
    return pairs


def _number(variable: str, text: str) -> int:
    text = text.strip()
    if len(text) > _DIGITS or not (text.isascii() and text.isdecimal()):
        raise ConfigurationError(f"{variable} has {text[:80]!r} where the number of a shard must be")
    return int(text)
