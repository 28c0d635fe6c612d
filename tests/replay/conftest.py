"""Runs that a test has driven are let go of when it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.replay.oracle import let_go_of_all


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    let_go_of_all()
