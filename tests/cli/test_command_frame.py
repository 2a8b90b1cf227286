"""What all commands have alike: they start light, say why they fail, and print nothing that a terminal acts on."""

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._commands import cli_output
from paceline.cli import COMMANDS
from screen import run_on_terminal

HEAVY = ("numpy", "pandas", "pyarrow", "torch", "rich", "ray", "starlette", "obstore", "psutil")


def test_commands_that_look_at_runs_import_nothing_heavy(runs):
    source = (
        "import sys\nfrom paceline.cli import main\n"
        "for command in ('show', 'logs', 'metrics', 'checkpoints'):\n"
        "    assert main([command, 'resnet']) == 0, command\n"
        "assert 'paceline.tune' not in sys.modules\n"
        "assert main(['ls']) == 0\n"
        f"print('loaded:', *(name for name in {HEAVY!r} if name in sys.modules))"
    )
    env = {**os.environ, "PACELINE_STORAGE_PATH": str(runs.root)}
    result = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "loaded:"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_exit_codes_and_json(command, paceline):
    result = paceline(command, "--help")
    assert result.code == 0
    text = result.out.lower()
    assert f"paceline {command} " in re.split(r"examples?:", text, maxsplit=1)[1]
    assert "exit code" in text
    assert "--json" in text
    assert all(len(line) <= 80 for line in result.out.splitlines()), result.out


def test_a_missing_run_is_exit_code_2_and_a_similar_name_is_suggested(paceline, runs):
    for command in ("logs", "metrics", "checkpoints", "resume"):
        result = paceline(command, "resne")
        result.assert_refused("there is no run 'resne'", "did you mean resnet or resnet-2?")
        assert result.out == ""
    result = paceline("show", str(runs.root / "vitt"))
    assert f"did you mean {runs.root / 'vit'}?" in result.err
    for run in ("nothing/like/it", "/", ".", "../..", "", "\x1b[2J"):
        result = paceline("show", run)
        result.assert_refused("no run")
        assert "\x1b" not in result.err


def test_a_run_is_found_by_name_by_path_and_from_the_current_directory(paceline, runs, monkeypatch):
    expected = paceline("show", "resnet", "--json").out
    assert paceline("show", str(runs.root / "resnet"), "--json").out == expected
    assert paceline("show", "sweep/trial_00000", "--json").code == 0
    monkeypatch.chdir(runs.root / "resnet")
    assert paceline("show", ".", "--json").out == expected
    monkeypatch.setenv("HOME", str(runs.root))
    assert paceline("show", "~/resnet", "--json").out == expected


def test_commands_for_runs_refuse_a_search(paceline):
    for command in ("logs", "metrics", "checkpoints"):
        paceline(command, "sweep").assert_refused("is a search, not a run")


@pytest.mark.parametrize(
    "line",
    [
        *("ls --limit 0", "logs resnet --rank -1", "show", "metrics resnet --parquet -", "resume vit --json"),
        *("report resnet -o - --json", "dashboard --port 70000", "checkpoints resnet --prune"),
        *("checkpoints resnet --keep 2", "checkpoints resnet --prune --keep 0"),
        "checkpoints resnet --prune --keep 2 --verify",
    ],
)
def test_bad_usage_is_exit_code_2(line, paceline):
    assert paceline(*line.split()).code == 2


@pytest.mark.parametrize("line", ["metrics resnet --csv -", "ls --json"])
def test_a_pipe_that_nobody_reads_is_no_error(line, start_command):
    process = start_command(*line.split(), PYTHONUNBUFFERED="")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141


def test_on_a_terminal_states_are_coloured_and_lines_are_cut(paceline, runs, tmp_path):
    assert "\x1b" not in paceline("ls").out
    script = "import sys\nfrom paceline.cli import main\nsys.exit(main(sys.argv[1:]))"

    def show(*arguments, no_color):
        env = {"PACELINE_STORAGE_PATH": str(runs.root), "NO_COLOR": no_color}
        code, shown = run_on_terminal(script, *arguments, cwd=tmp_path, width=60, env=env)
        assert code == 0, shown
        return shown

    assert "\x1b[31mfailed\x1b[0m" in show("ls", "--state", "failed", no_color="")
    shown = show("ls", no_color="1")
    assert "\x1b" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 60
    assert "…" in shown


def test_characters_that_a_terminal_lacks_are_spelled_out(start_command):
    process = start_command("metrics", "resnet", PYTHONIOENCODING="ascii")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "\\u2588" in out


def test_a_setting_that_cannot_be_read_is_named(paceline, monkeypatch):
    monkeypatch.setenv("PACELINE_STORAGE_PATIENCE_S", "soon")
    paceline("show", "s3://bucket/runs/resnet").assert_refused("PACELINE_STORAGE_PATIENCE_S must be a positive number")


ACTED_UPON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@given(st.text(st.one_of(st.characters(), st.sampled_from("\x1b[]0;\x07\x9b\u202e\r\n\\m"))))
def test_nothing_that_a_terminal_acts_on_is_left_in_a_text(text):
    assert not ACTED_UPON.search(cli_output.escape_text(text))
    assert "\n" not in cli_output.escape_line(text)
    cli_output.escape_text(text).encode()


@given(st.text(st.characters(exclude_categories=["C", "Z"])))
def test_visible_text_stays(text):
    assert cli_output.escape_text(text) == text


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1), st.integers(5, 40))
def test_a_table_never_exceeds_its_width(rows, within):
    for row in cli_output.format_table(rows, within=within).split("\n"):
        assert cli_output.display_width(row) <= within


@given(st.text(st.sampled_from("ab \n")), st.integers(8, 40))
def test_a_folded_text_has_the_same_words(text, within):
    folded = cli_output.wrap_text(text, within, "  ")
    assert folded.split() == text.split()
    assert all(len(line) <= within or " " not in line.strip() for line in folded.split("\n"))
