"""Signing in to the console: one-time links, sessions on every shard (answers 10)."""

from __future__ import annotations

import base64
from collections import OrderedDict
from datetime import datetime
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.errors import ShardUnavailableError, SigninLinkError
from harvest.operations import auditing
from harvest.operations.actor import Actor
from harvest.operations.asking import ask, everywhere, require_one
from harvest.shards import Shards
from harvest.store import sessions
from harvest.store.store import Store

SECRET_BYTES: Final = 32
VERIFIED_SECONDS: Final = 60.0
# A session that is taken on its signature alone is looked up again soon.
UNCONFIRMED_SECONDS: Final = 5.0
_CACHED_SESSIONS: Final = 10_000


class Session(Struct, frozen=True, kw_only=True):
    """A signed-in person. `secret` is what the cookie carries, sealed; databases know its digest alone.

    `confirmed` is False while no shard that answers knows the session and others are missing.
    """

    secret: bytes
    actor: str
    expires_at: datetime
    confirmed: bool = True


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()


async def create_link(shards: Shards, base_url: str = "", *, minutes: int = 10) -> str:
    """Make a sign-in link below `base_url`, good once and for `minutes`.

    Its digest alone is stored, on all shards that answer. Raises ShardUnavailableError when none does.
    """
    secret = clock.random_bytes(SECRET_BYTES)
    await everywhere(shards, lambda store: sessions.insert_link(store, _digest(secret), minutes))
    return f"{base_url}/signin?token={base64.urlsafe_b64encode(secret).rstrip(b'=').decode()}"


async def spend_link(shards: Shards, actor: Actor, token: str) -> Session:
    """Trade a link's token for a session; audited, refused ones too.

    `actor` says from where; its name is replaced by the session's. Raises SigninLinkError, or ShardUnavailableError
    when no shard that knows the link answers.
    """
    try:
        await _spend(shards, token)
    except SigninLinkError as error:
        await note_refusal(shards, actor, error.message)
        raise
    return await begin_session(shards, actor)


async def note_refusal(shards: Shards, actor: Actor, why: str) -> None:
    """Audit that `actor` was not let in."""
    await auditing.record(shards, actor, "console.signin", "session", "-", "failed", why)


async def begin_session(shards: Shards, actor: Actor) -> Session:
    """A session for somebody who has proved who they are, on all shards that answer; audited.

    `actor` says from where; its name is replaced by the session's. Raises ShardUnavailableError when no shard answers.
    """
    secret = clock.random_bytes(SECRET_BYTES)
    short = _digest(secret).hex()[:8]
    name = f"session:{short}"

    async def insert(store: Store) -> list[datetime]:
        return [await sessions.insert_session(store, _digest(secret), name)]

    begun = await shards.fan_out(insert)
    require_one(begun)
    named = msgspec.structs.replace(actor, name=name)
    await auditing.record(shards, named, "console.signin", "session", short, "succeeded")
    return Session(secret=secret, actor=name, expires_at=min(begun.rows))


async def _spend(shards: Shards, token: str) -> None:
    """Shard after shard in one order, so that of two who spend a link at once only one gets through."""
    refused = SigninLinkError("the sign-in link is unknown, spent or expired; ask for a new one")
    try:
        secret = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise refused from None
    spent = False
    missing: ShardUnavailableError | None = None
    for shard_id in sorted(shards.router.readable):
        try:
            row = await ask(shards, shard_id, lambda store: sessions.spend_link(store, _digest(secret)))
        except ShardUnavailableError as error:
            missing = error
            continue
        if row["known"] and not row["spent"]:
            raise refused
        spent = spent or row["spent"]
    if spent:
        return
    raise missing or refused


class Sessions:
    """Looks sessions up, remembering verified ones for a minute. One a console process."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._known: OrderedDict[bytes, tuple[Session, float]] = OrderedDict()

    async def verify(self, claimed: Session) -> Session | None:
        """The session that a cookie with a good signature claims, or None if it ended or expired.

        A row on any shard is enough, an end on any shard decides. What no shard that answers knows, while others are
        missing, is taken on its signature and marked unconfirmed.
        """
        digest = _digest(claimed.secret)
        known = self._known.get(digest)
        if known is not None and clock.monotonic() < known[1]:
            return known[0]
        if claimed.expires_at <= clock.now():
            return None
        found = await self._shards.fan_out(lambda store: sessions.find_session(store, digest))
        if any(row["ended"] for row in found.rows):
            self._known.pop(digest, None)
            return None
        alive = [row for row in found.rows if not row["expired"]]
        if not alive and (found.rows or not found.missing):
            self._known.pop(digest, None)
            return None
        session = msgspec.structs.replace(claimed, confirmed=bool(alive))
        self._remember(digest, session)
        if alive and all(row["unseen"] for row in alive):
            await everywhere(self._shards, lambda store: sessions.touch_session(store, digest))
        return session

    def _remember(self, digest: bytes, session: Session) -> None:
        seconds = VERIFIED_SECONDS if session.confirmed else UNCONFIRMED_SECONDS
        self._known[digest] = (session, clock.monotonic() + seconds)
        self._known.move_to_end(digest)
        while len(self._known) > _CACHED_SESSIONS:
            self._known.popitem(last=False)

    async def end(self, session: Session, actor: Actor) -> None:
        """Sign out, on every shard that answers; audited. Raises ShardUnavailableError when none does."""
        digest = _digest(session.secret)
        self._known.pop(digest, None)
        await everywhere(self._shards, lambda store: sessions.end_session(store, digest))
        await auditing.record(self._shards, actor, "console.signout", "session", digest.hex()[:8], "succeeded")
