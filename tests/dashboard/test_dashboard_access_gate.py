"""Who gets in, decided without a server: names, tokens and where a request comes from."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._dashboard.access_gate import CSP, AccessGate, AllowedHosts, is_loopback, parse_host_name

TOKEN = "a-token-of-some-length"
LOCAL = AllowedHosts.from_host("127.0.0.1")


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"inside"})


def send_request_through_gate(
    path: str = "/api/runs", method: str = "GET", query: bytes = b"", names: AllowedHosts = LOCAL, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """What the gate answers, with what is behind it saying `inside`."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    request_headers = {"host": "127.0.0.1:8265", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "query_string": query,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in request_headers.items()],
    }
    asyncio.run(AccessGate(_inside, token=TOKEN, names=names, port=8265)(scope, None, send))  # type: ignore[arg-type]
    start, body = sent
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_the_token_opens_as_bearer_and_as_cookie() -> None:
    assert send_request_through_gate(**bearer())[2] == b"inside"
    assert send_request_through_gate(authorization=f"bearer  {TOKEN}")[2] == b"inside"
    assert send_request_through_gate(cookie=f"a=1; paceline_8265={TOKEN}")[2] == b"inside"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"paceline_8266={TOKEN}"},
        {"cookie": f"xpaceline_8265={TOKEN}"},
        {**bearer("wrong"), "cookie": f"paceline_8265={TOKEN}"},
    ],
)
def test_all_else_is_refused_without_a_word_of_what_is_inside(headers: dict[str, str]) -> None:
    status, sent, body = send_request_through_gate(**headers)
    assert (status, sent["www-authenticate"]) == (401, "Bearer")
    assert b"inside" not in body


@settings(deadline=None)
@given(st.text(st.characters(codec="latin-1"), max_size=60).filter(lambda text: text.strip() != TOKEN))
def test_no_other_token_opens(token: str) -> None:
    assert send_request_through_gate(authorization=f"Bearer {token}")[0] == 401
    assert send_request_through_gate(cookie=f"paceline_8265={token}")[0] == 401


def test_the_address_with_the_token_gives_a_cookie_and_loses_the_token() -> None:
    status, headers, _ = send_request_through_gate("/", query=f"a=1&token={TOKEN}&b=%3C".encode())
    assert (status, headers["location"]) == (303, "/?a=1&b=%3C")
    assert headers["set-cookie"] == f"paceline_8265={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert send_request_through_gate("/", query=b"token=wrong")[0] == 401
    assert send_request_through_gate("/", query=b"token=wrong", cookie=f"paceline_8265={TOKEN}")[0] == 401


def test_a_link_on_another_page_leads_in_by_a_step_of_our_own() -> None:
    status, headers, body = send_request_through_gate(
        "/", query=f"token={TOKEN}&a=%22%3E".encode(), sec_fetch_site="cross-site"
    )
    assert status == 200
    assert b'content="0;url=/?a=%22%3E"' in body
    assert "set-cookie" in headers
    assert TOKEN.encode() not in body


def test_a_tunnel_may_use_another_port_but_no_other_name() -> None:
    for host in ("127.0.0.1", "127.0.0.1:1", "localhost:9000", "LOCALHOST", "[::1]:8265", "localhost."):
        assert send_request_through_gate(host=host, **bearer())[0] == 200, host
    near = ["127.0.0.1.evil.com", "localhost:8265.evil.com", "127.0.0.2", "[::1", "[::1]evil", "localhost@evil.com"]
    for host in ("", "evil.com", "evil.com:8265", "[evil.com]", "192.168.0.1", "0.0.0.0", *near):
        assert send_request_through_gate(host=host, **bearer())[0] == 421, host
        assert send_request_through_gate("/", query=f"token={TOKEN}".encode(), host=host)[0] == 421, host


@settings(deadline=None)
@given(st.text(st.characters(codec="latin-1")))
def test_a_host_header_is_a_name_or_none(text: str) -> None:
    name = parse_host_name(text)
    assert name is None or (name == name.lower() and not LOCAL.allows(text)) or name in LOCAL.names


def test_a_server_for_others_goes_by_addresses_and_its_own_names() -> None:
    names = AllowedHosts.from_host("0.0.0.0", ["Machine", "machine.lan", ""])
    assert all(map(names.allows, ["10.0.0.1:80", "machine:8265", "machine.lan", "localhost", "[fe80::1]:1"]))
    assert not any(map(names.allows, ["evil.com", "", "machine.evil.com"]))
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.8.8.8", "::1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "machine", ""]))


POST = {"x_paceline": "1", "content_type": "application/json", **bearer()}


def test_our_own_page_may_post() -> None:
    own = {"origin": "http://127.0.0.1:8265", "sec_fetch_site": "same-origin"}
    assert send_request_through_gate("/api/stop", "POST", **POST, **own)[0] == 200
    assert send_request_through_gate("/api/stop", "POST", **POST)[0] == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"x_paceline": ""},
        {"content_type": "text/plain"},
        {"origin": "http://evil.com"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
    ],
)
def test_another_page_may_not(changed: dict[str, str]) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert send_request_through_gate("/api/stop", method, **{**POST, **changed})[0] == 403, method


def test_another_page_may_not_read_either() -> None:
    for site in ("cross-site", "same-site", "anything"):
        assert send_request_through_gate("/api/runs", sec_fetch_site=site, **bearer())[0] == 403
        assert send_request_through_gate("/metrics", sec_fetch_site=site, **bearer())[0] == 403
        assert send_request_through_gate("/", sec_fetch_site=site, **bearer())[0] == 200


def test_every_answer_tells_the_browser_to_be_careful() -> None:
    for answer in (
        send_request_through_gate(**bearer()),
        send_request_through_gate(),
        send_request_through_gate(host="evil.com"),
        send_request_through_gate("/", **bearer()),
    ):
        headers = answer[1]
        assert headers["content-security-policy"] == CSP
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    assert send_request_through_gate(**bearer())[1]["cache-control"] == "no-store"
    assert send_request_through_gate("/", **bearer())[1]["cache-control"] == "no-cache"


def test_there_are_no_web_sockets() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(AccessGate(_inside, token=TOKEN, names=LOCAL, port=1)({"type": "websocket"}, None, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]
