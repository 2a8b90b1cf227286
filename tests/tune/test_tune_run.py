"""Scripts written for Ray Tune's `tune.run`: what they print, what they return, and how they go on."""

import re
import time
from pathlib import Path

import pytest
from tuners import Counts

from paceline import tune
from paceline.tune.config import Verbosity
from paceline.tune.schedulers import ASHAScheduler, PopulationBasedTraining


def train_mnist(config):
    saved = tune.get_checkpoint()
    start = saved.to_dict()["epoch"] if saved else 0
    for epoch in range(start, 4):
        accuracy = config["lr"] * (epoch + 1)
        checkpoint = tune.Checkpoint.from_dict({"epoch": epoch + 1})
        tune.report({"mean_accuracy": accuracy, "eval": {"loss": 1 - accuracy}}, checkpoint=checkpoint)


def test_a_script_with_asha_and_a_cli_reporter(tmp_path, capsys):
    reporter = tune.CLIReporter(
        metric_columns=["mean_accuracy", "training_iteration"],
        parameter_columns={"lr": "rate"},
        sort_by_metric=True,
        max_report_frequency=0,
    )
    analysis = tune.run(
        train_mnist,
        name="exp",
        metric="mean_accuracy",
        mode="max",
        config={"lr": tune.grid_search([0.01, 0.05, 0.1]), "batch": 8},
        resources_per_trial={"cpu": 1},
        scheduler=ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2),
        progress_reporter=reporter,
        max_concurrent_trials=1,
        storage_path=str(tmp_path),
        verbose=Verbosity.V1_EXPERIMENT,
        trial_name_creator=lambda trial: f"mnist_{trial.config['lr']}",
        trial_dirname_creator=lambda trial: f"lr_{trial.config['lr']}",
        keep_checkpoints_num=2,
        checkpoint_score_attr="mean_accuracy",
    )
    assert analysis.best_config == {"lr": 0.1, "batch": 8}
    best = analysis.get_best_trial("mean_accuracy", "max", "last")
    assert (str(best), best.last_result["training_iteration"], best.trainable_name) == ("mnist_0.1", 4, "train_mnist")
    assert best.evaluated_params == {"lr": 0.1, "batch": 8}
    assert analysis.best_checkpoint.to_dict() == {"epoch": 4}
    assert analysis.best_logdir == str(tmp_path / "exp" / "lr_0.1")
    assert sorted(path.name for path in (tmp_path / "exp").glob("lr_*")) == ["lr_0.01", "lr_0.05", "lr_0.1"]
    shown = capsys.readouterr()
    table = shown.out.split("== Status ==")[-1]
    assert "Number of trials: 3/3 (3 TERMINATED)" in table
    assert "Using AsyncHyperBandScheduler" in table
    assert re.search(
        r"Trial name +status +rate +mean_accuracy +training_iteration\n +mnist_0.1 +TERMINATED +0.1", table
    )
    assert "Current best trial: mnist_0.1 with mean_accuracy=0.4" in table
    assert "started" not in shown.err  # Our own lines give way.


class Counter(Counts):
    def step(self):
        if self.count == 1 and Path(self.config.get("fails", "")).is_file():
            raise ValueError("fails at two")
        return super().step()

    def _export_model(self, export_formats, export_dir):
        path = Path(export_dir, f"count.{export_formats[0]}")
        path.write_text(str(self.count))
        return {export_formats[0]: str(path)}


def test_a_class_with_a_stop_dict_exports_its_model_and_is_restored_from_a_checkpoint(tmp_path):
    tune.register_trainable("counter", Counter)
    common = {"stop": {"training_iteration": 3}, "storage_path": tmp_path, "verbose": 0}
    analysis = tune.run("counter", name="first", checkpoint_at_end=True, export_formats=["txt"], **common)
    (trial,) = analysis.trials
    assert Path(analysis.get_best_logdir("count", "max"), "count.txt").read_text() == "3"
    last = analysis.get_last_checkpoint()
    assert last.to_dict() == {"count": 3}
    assert analysis.get_trial_checkpoints_paths(trial, "count") == [(last.path, 3)]
    again = tune.run(Counter, name="second", restore=last.path, **{**common, "stop": {"count": 5}})
    assert [*again.trial_dataframes[again.trials[0].trial_id]["count"]] == [4, 5]


