"""Who gets in: tokens, links that a GET never spends, sessions, CSRF, foreign hosts; and what the log keeps of it."""

from __future__ import annotations

import msgspec
import pytest
from litestar.testing import AsyncTestClient

from harvest.operations import auditing, signin
from harvest.operations.signin import Session
from harvest.shards import Shards
from harvest_console.app import create_app
from harvest_console.auth.cookies import PLAIN_NAME, SECURE_NAME, seal, unseal
from harvest_console.auth.denials import Denials
from harvest_console.auth.routes import safe_next
from tests.console.conftest import ADDRESS, API, BEARER, TOKEN, Client, settings

HTML = {"accept": "text/html"}
START = f"{API}/workflows/any_flow/start"


async def acts(shards: Shards) -> list[tuple[str, str, str]]:
    page = await auditing.list_audit(shards)
    return [(act.operation, act.status, act.actor) for act in page.rows.rows]


async def test_the_api_needs_a_token_or_a_session(console: Client) -> None:
    refused = await console("GET", f"{API}/workflows")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "HVT-210"
    assert (await console("GET", f"{API}/workflows", headers=BEARER)).status_code == 200


@pytest.mark.parametrize(
    "header", ["Bearer wrong", "Bearer ", "bearer", "Basic abc", "", "Bearer a-token-of-thirty-two-characters!x"]
)
async def test_a_wrong_token_is_refused_even_beside_a_good_session(
    console: Client, shards: Shards, header: str
) -> None:
    await console.sign_in(shards)
    assert (await console("GET", f"{API}/workflows")).status_code == 200
    assert (await console("GET", f"{API}/workflows", headers={"authorization": header})).status_code == 401


async def test_a_refused_token_is_audited_and_not_kept(console: Client, shards: Shards) -> None:
    await console("GET", f"{API}/workflows", headers={"authorization": "Bearer hunter2"})
    (act,) = (await auditing.list_audit(shards)).rows.rows
    assert (act.operation, act.status, act.actor, act.target_id) == (
        "authz.deny",
        "failed",
        "anonymous",
        "/api/harvest/workflows",
    )
    assert b"hunter2" not in msgspec.json.encode(act)


async def test_a_signed_out_browser_is_sent_to_sign_in_and_back(console: Client, shards: Shards) -> None:
    response = await console("GET", "/workflows?state=RUNNING", headers=HTML)
    assert response.status_code == 303
    assert response.headers["location"] == "/signin?next=%2Fworkflows%3Fstate%3DRUNNING"
    assert await acts(shards) == []


async def test_a_page_that_is_not_there_still_names_its_reader(console: Client, shards: Shards) -> None:
    assert "anonymous" in (await console("GET", "/nope", headers=HTML)).text
    await console.sign_in(shards)
    page = await console("GET", "/nope", headers=HTML)
    assert (page.status_code, "anonymous" in page.text, "session:" in page.text) == (404, False, True)


async def test_a_signed_out_stream_gets_401_and_no_redirect(console: Client) -> None:
    assert (await console("GET", "/live?t=list", headers={"accept": "text/html, text/event-stream"})).status_code == 401


async def test_a_signed_out_region_is_told_where_to_go(console: Client) -> None:
    response = await console("GET", "/_f/overview", headers={**HTML, "hx-request": "true"})
    assert (response.status_code, response.headers.get("hx-redirect")) in ((401, "/signin"), (404, None))


async def test_opening_a_link_spends_nothing_and_its_form_spends_it_once(console: Client, shards: Shards) -> None:
    token = (await signin.create_link(shards)).partition("token=")[2]
    for _ in range(3):
        page = await console("GET", f"/signin?token={token}", headers=HTML)
        assert page.status_code == 200
        assert token in page.text
    signed_in = await console("POST", "/signin", data={"token": token, "next": "/audit"}, headers=HTML)
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/audit")
    again = await console("POST", "/signin", data={"token": token}, headers=HTML)
    assert again.status_code == 403
    assert [act[:2] for act in await acts(shards)] == [("console.signin", "failed"), ("console.signin", "succeeded")]


