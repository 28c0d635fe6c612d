"""Two shards on the databases of one server, and nothing in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from harvest.operations.actor import Actor
from harvest.shards import Shards


@pytest.fixture
async def shards(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """Two empty shards, fresh for each test."""
    opened = await Shards.open({0: new_database("shard_a"), 1: new_database("shard_b")})
    yield opened
    await opened.close()


@pytest.fixture
def actor() -> Actor:
    """Who acts in these tests."""
    return Actor(name="token:admin", source="api", request_id="req-1", route="POST /somewhere")
