"""`python -m tests.bench [a … l|all] [--quick]`: run, print, keep, and exit 1 when a bound fails."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from tests.bench import part_a, part_b, part_c, part_d, part_e, part_f, part_g, part_h, part_i, part_j, part_k, part_l
from tests.bench.figures import Part, Report, render
from tests.bench.plan import FULL, QUICK, Plan
from tests.bench.server import BenchServer
from tests.bench.side import SideFailed

PARTS: Final = {
    "a": part_a.run,
    "b": part_b.run,
    "c": part_c.run,
    "d": part_d.run,
    "e": part_e.run,
    "f": part_f.run,
    "g": part_g.run,
    "h": part_h.run,
    "i": part_i.run,
    "j": part_j.run,
    "k": part_k.run,
    "l": part_l.run,
}
LATEST: Final = Path(__file__).parent / "results" / "latest.json"
PROOF: Final = Path(__file__).parents[2] / "docs" / "proof"


def main() -> int:
    """Run the benches that the command line names; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="How fast, beside what, on one server.")
    parser.add_argument("parts", nargs="*", default="all", choices=[*PARTS, "all"])
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: that it runs, not how fast it is")
    parser.add_argument("--proof", action="store_true", help="write the figures to docs/proof too")
    chosen = parser.parse_args()
    letters = [*PARTS] if "all" in chosen.parts else list(chosen.parts)
    try:
        report = measure(letters, QUICK if chosen.quick else FULL, quick=chosen.quick)
    except SideFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    keep(report)
    if chosen.proof:
        PROOF.mkdir(exist_ok=True)
        name = "bench" if "all" in chosen.parts else "bench-" + "-".join(letters)
        (PROOF / f"{name}.md").write_text(page_of(report))
    failed = [f"({part.letter}) {bound.name}" for part in report.parts for bound in part.bounds if not bound.holds]
    print(f"kept in {LATEST}")
    if failed:
        print("bounds that fail: " + "; ".join(failed))
    return 1 if failed else 0


def measure(letters: list[str], plan: Plan, *, quick: bool) -> Report:
    """Run the benches on one server, printing each as it ends."""
    before = os.getloadavg()[0]
    parts: list[Part] = []
    with BenchServer() as server:
        for letter in letters:
            parts.append(PARTS[letter](server, plan))
            print(render(parts[-1]) + "\n", flush=True)
        version = server.version
    return Report(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        quick=quick,
        python=platform.python_version(),
        postgres=version,
        cpus=os.cpu_count() or 1,
        load_before=round(before, 2),
        load_after=round(os.getloadavg()[0], 2),
        parts=parts,
    )


def keep(report: Report) -> None:
    """Write the report where the last one was; a reader never sees half of it."""
    LATEST.parent.mkdir(exist_ok=True)
    draft = LATEST.with_suffix(".new")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    draft.replace(LATEST)


def page_of(report: Report) -> str:
    """The figures as a page of the docs."""
    head = [
        "# Proof: the bench",
        "",
        'Written by `make bench ARGS="all --proof"`; not edited by hand. One run on one server, fsync on, payloads of',
        "250 bytes; medians where several runs are listed. (a) also names what was counted in the last run.",
        "",
        f"- {report.at}, Python {report.python}, PostgreSQL {report.postgres}, {report.cpus} cores, "
        f"load {report.load_before} before and {report.load_after} after",
        "",
    ]
    return "\n".join([*head, *(f"```text\n{render(part)}\n```\n" for part in report.parts)])


if __name__ == "__main__":
    sys.exit(main())
