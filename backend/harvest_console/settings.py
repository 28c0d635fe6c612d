"""What a console process is told from outside: databases, address, secrets (design 2, answers 10 and 12)."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harvest.errors import ConfigurationError
from harvest.store.address import address, require_distinct
from harvest_console.tokens import DEFAULT_DATA_DIR, TOKEN_FILE

if TYPE_CHECKING:
    from harvest.shards import ShardRouter

DEFAULT_PORT = 8400
TOKEN_LENGTH = 32
DATABASES_FILE = "databases.json"
USAGE_CEILING_DAYS = 90
_MOST_CEILING_DAYS = 36_500
_KEY_FILE = "secret.key"
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one console process.

    `urls` has every shard's database; without a `router` all of them take new runs. `admin_token` is a bearer token
    with every right, or None for no such token; `token_signin` lets people sign in with it, which is for tokens that
    somebody chose. `secret_key` seals session cookies. `base_path` is the path below which a proxy serves the console:
    empty, or `/like/this`. `usage_ceiling_days` is how long a window the usage report may have. With `canary` the
    process probes the shards.
    """

    urls: dict[int, str]
    secret_key: bytes
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    admin_token: str | None = None
    token_signin: bool = False
    data_dir: Path = Path(DEFAULT_DATA_DIR)
    base_path: str = ""
    router: ShardRouter | None = None
    usage_ceiling_days: int = USAGE_CEILING_DAYS
    canary: bool = False

    def __repr__(self) -> str:
        """Without the secrets and the databases' passwords, so that it may be logged."""
        return f"Settings(shards={sorted(self.urls)}, base_url={self.base_url!r})"

    @property
    def base_url(self) -> str:
        """The address that a browser on this machine uses, base path included, without a slash at its end."""
        return browser_url(self.host, self.port) + self.base_path

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the console."""
        return is_loopback(self.host)


def browser_url(host: str, port: int) -> str:
    """The address at which a browser on this machine reaches a server that listens on `host`."""
    host = _EVERY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine to itself alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def admin_token(environment: Mapping[str, str], host: str) -> str | None:
    """The bearer token from HARVEST_ADMIN_TOKEN.

    Raises ConfigurationError where others can reach `host` and there is no token of at least 32 characters.
    """
    token = environment.get("HARVEST_ADMIN_TOKEN") or None
    if not is_loopback(host) and len(token or "") < TOKEN_LENGTH:
        raise ConfigurationError(
            f"--host {host} lets other machines reach the console: set HARVEST_ADMIN_TOKEN to a secret of at least "
            f"{TOKEN_LENGTH} characters first (it has {len(token or '')}), or use --host 127.0.0.1",
        )
    return token


def secret_key(environment: Mapping[str, str], data_dir: Path) -> bytes:
    """The key from HARVEST_SECRET_KEY, else from a file in the data folder (mode 0600), made on first use.

    Raises ConfigurationError if the key is too short to be one.
    """
    given = environment.get("HARVEST_SECRET_KEY")
    key = given.encode() if given else _kept_secret(data_dir / _KEY_FILE)
    if len(key) < TOKEN_LENGTH:
        where = "HARVEST_SECRET_KEY" if given else str(data_dir / _KEY_FILE)
        raise ConfigurationError(f"{where} has {len(key)} bytes; it must have at least {TOKEN_LENGTH}, all random")
    return key


def local_token(data_dir: Path) -> str:
    """The bearer token of a development setup that was given none: in its data folder (mode 0600), made on first use.

    Who can read it can read the databases beside it too; with it `harvest workflow` needs no token in the environment.
    """
    return _kept_secret(data_dir / TOKEN_FILE).decode()


def _kept_secret(path: Path) -> bytes:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, secrets.token_hex(32).encode())
    return path.read_bytes().strip()


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 whole or not at all; what was there is replaced."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    partial.replace(path)


def router(environment: Mapping[str, str], urls: Mapping[int, str]) -> ShardRouter:
    """The router that the environment describes over these databases, for a process that starts.

    What is worth a word about it is logged. Raises ConfigurationError.
    """
    from harvest.shards import configured, warn_at_boot

    found = configured(environment, urls)
    warn_at_boot(found, urls)
    return found


def canary(environment: Mapping[str, str]) -> bool:
    """Whether this process is to probe the shards: HARVEST_CANARY is not `off`. Raises ConfigurationError."""
    word = environment.get("HARVEST_CANARY", "").strip().lower() or "on"
    if word not in ("on", "off"):
        raise ConfigurationError(f"HARVEST_CANARY is {environment['HARVEST_CANARY'][:80]!r}; it must be on or off")
    return word == "on"


def usage_ceiling_days(environment: Mapping[str, str]) -> int:
    """How long a window the usage report may have, in days, from HARVEST_USAGE_WINDOW_CEILING_DAYS; 90 if unset.

    Raises ConfigurationError.
    """
    given = environment.get("HARVEST_USAGE_WINDOW_CEILING_DAYS", "").strip()
    if not given:
        return USAGE_CEILING_DAYS
    if not (given.isascii() and given.isdigit()) or not 1 <= int(given[:9]) <= _MOST_CEILING_DAYS:
        raise ConfigurationError(
            f"HARVEST_USAGE_WINDOW_CEILING_DAYS is {given[:40]!r}; it must be whole days, 1 to {_MOST_CEILING_DAYS:,}"
        )
    return int(given)


def database_urls(environment: Mapping[str, str]) -> dict[int, str] | None:
    """The shards' databases from HARVEST_DATABASE_URLS (`0=postgresql://…,1=…`) or HARVEST_DATABASE_URL; None if unset.

    Raises ConfigurationError that names the part that is wrong; never the URL, which may hold a password.
    """
    several, one = environment.get("HARVEST_DATABASE_URLS"), environment.get("HARVEST_DATABASE_URL")
    if several and one:
        raise ConfigurationError("HARVEST_DATABASE_URLS and HARVEST_DATABASE_URL are both set: unset one of them")
    if one:
        return {0: _checked_url("HARVEST_DATABASE_URL", one.strip())}
    if not several:
        return None
    urls: dict[int, str] = {}
    for place, part in enumerate(several.split(","), start=1):
        number, sign, url = part.strip().partition("=")
        if not sign or not (number.isascii() and number.isdigit()):
            raise ConfigurationError(
                f"part {place} of HARVEST_DATABASE_URLS does not begin with a shard's number and '=': "
                "write 0=postgresql://…,1=postgresql://… (a comma inside a URL is %2C)"
            )
        if int(number) in urls:
            raise ConfigurationError(f"HARVEST_DATABASE_URLS names shard {number} twice")
        urls[int(number)] = _checked_url(f"shard {number} of HARVEST_DATABASE_URLS", url)
    require_distinct(urls)
    return dict(sorted(urls.items()))


def _checked_url(what: str, url: str) -> str:
    if not url.startswith(("postgresql://", "postgres://")):
        raise ConfigurationError(f"{what} does not begin with postgresql://")
    try:
        address(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error.message}") from None
    return url


def write_databases(data_dir: Path, urls: Mapping[int, str]) -> None:
    """Leave the databases of a running development setup where other commands find them (mode 0600)."""
    write_private(data_dir / DATABASES_FILE, msgspec.json.encode(dict(urls)))


def find_databases(environment: Mapping[str, str], data_dir: Path) -> dict[int, str]:
    """The shards' databases: from the environment, else those of the development setup that runs in `data_dir`.

    Raises ConfigurationError if there are neither.
    """
    urls = database_urls(environment)
    if urls is not None:
        return urls
    path = data_dir / DATABASES_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[int, str])
    except FileNotFoundError:
        raise ConfigurationError(
            f"no databases are known: set HARVEST_DATABASE_URLS (0=postgresql://…,1=…) or HARVEST_DATABASE_URL, or "
            f"start `harvest dev` (there is no {path})"
        ) from None
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is damaged ({error}): stop `harvest dev` and start it again") from error
