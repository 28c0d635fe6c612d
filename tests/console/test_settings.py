"""Settings from the environment: what is accepted, what is refused, and that no secret is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from harvest.errors import ConfigurationError
from harvest_console import settings
from harvest_console.tokens import find_token


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("postgresql://a/b", "part 1"),
        ("0=postgresql://a/b,x=postgresql://c/d", "part 2"),
        ("0=postgresql://a/b,0=postgresql://c/d", "shard 0 twice"),
        ("0=mysql://a/b", "shard 0"),
    ],
)
def test_a_wrong_list_of_databases_is_refused_naming_the_part_and_no_password(given: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong) as caught:
        settings.database_urls({"HARVEST_DATABASE_URLS": given.replace("://a", "://user:hunter2@a")})
    assert "hunter2" not in str(caught.value)


def test_settings_never_show_their_secrets() -> None:
    made = settings.Settings(
        urls={0: "postgresql://user:hunter2@a/b"}, secret_key=b"k" * 32, admin_token="t" * 32, base_path="/hv"
    )
    assert "hunter2" not in repr(made)
    assert "kkk" not in repr(made)
    assert "ttt" not in repr(made)
    assert made.base_url == "http://127.0.0.1:8400/hv"


@pytest.mark.parametrize(
    ("host", "alone"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("example", False)]
)
def test_which_hosts_only_this_machine_can_reach(host: str, alone: bool) -> None:
    assert settings.is_loopback(host) is alone


def test_the_list_of_databases_is_read_in_the_order_of_shards() -> None:
    given = {"HARVEST_DATABASE_URLS": "1=postgresql://b/y, 0=postgresql://a/x?host=/s&port=5432"}
    found = settings.database_urls(given)
    assert found == {0: "postgresql://a/x?host=/s&port=5432", 1: "postgresql://b/y"}
    assert list(found) == [0, 1]
    assert settings.database_urls({"HARVEST_DATABASE_URL": "postgresql://a/x"}) == {0: "postgresql://a/x"}
    assert settings.database_urls({}) is None


def test_both_ways_to_name_databases_at_once_are_refused() -> None:
    given = {"HARVEST_DATABASE_URLS": "0=postgresql://a/x", "HARVEST_DATABASE_URL": "postgresql://a/x"}
    with pytest.raises(ConfigurationError, match="both set"):
        settings.database_urls(given)


def test_without_databases_the_message_names_every_way_to_have_some(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"HARVEST_DATABASE_URLS.*harvest dev"):
        settings.find_databases({}, tmp_path)


def test_a_running_setup_is_found_in_its_data_folder(tmp_path: Path) -> None:
    settings.write_databases(tmp_path, {0: "postgresql://a/x", 1: "postgresql://a/y"})
    assert settings.find_databases({}, tmp_path) == {0: "postgresql://a/x", 1: "postgresql://a/y"}
    mine = {"HARVEST_DATABASE_URL": "postgresql://mine/z"}
    assert settings.find_databases(mine, tmp_path) == {0: "postgresql://mine/z"}
    (tmp_path / settings.DATABASES_FILE).write_text("{")
    with pytest.raises(ConfigurationError, match="damaged"):
        settings.find_databases({}, tmp_path)


def test_the_secret_key_is_kept_and_never_short(tmp_path: Path) -> None:
    first = settings.secret_key({}, tmp_path)
    assert len(first) == 64
    assert settings.secret_key({}, tmp_path) == first
    assert settings.secret_key({"HARVEST_SECRET_KEY": "k" * 32}, tmp_path) == b"k" * 32
    with pytest.raises(ConfigurationError, match="HARVEST_SECRET_KEY has 5 bytes"):
        settings.secret_key({"HARVEST_SECRET_KEY": "short"}, tmp_path)


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "http://127.0.0.1:1"), ("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1")],
)
def test_the_address_is_one_that_a_browser_can_open(host: str, address: str) -> None:
    assert settings.browser_url(host, 1) == address


def test_commands_find_the_token_of_a_development_setup(tmp_path: Path) -> None:
    assert find_token({}, tmp_path) is None
    made = settings.local_token(tmp_path)
    assert find_token({}, tmp_path) == made
    assert find_token({"HARVEST_ADMIN_TOKEN": "mine"}, tmp_path) == "mine"
