"""The runs below a path: found, told apart, read again only where something changed, and never outside of it."""

import shutil
import uuid

import msgspec
import pytest
from test_view_run_reader import hold

from paceline import tune
from paceline._core.codec import seal_line
from paceline._storage.journal_segments import JournalUploader
from paceline._storage.lease import LeaseHolder
from paceline._storage.lease_stores import RemoteLeaseStore
from paceline._storage.run_location import RunLocation
from paceline._view import run_reader
from paceline._view.diff import compare_runs
from paceline._view.listing import Listing
from paceline._view.model import RunSnapshot, SearchDetail, Summary, encode
from paceline._view.run_reader import RunReader
from paceline.tune.results.search_reader import SearchReader
from servers import BUCKET
from written_runs import WrittenRun, ended, report, started


def write_complete_run(root, *reports):
    return WrittenRun(root, *started(), *reports, *ended(num_reports=len(reports)))


def ids(listing):
    return sorted(summary.id for summary in listing.summaries())


def test_runs_are_found_in_folders_and_not_inside_of_a_run(tmp_path):
    write_complete_run(tmp_path / "a")
    run = write_complete_run(tmp_path / "team" / "x" / "b")
    write_complete_run(run.root / "checkpoint_000001")
    write_complete_run(tmp_path / ".hidden" / "c")
    (tmp_path / "empty").mkdir()
    listing = Listing(tmp_path, SearchReader)
    assert listing.refresh() == {"a", "team/x/b"}
    assert ids(listing) == ["a", "team/x/b"]
    assert listing.reader("team/x/b").summary("team/x/b").path == str(run.root)
    assert listing.summary("a").kind == "run"
    of_one_run = Listing(tmp_path / "a", SearchReader)
    assert of_one_run.refresh() == {"."}
    assert of_one_run.reader(".").last_step == 0
    assert of_one_run.summaries()[0].name == "a"


def test_only_what_changed_is_read_again(tmp_path, monkeypatch):
    done, going = write_complete_run(tmp_path / "done"), WrittenRun(tmp_path / "going", *started())
    listing = Listing(tmp_path, SearchReader)
    listing.refresh()
    assert (listing.summary("going").state, listing.summary("going").ended_at) == ("lost", 1001.0)
    reader = listing.reader("going")
    hold(going)
    going.write(*started(attempt=2))
    assert listing.refresh() == {"going"}
    assert (listing.summary("going").state, listing.reader("going")) == ("running", reader)
    listing_calls = []
    refresh = run_reader.RunReader.refresh
    monkeypatch.setattr(RunReader, "refresh", lambda self: listing_calls.append(self.location.name) or refresh(self))
    assert listing.refresh() == set()
    assert listing_calls == ["going"], "one that goes on may have been lost since"
    going.write(report(1, {"loss": 1.0}, attempt=2))
    assert listing.refresh() == {"going"}
    assert listing.summary("going").num_reports == 1
    going.write(*ended(num_reports=1, attempt=2))
    assert listing.refresh() == {"going"}
    listing_calls.clear()
    assert listing.refresh() == set()
    assert listing_calls == []
    shutil.rmtree(done.root)
    write_complete_run(tmp_path / "new")
    assert listing.refresh() == {"done", "new"}
    assert ids(listing) == ["going", "new"]


def test_no_id_leads_out_of_the_root(tmp_path):
    root = tmp_path / "root"
    write_complete_run(root / "a")
    outside = write_complete_run(tmp_path / "outside")
    write_complete_run(tmp_path / "folder" / "run")
    (root / "link").symlink_to(tmp_path / "folder")
    (root / "linked").mkdir()
    (root / "linked" / "journal.jsonl").symlink_to(outside.journal)
    listing = Listing(root, SearchReader)
    assert listing.refresh() == {"a"}
    for id in ("..", "../outside", "/etc", "a/../../outside", "link", "link/run", "", "a/", "A", "nothing"):
        for look_up in (listing.reader, listing.summary):
            with pytest.raises(KeyError):
                look_up(id)


def test_a_run_that_cannot_be_read_is_listed_with_the_reason_and_hides_no_other(tmp_path):
    write_complete_run(tmp_path / "good")
    bad = write_complete_run(tmp_path / "bad")
    bad.journal.write_bytes(seal_line(b'{"type":"driver_started","size":1,"max_failures":0,"version":99}') * 2)
    later = WrittenRun(tmp_path / "later", *started(), report(1, {"loss": 1.0}))
    with later.journal.open("ab") as file:
        file.write(seal_line(b'{"type":"FromTheFuture"}'))
    later.write(report(2, {"loss": 0.5}))
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "journal.jsonl").write_bytes(b"\xff" * 100)
    listing = Listing(tmp_path, SearchReader)
    listing.refresh()
    found = {summary.id: summary for summary in listing.summaries()}
    assert found["good"].state == "finished"
    assert "cannot be read by this version" in found["bad"].failure
    assert "cannot be read by this version" in found["later"].failure
    assert found["later"].num_reports == 1, "it is shown up to there"
    assert "has no journal of a run" in found["garbage"].failure