async def test_the_cookie_is_for_this_server_alone_and_unreadable_to_scripts(console: Client, shards: Shards) -> None:
    token = (await signin.create_link(shards)).partition("token=")[2]
    cookie = (await console("POST", "/signin", data={"token": token})).headers["set-cookie"]
    assert cookie.startswith(f"{PLAIN_NAME}=")
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in cookie
    assert "Domain" not in cookie


async def test_beyond_loopback_http_the_cookie_is_secure(urls: dict[int, str], shards: Shards) -> None:
    app = create_app(settings(urls, host="0.0.0.0"))
    async with AsyncTestClient(app, base_url="https://harvest.example") as inner:
        token = (await signin.create_link(shards)).partition("token=")[2]
        response = await Client(inner)("POST", "/signin", data={"token": token})
        assert response.headers["set-cookie"].startswith(f"{SECURE_NAME}=")
        assert "Secure" in response.headers["set-cookie"]


async def test_a_session_reads_and_with_its_csrf_token_changes(console: Client, shards: Shards) -> None:
    csrf = await console.sign_in(shards)
    assert (await console("GET", f"{API}/workflows")).status_code == 200
    refused = await console("POST", START, json={})
    assert (refused.status_code, refused.json()["code"]) == (403, "HVT-213")
    assert (await console("POST", START, json={}, headers={"x-csrf-token": "0" * 64})).status_code == 403
    assert (await console("POST", START, json={}, headers={b"x-csrf-token": b"\xe9"})).status_code == 403
    assert (await console("POST", START, json={}, headers={"x-csrf-token": csrf})).status_code == 201
    operations = [act[0] for act in await acts(shards)]
    assert operations == ["workflow.start", "authz.deny", "authz.deny", "authz.deny", "console.signin"]


async def test_another_sessions_csrf_token_is_none(console: Client, shards: Shards) -> None:
    first = await console.sign_in(shards)
    second = await console.sign_in(shards)
    assert first != second
    assert (await console("POST", START, json={}, headers={"x-csrf-token": first})).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 201),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ADDRESS}, 201),
    ],
)
async def test_a_change_from_another_site_is_refused_though_it_has_the_token(
    console: Client, shards: Shards, headers: dict[str, str], status: int
) -> None:
    csrf = await console.sign_in(shards)
    response = await console("POST", START, json={}, headers={"x-csrf-token": csrf, **headers})
    assert response.status_code == status


async def test_another_site_cannot_sign_a_browser_in(console: Client, shards: Shards) -> None:
    token = (await signin.create_link(shards)).partition("token=")[2]
    response = await console("POST", "/signin", data={"token": token}, headers={"sec-fetch-site": "cross-site"})
    assert response.status_code == 403
    assert (await console("POST", "/signin", data={"token": token})).status_code == 303


async def test_the_form_field_carries_the_token_where_no_script_runs(console: Client, shards: Shards) -> None:
    csrf = await console.sign_in(shards)
    assert (await console("POST", "/signout", data={})).status_code == 403
    out = await console("POST", "/signout", data={"csrf": csrf})
    assert (out.status_code, out.headers["location"]) == (303, "/signin")
    assert (await console("GET", f"{API}/workflows")).status_code == 401
    assert (await acts(shards))[0][0] == "console.signout"


async def test_a_copied_cookie_is_worthless_after_signing_out(console: Client, shards: Shards) -> None:
    csrf = await console.sign_in(shards)
    copied = console.inner.cookies[PLAIN_NAME]
    await console("POST", "/signout", data={"csrf": csrf})
    console.inner.cookies.set(PLAIN_NAME, copied, domain="127.0.0.1")
    assert (await console("GET", f"{API}/workflows")).status_code == 401


async def test_a_cookie_that_was_not_sealed_here_is_none(console: Client, shards: Shards) -> None:
    await console.sign_in(shards)
    good = console.inner.cookies[PLAIN_NAME]
    session = unseal(b"k" * 32, good)
    assert session is not None
    forged = Session(secret=session.secret, actor="token:admin", expires_at=session.expires_at)
    console.inner.cookies.clear()
    for bad in (seal(b"x" * 32, forged), good[:-4] + "AAAA", "", "x", "AAAA"):
        response = await console("GET", f"{API}/workflows", headers={"cookie": f"{PLAIN_NAME}={bad}"})
        assert response.status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8400", "127.0.0.1.evil.example", "10.0.0.7:8400"])
