"""The pure part: where two runs part, and what that says about what was not restored."""

import math

import pytest

from paceline._storage.state import RawLeaf
from paceline.train.resume_proof import compare
from paceline.train.resume_proof.compare import Difference, _is_equal, _max_distance, find_ignored_metrics, flatten_tree
from paceline.train.resume_proof.diagnosis import classify_name, diagnose


def call(inputs="a", rng="r0", *, parameters="w", module=0, training=True):
    note = {"kind": "forward", "module": module, "has_parameters": True, "training": training, "inputs": inputs}
    return {**note, "parameters": {"weight": parameters}, "buffers": {}, "rng": {"torch": rng}}


def step(lr=0.1, state="m", rng="r1"):
    note = {"kind": "step", "optimizer": 1, "hyper": {"0.lr": lr, "0.weight_decay": 0.0}, "rng": {"torch": rng}}
    return {**note, "state": {"0.exp_avg": state} if state else {}}


LOSS = Difference("metric", "loss", 5, 0, 1.0, 2.0, 1.0)


def parts(went_on, resumed, *, paths=(), differences=(LOSS,), repeatable=True):
    options = {"paths": paths, "differences": differences, "repeatable": repeatable}
    found = diagnose({0: went_on}, {0: resumed}, checkpoint="c", **options)
    return {one.part: one.evidence for one in found}


def test_each_part_is_told_from_the_first_note_that_it_decides():
    on = [call(), step(), call("b", "r2")]
    assert parts(on, [call(parameters="x"), step(), call("b", "r2")]).keys() == {"model"}
    assert parts(on, [call(rng="z"), step(rng="y"), call("b", "x")]).keys() == {"rng"}
    assert parts(on, [call("q"), step(), call("b", "r2")]).keys() == {"data order"}
    assert parts(on, [call(), step(state=""), call("b", "r2")]).keys() == {"optimizer"}
    assert parts(on, [call(), step(lr=0.2), call("b", "r2")]).keys() == {"scheduler"}
    everything = parts(on[:2], [call("q", "z", parameters="x"), step(state="", lr=0.5)])
    assert everything.keys() == {"model", "data order", "optimizer", "scheduler", "rng"}


def test_the_evidence_names_batches_that_come_later_and_a_model_in_evaluation_mode():
    on = [call("a"), call("b"), call("c")]
    assert "comes at call 3" in parts(on, [call("y"), call("z"), call("a")])["data order"]
    assert "evaluation mode" in parts([call()], [call(training=False)])["model"]


def test_a_rate_is_the_optimizers_where_the_scheduler_was_saved_and_the_optimizer_forgot():
    on, resumed = [call(), step(lr=0.05)], [call(), step(lr=0.1, state="")]
    assert parts(on, resumed, paths=["scheduler.last_epoch"]).keys() == {"optimizer"}
    assert parts(on, resumed, paths=[]).keys() == {"optimizer", "scheduler"}


def test_a_generator_that_nobody_draws_from_is_not_blamed():
    on, resumed = [call(rng="r"), step(rng="r")], [call("q", rng="z"), step(rng="z")]
    assert parts(on, resumed).keys() == {"data order"}


def test_what_a_second_model_is_given_is_not_taken_for_data():
    on = [call("a", "r0"), call("from dropout", "r1", module=1)]
    resumed = [call("a", "z0"), call("from other dropout", "z1", module=1)]
    assert parts(on, resumed).keys() == {"rng"}


def test_without_notes_the_names_have_to_do():
    rate = Difference("metric", "train/lr", 5, 0, 0.1, 0.2, 0.1)
    assert parts([], [], differences=[rate, LOSS]).keys() == {"scheduler"}
    leaves = [Difference("state", name, 8) for name in ("model.w", "rng.numpy", "optimizer.m")]
    assert parts([], [], differences=leaves).keys() == {"optimizer", "rng"}
    assert parts([], [], repeatable=False).keys() == {"rng"}
    assert "loss of rank 0 at report 5" in parts([], [])["something"]


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("opt.param_groups.0.lr", "optimizer"),
        ("lr_scheduler.last_epoch", "scheduler"),
        ("rng.torch", "rng"),
        ("sampler.epoch", "data order"),
        ("model.bn.num_batches_tracked", "model"),
        ("model.pt:generator.weight", "model"),
        ("checkpoint.pt:optimizer.state.0.step", "optimizer"),
        ("epoch", "something"),
    ],
)
def test_names_in_a_checkpoint_are_understood(path, part):
    assert classify_name(path) == part


def test_the_first_difference_comes_first_and_nan_is_nan():
    one = {0: {5: {"loss": math.nan, "eval": {"acc": 1}}, 6: {"loss": 2.0}}}
    other = {0: {5: {"loss": math.nan, "eval": {"acc": 2}}, 6: {"loss": 2.5}}}
    found = compare.find_metric_differences(one, other, range(5, 8), ignored=frozenset(), tolerance=0.0)
    assert [str(difference) for difference in found] == [
        "eval/acc of rank 0 at report 5: 1 in the run, 2 when resumed (by 1)",
        "loss of rank 0 at report 6: 2.0 in the run, 2.5 when resumed (by 0.5)",
        "report 7 of rank 0 was not made",
    ]


def test_metrics_that_tell_time_are_not_compared_and_those_that_only_sound_like_it_are():
    of_time = {"time", "step_time_s", "perf/seconds", "tokens_per_s", "eta", "pid", "gpu_memory"}
    others = {"loss", "timesteps", "accuracy", "sentiment", "s1", "estimated"}
    assert find_ignored_metrics({0: {1: dict.fromkeys(of_time | others, 1)}}, []) == of_time


def test_leaves_are_compared_as_what_they_are():
    one = RawLeaf("tensor", "bfloat16", (2,), bytes.fromhex("803f0040"))
    other = RawLeaf("tensor", "bfloat16", (2,), bytes.fromhex("803f4040"))
    assert _max_distance(one, other) == 1.0
    assert not _is_equal(one, other, 0.1)
    assert _is_equal(one, other, 0.5)
    assert _max_distance(RawLeaf("pickle", "None", (), b"a"), RawLeaf("pickle", "None", (), b"b")) is None
    assert not _is_equal(1, True, 0.0)
    assert _is_equal(1, 1.0, 0.0)
    assert flatten_tree({"a": [1, {"b": 2}], "c": {}, "d": ()}) == {"a.0": 1, "a.1.b": 2, "c": {}, "d": ()}
