"""Where a `harvest serve` says its address, and who is told it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from harvest_console.cli.announcement import announced, serving_address

ONE = {0: "postgresql://ann:geheim@db/one", 1: "postgresql://db/two"}
OTHER = {0: "postgresql://db/other"}


def test_it_is_told_while_it_serves_to_whoever_has_its_databases(tmp_path: Path) -> None:
    folder = tmp_path / "new" / ".harvest"
    assert serving_address(folder, ONE) is None
    with announced(folder, "http://127.0.0.1:9/harvest", ONE):
        assert serving_address(folder, dict(reversed(ONE.items()))) == "http://127.0.0.1:9/harvest"
        assert serving_address(folder, OTHER) is None
        (file,) = folder.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "geheim" not in file.read_text()
    assert list(folder.iterdir()) == []


def test_the_newest_of_several_is_told(tmp_path: Path) -> None:
    with announced(tmp_path, "http://127.0.0.1:1", ONE):
        (first,) = tmp_path.iterdir()
        with announced(tmp_path, "http://127.0.0.1:2", ONE):
            (second,) = set(tmp_path.iterdir()) - {first}
            os.utime(first, ns=(1, 1))
            os.utime(second, ns=(2, 2))
            assert serving_address(tmp_path, ONE) == "http://127.0.0.1:2"
            os.utime(first, ns=(3, 3))
            assert serving_address(tmp_path, ONE) == "http://127.0.0.1:1"


def test_what_a_killed_one_left_is_not_told_and_the_next_takes_it_away(tmp_path: Path) -> None:
    with announced(tmp_path, "http://127.0.0.1:1", ONE):
        (own,) = tmp_path.iterdir()
        left = tmp_path / "serve-left.json"
        left.write_bytes(own.read_bytes())
    assert serving_address(tmp_path, ONE) is None
    with announced(tmp_path, "http://127.0.0.1:3", ONE):
        assert not left.exists()


def test_a_folder_that_takes_nothing_keeps_nobody_from_serving(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with announced(tmp_path / "file", "http://127.0.0.1:1", ONE):
        assert serving_address(tmp_path / "file", ONE) is None
