"""A real server on a socket, asked as a browser would and as somebody who means harm would."""

import csv
import io
import os
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from dashboard_server import TOKEN, Run, dashboard, events
from prometheus_client.parser import text_string_to_metric_families

from paceline._commands.searches import open_search
from paceline._dashboard import serve
from paceline._dashboard.answers import iter_csv_chunks
from paceline._dashboard.files import iter_file_chunks, open_run_file
from paceline._dashboard.query_fields import RequestRefusedError
from paceline._storage.journal_segments import JournalUploader
from paceline._storage.run_location import RunLocation
from servers import BUCKET

HOSTILE = '</script><script>alert("1")</script>'
HOSTILE_RUN = HOSTILE.replace("/", "_")
FORMULA = '=HYPERLINK("http://evil.example")'
SECRET = "nobody may read this"
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A dashboard of two runs that have ended: `plain`, which lists files of others, and one with hostile names."""
    top = tmp_path_factory.mktemp("dashboard")
    root = top / "runs"
    (top / "secret.txt").write_text(SECRET)
    plain = Run(root / "plain")
    for step in range(100):
        plain.report({"loss": 1 / (step + 1), "accuracy": step / 100})
    plain.file("logs/attempt_1/rank_0.log", "".join(f"line {n}\n" for n in range(1000))).measure()
    plain.file("profiles/flame.html", "<script>1</script>").list_file("profiles/flame.html")
    plain.file("profiles/trace.json", "{}").list_file("profiles/trace.json", "trace")
    plain.file("not-listed.txt", SECRET)
    os.symlink(top / "secret.txt", plain.root / "link.txt")
    os.symlink(top, plain.root / "linked")
    os.symlink("profiles/trace.json", plain.root / "own.txt")
    os.mkfifo(plain.root / "pipe")
    outside = ("../../secret.txt", str(top / "secret.txt"), "link.txt", "linked/secret.txt")
    for path in (*outside, "profiles", "..", "gone.txt", "own.txt", "pipe", "profiles/trace.json/b"):
        plain.list_file(path, "trace")
    plain.end()
    hostile = Run(root / HOSTILE_RUN)
    hostile.report({HOSTILE: 1.0, FORMULA: 2.0, "text": FORMULA, "nan": {"$number": "nan"}})
    hostile.file("logs/attempt_1/rank_0.log", f"{HOSTILE}\n\x1b[31mred\n").end()
    with dashboard(root, top) as found:
        yield found
        assert found.errors.read_text() == "", "the terminal of the dashboard stays quiet"


def test_without_the_token_there_is_nothing(server):
    paths = ["/", "/app.js", "/api/runs", "/api/events", "/metrics", "/nothing", "/api/file?run=plain&path=x"]
    for token in (None, "wrong", TOKEN[:-1]):
        client = server.client(token)
        for path in paths:
            answer = client.get(path)
            assert (answer.status_code, "plain" in answer.text) == (401, False), path
        assert client.post("/api/stop?run=plain", json={}, headers={"X-Paceline": "1"}).status_code == 401
    assert "text/html" in server.client(None).get("/").headers["content-type"]


def test_the_printed_address_opens_the_page(server):
    client = server.client(None)
    answer = client.get(server.url)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    page = client.get("/")
    assert page.status_code == 200
    assert "app.js" in page.text
    assert client.get("/api/about").json()["control"] is False
    again = client.get("/app.js", headers={"If-None-Match": client.get("/app.js").headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for path in ("/page/app.js", "/..%2f__init__.py", "/../gate.py", "/app.js/", "/page", "/%2e%2e/gate.py"):
        assert client.get(path).status_code in (307, 404), path


def test_nothing_can_be_asked_of_a_run_without_the_flag_or_by_another_page(server):
    client = server.client()
    for what in ("stop", "stacks", "profile"):
        answer = client.post(f"/api/{what}?run=plain", json={}, headers={"X-Paceline": "1"})
        assert (answer.status_code, "--allow-control" in answer.json()["error"]) == (403, True)
    answer = client.post("/api/stop?run=plain", json={}, headers={"Origin": "http://evil.example", "X-Paceline": "1"})
    assert (answer.status_code, "--allow-control" in answer.text) == (403, False)
    assert "access-control-allow-origin" not in client.get("/api/runs").headers


def test_runs_metrics_and_use_are_answered_also_for_prometheus(server):
    client = server.client()
    found = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
    assert (found["plain"]["state"], found["plain"]["num_reports"]) == ("finished", 100)
    detail = client.get("/api/run", params={"run": "plain"}).json()
    assert set(detail["metric_names"]) == {"loss", "accuracy"}
    part = client.get("/api/metrics", params={"run": "plain", "name": "loss", "from": 10, "to": 19}).json()
    assert (part["first"], part["last"]) == (1, 100)
    assert part["series"][0]["x"] == list(range(10, 20))
    few = client.get("/api/metrics", params={"run": "plain", "points": 10}).json()["series"]
    assert [(len(one["x"]), one["num_points"]) for one in few] == [(10, 100), (10, 100)]
    assert client.get("/api/use", params={"run": "plain"}).json()["ranks"][0]["rss_bytes"] == [123_000_000] * 2
    families = {family.name: family.samples for family in text_string_to_metric_families(client.get("/metrics").text)}
    values = {(one.labels["run"], one.labels["name"]): one.value for one in families["paceline_metric"]}
    assert (values["plain", "loss"], values[HOSTILE_RUN, HOSTILE]) == (0.01, 1.0)
    for path in ("/app.js", "/api/metrics?run=plain"):
        answer, as_it_is = client.get(path), client.get(path, headers={"Accept-Encoding": "identity"})
        assert (answer.headers["content-encoding"], "content-encoding" in as_it_is.headers) == ("gzip", False)
        assert answer.content == as_it_is.content


def test_all_rows_come_as_csv_and_no_cell_is_a_formula(server):
    text = server.client().get("/api/metrics.csv", params={"run": "plain"}).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [int(row["step"]) for row in rows] == list(range(1, 101))
    assert [float(row["loss"]) for row in rows] == [1 / (step + 1) for step in range(100)]
    params = {"run": HOSTILE_RUN, "name": [FORMULA, "text", "nan", HOSTILE]}
    header, row = csv.reader(io.StringIO(server.client().get("/api/metrics.csv", params=params).text))
    assert header[3:] == [f"'{FORMULA}", "text", "nan", HOSTILE]
    assert row[3:] == ["2.0", f"'{FORMULA}", "nan", "1.0"]
    lines = b"".join(iter_csv_chunks([{"step": 1, "reported/step": 100, "attempt": 1}], ["step", "loss"])).split()
    assert lines == [b"step,time,attempt,reported/step,loss", b"1,,1,100,"]


def test_a_flame_graph_is_shown_in_a_sandbox_and_other_files_are_saved(server):
    flame = server.client().get("/api/file", params={"run": "plain", "path": "profiles/flame.html"})
    assert flame.text == "<script>1</script>"
    policy = flame.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts;")
    assert "allow-same-origin" not in policy
    assert "default-src 'none'" in policy
    trace = server.client().get("/api/file", params={"run": "plain", "path": "profiles/trace.json"})
    assert trace.headers["content-disposition"] == 'attachment; filename="trace.json"'
    assert trace.headers["content-type"] == "application/octet-stream"


def test_no_other_file_or_folder_is_handed_out(server):
    client, secret = server.client(), str(server.errors.parent / "secret.txt")
    paths = ["../../secret.txt", "..%2f..%2fsecret.txt", secret, "link.txt", "linked/secret.txt", "not-listed.txt"]
    paths += ["own.txt", "pipe", "profiles/trace.json/b"]
    for path in (*paths, "..", "", "profiles", "./profiles/flame.html", "journal.jsonl", "\0", "gone.txt"):
        answer = client.get("/api/file", params={"run": "plain", "path": path})
        assert (answer.status_code, SECRET in answer.text) == (404, False), path
    for run in ("..", "../secret.txt", "/", "", "plain/../plain", "./plain", "\0", "nothing"):
        for path in ("run", "metrics", "use", "logs", "file", "report", "metrics.csv", "search"):
            fields = {"run": run, "attempt": 1, "rank": 0, "path": "journal.jsonl"}
            assert client.get(f"/api/{path}", params=fields).status_code == 404, (run, path)
        assert client.get("/api/diff", params={"a": run, "b": run}).status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/run", 400),
        ("/api/metrics?run=plain&points=many", 400),
        ("/api/logs?run=plain&attempt=1&rank=0&before=1&after=1", 400),
        (f"/api/run?run={'a' * 40_000}", 414),
        ("/api/nothing", 404),
    ],
    ids=["no run", "no number", "both directions", "too long", "no such question"],
)
def test_a_wrong_question_is_refused_with_an_error(server, path, status):
    client = server.client()
    answer = client.get(path)
    assert (answer.status_code, bool(answer.json()["error"])) == (status, True)
    assert client.post("/api/runs", json={}, headers={"X-Paceline": "1"}).status_code == 405


def read_data(page):
    """The values that a report embeds."""
    (data,) = re.findall(r'<script type="application/json" id="report">(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = msgspec.json.decode(data)
    return found


def test_a_report_is_one_file_that_needs_no_other(server):
    """tests/browser opens one from a disk, and sees that it asks for nothing."""
    page = server.client().get("/api/report", params={"run": "plain"}).text
    assert "default-src 'none'" in page.partition('<script type="application/json"')[0]
    values = read_data(page)
    assert values["detail"]["summary"]["name"] == "plain"
    assert values["about"]["control"] is False
    assert [one["num_points"] for one in values["points"]["step"]] == [100, 100]
    assert [line["text"] for line in values["logs"][0]["page"]["lines"]][-1] == "line 999"
    assert values["cut"] == ["of each log, the last 300 lines"]


def test_a_script_in_a_name_stays_text_in_a_report(server):
    page = server.client().get("/api/report", params={"run": HOSTILE_RUN}).text
    assert page.count("<script") == page.count("</script>") == 2
    assert "<title>&lt;" in page
    values = read_data(page)
    assert HOSTILE in values["detail"]["metric_names"]
    assert values["logs"][0]["page"]["lines"][0]["text"] == HOSTILE


def test_pages_come_and_go_a_run_is_removed_and_ctrl_c_ends_the_server(tmp_path):
    run = Run(tmp_path / "runs" / "a").report({"loss": 1.0}).end()
    with dashboard(tmp_path / "runs", tmp_path) as server:
        # More pages than may be open at once, one after the other.
        for _ in range(80):
            with events(server.client()) as stream:
                stream.next("runs")
        with events(server.client(), "a") as one, events(server.client()) as other:
            one.next("run")
            assert [run["id"] for run in other.next("runs")["runs"]] == ["a"]
            (run.root / "journal.jsonl").unlink()
            assert other.next("runs", lambda data: bool(data["gone"])) == {"runs": [], "gone": ["a"]}
            assert server.interrupt() == 0
        assert server.errors.read_text() == ""


STUCK = """
import time
from paceline._view.listing import Listing
Listing.refresh = lambda self: time.sleep(600)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_server_while_storage_does_not_answer(tmp_path):
    with dashboard(tmp_path, tmp_path, fault=STUCK) as server:
        assert server.client().get("/api/about").status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            server.client().get("/api/runs", timeout=0.2)
        assert server.interrupt() == 0


