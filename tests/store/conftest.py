"""A store on a fresh database for each module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from harvest.shards import Shards
from harvest.store.store import Store
from tests.store.kin import emptied
from tests.store.sites import Site


@pytest.fixture(scope="module")
async def store(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> AsyncIterator[Store]:
    opened = Store(0, new_database(request.module.__name__.rpartition(".")[2]))
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
async def databases(new_database: Callable[[str], str]) -> AsyncIterator[Site]:
    shards = await Shards.open({n: new_database(f"deliveries_{n}") for n in range(2)})
    yield Site(shards, shards.stores[0], shards.stores[1])
    await shards.close()


@pytest.fixture
async def two(databases: Site) -> Site:
    for store in databases.stores:
        await emptied(store)
    return databases


@pytest.fixture(params=["one shard", "two shards"])
async def site(request: pytest.FixtureRequest, two: Site) -> AsyncIterator[Site]:
    if request.param == "two shards":
        yield two
        return
    shards = await Shards.open({0: two.near.url})
    yield Site(shards, shards.stores[0], shards.stores[0])
    await shards.close()
