"""A store on a fresh database for each module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from harvest.store.store import Store


@pytest.fixture(scope="module")
async def store(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> AsyncIterator[Store]:
    opened = Store(0, new_database(request.module.__name__.rpartition(".")[2]))
    yield opened
    await opened.close()
