"""One console and one worker beside it for all tests of pages that act on runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.pages.acting import Site, site_of


@pytest.fixture(scope="session")
async def site(new_database: Callable[[str], str]) -> AsyncIterator[Site]:
    """A signed-in browser's requests to a console whose runs have a worker."""
    urls = {0: new_database("acting_a"), 1: new_database("acting_b")}
    async with site_of(urls) as made:
        yield made
