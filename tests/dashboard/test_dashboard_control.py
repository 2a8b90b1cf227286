"""What a page may ask of a run that is being driven, if the dashboard was started so. tests/browser asks a live one."""

import pytest
from dashboard_server import Run, dashboard

from paceline._dashboard.control import ProfileBody, StacksBody, StopBody, parse_control_body
from paceline._dashboard.query_fields import RequestRefusedError


@pytest.fixture
def root(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def client(root, tmp_path):
    with dashboard(root, tmp_path, control=True) as served:
        yield served.client(**{"X-Paceline": "1", "Origin": served.base})


def test_nobody_is_there_to_ask_of_a_run_that_has_ended(client, root):
    Run(root / "a").report({"loss": 1.0}).end()
    for what in ("stop", "stacks", "profile"):
        answer = client.post(f"/api/{what}?run=a", json={})
        assert (answer.status_code, "a has no driver" in answer.json()["error"]) == (409, True)
    assert client.post("/api/stop?run=nothing", json={}).status_code == 404
    large = client.post("/api/stop?run=a", content=b"x" * 5000, headers={"Content-Type": "application/json"})
    assert large.status_code == 413
    assert client.post("/api/stop?run=a", json={}, headers={"Origin": "http://evil.example"}).status_code == 403


def test_a_body_asks_for_what_there_is():
    assert parse_control_body("stop", b"") == StopBody()
    assert parse_control_body("stop", b'{"now": true}') == StopBody(True)
    assert parse_control_body("stacks", b"{}") == StacksBody()
    assert parse_control_body("profile", b'{"seconds": 3, "rank": null}') == ProfileBody(3.0, None)
    wrong = [("stop", b'{"now": 1}'), ("stop", b'{"later": true}'), ("stop", b"[" * 4000)]
    wrong += [("profile", body) for body in (b'{"seconds": 0}', b'{"seconds": 1e9}', b'{"rank": -1}', b'{"rank": "0"}')]
    for what, body in wrong:
        with pytest.raises(RequestRefusedError) as caught:
            parse_control_body(what, body)
        assert caught.value.status == 400
