"""`paceline ls`, `show` and `diff`: beyond the examples of the page, which test_command_line_docs.py compares."""

import msgspec

from paceline._view.model import Diff, RunSnapshot, SearchDetail, Summary


def summaries(result):
    assert result.code == 0, result.err
    return msgspec.json.decode(result.out, type=list[Summary])


def test_a_search_is_one_line_until_its_trials_are_asked_for(paceline):
    folded, unfolded = summaries(paceline("ls", "--json")), summaries(paceline("ls", "--trials", "--json"))
    assert {run.id for run in folded} == {"resnet", "resnet-2", "bert", "vit", "sweep"}
    assert {run.id for run in unfolded} - {run.id for run in folded} == {f"sweep/trial_0000{i}" for i in range(3)}
    assert {run.search for run in unfolded if run.kind == "trial"} == {"sweep"}
    ids = [run.id for run in unfolded]
    at = ids.index("sweep")
    assert all(id.startswith("sweep/") for id in ids[at + 1 : at + 4])


def test_runs_are_selected_sorted_and_aligned(paceline, runs):
    lost_or_failed = summaries(paceline("ls", "--state", "failed", "--state", "lost", "--json"))
    assert {run.id for run in lost_or_failed} == {"bert", "vit"}
    began = [run.began_at for run in summaries(paceline("ls", "--json"))]
    assert began == sorted(began, reverse=True)
    assert len({line.index(f" {line.split()[1]} ") for line in paceline("ls").out.splitlines()}) == 1
    assert "resnet" in paceline("ls", str(runs.root / "resnet")).out


def test_no_runs_is_no_error_and_a_missing_directory_is(paceline, tmp_path, monkeypatch):
    assert paceline("ls", str(tmp_path)).out == f"no runs in {tmp_path}\n"
    assert paceline("ls", "--state", "running").out.startswith("no runs that are running in")
    result = paceline("ls", str(tmp_path / "missing"))
    assert (result.code, result.err) == (2, f"paceline: {tmp_path / 'missing'} is not a directory\n")
    monkeypatch.setenv("PACELINE_STORAGE_PATH", str(tmp_path / "later"))
    assert paceline("ls").out == f"no runs in {tmp_path / 'later'}\n", "a storage path may be created later"


def test_show_as_json_is_the_view_of_the_run_or_search(paceline):
    detail = msgspec.json.decode(paceline("show", "bert", "--json").out, type=RunSnapshot)
    assert detail.summary.state == "failed"
    assert [attempt.ending for attempt in detail.attempts] == ["failed", "failed"]
    assert detail.config["lr"] == 0.1
    found = msgspec.json.decode(paceline("show", "sweep", "--json").out, type=SearchDetail)
    assert len(found.trials) == 3


def test_a_run_without_its_journal_is_found_by_its_reports_and_checkpoints(paceline, copy_run):
    run = copy_run("resnet")
    before = msgspec.json.decode(paceline("show", str(run), "--json").out, type=RunSnapshot)
    (run / "journal.jsonl").unlink()
    (found,) = summaries(paceline("ls", str(run.parent), "--json"))
    assert (found.id, found.state, found.num_reports) == ("resnet", "lost", before.summary.num_reports)
    shown = msgspec.json.decode(paceline("show", str(run), "--json").out, type=RunSnapshot)
    names = [checkpoint.name for checkpoint in before.checkpoints if checkpoint.kept]
    assert [checkpoint.name for checkpoint in shown.checkpoints if checkpoint.kept] == names
    assert shown.summary.metrics == before.summary.metrics
    assert "the journal is lost" in paceline("show", str(run)).out
    assert paceline("metrics", str(run), "--csv", "-").out.count("\n") == found.num_reports + 1


def test_nothing_that_a_terminal_acts_on_is_printed_of_an_odd_run_or_a_broken_journal(paceline, copy_run, odd_run):
    assert "\x1b" not in paceline("show", str(odd_run)).out
    run = copy_run(odd_run)
    (run / "journal.jsonl").write_bytes(b"\x00garbage\n\x1b[2J")
    result = paceline("show", str(run))
    assert "the journal is lost" in result.out
    assert "\x1b" not in result.out + result.err


def test_code_that_differs_is_shown_as_a_diff_and_configuration_as_json(paceline, odd_run):
    out = paceline("diff", "resnet", str(odd_run)).out
    before, after = '        loss = config["lr"] * 10 / step', " if step < 3 else float(step)"
    assert f"-{before}\n+{before}{after}\n" in out
    assert "\x1b" not in out
    assert "the same: configuration, code, environment" in paceline("diff", "resnet", "resnet").out
    found = msgspec.json.decode(paceline("diff", "resnet", "resnet-2", "--json").out, type=Diff)
    assert ("lr", 0.1, 0.05) in [(change.key, change.a, change.b) for change in found.config]