def objective(config):
    for i in range(3):
        tune.report({"loss": config["a"] + i, "nested": {"acc": i}})


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    root = tmp_path_factory.mktemp("searches")
    tuner = tune.Tuner(
        objective,
        param_space={"a": tune.grid_search([3.0, 1.0, 2.0])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(name="search", storage_path=str(root)),
    )
    tuner.fit()
    return root


def test_a_search_is_shown_with_its_plots_and_configurations(searched):
    listing = Listing(searched, SearchReader)
    listing.refresh()
    detail = listing.search_detail("search")
    shown = detail.summary
    assert (shown.kind, shown.state, shown.num_reports, shown.progress) == ("search", "finished", 3, 1.0)
    assert (shown.best.metric, shown.best.value) == ("loss", 1.0)
    with pytest.raises(KeyError, match="is a search"):
        listing.reader("search")
    assert (detail.metric, detail.mode) == ("loss", "min")
    assert [trial.name for trial in detail.trials] == ["trial_00000", "trial_00001", "trial_00002"]
    assert detail.configs["search/trial_00001"] == {"a": 1.0}
    assert detail.parallel["best"].endswith("_00001")
    assert detail.curves["lines"][0]["points"] == [[1, 3.0], [2, 4.0], [3, 5.0]]
    assert detail.importance["parameters"] == []
    assert detail.importance["note"]
    other = Listing(searched / "search", SearchReader).search_detail(".", metric="nested/acc", mode="max")
    assert other.curves["lines"][0]["value"] == 2.0
    assert [trial.id for trial in other.trials] == ["trial_00000", "trial_00001", "trial_00002"]
    assert msgspec.json.decode(encode(detail), type=SearchDetail).configs == detail.configs
    with pytest.raises(ValueError, match="mode must be 'min' or 'max', got 'best'"):
        listing.search_detail("search", mode="best")
    with pytest.raises(KeyError, match="is a run"):
        listing.search_detail("search/trial_00000")


def test_a_search_is_shown_while_it_goes_on_and_when_it_is_lost(searched, tmp_path):
    """As it lay there at each line that it wrote."""
    shutil.copytree(searched / "search", tmp_path / "search")
    journal = tmp_path / "search" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"")
    listing = Listing(tmp_path, SearchReader)
    states = []
    for line in lines:
        with journal.open("ab") as file:
            file.write(line)
        listing.refresh()
        detail = listing.search_detail("search")
        states.append((detail.summary.state, detail.summary.num_reports))
        encode(detail)
    assert states[0] == ("lost", 0)
    assert states[-1] == ("finished", 3)
    assert [done for _, done in states] == sorted(done for _, done in states)


def test_runs_in_a_store_are_listed_and_read_slice_by_slice(s3_environment, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    root = f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"
    JournalUploader(
        RunLocation.from_path(f"{root}/a").open_store(), write_complete_run(tmp_path / "a").journal
    ).upload_new()
    spool, location = WrittenRun(tmp_path / "b", *started()), RunLocation.from_path(f"{root}/team/b")
    segments = JournalUploader(location.open_store(), spool.journal)
    segments.upload_new()
    RemoteLeaseStore(location.open_store(), "b").try_acquire(
        LeaseHolder(1, pid=1, host="elsewhere", renewed_at=4e9, token="t"), None
    )
    listing = Listing(root, SearchReader)
    assert listing.refresh() == {"a", "team/b"}
    assert listing.refresh() == set()
    assert listing.summary("team/b").state == "running"
    spool.write(report(1, {"loss": 1.0}), report(2, {"loss": 0.5}))
    segments.upload_new()
    assert listing.refresh() == {"team/b"}
    spool.write(*ended(num_reports=2))
    segments.upload_new()
    assert listing.refresh() == {"team/b"}
    summary = listing.summary("team/b")
    assert (summary.state, summary.path, summary.metrics) == ("finished", location.uri, {"loss": 0.5})
    assert [row["loss"] for row in listing.reader("team/b").rows()] == [1.0, 0.5]
    assert Listing(f"{root}/a", SearchReader).refresh() == {"."}


def summary(**more):
    return Summary(id="a", name="a", path="/a", kind="run", state="finished", began_at=0.0, updated_at=0.0, **more)


def test_what_differs_between_two_runs_is_told_by_path_and_by_line():
    a = RunSnapshot(
        summary=summary(metrics={"loss": 1.0, "same": 1}),
        config={"lr": 0.1, "model": {"depth": 2, "name": "x"}, "flag": True},
        environment={"packages": {"torch": "2.1", "numpy": "1"}},
        code={"git": {"commit": "abc"}, "sources": {"train.py": "a = 1\nb = 2\n", "gone.py": "x\n"}},
    )
    b = RunSnapshot(
        summary=summary(metrics={"loss": 2.0, "same": 1, "new": 3}),
        config={"lr": 0.1, "model": {"depth": 3, "name": "x"}, "flag": 1, "more": []},
        environment={"packages": {"torch": "2.2", "numpy": "1"}},
        code={"git": {"commit": "abd"}, "sources": {"train.py": "a = 1\nb = 3\n"}},
    )
    diff = compare_runs(a, b)
    changes = [(c.key, c.a, c.b) for c in diff.config]
    assert sorted(changes) == [("flag", True, 1), ("model.depth", 2, 3), ("more", None, [])]
    assert [(c.key, c.a, c.b) for c in diff.environment] == [("packages.torch", "2.1", "2.2")]
    changed = {change.file: change.diff for change in diff.code}
    assert "-git.commit: abc\n+git.commit: abd\n" in changed[""]
    assert "-b = 2\n+b = 3\n" in changed["train.py"]
    assert changed["gone.py"].endswith("-x\n")
    assert [(c.key, c.a, c.b) for c in diff.metrics] == [("loss", 1.0, 2.0), ("same", 1, 1), ("new", None, 3)]
    nothing = compare_runs(a, a)
    assert (nothing.config, nothing.environment, nothing.code, nothing.scaling) == ((), (), (), ())
