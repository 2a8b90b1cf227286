"""Who gets in: the token, the `Host` and `Origin` of each request, and what the browser may do with the answers.

Any page that a browser shows can send requests to 127.0.0.1, and a name of its own can be made to lead there. So a
request has to carry the token, has to be addressed to a name of this server, and one that changes something has to
come from our own page.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from paceline._dashboard.asked import MOST_FIELDS, MOST_QUERY_BYTES
from paceline._view.model import encode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_READS = ("GET", "HEAD")
_OWN = (b"same-origin", b"none")
"""`Sec-Fetch-Site` of our own page, and of an address that a person typed."""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Paceline</title>{head}<p>{text}</p></html>
"""
_WANTED = (
    "This needs the address with the token in it that <code>paceline dashboard</code> printed in its terminal. "
    "The token of an older dashboard is no longer good."
)


@dataclass(frozen=True)
class Names:
    """What a request may call this server by."""

    names: frozenset[str]
    any_address: bool = False
    """Any number is fine, since what leads a browser astray is always a name."""

    @classmethod
    def of_host(cls, host: str, machine: Iterable[str] = ()) -> Names:
        """`machine`: the names of this one, where others reach it."""
        host = host.strip("[]").lower()
        if is_loopback(host):
            return cls(_LOOPBACK | {host})
        return cls(_LOOPBACK | {host} | {name.lower() for name in machine if name}, any_address=True)

    def have(self, authority: str) -> bool:
        name = name_in(authority)
        return name is not None and (name in self.names or (self.any_address and _is_address(name)))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def name_in(authority: str) -> str | None:
    """The name or address in a `Host` header, without the port, which a tunnel changes; None where it is none."""
    if authority.startswith("["):
        name, bracket, port = authority[1:].partition("]")
        if not bracket or (port and not port.startswith(":")) or not _is_address(name):
            return None
        port = port[1:]
    else:
        name, _, port = authority.partition(":")
    if not name or not (port == "" or (port.isascii() and port.isdigit())):
        return None
    return name.lower().removesuffix(".")


class Gate:
    """In front of the whole application."""

    def __init__(self, app: App, *, token: str, names: Names, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._names = names
        # Cookies know no ports: those of two dashboards on one machine need two names.
        self._cookie = f"paceline_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers: Headers = scope["headers"]
        guarded = _guarded(send, is_api=not _is_page(scope["path"]))
        if not self._names.have(_header(headers, b"host").decode("latin-1")):
            await _answer(scope, guarded, 421, "this server is not called by that name")
        elif scope["path"] == "/" and (found := _token_in(scope["query_string"])) is not None:
            await self._enter(scope, guarded, *found)
        elif not self._admits(headers):
            await _answer(scope, guarded, 401, _WANTED, [(b"www-authenticate", b"Bearer")])
        elif (problem := _foreign(scope["method"], scope["path"], headers)) is not None:
            await _answer(scope, guarded, 403, problem)
        else:
            await self._app(scope, receive, guarded)

    async def _enter(self, scope: Scope, send: Send, token: str, rest: str) -> None:
        if not self._is_token(token.encode("utf-8", "replace")):
            await _answer(scope, send, 401, _WANTED, [(b"www-authenticate", b"Bearer")])
            return
        cookie = f"{self._cookie}={self._token.decode()}; Path=/; HttpOnly; SameSite=Strict"
        entered: Headers = [(b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
        target = f"/?{rest}" if rest else "/"
        if _header(scope["headers"], b"sec-fetch-site") in (b"cross-site", b"same-site"):
            # A link on another page: what that page leads to, redirects included, goes without the new cookie.
            head = f'<meta http-equiv="refresh" content="0;url={_escaped(target)}">'
            await _send(send, 200, b"text/html; charset=utf-8", _PAGE.format(head=head, text="").encode(), entered)
        else:
            await _send(send, 303, b"text/plain", b"", [*entered, (b"location", target.encode())])

    def _admits(self, headers: Headers) -> bool:
        kind, _, bearer = _header(headers, b"authorization").partition(b" ")
        if kind.lower() == b"bearer":
            return self._is_token(bearer.strip())
        name = self._cookie.encode()
        parts = [part for key, value in headers if key == b"cookie" for part in value.split(b";")]
        pairs = [part.strip().partition(b"=") for part in parts]
        return any(self._is_token(value) for key, _, value in pairs if key == name)

    def _is_token(self, given: bytes) -> bool:
        return secrets.compare_digest(given, self._token)


def _foreign(method: str, path: str, headers: Headers) -> str | None:
    """Why a request with the right token is refused all the same: it was not our page that sent it."""
    site = _header(headers, b"sec-fetch-site")
    if method in _READS:
        if path != "/" and site and site not in _OWN:
            return "another page asked for this"
        return None
    if site and site != b"same-origin":
        return "another page asked for this"
    origin = _header(headers, b"origin")
    if origin and origin.partition(b"://")[2].lower() != _header(headers, b"host").lower():
        return "another page asked for this"
    if _header(headers, b"x-paceline") != b"1":
        return "the header `X-Paceline: 1` is missing"
    if _header(headers, b"content-type").partition(b";")[0].strip().lower() != b"application/json":
        return "`Content-Type` has to be application/json"
    return None


def _token_in(query: bytes) -> tuple[str, str] | None:
    """The token of a query, and the rest of it; None where there is none, or the query is none."""
    if b"token=" not in query or len(query) > MOST_QUERY_BYTES:
        return None
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return None
    token = next((value for name, value in pairs if name == "token"), None)
    return None if token is None else (token, urlencode([pair for pair in pairs if pair[0] != "token"]))


def _guarded(send: Send, *, is_api: bool) -> Send:
    async def told(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            extra = [*_ALWAYS, (b"content-security-policy", CSP.encode())]
            extra.append((b"cache-control", b"no-store" if is_api else b"no-cache"))
            headers += [(name, value) for name, value in extra if name not in names]
            message = {**message, "headers": headers}
        await send(message)

    return told


async def _answer(scope: Scope, send: Send, status: int, text: str, headers: Headers | None = None) -> None:
    """A refusal, as a page where a page was asked for. The texts are our own: nothing of the request is in them."""
    if _is_page(scope["path"]):
        await _send(send, status, b"text/html; charset=utf-8", _PAGE.format(head="", text=text).encode(), headers or [])
    else:
        plain = text.replace("<code>", "`").replace("</code>", "`")
        await _send(send, status, b"application/json", encode({"error": plain}), headers or [])


async def _send(send: Send, status: int, kind: bytes, body: bytes, headers: Headers) -> None:
    start = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


def _is_page(path: str) -> bool:
    return not path.startswith("/api/") and path != "/metrics"


def _header(headers: Headers, name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
