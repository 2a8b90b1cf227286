"""Access control: the token, the `Host` and `Origin` of each request, and the security headers of responses.

Any page in a browser can send requests to 127.0.0.1, and its own domain name can be made to resolve to it (DNS
rebinding). So a request must carry the token and must be addressed to a name of this server, and one that changes
something must come from our own page.
"""

from __future__ import annotations

import html
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from paceline._dashboard.query_fields import MAX_FIELDS, MAX_QUERY_BYTES
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
_SECURITY_HEADERS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_READ_METHODS = ("GET", "HEAD")
_OWN_SITES = (b"same-origin", b"none")
"""`Sec-Fetch-Site` of our own page, and of an address that a person typed."""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Paceline</title>{head}<p>{text}</p></html>
"""
_TOKEN_NEEDED = (
    "Open the address with the token that <code>paceline dashboard</code> printed in its terminal. "
    "The token of an earlier dashboard no longer works."
)


@dataclass(frozen=True)
class AllowedHosts:
    """The names by which a request may address this server."""

    names: frozenset[str]
    allows_any_address: bool = False
    """Any IP address is allowed, since DNS rebinding needs a name."""

    @classmethod
    def from_host(cls, host: str, machine: Iterable[str] = ()) -> AllowedHosts:
        """`machine`: the names of this machine, if others can reach it."""
        host = host.strip("[]").lower()
        if is_loopback(host):
            return cls(_LOOPBACK | {host})
        return cls(_LOOPBACK | {host} | {name.lower() for name in machine if name}, allows_any_address=True)

    def allows(self, authority: str) -> bool:
        name = parse_host_name(authority)
        return name is not None and (name in self.names or (self.allows_any_address and _is_address(name)))


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def parse_host_name(authority: str) -> str | None:
    """Return the name or address in a `Host` header; None if it is invalid. Drops the port, which a tunnel changes."""
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


class AccessGate:
    """ASGI middleware in front of the whole application."""

    def __init__(self, app: App, *, token: str, names: AllowedHosts, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._names = names
        # Cookies ignore ports: two dashboards on one machine need two names.
        self._cookie = f"paceline_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers: Headers = scope["headers"]
        guarded = _with_security_headers(send, is_api=not _is_page(scope["path"]))
        if not self._names.allows(_get_header(headers, b"host").decode("latin-1")):
            await _send_refusal(scope, guarded, 421, "unknown host name")
        elif scope["path"] == "/" and (token_and_query := _extract_token(scope["query_string"])) is not None:
            await self._log_in(scope, guarded, *token_and_query)
        elif not self._has_token(headers):
            await _send_refusal(scope, guarded, 401, _TOKEN_NEEDED, [(b"www-authenticate", b"Bearer")])
        elif (problem := _find_cross_site_problem(scope["method"], scope["path"], headers)) is not None:
            await _send_refusal(scope, guarded, 403, problem)
        else:
            await self._app(scope, receive, guarded)

    async def _log_in(self, scope: Scope, send: Send, token: str, rest: str) -> None:
        if not self._is_token(token.encode("utf-8", "replace")):
            await _send_refusal(scope, send, 401, _TOKEN_NEEDED, [(b"www-authenticate", b"Bearer")])
            return
        cookie = f"{self._cookie}={self._token.decode()}; Path=/; HttpOnly; SameSite=Strict"
        headers: Headers = [(b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
        target = f"/?{rest}" if rest else "/"
        if _get_header(scope["headers"], b"sec-fetch-site") in (b"cross-site", b"same-site"):
            # After a link on another page, a redirect would not carry the new cookie. A refresh from our own page does.
            head = f'<meta http-equiv="refresh" content="0;url={html.escape(target)}">'
            await _send_page(send, 200, headers, head=head)
        else:
            await _send_response(send, 303, b"text/plain", b"", [*headers, (b"location", target.encode())])

    def _has_token(self, headers: Headers) -> bool:
        kind, _, bearer = _get_header(headers, b"authorization").partition(b" ")
        if kind.lower() == b"bearer":
            return self._is_token(bearer.strip())
        name = self._cookie.encode()
        parts = [part for key, value in headers if key == b"cookie" for part in value.split(b";")]
        pairs = [part.strip().partition(b"=") for part in parts]
        return any(self._is_token(value) for key, _, value in pairs if key == name)

    def _is_token(self, token: bytes) -> bool:
        return secrets.compare_digest(token, self._token)


def _find_cross_site_problem(method: str, path: str, headers: Headers) -> str | None:
    """Return why a request with a valid token is still refused: our page did not send it. None if it did."""
    from_elsewhere = "the request came from another page"
    fetch_site = _get_header(headers, b"sec-fetch-site")
    if method in _READ_METHODS:
        return from_elsewhere if path != "/" and fetch_site and fetch_site not in _OWN_SITES else None
    origin = _get_header(headers, b"origin")
    is_other_origin = origin and origin.partition(b"://")[2].lower() != _get_header(headers, b"host").lower()
    if (fetch_site and fetch_site != b"same-origin") or is_other_origin:
        return from_elsewhere
    if _get_header(headers, b"x-paceline") != b"1":
        return "the header `X-Paceline: 1` is missing"
    if _get_header(headers, b"content-type").partition(b";")[0].strip().lower() != b"application/json":
        return "`Content-Type` must be application/json"
    return None


def _extract_token(query: bytes) -> tuple[str, str] | None:
    """Return the token of a query and the rest of the query; None if there is no token or the query is invalid."""
    if b"token=" not in query or len(query) > MAX_QUERY_BYTES:
        return None
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        return None
    token = next((value for name, value in pairs if name == "token"), None)
    return None if token is None else (token, urlencode([pair for pair in pairs if pair[0] != "token"]))


def _with_security_headers(send: Send, *, is_api: bool) -> Send:
    async def send_guarded(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            extra = [*_SECURITY_HEADERS, (b"content-security-policy", CSP.encode())]
            extra.append((b"cache-control", b"no-store" if is_api else b"no-cache"))
            headers += [(name, value) for name, value in extra if name not in names]
            message = {**message, "headers": headers}
        await send(message)

    return send_guarded


async def _send_refusal(scope: Scope, send: Send, status: int, text: str, headers: Headers | None = None) -> None:
    """Send a refusal, as a page if a page was requested. The texts are our own and contain nothing of the request."""
    if _is_page(scope["path"]):
        await _send_page(send, status, headers or [], text=text)
    else:
        plain = text.replace("<code>", "`").replace("</code>", "`")
        await _send_response(send, status, b"application/json", encode({"error": plain}), headers or [])


async def _send_page(send: Send, status: int, headers: Headers, *, head: str = "", text: str = "") -> None:
    await _send_response(
        send, status, b"text/html; charset=utf-8", _PAGE.format(head=head, text=text).encode(), headers
    )


async def _send_response(send: Send, status: int, kind: bytes, body: bytes, headers: Headers) -> None:
    start = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


def _is_page(path: str) -> bool:
    return not path.startswith("/api/") and path != "/metrics"


def _get_header(headers: Headers, name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
