"""A search taken up again: by `Tuner.restore`, or by the same script under the same name."""

import json
import shutil

import pytest
from searching import fails, load_search, make_tuner, statuses, steps_in, steps_of

from paceline import train, tune
from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, StorageError
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.search import ConcurrencyLimiter
from paceline.tune.search.optuna import OptunaSearch


def tuner_of(tmp_path, function, **about):
    return make_tuner(tmp_path, function, **{"num_samples": 3, **about})


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A search of three trials, of which the second failed."""
    directory = tmp_path_factory.mktemp("original")
    tuner_of(directory, steps_of(log=directory / "log", before=fails)).fit()
    assert steps_in(directory / "log") == ["0.1", "0.2", "0.3", "1.1", "1.2", "2.1", "2.2", "2.3"]
    return directory / "search"


@pytest.fixture
def with_an_error(original, tmp_path):
    return shutil.copytree(original, tmp_path / "search", ignore=shutil.ignore_patterns(".lease"))


def test_a_complete_search_is_read_and_nothing_of_it_is_run(with_an_error, tmp_path):
    log = tmp_path / "again"
    before = (with_an_error / "journal.jsonl").read_bytes()
    for tuner in (tuner_of(tmp_path, steps_of(log=log)), tune.Tuner.restore(with_an_error, steps_of(log=log))):
        for grid in (tuner.get_results(), tuner.fit(), tuner.fit()):
            assert statuses(grid) == ["TERMINATED", "ERROR", "TERMINATED"]
            assert [result.metrics["step"] for result in grid] == [3, 1, 3]
            assert "as planned" in str(grid.errors[0])
    assert (with_an_error / "journal.jsonl").read_bytes() == before
    assert not log.exists()
    with pytest.raises(ValueError, match="no search at"):
        tune.Tuner.restore(tmp_path / "elsewhere", print)
    with pytest.raises(ValueError, match="needs the trainable: functions are not stored"):
        tune.Tuner.restore(with_an_error)
    with pytest.raises(ValueError, match="cannot both be True"):
        tune.Tuner.restore(with_an_error, print, resume_errored=True, restart_errored=True)
    assert tune.Tuner.can_restore(with_an_error)
    assert tune.Tuner.can_restore(str(with_an_error))
    assert not tune.Tuner.can_restore(tmp_path)
    assert not tune.Tuner.can_restore(with_an_error / "trial_00000"), "a run is no search"


@pytest.mark.parametrize(("flag", "again"), [("resume_errored", "1.2 1.3"), ("restart_errored", "1.1 1.2 1.3")])
def test_restarts_failed_trials_on_request(with_an_error, tmp_path, flag, again):
    log = tmp_path / "again"
    if flag == "resume_errored":
        grid = tune.Tuner.restore(with_an_error, steps_of(log=log, before=fails), resume_errored=True).fit()
        assert statuses(grid) == ["TERMINATED", "ERROR", "TERMINATED"], "it may fail again"
        assert steps_in(log) == ["1.2"]
        log.unlink()
    grid = tune.Tuner.restore(with_an_error, steps_of(log=log), **{flag: True}).fit()
    assert (statuses(grid), grid.num_errors) == (["TERMINATED"] * 3, 0)
    assert steps_in(log) == again.split()
    assert grid[1].metrics_dataframe["step"].tolist()[-3:] == [1, 2, 3]
    assert grid[1].metrics["training_iteration"] == 3
    assert load_search(with_an_error).is_complete


def test_a_failure_that_a_lost_driver_did_not_tell_is_not_tried_again(with_an_error, tmp_path):
    """The run has failed, and the search's journal ends just before it says so."""
    path = with_an_error / "journal.jsonl"
    lines_of = path.read_bytes().splitlines(keepends=True)
    failed = next(number for number, line in enumerate(lines_of) if b'"failed"' in line)
    path.write_bytes(b"".join(lines_of[:failed]))
    log = tmp_path / "again"
    grid = tuner_of(tmp_path, steps_of(log=log)).fit()
    assert statuses(grid) == ["TERMINATED", "ERROR", "TERMINATED"]
    assert steps_in(log) == []
    assert grid[1].why == "ValueError: as planned"
    assert "as planned" in str(grid.errors[0])


