"""Files are opened below the run's own directory only, whatever somebody has put there."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline._dashboard.files import FLAME_CSP, find_delivery, open_run_file
from paceline._dashboard.query_fields import RequestRefusedError
from paceline._storage.run_location import RunLocation
from paceline._view.model import Attempt, RunSnapshot, ShownFile, ShownHang, Summary


def make_run(top):
    """With a file of its own, and a secret beside it."""
    (top / "secret.txt").write_text("secret")
    (top / "run" / "profiles").mkdir(parents=True, exist_ok=True)
    (top / "run" / "profiles" / "a.txt").write_text("own")
    return RunLocation.from_path(str(top / "run"))


@settings(deadline=None)
@given(st.lists(st.sampled_from(["..", ".", "", "run", "profiles", "a.txt", "secret.txt", "\0"]), max_size=6))
def test_no_path_leads_out(tmp_path_factory, parts):
    top = tmp_path_factory.getbasetemp() / "ways-out"
    top.mkdir(exist_ok=True)
    location, path = make_run(top), "/".join(parts)
    assume(path != "profiles/a.txt")
    with pytest.raises(RequestRefusedError):
        open_run_file(location, path)


def detail(*files, stacks=None):
    hangs = (ShownHang(rank=0, verdict="", action="warn", at=0.0, stacks=stacks),)
    return RunSnapshot(
        summary=Summary(id="a", name="a", path="a", kind="run", state="running", began_at=0.0, updated_at=0.0),
        files=tuple(ShownFile(kind=kind, path=path, rank=0, at=0.0) for kind, path in files),
        attempts=(Attempt(number=1, began_at=0.0, size=1, hangs=hangs),),
    )


def test_only_what_the_run_lists_is_offered_and_only_flame_graphs_are_pages():
    listed = detail(
        ("flame", "p/f.html"), ("trace", "p/t.html"), ("stacks-folded", "p/x.txt"), stacks="logs/stacks.txt"
    )
    assert find_delivery(listed, "p/f.html").csp == FLAME_CSP
    trace = find_delivery(listed, "p/t.html")
    assert (trace.name, trace.media_type) == ("t.html", "application/octet-stream")
    assert find_delivery(listed, "logs/stacks.txt").media_type == "text/plain; charset=utf-8"
    for path in ("", "journal.jsonl", "p", "P/F.HTML", "p/f.html/"):
        with pytest.raises(RequestRefusedError):
            find_delivery(listed, path)


@settings(deadline=None)
@given(st.text())
def test_the_name_of_a_download_fits_into_a_header(name):
    headers = find_delivery(detail(("trace", name)), name).headers()
    assert headers["Content-Disposition"].isascii()
    assert not set(headers["Content-Disposition"]) & set("\r\n\\")
    assert headers["Content-Disposition"].count('"') in (0, 2)
