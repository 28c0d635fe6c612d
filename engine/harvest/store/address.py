"""Where a shard's tables are: a database, and in it the schema that its URL names with `?schema=`.

Several shards may share a database, each in a schema of its own: each then has tables, switches, channels of
notifications and locks of its own, and all share the server's connections.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit
from zlib import crc32

from msgspec import Struct

from harvest.errors import ConfigurationError

PUBLIC: Final = "public"
LONGEST_SCHEMA: Final = 40  # with a channel's name before it, still a name for PostgreSQL
_PARAMETER: Final = "schema"
_PLAIN: Final = re.compile(rf"[a-z_][a-z0-9_]{{0,{LONGEST_SCHEMA - 1}}}")


class Address(Struct, frozen=True):
    """One shard's place. `dsn` is what the driver connects to; `schema` is empty where the URL names none.

    `server` and `database` tell physical places apart, as far as texts do: two names of one host are two servers.
    """

    dsn: str
    schema: str
    server: str
    database: str

    def __repr__(self) -> str:
        """Without the URL, which may hold a password."""
        return f"Address({self.place})"

    @property
    def place(self) -> str:
        """Server, database and schema, as messages name them."""
        return f"{self.server}/{self.database}" + (f" schema {self.schema}" if self.schema else "")

    @property
    def settings(self) -> dict[str, str]:
        """What each session must be told. Of the shard's schema alone: what it lacks must not be found elsewhere."""
        return {"search_path": self.schema} if self.schema else {}

    def channel(self, name: str) -> str:
        """The shard's own channel for notifications; PostgreSQL's channels are those of a whole database."""
        return name if self._is_usual else f"{name}.{self.schema}"

    def lock(self, key: int) -> int:
        """The shard's own advisory lock, made of one of 32 bits; they are those of a whole database, too."""
        return key if self._is_usual else key << 32 | crc32(self.schema.encode())

    @property
    def _is_usual(self) -> bool:
        """Whether the tables are where they are without any schema in the URL."""
        return self.schema in ("", PUBLIC)


def address(url: str) -> Address:
    """Read a shard's URL. Raises ConfigurationError for a schema that is no plain name."""
    head, mark, query = url.partition("?")
    kept, schemas = [], []
    for part in query.split("&") if mark else []:
        name, _, value = part.partition("=")
        if name == _PARAMETER:
            schemas.append(unquote(value))
        else:
            kept.append(part)
    if len(schemas) > 1:
        raise ConfigurationError("a database's URL names its schema twice: keep one ?schema=")
    schema = checked_schema(schemas[0]) if schemas else ""
    server, database = _physical(head, dict(parse_qsl("&".join(kept))))
    return Address("?".join([head, "&".join(kept)]) if kept else head, schema, server, database)


def checked_schema(name: str) -> str:
    """The name of a schema, if it can be a shard's; raises ConfigurationError."""
    if not _PLAIN.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
        raise ConfigurationError(
            f"{name[:80]!r} cannot be the schema of a shard: use lower-case letters, digits and _, at most "
            f"{LONGEST_SCHEMA}, not beginning with a digit or pg_"
        )
    return name


def require_distinct(urls: Mapping[int, str]) -> dict[int, Address]:
    """The shards' addresses. Raises ConfigurationError where two are one database and schema, and says what to write.

    One host under two names is not seen here; the database knows which shard it is, and is refused as another.
    """
    found: dict[int, Address] = {}
    holders: dict[tuple[str, str, str], int] = {}
    for shard_id, url in sorted(urls.items()):
        found[shard_id] = place = address(url)
        holder = holders.setdefault((place.server, place.database, place.schema or PUBLIC), shard_id)
        if holder != shard_id:
            raise ConfigurationError(
                f"shards {holder} and {shard_id} are both in {place.place}: give each a database of its own, or a "
                f"schema of its own in this one, as in ?schema=shard_{holder} and ?schema=shard_{shard_id}"
            )
    return found


def _physical(head: str, query: Mapping[str, str]) -> tuple[str, str]:
    """The server and the database that the driver will come to, by its rules."""
    try:
        parts = urlsplit(head)
    except ValueError:
        raise ConfigurationError("a database's URL cannot be read; write postgresql://user@host:5432/name") from None
    account, _, netloc = parts.netloc.rpartition("@")
    hosts = unquote(netloc) or query.get("host") or os.environ.get("PGHOST") or "localhost"
    port = query.get("port") or os.environ.get("PGPORT") or "5432"
    user = unquote(account.partition(":")[0]) or query.get("user") or os.environ.get("PGUSER") or ""
    database = unquote(parts.path.lstrip("/")) or query.get("dbname") or query.get("database")
    server = ",".join(_with_port(each, port) for each in hosts.split(","))
    return server, database or os.environ.get("PGDATABASE") or user


def _with_port(host: str, port: str) -> str:
    if host.startswith("/"):
        return f"{host}:{port}"
    return host.lower() if re.search(r":\d+$", host) else f"{host.lower()}:{port}"