@pytest.mark.slow
def test_a_run_in_a_store_is_shown_like_any_other(s3_environment, tmp_path):
    root = f"s3://{BUCKET}/dashboard"
    home, run = RunLocation.from_path(f"{root}/live"), Run(tmp_path / "live").report({"loss": 1.0}).end()
    JournalUploader(home.open_store(), run.journal).upload_new()
    with dashboard(root, tmp_path) as server:
        client = server.client()
        (found,) = client.get("/api/runs").json()["runs"]
        assert (found["id"], found["state"]) == ("live", "finished")
        assert client.get("/api/file", params={"run": "live", "path": "journal.jsonl"}).status_code == 404
        assert read_data(client.get("/api/report", params={"run": "live"}).text)["detail"]
    home.open_store().write("profiles/a.txt", b"a profile")
    assert b"".join(iter_file_chunks(open_run_file(home, "profiles/a.txt"))) == b"a profile"
    for path in ("profiles/nothing", "../live/profiles/a.txt", "/profiles/a.txt"):
        with pytest.raises(RequestRefusedError):
            open_run_file(home, path)


def test_a_search_is_shown_with_its_trials(tmp_path):
    release = max(path.parent for path in GOLDEN.glob("*/search"))
    with dashboard(release, tmp_path) as server:
        client = server.client()
        runs = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
        trials = {id for id, run in runs.items() if run["kind"] == "trial" and run["search"] == "search"}
        assert (runs["search"]["kind"], len(trials)) == ("search", 3)
        search = client.get("/api/search", params={"run": "search"}).json()
        assert {trial["id"] for trial in search["trials"]} == trials
        assert (search["metric"], search["mode"]) == ("loss", "min")
        assert sorted(config["x"] for config in search["configs"].values()) == [1.0, 2.0, 3.0]
        assert client.get("/api/run", params={"run": min(trials)}).json()["summary"] == runs[min(trials)]
        assert client.get("/api/run", params={"run": "search"}).json()["summary"] == runs["search"]
        assert client.get("/api/metrics", params={"run": "search"}).status_code == 404
        assert client.get("/api/search", params={"run": min(trials)}).status_code == 404
        with events(client, "search") as stream:
            assert stream.next("run")["summary"]["kind"] == "search"
            assert stream.next("points") == {"last": 3}
        assert read_data(client.get("/api/report", params={"run": "search"}).text)["search"] == search


