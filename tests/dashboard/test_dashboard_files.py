"""Files are opened below the run's own directory only, whatever somebody has put there."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._dashboard.asked import Refused
from paceline._dashboard.files import FLAME_CSP, chunks, offered, opened
from paceline._storage.home import Home
from paceline._view.model import Attempt, Detail, Hang, ShownFile, Summary


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """With a file of its own, and a secret beside it."""
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "run" / "profiles").mkdir(parents=True)
    (tmp_path / "run" / "profiles" / "a.txt").write_text("own")
    return tmp_path / "run"


def test_a_file_of_the_run_is_read(run: Path) -> None:
    assert b"".join(chunks(opened(Home.of_path(str(run)), "profiles/a.txt"))) == b"own"


def test_no_link_is_followed(run: Path) -> None:
    os.symlink(run.parent / "secret.txt", run / "out.txt")
    os.symlink(run.parent, run / "above")
    os.symlink("profiles/a.txt", run / "own.txt")
    for path in ("out.txt", "above/secret.txt", "own.txt", "above/run/profiles/a.txt"):
        with pytest.raises(Refused):
            opened(Home.of_path(str(run)), path)


def test_what_is_no_file_is_refused_and_waited_for_by_nobody(run: Path) -> None:
    os.mkfifo(run / "pipe")
    for path in ("pipe", "profiles", "profiles/a.txt/b", "nothing", "profiles/nothing"):
        with pytest.raises(Refused):
            opened(Home.of_path(str(run)), path)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["..", ".", "", "run", "profiles", "a.txt", "secret.txt", "\0"]), max_size=6))
def test_no_path_leads_out(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    top = tmp_path_factory.getbasetemp() / "ways-out"
    (top / "run" / "profiles").mkdir(parents=True, exist_ok=True)
    (top / "secret.txt").write_text("secret")
    (top / "run" / "profiles" / "a.txt").write_text("own")
    path = "/".join(parts)
    if path == "profiles/a.txt":
        return
    with pytest.raises(Refused):
        opened(Home.of_path(str(top / "run")), path)


def detail(*files: tuple[str, str], stacks: str | None = None) -> Detail:
    hangs = (Hang(rank=0, verdict="", action="warn", at=0.0, stacks=stacks),)
    return Detail(
        summary=Summary(id="a", name="a", path="a", kind="run", state="running", began_at=0.0, updated_at=0.0),
        files=tuple(ShownFile(kind=kind, path=path, rank=0, at=0.0) for kind, path in files),
        attempts=(Attempt(number=1, began_at=0.0, size=1, hangs=hangs),),
    )


def test_only_what_the_run_lists_is_offered_and_only_flame_graphs_are_pages() -> None:
    listed = detail(
        ("flame", "p/f.html"), ("trace", "p/t.html"), ("stacks-folded", "p/x.txt"), stacks="logs/stacks.txt"
    )
    assert offered(listed, "p/f.html").csp == FLAME_CSP
    trace = offered(listed, "p/t.html")
    assert (trace.name, trace.media_type) == ("t.html", "application/octet-stream")
    assert offered(listed, "logs/stacks.txt").media_type == "text/plain; charset=utf-8"
    for path in ("", "journal.jsonl", "p", "P/F.HTML", "p/f.html/"):
        with pytest.raises(Refused):
            offered(listed, path)


@settings(deadline=None)
@given(st.text())
def test_the_name_of_a_download_fits_into_a_header(name: str) -> None:
    headers = offered(detail(("trace", name)), name).headers()
    assert headers["Content-Disposition"].isascii()
    assert not set(headers["Content-Disposition"]) & set("\r\n\\")
    assert headers["Content-Disposition"].count('"') in (0, 2)