def test_failed_trials_raise_and_are_run_again_when_the_search_is_resumed(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    common = {
        "name": "exp",
        "config": {"start": tune.grid_search([0, 5]), "fails": str(flag)},
        "stop": {"training_iteration": 3},
        "local_dir": tmp_path,
        "checkpoint_freq": 1,
        "verbose": 0,
    }
    with pytest.raises(tune.TuneError, match=r"no search at .*exp\n\nhint: use resume='AUTO'"):
        tune.run(Counter, resume=True, **common)
    with pytest.raises(tune.TuneError, match=r"1 of 2 trials failed\n\n  trial \w+_00000: .*fails at two"):
        tune.run(Counter, resume="AUTO", **common)
    flag.unlink()
    analysis = tune.run(Counter, resume=True, raise_on_failed_trial=False, **common)
    assert [trial.status for trial in analysis.trials] == ["ERROR", "TERMINATED"]
    analysis = tune.run(Counter, resume="AUTO+ERRORED", **common)
    assert [trial.last_result["count"] for trial in analysis.trials] == [3, 8]
    assert tune.run(Counter, resume=False, **common).experiment_path == str(tmp_path / "exp-2")


def test_experiments_run_side_by_side_and_call_the_same_callbacks_and_return_the_trials_of_all(tmp_path):
    def wait_for_other(config):
        (tmp_path / config["own"]).touch()
        ends_at = time.monotonic() + 60
        while not (tmp_path / config["other"]).exists():
            assert time.monotonic() < ends_at, "the other experiment has not begun"
            time.sleep(0.01)
        tune.report({"a": 1})

    class Collect(tune.Callback):
        def on_trial_complete(self, iteration, trials, trial, **info):
            ended.append(trial.config.get("own", "none"))

    ended = []
    spec = {"run": wait_for_other, "resources_per_trial": {"cpu": 0.5}, "storage_path": tmp_path / "searches"}
    configs = {"one": {"own": "a", "other": "b"}, "two": {"own": "b", "other": "a"}}
    experiments = {name: {**spec, "config": config} for name, config in configs.items()}
    place = {"storage_path": tmp_path / "searches"}
    experiments["three"] = tune.Experiment("three", Counter, stop={"count": 2}, num_samples=2, **place)
    trials = tune.run_experiments(experiments, verbose=0, callbacks=[Collect()])
    assert [trial.trainable_name for trial in trials] == [*["wait_for_other"] * 2, *["Counter"] * 2]
    assert {trial.status for trial in trials} == {"TERMINATED"}
    assert sorted(ended) == ["a", "b", "none", "none"]
    assert {path.name for path in (tmp_path / "searches").iterdir()} == {"one", "two", "three"}
    analysis = tune.run(
        tune.Experiment("four", Counter, stop={"count": 1}, **place), verbose=0, metric="count", mode="max"
    )
    assert (analysis.best_result["count"], analysis.experiment_path) == (1, str(tmp_path / "searches" / "four"))
    with pytest.raises(tune.TuneError, match="unknown key 'stpo' in the spec of 'x'; the keys are run, stop"):
        tune.run_experiments({"x": {"run": Counter, "stpo": 1}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": "YES"}, "resume must be True, False, None or 'AUTO'"),
        ({"resume_config": tune.ResumeConfig()}, "resume_config needs resume=True"),
        ({"checkpoint_config": {}, "checkpoint_freq": 2}, "checkpoint_freq and checkpoint_config contradict"),
        ({"export_formats": ["onnx"]}, "train_mnist is a function"),
        ({"storage_path": "a", "local_dir": "b"}, "local_dir and storage_path are the same"),
        ({"progress_reporter": tune.CLIReporter}, "must be an instance of a ProgressReporter"),
        ({"search_alg": "none"}, "search_alg must be 'variant_generator'"),
        ({"scheduler": "none"}, "scheduler must be 'fifo'"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tune.run(train_mnist, **arguments)
    with pytest.raises(ValueError, match="no trainable is registered as 'countr'"):
        tune.Tuner("countr")


def clone_or_learn(config):
    saved = tune.get_checkpoint()
    step = saved.to_dict()["step"] if saved else 0
    while step < 6:
        step += 1
        context = tune.get_context()
        metrics = {"score": config["lr"] * step, "seen": f"{context.get_trial_name()} in {context.get_trial_dir()}"}
        tune.report(metrics, checkpoint=tune.Checkpoint.from_dict({"step": step}))


def test_a_named_trial_keeps_its_name_when_it_is_cloned_and_the_search_is_resumed(tmp_path):
    def search(**more):
        return tune.run(
            clone_or_learn,
            name="exp",
            metric="score",
            mode="max",
            config={"lr": tune.grid_search([1.0, 0.1])},
            scheduler=PopulationBasedTraining(
                "training_iteration", perturbation_interval=2, hyperparam_mutations={"lr": [1.0, 0.1]}, synch=True
            ),
            trial_name_creator=lambda trial: f"{trial.trainable_name}_{trial.trial_id[-1]}",
            trial_dirname_creator=lambda trial: f"dir_{trial.trial_id[-1]}",
            storage_path=tmp_path,
            verbose=0,
            **more,
        )

    analysis = search()
    clone = analysis.trials[1]
    assert clone.lineage
    seen = {*analysis.trial_dataframes[clone.trial_id]["seen"]}
    assert seen >= {f"clone_or_learn_1 in {tmp_path}/exp/{name}" for name in ("dir_1", "dir_1-1")}
    names = {path.name for path in (tmp_path / "exp").glob("dir_1*")}
    assert names <= {"dir_1", *(f"dir_1-{number}" for number in range(1, len(clone.lineage) + 1))}
    again = search(resume=True)
    assert [str(trial) for trial in again.trials] == ["clone_or_learn_0", "clone_or_learn_1"]
    kept = again.get_trial_checkpoints_paths(again.trials[1], "training_iteration")
    assert [tune.Checkpoint(path).to_dict()["step"] for path, _ in kept] == [value for _, value in kept]
    assert kept[-1][1] == 6


def test_two_trials_cannot_have_one_directory(tmp_path):
    place = {"storage_path": tmp_path, "name": "exp", "verbose": 0}
    with pytest.raises(ValueError, match=r"returned 'same' for trial \w+_00001, but trial \w+_00000 has it"):
        tune.run(train_mnist, config={"lr": 1}, num_samples=2, trial_dirname_creator=lambda trial: "same", **place)
