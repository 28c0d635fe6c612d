"""Links that work once, sessions that any shard can vouch for and every shard can end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from harvest.errors import HarvestError, ShardUnavailableError, SigninLinkError
from harvest.operations import auditing, signin
from harvest.operations.actor import Actor
from harvest.shards import Shards

DEAD = "postgresql://postgres@/x?host=/nonexistent"


def token_of(link: str) -> str:
    return link.partition("token=")[2]


async def token(shards: Shards) -> str:
    return token_of(await signin.create_link(shards, "http://127.0.0.1:8400"))


async def test_a_link_begins_one_session_and_no_second(shards: Shards, actor: Actor) -> None:
    link = await token(shards)
    session = await signin.spend_link(shards, actor, link)
    assert session.actor.startswith("session:")
    with pytest.raises(SigninLinkError):
        await signin.spend_link(shards, actor, link)
    acts = (await auditing.list_audit(shards)).rows.rows
    assert [(act.operation, act.status, act.actor) for act in acts] == [
        ("console.signin", "failed", "token:admin"),
        ("console.signin", "succeeded", session.actor),
    ]


async def test_of_many_who_spend_a_link_at_once_one_gets_through(shards: Shards, actor: Actor) -> None:
    link = await token(shards)
    outcomes = await asyncio.gather(*(signin.spend_link(shards, actor, link) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(outcome, signin.Session) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, SigninLinkError) for outcome in outcomes) == 7


async def test_an_expired_an_unknown_and_a_malformed_link_are_refused(shards: Shards, actor: Actor) -> None:
    expired = token_of(await signin.create_link(shards, minutes=0))
    for bad in (expired, "A" * 43, "", "é", "not base64!"):
        with pytest.raises(SigninLinkError):
            await signin.spend_link(shards, actor, bad)


async def test_only_digests_are_stored(shards: Shards, actor: Actor) -> None:
    link = await token(shards)
    session = await signin.spend_link(shards, actor, link)
    for store in shards.stores.values():
        for table in ("harvest_signin_links", "harvest_console_sessions", "harvest_audit_log"):
            rows = await store.read.fetch(f"select t::text as text from {table} t")
            text = " ".join(row["text"] for row in rows)
            assert session.secret.hex() not in text
            assert link not in text


async def test_one_shard_that_answers_is_enough_to_sign_in_and_to_stay_so(shards: Shards, actor: Actor) -> None:
    link = await token(shards)
    half = await Shards.open({0: DEAD, 1: shards.store(1).url})
    try:
        session = await signin.spend_link(half, actor, link)
        assert await signin.Sessions(half).verify(session) == session
        with pytest.raises(SigninLinkError):
            await signin.spend_link(half, actor, link)
        assert await signin.Sessions(shards).verify(session) == session
    finally:
        await half.close()


async def test_without_any_shard_nobody_signs_in_and_nothing_is_called_wrong(shards: Shards, actor: Actor) -> None:
    none = await Shards.open({0: DEAD, 1: f"{DEAD}-too"})
    with pytest.raises(ShardUnavailableError):
        await signin.spend_link(none, actor, await token(shards))
    with pytest.raises(HarvestError):
        await signin.create_link(none)
    await none.close()


async def test_a_session_that_ended_anywhere_has_ended(shards: Shards, actor: Actor) -> None:
    session = await signin.spend_link(shards, actor, await token(shards))
    await shards.store(1).write.write("update harvest_console_sessions set ended_at = clock_timestamp()")
    assert await signin.Sessions(shards).verify(session) is None


async def test_signing_out_holds_at_once_in_this_process_and_in_others(shards: Shards, actor: Actor) -> None:
    session = await signin.spend_link(shards, actor, await token(shards))
    here = signin.Sessions(shards)
    assert await here.verify(session) == session
    await here.end(session, actor)
    assert await here.verify(session) is None
    assert await signin.Sessions(shards).verify(session) is None


async def test_a_verified_session_is_remembered_for_a_minute(shards: Shards, actor: Actor) -> None:
    session = await signin.spend_link(shards, actor, await token(shards))
    known = signin.Sessions(shards)
    await known.verify(session)
    await shards.store(0).write.write("delete from harvest_console_sessions")
    await shards.store(1).write.write("delete from harvest_console_sessions")
    assert await known.verify(session) == session
    assert await signin.Sessions(shards).verify(session) is None


async def test_idle_and_expired_sessions_end(shards: Shards, actor: Actor) -> None:
    for column in ("expires_at = clock_timestamp()", "seen_at = clock_timestamp() - interval '5 hours'"):
        session = await signin.spend_link(shards, actor, await token(shards))
        for store in shards.stores.values():
            await store.write.write(f"update harvest_console_sessions set {column}")
        assert await signin.Sessions(shards).verify(session) is None


async def test_a_session_in_use_is_noted(shards: Shards, actor: Actor) -> None:
    session = await signin.spend_link(shards, actor, await token(shards))
    for store in shards.stores.values():
        await store.write.write("update harvest_console_sessions set seen_at = clock_timestamp() - interval '1 hour'")
    await signin.Sessions(shards).verify(session)
    for store in shards.stores.values():
        row = await store.read.fetch_row(
            "select seen_at > clock_timestamp() - interval '1 minute' as noted from harvest_console_sessions"
        )
        assert row is not None
        assert row["noted"]


async def test_what_no_answering_shard_knows_while_one_is_missing_is_unconfirmed(shards: Shards, actor: Actor) -> None:
    only_one = await Shards.open({1: shards.store(1).url})
    session = await signin.spend_link(only_one, actor, token_of(await signin.create_link(only_one)))
    half = await Shards.open({0: shards.store(0).url, 1: DEAD})
    try:
        assert await signin.Sessions(half).verify(session) == msgspec.structs.replace(session, confirmed=False)
        assert await signin.Sessions(shards).verify(session) == session
    finally:
        await half.close()
        await only_one.close()


async def test_a_session_that_idled_out_stays_so_while_a_shard_is_missing(shards: Shards, actor: Actor) -> None:
    session = await signin.spend_link(shards, actor, await token(shards))
    await shards.store(0).write.write(
        "update harvest_console_sessions set seen_at = clock_timestamp() - interval '5 hours'"
    )
    half = await Shards.open({0: shards.store(0).url, 1: DEAD})
    try:
        assert await signin.Sessions(half).verify(session) is None
    finally:
        await half.close()
