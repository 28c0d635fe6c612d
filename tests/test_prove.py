"""The page that `make prove` writes: nothing that failed can look as if it had passed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests import prove

REPORT = """<testsuites><testsuite>
<testcase classname="tests.faults.test_kill" name="test_kill" time="12.5"/>
<testcase classname="tests.faults.test_kill" name="test_thaw" time="1">
<failure message="lost | one&#10;more"/></testcase>
<testcase classname="tests.faults.test_kill" name="test_skip" time="0"><skipped message="no server"/></testcase>
</testsuite></testsuites>"""


def test_a_failed_and_a_skipped_test_count_as_not_passed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    outcomes = prove._outcomes(report)
    assert [outcome.passed for outcome in outcomes] == [True, False, False]
    page = prove.render("main-job", outcomes, [], ["a machine"])
    assert "1 of 3 tests passed" in page
    assert "**failed**: lost | one" in page
    assert "**failed**: no server" in page


def test_figures_and_seeds_stand_under_their_test() -> None:
    outcome = prove.Outcome("tests.a::test_b", True, 3.0)
    notes = [
        prove.Note("tests.a::test_b", "kills", {"seed": 7, "runs": 12500, "seconds": 1.23456}),
        prove.Note("tests.a::test_c", "other", {"x": 1}),
    ]
    page = prove.render("main-job", [outcome], notes, [])
    assert "| kills | seed 7, runs 12,500, seconds 1.235 |" in page
    assert "other" not in page


def test_a_test_notes_its_figures_under_the_name_that_the_report_uses(
    proof: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    assert callable(proof)
    kept = tmp_path / "notes.jsonl"
    monkeypatch.setenv("HARVEST_PROOF_FILE", str(kept))
    proof("kills", seed=7)
    note = msgspec.json.decode(kept.read_bytes().splitlines()[0], type=prove.Note)
    assert note == prove.Note(f"tests.test_prove::{request.node.name}", "kills", {"seed": 7})


def test_without_make_prove_nothing_is_kept(proof: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(proof)
    monkeypatch.delenv("HARVEST_PROOF_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    proof("kills", seed=7)
    assert list(tmp_path.iterdir()) == []


def test_a_part_must_be_named() -> None:
    assert prove.main([]) == 2