BROKEN = """
from paceline._view.listing import Listing
def refresh(self):
    raise RuntimeError("a secret of ours")
Listing.refresh = refresh
"""


def test_a_server_for_other_machines_warns_and_its_bugs_are_not_sent_to_the_page(tmp_path):
    with dashboard(tmp_path, tmp_path, host="0.0.0.0", fault=BROKEN) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert "warning: 0.0.0.0 can be reached from other machines" in server.errors.read_text()
        assert server.client().get("/api/about", headers={"Host": "evil.example"}).status_code == 421
        assert server.client().get("/api/about", headers={"Host": "10.1.2.3:1"}).status_code == 200
        answer = server.client().get("/api/runs")
        assert answer.status_code == 500
        assert answer.json() == {"error": "internal error; see the terminal of the dashboard"}
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "RuntimeError: a secret of ours" in server.errors.read_text()


def test_a_port_that_is_in_use_is_named_and_the_default_one_gives_way(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen at 127\.0\.0\.1, port {port}.*\n\nhint: --port 0"):
            serve._make_listener("127.0.0.1", port)
        monkeypatch.setattr(serve, "PORT", port)
        with serve._make_listener("127.0.0.1", None) as other:
            assert other.getsockname()[1] != port


@pytest.mark.parametrize("token", ["short", "a b" * 10, "\u00fcber" * 6])
def test_a_token_that_no_address_can_have_is_refused(token, tmp_path):
    with pytest.raises(ValueError, match="token must have at least 16 characters"):
        serve.serve(str(tmp_path), open_search, token=token, open_browser=False)
