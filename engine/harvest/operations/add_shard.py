"""Adding a shard, as a checklist that is looked at now: provision, readable, the readiness gate, writable, verified."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Final, Literal

from msgspec import Struct

from harvest.errors import HarvestError
from harvest.operations import shard_health, topology
from harvest.operations.asking import ask
from harvest.operations.shard_health import ReasonCode, ShardReadiness, ShardsHealth
from harvest.operations.topology import ProcessView
from harvest.shards import MissingShard, ShardRouter, Shards
from harvest.store import rollups
from harvest.store.store import Store

CheckState = Literal["done", "waiting", "blocked", "yours"]
MOST_NAMES: Final = 5
DISPATCH_MINUTES: Final = 5
_WORST: Final[tuple[CheckState, ...]] = ("yours", "done", "waiting", "blocked")
_LATER: Final = "After the flip."
_UNKNOWN_HERE: Final = "It cannot be told yet."
_UNKNOWN_PROCESSES: Final = "No shard tells which processes there are."


class Check(Struct, frozen=True, kw_only=True):
    """One thing that must hold. `detail` says how it stands now, `commands` what brings it about.

    `waiting` comes by itself or by a command; `blocked` needs something else mended first; `yours` is what nobody can
    look at from here.
    """

    key: str
    title: str
    state: CheckState
    detail: str
    commands: list[str] = []


class Step(Struct, frozen=True, kw_only=True):
    """One step of the runbook; its state is the worst of its checks."""

    number: int
    title: str
    about: str
    state: CheckState
    checks: list[Check]


class Checklist(Struct, frozen=True, kw_only=True):
    """The whole runbook for one shard, and how ready it is. `missing` are shards that did not answer."""

    candidate: int
    steps: list[Step]
    candidate_shard: ShardReadiness
    missing: tuple[MissingShard, ...]

    @property
    def current(self) -> Step | None:
        """The first step that is not done."""
        return next((step for step in self.steps if step.state in ("waiting", "blocked")), None)


def suggested(shards: Shards) -> int:
    """The shard that is most likely being added: with a database here and not readable, not writable, or the next."""
    router = shards.router
    on_the_way = [each for each in shards.stores if each not in router.readable]
    on_the_way += [each for each in router.readable if each not in router.writable]
    return on_the_way[0] if on_the_way else max((*router.readable, *shards.stores), default=-1) + 1


async def checklist(shards: Shards, candidate: int) -> Checklist:
    """Look at everything now. Never raises for a shard that does not answer; InvalidRequestError for no shard."""
    health, processes = await asyncio.gather(shard_health.health(shards, candidate), _processes(shards))
    found = health.candidate_shard
    assert found is not None
    dispatched = None if found.live_workers is None else await _dispatched(shards, candidate)
    router = shards.router
    steps = [
        _provision(found, sorted({*router.readable, *shards.stores, candidate})),
        _readable(router, candidate, processes),
        _gate(found, processes),
    ]
    held = any(step.state in ("waiting", "blocked") for step in steps)
    steps.append(_writable(router, found, processes, dispatched, held=held))
    return Checklist(candidate=candidate, steps=steps, candidate_shard=found, missing=_others(health, candidate))


def _others(health: ShardsHealth, candidate: int) -> tuple[MissingShard, ...]:
    return tuple(shard for shard in health.partial.missing if shard.shard_id != candidate)


async def _processes(shards: Shards) -> list[ProcessView] | None:
    """The living processes; None where nobody can tell."""
    found = await topology.topology(shards)
    return [one for each in found.rows for one in each.living] if found.read else None


async def _dispatched(shards: Shards, candidate: int) -> int | None:
    """How many tasks were taken from a shard of late; None where it does not tell."""

    async def read(store: Store) -> int:
        until = await rollups.now(store)
        found = await rollups.read(store, until - timedelta(minutes=DISPATCH_MINUTES), until)
        key = ("shard.dispatched", str(store.shard_id))
        return int(sum(each.totals.counters.get(key, 0) for each in found))

    try:
        return await ask(shards, candidate, read)
    except HarvestError:
        return None


def _step(number: int, title: str, about: str, *checks: Check) -> Step:
    state = max((check.state for check in checks), key=_WORST.index)
    return Step(number=number, title=title, about=about, state=state, checks=list(checks))


def _check(key: str, title: str, state: CheckState, detail: str, *commands: str) -> Check:
    """What is done needs no command any more."""
    return Check(key=key, title=title, state=state, detail=detail, commands=[] if state == "done" else list(commands))


def _provision(found: ShardReadiness, shards: Iterable[int]) -> Step:
    """The variable lists every shard that has a database, the new one among them."""
    urls = ",".join(f"{shard}=postgresql://…" for shard in shards)
    has_pool = ReasonCode.NO_POOL not in found.reason_codes
    database = _check(
        "database",
        "Its database has an address here",
        "done" if has_pool else "waiting",
        "This console knows it." if has_pool else "This console knows no database of it.",
        f"export HARVEST_DATABASE_URLS='{urls}'",
    )
    state: CheckState
    if not has_pool:
        state, detail = "waiting", "Nobody can look at it from here yet."
    elif found.readiness == "unavailable":
        state, detail = "blocked", f"It cannot be worked with: {found.message}."
    else:
        state = "waiting" if ReasonCode.SCHEMA_MIGRATION_MISSING in found.reason_codes else "done"
        detail = f"Schema level {found.schema_level}; this release needs {found.schema_level_needed}."
    commands = ["harvest migrate run"] if state == "waiting" else []
    migrated = _check("migrated", "It has this release's schema", state, detail, *commands)
    return _step(1, "Provision and migrate", "A new database, with the schema of this release.", database, migrated)


def _readable(router: ShardRouter, candidate: int, processes: list[ProcessView] | None) -> Step:
    is_readable = candidate in router.readable
    wanted = sorted({*router.readable, candidate})
    writable = _listed(shard for shard in router.writable if shard != candidate)
    here = _check(
        "readable",
        "This console reads it",
        "done" if is_readable else "waiting",
        f"Readable here: {_listed(router.readable)}.",
        f"export HARVEST_READABLE_SHARDS={_listed(wanted)}",
        f"export HARVEST_WRITABLE_SHARDS={writable or 'none'}",
    )
    everywhere = _agreed("readable_everywhere", "Every process reads it", "readable_shards", candidate, processes)
    return _step(
        2, "Make it readable, not writable", "Every process finds its runs; none begins there.", here, everywhere
    )


def _gate(found: ShardReadiness, processes: list[ProcessView] | None) -> Step:
    look = f"harvest shard health --candidate-shard {found.shard_id}"
    message = f"{found.message[:1].upper()}{found.message[1:]}."
    state: CheckState = "waiting" if found.readiness == "degraded" else _unseen(found)
    return _step(
        3,
        "Wait for the readiness gate",
        "What is started there must find a worker.",
        _check("ready", "It is ready", "done", "Nothing is missing.")
        if found.readiness == "ready"
        else _check("ready", "It is ready", state, message, look),
        _covered(found),
        _unstranded("unstranded", "No work is stranded on it", found, look),
        _assigned(found.shard_id, processes),
        _check(
            "alert",
            "The alert harvest_shard_undrained is installed",
            "yours",
            "Nobody can look at your Prometheus from here: docs/alerts/harvest.rules.yml has it.",
            "promtool check rules docs/alerts/harvest.rules.yml",
        ),
    )


def _unseen(found: ShardReadiness) -> CheckState:
    """What cannot be looked at waits for the first step, or is blocked where the shard fails."""
    coming = {ReasonCode.NO_POOL, ReasonCode.SCHEMA_MIGRATION_MISSING}
    return "waiting" if coming & set(found.reason_codes) else "blocked"


def _covered(found: ShardReadiness) -> Check:
    key, title = "covered", "A living worker covers it"
    if found.live_workers is None:
        return _check(key, title, _unseen(found), _UNKNOWN_HERE)
    names = _some(found.worker_names, found.live_workers, "No living worker is registered on it.")
    return _check(
        key, title, "done" if found.live_workers else "waiting", names, f"harvest worker list --shard {found.shard_id}"
    )


def _unstranded(key: str, title: str, found: ShardReadiness, *commands: str) -> Check:
    if found.stranded_pending is None:
        return _check(key, title, _unseen(found), _UNKNOWN_HERE, *commands)
    told = f"{found.stranded_pending:,} tasks that no living worker of it would take."
    return _check(key, title, "waiting" if found.stranded_pending else "done", told, *commands)


def _assigned(shard_id: int, processes: list[ProcessView] | None) -> Check:
    key, title = "assigned", "The workers' resolved shards include it"
    if processes is None:
        return _check(key, title, "blocked", _UNKNOWN_PROCESSES)
    covering = [one.name for one in processes if shard_id in (one.shard_assignments or ())]
    none = "No living worker has it: one without --shard has every shard with a database, another must be told."
    told = _some(covering, len(covering), none)
    return _check(key, title, "done" if covering else "waiting", told)


def _writable(
    router: ShardRouter,
    found: ShardReadiness,
    processes: list[ProcessView] | None,
    dispatched: int | None,
    *,
    held: bool,
) -> Step:
    candidate = found.shard_id
    is_writable = candidate in router.writable
    stranded = f'harvest_shard_stranded_pending{{shard="{candidate}"}}'
    wanted = _listed(sorted({*router.writable, candidate}))
    here = _check(
        "writable",
        "New runs may begin on it",
        "done" if is_writable else "blocked" if held else "waiting",
        f"Writable here: {_listed(router.writable) or 'none'}."
        if is_writable or not held
        else "Not before the steps above are done: what began there would wait for a worker.",
        f"export HARVEST_WRITABLE_SHARDS={wanted}",
    )
    everywhere = _agreed(
        "writable_everywhere", "Every process begins runs on it", "writable_shards", candidate, processes
    )
    if not is_writable:
        everywhere = _check(everywhere.key, everywhere.title, "waiting", _LATER)
    return _step(
        4,
        "Make it writable, and verify",
        "New runs land there by their hash; runs on their way stay where they are.",
        here,
        everywhere,
        _check(
            "dispatching",
            "Work is taken from it",
            "waiting" if not dispatched or not is_writable else "done",
            "It does not tell."
            if dispatched is None
            else f"{dispatched:,} tasks taken in {DISPATCH_MINUTES} minutes. None is fine while nothing is due.",
            f'sum by (shard) (rate(harvest_shard_dispatched_total{{shard="{candidate}"}}[5m])) > 0',
        ),
        _unstranded("nothing_stranded", "Nothing is stranded", found, f"{stranded} == 0")
        if is_writable
        else _check("nothing_stranded", "Nothing is stranded", "waiting", _LATER, f"{stranded} == 0"),
    )


def _agreed(key: str, title: str, field: str, shard: int, processes: list[ProcessView] | None) -> Check:
    """Whether a field of every living process's router has the shard."""
    if processes is None:
        return _check(key, title, "blocked", _UNKNOWN_PROCESSES)
    without = [one.name for one in processes if shard not in (one.topology.get(field) or ())]
    if without:
        return _check(key, title, "waiting", f"Not yet: {_names(without)}.")
    return _check(key, title, "done" if processes else "waiting", f"{len(processes)} processes agree.")


def _some(names: Collection[str], count: int, none: str) -> str:
    return f"{count} of them: {_names(names)}." if count else none


def _names(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def _listed(shards: Iterable[int]) -> str:
    return ",".join(map(str, shards))