def interrupted(tmp_path, **about):
    """A search that stood still after the first step of its second trial: all that came later was never written."""
    log = tmp_path / "first"
    tuner_of(tmp_path, steps_of(log=log), **about).fit()
    search = tmp_path / "search"
    journal = (search / "journal.jsonl").read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line[9:]) for line in journal]
    cut = next(i for i, event in enumerate(kinds) if event["type"] == "trial_saved" and event["trial"].endswith("1"))
    (search / "journal.jsonl").write_bytes(b"".join(journal[: cut + 1]))
    run = search / "trial_00001"
    of_run = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    commit = next(i for i, line in enumerate(of_run) if b'"type":"committed"' in line)
    (run / "journal.jsonl").write_bytes(b"".join(of_run[: commit + 1]))
    for later in ("checkpoint_000002", "checkpoint_000003", "reports"):
        shutil.rmtree(run / later, ignore_errors=True)  # A scheduler may have stopped it before.
    shutil.rmtree(search / "trial_00002")
    return search


@pytest.mark.parametrize("resumes", [True, False], ids=["continued", "left"])
def test_unfinished_trials_are_continued_unless_they_are_to_be_left(tmp_path, resumes):
    search, log = interrupted(tmp_path), tmp_path / "again"
    grid = tune.Tuner.restore(search, steps_of(log=log), resume_unfinished=resumes).fit()
    assert statuses(grid) == ["TERMINATED"] * 3
    assert (grid[1].why, grid[1].metrics["step"]) == (("", 3) if resumes else ("not resumed", 1))
    assert steps_in(log) == [*(["1.2", "1.3"] if resumes else []), "2.1", "2.2", "2.3"]


def test_a_larger_num_samples_adds_trials(with_an_error, tmp_path):
    log = tmp_path / "again"
    grid = tuner_of(tmp_path, steps_of(log=log), num_samples=5).fit()
    assert statuses(grid) == ["TERMINATED", "ERROR", *["TERMINATED"] * 3]
    assert {line.partition(".")[0] for line in steps_in(log)} == {"3", "4"}
    alone = tuner_of(tmp_path / "alone", steps_of(log=tmp_path / "alone.log"), num_samples=5).fit()
    assert [result.config for result in grid] == [result.config for result in alone], "as if asked for at once"


def test_another_space_is_refused_by_what_differs_and_one_with_functions_has_to_be_given_again(with_an_error, tmp_path):
    before = (with_an_error / "journal.jsonl").read_bytes()
    with pytest.raises(train.RunExistsError, match=r"search search has finished.*\n.*param_space\['y'\] is new"):
        tuner_of(tmp_path, print, space={"x": tune.uniform(0, 1), "y": tune.uniform(0, 1)}).fit()
    with pytest.raises(ValueError, match=r"changed since .*\n.*\['x'\] was uniform\(0.0, 1.0\) and is now"):
        tune.Tuner.restore(with_an_error, print, param_space={"x": tune.uniform(0, 2)}).fit()
    assert (with_an_error / "journal.jsonl").read_bytes() == before
    space = {"x": tune.uniform(0, 1), "twice": tune.sample_from(lambda config: 2 * config["x"])}
    tuner_of(tmp_path / "other", steps_of(log=tmp_path / "log"), space=space).fit()
    with pytest.raises(ValueError, match="param_space"):
        tune.Tuner.restore(tmp_path / "other/search", print)
    grid = tune.Tuner.restore(tmp_path / "other/search", print, param_space=space).fit()
    assert all(result.config["twice"] == 2 * result.config["x"] for result in grid)


