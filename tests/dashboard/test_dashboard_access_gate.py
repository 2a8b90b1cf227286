"""Who gets in, decided without a server: names, tokens and where a request comes from."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._dashboard.access_gate import CSP, AccessGate, AllowedHosts, is_loopback, parse_host_name

TOKEN = "a-token-of-some-length"
LOCAL = AllowedHosts.from_host("127.0.0.1")


async def _inside(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"inside"})


def send_request_through_gate(path="/api/runs", method="GET", query=b"", names=LOCAL, **headers):
    """What the gate answers, with what is behind it saying `inside`."""
    sent: list[Any] = []

    async def send(message):
        sent.append(message)

    request_headers = {"host": "127.0.0.1:8265", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "query_string": query,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in request_headers.items()],
    }
    asyncio.run(AccessGate(_inside, token=TOKEN, names=names, port=8265)(scope, None, send))
    start, body = sent
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


def bearer(token=TOKEN):
    return {"authorization": f"Bearer {token}"}


COOKIE = {"cookie": f"a=1; paceline_8265={TOKEN}"}
POST = {"x_paceline": "1", "content_type": "application/json", **bearer()}
OWN_PAGE = {"origin": "http://127.0.0.1:8265", "sec_fetch_site": "same-origin"}
WRITES = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS")


@pytest.mark.parametrize(
    ("headers", "methods", "paths", "status"),
    [
        *((headers, ["GET"], ["/api/runs"], 200) for headers in (bearer(), bearer(f" {TOKEN}"), COOKIE)),
        *((headers, ["POST"], ["/api/stop"], 200) for headers in (POST, {**POST, **OWN_PAGE})),
        ({}, ["GET"], ["/api/runs"], 401),
        ({"authorization": f"Basic {TOKEN}"}, ["GET"], ["/api/runs"], 401),
        ({"cookie": f"paceline_8266={TOKEN}"}, ["GET"], ["/api/runs"], 401),
        ({"cookie": f"xpaceline_8265={TOKEN}"}, ["GET"], ["/api/runs"], 401),
        ({**bearer("wrong"), **COOKIE}, ["GET"], ["/api/runs"], 401),
        ({**POST, "x_paceline": ""}, WRITES, ["/api/stop"], 403),
        ({**POST, "content_type": "text/plain"}, WRITES, ["/api/stop"], 403),
        *(({**POST, "origin": f"http://{o}"}, WRITES, ["/api/stop"], 403) for o in ("evil.com", "127.0.0.1:3000")),
        ({**POST, "origin": "null"}, WRITES, ["/api/stop"], 403),
        *(({**POST, "sec_fetch_site": s}, WRITES, ["/api/stop"], 403) for s in ("cross-site", "same-site", "none")),
        *(
            ({**bearer(), "sec_fetch_site": site}, ["GET"], paths, status)
            for site in ("cross-site", "same-site", "anything")
            for paths, status in ((["/api/runs", "/metrics"], 403), (["/"], 200))
        ),
    ],
)
def test_only_the_token_opens_and_no_other_page_may_read_or_ask(headers, methods, paths, status):
    for method in methods:
        for path in paths:
            found, sent, body = send_request_through_gate(path, method, **headers)
            assert (found, body == b"inside") == (status, status == 200)
            assert sent.get("www-authenticate") == ("Bearer" if status == 401 else None)


@settings(deadline=None)
@given(st.text(st.characters(codec="latin-1"), max_size=60).filter(lambda text: text.strip() != TOKEN))
def test_no_other_token_opens(token):
    assert send_request_through_gate(authorization=f"Bearer {token}")[0] == 401
    assert send_request_through_gate(cookie=f"paceline_8265={token}")[0] == 401


def test_the_address_with_the_token_gives_a_cookie_and_loses_the_token():
    status, headers, _ = send_request_through_gate("/", query=f"a=1&token={TOKEN}&b=%3C".encode())
    assert (status, headers["location"]) == (303, "/?a=1&b=%3C")
    assert headers["set-cookie"] == f"paceline_8265={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert send_request_through_gate("/", query=b"token=wrong")[0] == 401
    assert send_request_through_gate("/", query=b"token=wrong", cookie=f"paceline_8265={TOKEN}")[0] == 401


def test_a_link_on_another_page_leads_in_by_a_step_of_our_own():
    status, headers, body = send_request_through_gate(
        "/", query=f"token={TOKEN}&a=%22%3E".encode(), sec_fetch_site="cross-site"
    )
    assert status == 200
    assert b'content="0;url=/?a=%22%3E"' in body
    assert "set-cookie" in headers
    assert TOKEN.encode() not in body


def test_a_tunnel_may_use_another_port_but_no_other_name():
    for host in ("127.0.0.1", "127.0.0.1:1", "localhost:9000", "LOCALHOST", "[::1]:8265", "localhost."):
        assert send_request_through_gate(host=host, **bearer())[0] == 200, host
    near = ["127.0.0.1.evil.com", "localhost:8265.evil.com", "127.0.0.2", "[::1", "[::1]evil", "localhost@evil.com"]
    for host in ("", "evil.com", "evil.com:8265", "[evil.com]", "192.168.0.1", "0.0.0.0", *near):
        assert send_request_through_gate(host=host, **bearer())[0] == 421, host
        assert send_request_through_gate("/", query=f"token={TOKEN}".encode(), host=host)[0] == 421, host


@settings(deadline=None)
@given(st.text(st.characters(codec="latin-1")))
def test_a_host_header_is_a_name_or_none(text):
    name = parse_host_name(text)
    assert name is None or (name == name.lower() and not LOCAL.allows(text)) or name in LOCAL.names


def test_a_server_for_others_goes_by_addresses_and_its_own_names():
    names = AllowedHosts.from_host("0.0.0.0", ["Machine", "machine.lan", ""])
    assert all(map(names.allows, ["10.0.0.1:80", "machine:8265", "machine.lan", "localhost", "[fe80::1]:1"]))
    assert not any(map(names.allows, ["evil.com", "", "machine.evil.com"]))
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.8.8.8", "::1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "machine", ""]))


def test_every_answer_tells_the_browser_to_be_careful():
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


def test_there_are_no_web_sockets():
    sent: list[Any] = []

    async def send(message):
        sent.append(message)

    asyncio.run(AccessGate(_inside, token=TOKEN, names=LOCAL, port=1)({"type": "websocket"}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