async def test_a_rebound_host_name_is_refused_on_a_console_for_this_machine(
    refusing_console: Client, host: str
) -> None:
    response = await refusing_console("GET", f"{API}/workflows", headers={**BEARER, "host": host})
    assert (response.status_code, response.json()["code"]) == (421, "HVT-214")


@pytest.mark.parametrize("host", ["localhost:8400", "127.0.0.1:9", "[::1]:8400", "localhost"])
async def test_this_machines_names_are_served(refusing_console: Client, host: str) -> None:
    assert (await refusing_console("GET", f"{API}/workflows", headers={**BEARER, "host": host})).status_code == 200


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/workflows?state=RUNNING", "/workflows?state=RUNNING"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\nb", "/"),
        ("", "/"),
    ],
)
def test_signing_in_leads_to_a_page_of_this_console_alone(text: str, path: str) -> None:
    assert safe_next(text) == path


async def test_the_admin_token_begins_a_session_where_it_was_set(urls: dict[int, str], shards: Shards) -> None:
    async with AsyncTestClient(create_app(settings(urls, token_signin=True)), base_url=ADDRESS) as inner:
        client = Client(inner)
        assert 'name="admin_token"' in (await client("GET", "/signin", headers=HTML)).text
        form = {"admin_token": TOKEN, "next": "/audit"}
        foreign = await client("POST", "/signin/token", data=form, headers={"sec-fetch-site": "cross-site"})
        assert foreign.status_code == 403
        signed_in = await client("POST", "/signin/token", data=form, headers=HTML)
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/audit")
        assert (await client("GET", "/audit", headers=HTML)).status_code == 200
    (entry, _) = await acts(shards)
    assert (entry[:2], entry[2].partition(":")[0]) == (("console.signin", "succeeded"), "session")


async def test_a_wrong_admin_token_is_audited_and_soon_not_looked_at(urls: dict[int, str], shards: Shards) -> None:
    async with AsyncTestClient(create_app(settings(urls, token_signin=True)), base_url=ADDRESS) as inner:
        client = Client(inner)
        said = [(await client("POST", "/signin/token", data={"admin_token": "hunter2"})).status_code for _ in range(7)]
        assert said == [403] * 5 + [429] * 2
        assert (await client("POST", "/signin/token", data={"admin_token": TOKEN})).status_code == 429
    assert [act[:2] for act in await acts(shards)] == [("console.signin", "failed")] * 5
    assert b"hunter2" not in msgspec.json.encode((await auditing.list_audit(shards)).rows.rows)


async def test_nobody_signs_in_by_a_token_that_nobody_set(console: Client) -> None:
    assert "admin_token" not in (await console("GET", "/signin", headers=HTML)).text
    assert (await console("POST", "/signin/token", data={"admin_token": TOKEN})).status_code == 403


async def test_a_flood_of_refusals_does_not_fill_the_log(shards: Shards) -> None:
    from harvest.errors import ForbiddenError
    from harvest.operations.actor import Actor

    denials = Denials(shards)
    for _ in range(100):
        await denials.record(Actor("anonymous", "api", "req", "GET /x"), "/x", ForbiddenError("no"))
    page = await auditing.list_audit(shards, limit=200)
    assert 20 <= len(page.rows.rows) <= 30


async def test_every_answer_has_the_security_headers_and_its_request_id(console: Client) -> None:
    for path in ("/health", "/nowhere", f"{API}/workflows", "/signin"):
        response = await console("GET", path, headers={"x-request-id": "mine-1"})
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "unsafe" not in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["x-request-id"] == "mine-1"
    minted = await console("GET", "/health", headers={"x-request-id": "no good\x7f"})
    assert minted.headers["x-request-id"].startswith("req-")