BUILT_IN = {
    "asha": {"scheduler": ASHAScheduler(max_t=3, grace_period=1, reduction_factor=2)},
    "limited tpe": {"search_alg": ConcurrencyLimiter(OptunaSearch(seed=5), max_concurrent=2)},
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_advisers_are_made_again_from_what_is_kept(tmp_path, name):
    search, log = interrupted(tmp_path, **BUILT_IN[name]), tmp_path / "again"
    tuner = tune.Tuner.restore(search, steps_of(log=log))
    for argument, given in BUILT_IN[name].items():
        again = getattr(tuner.tune_config, argument)
        assert type(again) is type(given)
        assert again is not given
    assert tuner.tune_config.num_samples == 3
    assert (tuner.tune_config.metric, tuner.tune_config.mode, tuner.tune_config.seed) == ("loss", "min", 1)
    assert set(statuses(tuner.fit())) == {"TERMINATED"}
    assert not {"0.1", "0.2", "1.1"} & set(steps_in(log))


class OwnScheduler(tune.TrialScheduler):
    pass


class OwnSearcher(tune.Searcher):
    needs_metric = False

    def suggest(self, trial_id):
        return {"x": int(trial_id[-5:]) / 10}


@pytest.mark.parametrize(
    "own",
    [
        {"scheduler": OwnScheduler()},
        pytest.param({"search_alg": ConcurrencyLimiter(OwnSearcher(), 1)}, marks=pytest.mark.slow),
    ],
    ids=["scheduler", "limiter"],
)
def test_advisers_of_ones_own_have_to_be_given_again(tmp_path, own):
    search = interrupted(tmp_path, **own)
    (argument, given) = next(iter(own.items()))
    with pytest.raises(ValueError, match=rf"cannot recreate {argument}={type(given).__name__} from the stored search"):
        tune.Tuner.restore(search, print)
    log = tmp_path / "again"
    config = tune.TuneConfig(metric="loss", mode="min", num_samples=3, max_concurrent_trials=1, **own)
    assert statuses(tune.Tuner.restore(search, steps_of(log=log), tune_config=config).fit()) == ["TERMINATED"] * 3
    assert not {"0.1", "1.1"} & set(steps_in(log))


def test_a_trainer_that_is_restored_keeps_its_own_run_config(tmp_path):
    def once(config):
        from paceline import train

        train.report({"loss": config["x"]})

    run_config = RunConfig(name="search", storage_path=str(tmp_path), failure_config=FailureConfig(2))
    trainer = DataParallelTrainer(once, run_config=run_config)
    space = {"train_loop_config": {"x": tune.grid_search([1, 2])}}
    assert statuses(tune.Tuner(trainer, param_space=space).fit()) == ["TERMINATED"] * 2
    again = tune.Tuner.restore(tmp_path / "search", trainer)
    assert again.run_config.failure_config.max_failures == 2
    assert statuses(again.fit()) == ["TERMINATED"] * 2
    other = tune.Tuner.restore(tmp_path / "search", trainer, run_config={"stop": {"training_iteration": 1}})
    assert (other.run_config.name, other.run_config.failure_config.max_failures) == ("search", 0)


def test_a_run_cannot_be_opened_as_a_search_nor_a_search_as_a_run(tmp_path):
    def once():
        from paceline import train

        train.report({"loss": 1})

    DataParallelTrainer(once, run_config=RunConfig(name="search", storage_path=str(tmp_path))).fit()
    before = contents(tmp_path / "search")
    with pytest.raises(StorageError, match="contains a run, not a search"):
        tuner_of(tmp_path, steps_of(log=tmp_path / "log")).fit()
    assert contents(tmp_path / "search") == before

    tuner_of(tmp_path / "other", steps_of(log=tmp_path / "log"), num_samples=1).fit()
    before = contents(tmp_path / "other" / "search")
    with pytest.raises(StorageError, match="holds a search, not a run"):
        DataParallelTrainer(once, run_config=RunConfig(name="search", storage_path=str(tmp_path / "other"))).fit()
    assert contents(tmp_path / "other" / "search") == before
    assert statuses(tuner_of(tmp_path / "other", print, num_samples=1).fit()) == ["TERMINATED"]


def contents(root):
    """But for the leases: whoever looks has to hold it for that."""
    files = (path for path in root.rglob("*") if path.is_file() and ".lease" not in path.parts)
    return {str(path): path.read_bytes() for path in files}
