"""The options of a worker as they were resolved: from the environment, from arguments, or the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_type_hints

import msgspec
from msgspec import Struct

from harvest.errors import ConfigurationError
from harvest.worker.options import WorkerOptions

PREFIX: Final = "HARVEST_WORKER_"
ARGUMENT, DEFAULT, ENVIRONMENT = "argument", "default", "environment"
NAMES: Final = tuple(name for name in WorkerOptions.__struct_fields__ if name != "origins")
_TYPES: Final = {name: kind for name, kind in get_type_hints(WorkerOptions).items() if name in NAMES}
_DEFAULTS: Final = WorkerOptions()


class Option(Struct, frozen=True):
    """An option with its value and where that comes from: `default`, `argument` or `environment`. Durations in ms."""

    name: str
    value: Any
    origin: str


def resolve(environment: Mapping[str, str], **arguments: Any) -> WorkerOptions:
    """Options from arguments (None: not given), else HARVEST_WORKER_* variables, else the defaults.

    Raises ConfigurationError that names the variable which is wrong, or which names no option.
    """
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and _option_of(name) not in NAMES)
    if unknown:
        raise ConfigurationError(f"{unknown[0]} names no option of a worker; there are {', '.join(NAMES)}")
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name in NAMES:
        text = environment.get(PREFIX + name.upper(), "")
        if arguments.get(name) is not None:
            values[name], origins[name] = arguments[name], ARGUMENT
        elif text:
            values[name], origins[name] = _parsed(name, text), ENVIRONMENT
    return WorkerOptions(**values, origins=origins)


def effective(options: WorkerOptions, assigned: tuple[int, ...] = ()) -> list[Option]:
    """Every option as it works, in the order of `WorkerOptions`, durations in milliseconds under `…_ms`.

    `assigned` are the shards that the worker found to be its own where it was given none.
    """
    found = []
    for name in NAMES:
        value = _working(options, name, assigned)
        is_duration = _TYPES[name] is float
        given = getattr(options, name)
        origin = options.origins.get(name) or (DEFAULT if given == getattr(_DEFAULTS, name) else ARGUMENT)
        found.append(
            Option(f"{name}_ms" if is_duration else name, round(value * 1000) if is_duration else value, origin)
        )
    return found


def _working(options: WorkerOptions, name: str, assigned: tuple[int, ...]) -> Any:
    """The value that an option works with, where it hangs on another one."""
    if name == "name":
        return options.display_name
    if name == "resident_workflows":
        return options.resident_workflows and options.lease_ttl > 0
    if name == "shard_assignments":
        return assigned or options.shard_assignments
    return getattr(options, name)


def _option_of(variable: str) -> str:
    return variable.removeprefix(PREFIX).lower()


def _parsed(name: str, text: str) -> Any:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if _TYPES[name] == tuple[str, ...]:
        return parts
    if _TYPES[name] == tuple[int, ...]:
        if not all(part.isdecimal() for part in parts):
            raise ConfigurationError(f"{PREFIX}{name.upper()} is {text[:80]!r}; it must be numbers like 0,1")
        return tuple(int(part) for part in parts)
    try:
        return msgspec.convert(text, _TYPES[name], strict=False)
    except msgspec.ValidationError:
        kind = {bool: "true or false", int: "a whole number", float: "a number of seconds"}[_TYPES[name]]
        raise ConfigurationError(f"{PREFIX}{name.upper()} is {text[:80]!r}; it must be {kind}") from None
