"""What all commands have alike: they start light, tell where they fail, and print nothing that a terminal acts on."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._commands import telling
from paceline.cli import COMMANDS

HEAVY = ("numpy", "pandas", "pyarrow", "torch", "rich", "ray", "starlette", "obstore")


def loaded_by(*arguments, root):
    source = (
        "import sys\nfrom paceline.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print('loaded:', *(name for name in {HEAVY!r} if name in sys.modules))"
    )
    env = {**os.environ, "PACELINE_STORAGE_PATH": str(root)}
    command = [sys.executable, "-c", source, *arguments]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return ended.stdout, ended.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--help"], "Commands:"), (["ls", "--help"], "Example"), (["ls"], "complete")],
    ids=" ".join,
)
def test_nothing_heavy_is_imported_to_list_runs(arguments, says, runs):
    out, loaded = loaded_by(*arguments, root=runs.root)
    assert says in out
    assert loaded == "loaded:"


def test_showing_logs_metrics_and_checkpoints_imports_nothing_heavy(runs):
    source = (
        "import sys\nfrom paceline.cli import main\n"
        "for name in ('show', 'logs', 'metrics', 'checkpoints'):\n"
        "    assert main([name, 'complete']) == 0, name\n"
        f"print('loaded:', *(name for name in {HEAVY!r} if name in sys.modules))"
    )
    env = {**os.environ, "PACELINE_STORAGE_PATH": str(runs.root)}
    ended = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "loaded:"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_exit_codes_and_json(command, paceline):
    ended = paceline(command, "--help")
    assert ended.code == 0
    text = ended.out.lower()
    assert f"paceline {command} " in re.split(r"examples?:", text, maxsplit=1)[1]
    assert "exit code" in text
    assert "--json" in text
    assert all(len(line) <= 80 for line in ended.out.splitlines()), ended.out


@pytest.mark.parametrize("command", ["show", "logs", "metrics", "checkpoints", "resume"])
def test_a_run_that_is_not_there_is_2_and_a_near_one_is_named(command, paceline):
    ended = paceline(command, "complet")
    assert ended.code == 2
    assert ended.out == ""
    assert "there is no run 'complet'" in ended.err
    assert "did you mean complete?" in ended.err


def test_a_run_is_found_by_name_by_path_and_from_where_one_is(paceline, runs, monkeypatch):
    expected = paceline("show", "complete", "--json").out
    assert paceline("show", str(runs.root / "complete"), "--json").out == expected
    assert paceline("show", "search/trial_00000", "--json").code == 0
    monkeypatch.chdir(runs.root / "complete")
    assert paceline("show", ".", "--json").out == expected
    monkeypatch.setenv("HOME", str(runs.root))
    assert paceline("show", "~/complete", "--json").out == expected


@pytest.mark.parametrize("run", ["nothing/like/it", "/", ".", "../..", "", "\x1b[2J"])
def test_what_is_no_run_is_refused(run, paceline):
    ended = paceline("show", run)
    assert ended.code == 2
    assert "no run" in ended.err
    assert "\x1b" not in ended.err


def test_a_path_near_to_a_run_is_named_as_a_path(paceline, runs):
    ended = paceline("show", str(runs.root / "kiled"))
    assert f"did you mean {runs.root / 'killed'}?" in ended.err


@pytest.mark.parametrize("command", ["logs", "metrics", "checkpoints"])
def test_a_search_is_told_from_its_trials(command, paceline):
    ended = paceline(command, "search")
    assert ended.code == 2
    assert "is a search, and its trials are runs" in ended.err


@pytest.mark.parametrize("arguments", [["ls", "--limit", "0"], ["logs", "complete", "--rank", "-1"], ["show"]])
def test_bad_usage_is_2(arguments, paceline):
    assert paceline(*arguments).code == 2


@pytest.mark.parametrize("arguments", [["logs", "complete"], ["metrics", "complete", "--csv", "-"], ["ls", "--json"]])
def test_a_pipe_that_nobody_reads_is_no_error(arguments, begun):
    process = begun(*arguments, PYTHONUNBUFFERED="")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141


def test_states_are_coloured_on_a_terminal_and_nowhere_else(paceline, runs, begun):
    assert "\x1b" not in paceline("ls").out
    for variables, colour in (({}, "\x1b[31mfailed\x1b[0m"), ({"NO_COLOR": "1"}, None)):
        shown = on_terminal("ls", "--state", "failed", PACELINE_STORAGE_PATH=str(runs.root), **variables)
        assert ("\x1b" in shown) is (colour is not None), shown
        assert "failing" in shown
        assert colour is None or colour in shown


def on_terminal(*arguments, **variables):
    """What a command prints to a terminal of 60 columns."""
    mine, its = pty.openpty()
    os.set_blocking(mine, True)
    import fcntl
    import struct
    import termios

    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 60, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | variables
    with subprocess.Popen([sys.executable, "-m", "paceline", *arguments], stdout=its, env=env) as process:
        os.close(its)
        found = b""
        try:
            while data := os.read(mine, 4096):
                found += data
        except OSError:  # The terminal has no other side any more.
            pass
        assert process.wait() == 0
    os.close(mine)
    return found.decode()


def test_letters_that_a_terminal_has_not_are_spelled_out(begun):
    process = begun("metrics", "complete", PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "\\u2588" in out


def test_a_storage_path_that_is_not_there_yet_has_no_runs(paceline, monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_STORAGE_PATH", str(tmp_path / "later"))
    assert paceline("ls").out == f"no runs in {tmp_path / 'later'}\n"


def test_a_setting_that_cannot_be_read_is_told(paceline, monkeypatch):
    monkeypatch.setenv("PACELINE_STORAGE_PATIENCE_S", "soon")
    ended = paceline("show", "s3://bucket/runs/resnet")
    assert ended.code == 2
    assert "PACELINE_STORAGE_PATIENCE_S='soon'" in ended.err


def test_lines_are_cut_to_the_terminal(runs):
    shown = on_terminal("ls", PACELINE_STORAGE_PATH=str(runs.root), NO_COLOR="1")
    assert max(len(line) for line in shown.splitlines()) <= 60
    assert "…" in shown


ACTED_UPON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@given(st.text(st.one_of(st.characters(), st.sampled_from("\x1b[]0;\x07\x9b\u202e\r\n\\m"))))
def test_nothing_that_a_terminal_acts_on_is_left_in_a_text(text):
    assert not ACTED_UPON.search(telling.clean(text))
    assert "\n" not in telling.line(text)
    telling.clean(text).encode()


@given(st.text(st.characters(exclude_categories=["C", "Z"])))
def test_what_can_be_seen_stays(text):
    assert telling.clean(text) == text


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1), st.integers(5, 40))
def test_a_table_never_exceeds_its_width(rows, within):
    for row in telling.table(rows, within=within).split("\n"):
        assert telling.columns(row) <= within


@given(st.text(st.sampled_from("ab \n")), st.integers(8, 40))
def test_a_folded_text_has_the_same_words(text, within):
    folded = telling.folded(text, within, "  ")
    assert folded.split() == text.split()
    assert all(len(line) <= within or " " not in line.strip() for line in folded.split("\n"))


def test_json_is_one_document(paceline):
    for arguments in (["ls"], ["show", "complete"], ["show", "failing"], ["show", "killed"], ["checkpoints", "killed"]):
        ended = paceline(*arguments, "--json")
        assert ended.code == 0, ended.err
        json.loads(ended.out)
