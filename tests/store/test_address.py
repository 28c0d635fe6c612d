"""A shard's URL: its schema is read and checked, and two shards are told apart by server, database and schema."""

from __future__ import annotations

import pytest

from harvest.errors import ConfigurationError
from harvest.shards import Shards
from harvest.store.address import address, require_distinct
from harvest_console import settings


def test_without_a_schema_nothing_changes() -> None:
    url = "postgresql://user:pass@db.example:5433/harvest?sslmode=require"
    found = address(url)
    assert (found.dsn, found.schema, found.settings) == (url, "", {})
    assert (found.channel("harvest_wake"), found.lock(7)) == ("harvest_wake", 7)
    assert (found.server, found.database) == ("db.example:5433", "harvest")


@pytest.mark.parametrize(
    ("url", "dsn"),
    [
        ("postgresql://u@h/db?schema=eu", "postgresql://u@h/db"),
        ("postgresql://u@/db?host=/run/pg&schema=eu&port=5444", "postgresql://u@/db?host=/run/pg&port=5444"),
        ("postgres://u:a%26b%3Fc@h/db?schema=eu&sslmode=disable", "postgres://u:a%26b%3Fc@h/db?sslmode=disable"),
    ],
)
def test_the_schema_is_taken_out_of_what_the_driver_sees(url: str, dsn: str) -> None:
    found = address(url)
    assert (found.dsn, found.schema, found.settings) == (dsn, "eu", {"search_path": "eu"})
    assert found.channel("harvest_wake") == "harvest_wake.eu"
    assert found.lock(7) not in (7, address(url.replace("=eu", "=us")).lock(7))


def test_the_public_schema_is_where_the_tables_are_without_one() -> None:
    found = address("postgresql://u@h/db?schema=public")
    assert found.settings == {"search_path": "public"}
    assert (found.channel("harvest_wake"), found.lock(7)) == ("harvest_wake", 7)


@pytest.mark.parametrize("name", ["", "EU", "1st", "a-b", "a b", "pg_temp", "information_schema", "a" * 41, 'x"y', "ä"])
def test_only_a_plain_name_can_be_a_schema(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the schema of a shard: use lower-case letters"):
        address(f"postgresql://u@h/db?schema={name}")


def test_a_schema_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="names its schema twice"):
        address("postgresql://u@h/db?schema=a&schema=b")


def test_the_longest_schema_makes_a_channel_that_postgres_takes() -> None:
    assert len(address(f"postgresql://u@h/db?schema={'a' * 40}").channel("harvest_live")) < 64


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:secret@H.example/db", "h.example:5432/db"),
        ("postgresql://u@h:1,g:2/db", "h:1,g:2/db"),
        ("postgresql://u@[::1]:6/db", "[::1]:6/db"),
        ("postgresql://u@/db?host=/Run/pg&port=7", "/Run/pg:7/db"),
        ("postgresql://u@h", "h:5432/u"),
        ("postgresql://u@h/db?schema=eu", "h:5432/db schema eu"),
    ],
)
def test_messages_name_the_place_and_no_secret(url: str, place: str) -> None:
    assert (address(url).place, repr(address(url))) == (place, f"Address({place})")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("postgresql://u@h/db", "postgres://other:secret@H:5432/db?sslmode=require"),
        ("postgresql://u@h/db?schema=eu", "postgresql://u@h/db?schema=eu"),
        ("postgresql://u@h/db", "postgresql://u@h/db?schema=public"),
    ],
)
async def test_two_shards_in_one_schema_of_one_database_are_refused_at_boot(first: str, second: str) -> None:
    with pytest.raises(ConfigurationError, match=r"shards 0 and 3 are both in h:5432/db.*\?schema=shard_3") as told:
        await Shards.open({0: first, 3: second})
    assert "secret" not in told.value.message
    with pytest.raises(ConfigurationError, match="shards 0 and 3 are both in"):
        settings.database_urls({"HARVEST_DATABASE_URLS": f"0={first},3={second}"})


def test_shards_that_share_a_database_or_a_server_are_told_apart() -> None:
    urls = {
        0: "postgresql://u@h/db",
        1: "postgresql://u@h/db?schema=one",
        2: "postgresql://u@h/db?schema=two",
        3: "postgresql://u@h/other?schema=one",
        4: "postgresql://u@h:5433/db",
    }
    assert list(require_distinct(urls)) == [0, 1, 2, 3, 4]


def test_a_bad_schema_is_told_with_the_variable_that_has_it() -> None:
    with pytest.raises(ConfigurationError, match="shard 1 of HARVEST_DATABASE_URLS: 'E' cannot be the schema"):
        settings.database_urls({"HARVEST_DATABASE_URLS": "0=postgresql://h/a,1=postgresql://h/b?schema=E"})
