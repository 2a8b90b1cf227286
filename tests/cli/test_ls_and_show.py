"""`paceline ls` and `paceline show`: what they tell of runs that are complete, failed, lost, and of a search."""

import json
import shutil

import msgspec
import pytest

from paceline._view.model import Detail, SearchDetail, Summary


def summaries(ended):
    assert ended.code == 0, ended.err
    return msgspec.json.decode(ended.out, type=list[Summary])


def test_runs_are_listed_with_state_progress_and_best_metric(paceline):
    out = paceline("ls").out.splitlines()
    assert out[0].split() == ["NAME", "STATE", "PROGRESS", "BEST", "LAST", "WORKERS", "AGE"]
    told = {line.split()[0]: line.split()[1:6] for line in out[1:]}
    assert told["complete"] == ["complete", "5", "reports", "loss=0.2", "loss=0.2"]
    assert told["failing"][0] == "failed"
    assert told["killed"][:3] == ["lost", "3", "reports"]
    assert told["search"][:4] == ["complete", "3", "trials", "ended"]
    assert len({line.index(f" {line.split()[1]} ") for line in out}) == 1


def test_a_search_is_one_line_until_its_trials_are_asked_for(paceline):
    folded, unfolded = summaries(paceline("ls", "--json")), summaries(paceline("ls", "--trials", "--json"))
    assert {run.id for run in folded} == {"complete", "lower", "failing", "killed", "search"}
    assert {run.id for run in unfolded} - {run.id for run in folded} == {f"search/trial_0000{i}" for i in range(3)}
    assert {run.search for run in unfolded if run.kind == "trial"} == {"search"}
    ids = [run.id for run in unfolded]
    at = ids.index("search")
    assert all(id.startswith("search/") for id in ids[at + 1 : at + 4])


def test_runs_are_chosen_sorted_and_limited(paceline):
    assert {run.id for run in summaries(paceline("ls", "--state", "failed", "--state", "lost", "--json"))} == {
        "failing",
        "killed",
    }
    assert [run.id for run in summaries(paceline("ls", "--sort", "name", "--limit", "2", "--json"))] == [
        "complete",
        "failing",
    ]
    began = [run.began_at for run in summaries(paceline("ls", "--json"))]
    assert began == sorted(began, reverse=True)
    best = [run.best.value for run in summaries(paceline("ls", "--sort", "best", "--json")) if run.best]
    assert best == sorted(best)
    assert "and 4 more" in paceline("ls", "--limit", "1").out


def test_one_run_can_be_listed_by_its_own_path(paceline, runs):
    assert "complete" in paceline("ls", str(runs.root / "complete")).out


def test_no_runs_is_no_error_and_no_directory_is(paceline, tmp_path):
    assert paceline("ls", str(tmp_path)).out == f"no runs in {tmp_path}\n"
    assert paceline("ls", "--state", "running").out.startswith("no runs that are running in")
    ended = paceline("ls", str(tmp_path / "missing"))
    assert (ended.code, ended.err) == (2, f"paceline: {tmp_path / 'missing'} is not a directory\n")


@pytest.mark.parametrize("run", ["complete", "failing", "killed"])
def test_show_fits_80_columns_and_has_no_escape_codes(run, paceline):
    out = paceline("show", run).out
    assert "\x1b" not in out
    for line in out.splitlines():
        assert len(line) <= 80 or " " not in line.strip(" ")[12:], line


def test_show_tells_workers_checkpoints_time_and_configuration(paceline):
    out = paceline("show", "complete").out
    assert out.startswith("complete  complete\npath ")
    titles = [line for line in out.splitlines() if line and line[0].isalpha() and len(line.split()) == 1]
    assert titles == ["workers", "attempts", "checkpoints", "time", "configuration", "code"]
    assert "     0  returned        5" in out
    assert "1  complete after" in out
    assert "latest,best" in out
    assert "  lr       0.1\n" in out
    assert "api_key  ***" in out
    assert "script    train.py" in out


def test_show_tells_the_cause_of_each_attempt_that_failed(paceline):
    out = paceline("show", "failing").out
    assert "failure     ValueError: batch 4 has a nan in it" in out
    first, second = out.partition("\nattempts\n")[2].partition("\n\n")[0].split("\n  2  ")
    assert first.startswith("  1  failed after")
    assert "2 workers from the beginning, reports 1 to 3" in first
    for attempt in (first, second):
        assert "cause: rank 1" in attempt
        assert "ValueError: batch 4 has a nan in it" in attempt
        assert "       train.py:20 in train_func" in attempt
    assert "2 workers from checkpoint_000003" in second


def test_show_tells_that_a_killed_run_is_lost_and_what_it_had_reached(paceline):
    out = paceline("show", "killed").out
    assert out.startswith("killed  lost\n")
    assert "3 reports" in out
    assert "gone" in out


def test_show_as_json_is_the_view_of_the_run(paceline):
    detail = msgspec.json.decode(paceline("show", "failing", "--json").out, type=Detail)
    assert detail.summary.state == "failed"
    assert [attempt.ending for attempt in detail.attempts] == ["failed", "failed"]
    assert detail.config["lr"] == 0.1


def test_a_search_is_shown_with_its_trials_best_first(paceline):
    out = paceline("show", "search").out
    assert out.startswith("search  complete\n")
    assert "best trial  trial_00001 with x=0.25" in out
    trials = [line.split()[0] for line in out.partition("trials (3)\n")[2].splitlines()[1:]]
    assert [name.rpartition("/")[2] for name in trials] == ["trial_00001", "trial_00000", "trial_00002"]
    found = msgspec.json.decode(paceline("show", "search", "--json").out, type=SearchDetail)
    assert len(found.trials) == 3


def test_a_copy_elsewhere_is_shown_alike(paceline, copied):
    there = json.loads(paceline("show", str(copied("killed")), "--json").out)
    here = json.loads(paceline("show", "killed", "--json").out)
    assert there["summary"]["state"] == here["summary"]["state"] == "lost"
    assert there["attempts"] == here["attempts"]


def test_a_journal_that_is_cut_or_overwritten_is_shown_as_far_as_it_goes(paceline, copied):
    run = copied("complete")
    journal = run / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:12]) + lines[12][:20])
    shutil.rmtree(run / ".lease")
    summary = json.loads(paceline("show", str(run), "--json").out)["summary"]
    assert summary["state"] == "lost"
    journal.write_bytes(b"\x00garbage\n\x1b[2J")
    ended = paceline("show", str(run))
    assert ended.code == 2
    assert "\x1b" not in ended.err
