"""The API as the command line uses it: one request, its answer as bytes, refusals as errors with an exit status."""

from __future__ import annotations

import http.client
import ipaddress
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import click
import msgspec

API_PATH: Final = "/api/harvest"
DEFAULT_URL: Final = f"http://127.0.0.1:8400{API_PATH}"
EXIT_STATUSES: Final = (
    "Exit status: 0 done; 1 refused, or the run did not complete; 2 used wrongly; 3 the console or a shard does not "
    "answer, or the outcome is unknown; 4 the run is still open. A list that lacks a shard "
    "says so on stderr."
)
_SECONDS: Final = 45.0
_OPTIONS: Final = {
    "Authorization": "the token",
    "X-Harvest-Actor": "--actor",
    "X-Request-Id": "--request-id",
    "Idempotency-Key": "--idempotency-key",
}


class RemoteError(click.ClickException):
    """A request that was refused, or a run that did not complete; printed on standard error."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        """Print as every other error of the command line."""
        click.echo(f"harvest: {self.message}", err=True)


class AddressError(RemoteError):
    """The address that was given is none, or a header cannot carry what was given."""

    exit_code = 2


class UnreachableError(RemoteError):
    """The console or a shard does not answer, or what became of the request is unknown."""

    exit_code = 3


class LateError(UnreachableError):
    """No answer came in time: what was asked for may still go on."""


class StillOpenError(RemoteError):
    """The run has not ended yet."""

    exit_code = 4


class Answer(msgspec.Struct, frozen=True):
    """Status and body of an answer that is no refusal."""

    status: int
    body: bytes


class Remote(msgspec.Struct, frozen=True):
    """Where the API is and who asks."""

    base_url: str = DEFAULT_URL
    token: str | None = None
    actor: str | None = None
    request_id: str | None = None

    def get(self, *parts: str, **query: object) -> Answer:
        """Read what is at the path; query values of None are left out. Raises RemoteError."""
        return self._send("GET", parts, query, None, {})

    def post(
        self,
        *parts: str,
        body: bytes,
        idempotency_key: str | None = None,
        limit_seconds: float = _SECONDS,
        **query: object,
    ) -> Answer:
        """Send `body`, which is JSON text; query values of None are left out. Raises RemoteError."""
        headers = {"Content-Type": "application/json"}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        return self._send("POST", parts, query, body, headers, limit_seconds)

    def delete(self, *parts: str) -> Answer:
        """Delete what is at the path. Raises RemoteError."""
        return self._send("DELETE", parts, {}, None, {})

    def _send(
        self,
        method: str,
        parts: tuple[str, ...],
        query: dict[str, object],
        body: bytes | None,
        headers: dict[str, str],
        limit_seconds: float = _SECONDS,
    ) -> Answer:
        pairs = {name: value for name, value in query.items() if value is not None}
        url = "/".join([api_root(self.base_url), *(quote(part, safe="") for part in parts)])
        url += f"?{urlencode(pairs, doseq=True)}" if pairs else ""
        headers = {"Accept": "application/json", "X-Harvest-Source": "cli", **headers}
        for name, value in (("X-Harvest-Actor", self.actor), ("X-Request-Id", self.request_id)):
            if value:
                headers[name] = value
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        for name, value in headers.items():
            _check_header(name, value)
        try:
            request = urllib.request.Request(url, data=body, headers=headers, method=method)
            with _opener(url).open(request, timeout=limit_seconds) as response:
                return _checked(Answer(response.status, response.read()), self.base_url)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read(), self.base_url) from None
        except (ValueError, UnicodeError) as error:
            raise AddressError(f"{self.base_url} cannot be asked: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            kind = LateError if isinstance(reason, TimeoutError) else UnreachableError
            raise kind(_unreachable(self.base_url, reason, limit_seconds)) from None


def api_root(base_url: str) -> str:
    """Where the API is for an address that names it, or the console that serves it at its root."""
    base_url = base_url.rstrip("/")
    return base_url if urlsplit(base_url).path else base_url + API_PATH


def is_local(url: str) -> bool:
    """Whether an address is of this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_header(name: str, value: str) -> None:
    """Refuse what a header cannot carry, without repeating it: it may be the token."""
    if value.isascii() and value.isprintable():
        return
    option = _OPTIONS.get(name, name)
    raise AddressError(f"{option} holds a character that a header cannot carry; write it in printable ASCII")


def _checked(answer: Answer, base_url: str) -> Answer:
    """The answer, if it is one of the API: a JSON object, or nothing at all."""
    if answer.status != 204:
        try:
            msgspec.json.decode(answer.body, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise UnreachableError(
                f"{base_url} answered {answer.status}, and not as Harvest's API does: is {API_PATH} missing at its end?"
            ) from None
    return answer


def _opener(url: str) -> urllib.request.OpenerDirector:
    """One that follows no redirect, and asks this machine without a proxy."""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if is_local(url):
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token goes to the address that was named and to no other."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def _unreachable(base_url: str, reason: object, limit_seconds: float) -> str:
    if isinstance(reason, TimeoutError):
        said = f"no answer in {limit_seconds:.0f} s"
    elif isinstance(reason, ConnectionRefusedError):
        said = "connection refused"
    else:
        said = str(reason)
    return f"no console at {base_url}: {said}. Start `harvest dev`, or name another with --base-url or HARVEST_URL"


def _refusal(status: int, body: bytes, base_url: str) -> RemoteError:
    """What a problem+json answer says, in one line and a line for each problem that it points to."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
        lines = [f"{problem['detail']} [{problem['code']}]"]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        return UnreachableError(f"{base_url} answered {status}, and not as Harvest's API does")
    if status == 401:
        lines[0] += ": give the console's HARVEST_ADMIN_TOKEN with --token or HARVEST_TOKEN"
    if problem.get("field") == "execution_id":
        lines.append("  a workflow id is taken together with its type: --workflow-name TYPE")
    for each in problem.get("problems", ()):
        if f"{each.get('pointer') or '/'}: {each.get('message')}" in problem["detail"]:
            continue
        lines.append(f"  {each.get('pointer') or '/'}: {each.get('message')}")
    for each in problem.get("blockers", ()):
        named = ", ".join(f"{worker['name']} ({worker['detail']})" for worker in each["workers"])
        lines.append(f"  {each['code']}: {named or each['message']}")
    if problem.get("slug") == "outcome_unknown" and "idempotency_key" in problem:
        lines.append(f"  repeat it with --idempotency-key {problem['idempotency_key']}")
    return (UnreachableError if status >= 500 else RemoteError)("\n".join(lines))
