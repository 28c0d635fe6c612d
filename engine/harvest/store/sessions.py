"""Sign-in links and console sessions. Only digests of their secrets are kept (answers 10)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from harvest.store.pool import Record
from harvest.store.store import Store

SESSION_HOURS: Final = 12
IDLE_HOURS: Final = 4

_INSERT_LINK: Final = """
    with gone as (delete from harvest_signin_links where expires_at < clock_timestamp() - interval '1 day')
    insert into harvest_signin_links (link_digest, expires_at)
    values ($1, clock_timestamp() + make_interval(mins => $2))
"""


async def insert_link(store: Store, digest: bytes, minutes: int) -> None:
    """Keep a link that expires in `minutes`; links long expired go."""
    await store.write.write(_INSERT_LINK, digest, minutes)


_SPEND_LINK: Final = """
    with spent as (
        update harvest_signin_links set spent_at = clock_timestamp()
        where link_digest = $1 and spent_at is null and expires_at > clock_timestamp() returning 1)
    select exists (select from spent) as spent,
           exists (select from harvest_signin_links where link_digest = $1) as known
"""


async def spend_link(store: Store, digest: bytes) -> Record:
    """Spend a link unless it is spent or expired: `spent` says whether that was done, `known` whether it is here."""
    return (await store.write.write(_SPEND_LINK, digest))[0]


_INSERT_SESSION: Final = f"""
    with gone as (delete from harvest_console_sessions where expires_at < clock_timestamp() - interval '1 day')
    insert into harvest_console_sessions (session_digest, actor, expires_at)
    values ($1, $2, clock_timestamp() + interval '{SESSION_HOURS} hours')
    returning expires_at
"""


async def insert_session(store: Store, digest: bytes, actor: str) -> datetime:
    """Begin a session; answers when it expires. Sessions long expired go."""
    rows: list[Any] = await store.write.write(_INSERT_SESSION, digest, actor)
    expires_at: datetime = rows[0]["expires_at"]
    return expires_at


_FIND_SESSION: Final = f"""
    select actor, expires_at, ended_at is not null as ended,
           expires_at <= clock_timestamp() or seen_at < clock_timestamp() - interval '{IDLE_HOURS} hours' as expired,
           seen_at < clock_timestamp() - interval '5 minutes' as unseen
    from harvest_console_sessions where session_digest = $1
"""


async def find_session(store: Store, digest: bytes) -> list[Record]:
    """The session's row, if this shard has one."""
    return await store.read.fetch(_FIND_SESSION, digest)


async def touch_session(store: Store, digest: bytes) -> None:
    """Note that the session is in use."""
    await store.write.write(
        "update harvest_console_sessions set seen_at = clock_timestamp() where session_digest = $1", digest
    )


async def end_session(store: Store, digest: bytes) -> None:
    """End a session; it cannot come back."""
    await store.write.write(
        "update harvest_console_sessions set ended_at = clock_timestamp() "
        "where session_digest = $1 and ended_at is null",
        digest,
    )
