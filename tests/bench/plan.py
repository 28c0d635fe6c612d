"""How much each bench does: the full plan of the issue, and a quick one to see that everything runs."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """Sizes and repetitions. The defaults are those that the promises are made for."""

    rounds: int = 3
    step_rounds: int = 5
    mode_rounds: int = 10
    workflows: int = 2_000
    closed_runs: int = 200_000
    steps: int = 300
    histories: tuple[int, ...] = (1_000, 5_000, 10_000)
    decisions: int = 300
    cold_decisions: int = 20
    memory_runs: int = 500
    memory_events: int = 1_000
    parked: int = 20_000
    new: int = 2_000
    shaped: int = 500
    replays: int = 20
    replayed: tuple[int, ...] = (100, 1_000)
    claimed: int = 100_000
    soak_seconds: int = 600
    soak_slices: int = 10
    claim_samples: int = 40
    pending: tuple[int, ...] = (1_000, 10_000, 100_000)
    fleet_runs: int = 200
    timer_seconds: float = 1.0
    imports: int = 100
    orders: int = 60


FULL = Plan()
QUICK = Plan(
    rounds=1,
    step_rounds=1,
    mode_rounds=1,
    workflows=500,
    closed_runs=20_000,
    decisions=60,
    cold_decisions=5,
    memory_runs=50,
    parked=4_000,
    new=500,
    shaped=60,
    replays=5,
    claimed=5_000,
    soak_seconds=12,
    soak_slices=4,
    claim_samples=10,
    pending=(1_000, 5_000),
    fleet_runs=30,
    timer_seconds=0.1,
    imports=60,
    orders=20,
)
