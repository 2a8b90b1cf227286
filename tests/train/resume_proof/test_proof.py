"""A script with dropout, from which one part of its state is left out at a time: each is detected and named."""

import importlib.util
import itertools
import json
import os
import pickle
import random
import signal
import tempfile
import zipfile
from pathlib import Path

import pytest

from paceline import train
from paceline.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, verify_resume
from paceline.train.resume_proof.shadow import run_shadow

pytest.importorskip("torch")

_spec = importlib.util.spec_from_file_location("mlp", Path(__file__).with_name("mlp.py"))
mlp = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mlp)


@pytest.fixture(autouse=True)
def no_scratch_is_left(tmp_path_factory, monkeypatch):
    """Shadow runs lie where temporary files go, and are gone afterwards."""
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
    yield
    assert [path.name for path in scratch.iterdir()] == []


def tree(place):
    return {str(p): (p.read_bytes() if p.is_file() else None, p.stat().st_mtime_ns) for p in place.rglob("*")}


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_script_that_restores_everything_resumes_exactly(num_workers, tmp_path):
    trainer = mlp.trainer_for("nothing", num_workers, tmp_path)
    trainer.fit()
    before = tree(tmp_path)
    proof = verify_resume(trainer)
    assert proof.exact, proof
    assert str(proof).startswith("resumes exactly: 4 reports and 1 checkpoint compared\n")
    assert (proof.checkpoint, proof.not_compared) == ("checkpoint_000008", ("perf/step_time_s",))
    assert tree(tmp_path) == before, "the run itself is only read"


PARTS = ("optimizer", "rng", "scheduler", "data order", "model")
QUICK = ("optimizer", False), ("rng", True)


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        pytest.param(part, kept, marks=[] if (part, kept) in QUICK else pytest.mark.slow)
        for part, kept in itertools.product(PARTS, (False, True))
    ],
)
def test_the_one_part_that_is_left_out_is_named(part, kept, tmp_path):
    trainer = mlp.trainer_for(part, 1, tmp_path, kept=kept)
    trainer.fit()
    proof = verify_resume(trainer)
    assert proof.verdict == "differs"
    assert [one.part for one in proof.not_restored] == [part], proof
    assert str(proof).startswith(f"does not resume exactly: {part} was not restored\n")
    (found,) = proof.not_restored
    assert f"checkpoint_000008 contains {'something' if kept else 'nothing'} like it" in found.hint
    if part == "optimizer":
        assert "the optimizer's state is empty on rank 0 at its first step" in found.evidence
    first = proof.differences[0]
    assert (first.kind, first.name, first.rank) == ("metric", "loss", 0)
    assert first.amount == abs(first.original - first.resumed) > 0
    assert any(difference.name == "model.0.weight" for difference in proof.differences) == (part != "model" or kept)
    assert proof.repeatable
    json.dumps(proof.as_dict())


def test_what_is_never_seeded_differs_between_two_replays(tmp_path):
    proof = verify_resume(mlp.trainer_for("seed", 1, tmp_path))
    assert [one.part for one in proof.not_restored] == ["rng"], proof
    assert proof.repeatable is False
    assert "two replays from that checkpoint also differ" in str(proof)


def test_without_a_run_one_is_trained_and_nothing_is_left_of_it(tmp_path):
    proof = verify_resume(mlp.trainer_for("nothing", 1, tmp_path, until=1000))
    assert proof.exact, proof
    assert proof.run is None
    assert list(tmp_path.iterdir()) == []


def test_more_reports_than_until_the_next_checkpoint_can_be_asked_for(tmp_path):
    trainer = mlp.trainer_for("nothing", 1, tmp_path)
    trainer.fit()
    proof = verify_resume(trainer, num_steps=8)
    assert (proof.checkpoint, proof.num_reports, proof.num_checkpoints) == ("checkpoint_000004", 8, 2), proof
    proof = verify_resume(trainer, num_steps=2)
    assert (proof.verdict, proof.num_reports, proof.num_checkpoints) == ("exact", 2, 0)


def run_of(function, place, num_workers=1, **run_config):
    return train.DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(name="run", storage_path=place, **run_config),
    )


def counting(state_of, *, until=4, metrics=lambda i: {"i": i}):
    def function():
        checkpoint = train.get_checkpoint()
        first = checkpoint.to_dict()["i"] if checkpoint else 0
        for i in range(first + 1, until + 1):
            train.report(metrics(i), checkpoint=Checkpoint.from_dict({"i": i, **state_of(i)}))

    return function


def test_a_run_of_other_size_or_with_one_checkpoint_or_none_cannot_be_checked_but_by_a_new_run(tmp_path):
    function = counting(lambda i: {})
    trainer = run_of(function, tmp_path, checkpoint_config=CheckpointConfig(num_to_keep=1))
    trainer.fit()
    proof = verify_resume(trainer)
    assert proof.verdict == "unchecked"
    assert "--fresh" in proof.reason
    before = dict(vars(trainer))
    assert verify_resume(trainer, fresh=True).exact
    assert vars(trainer) == before, "the trainer is as it was"
    run_of(function, tmp_path / "other").fit()
    proof = verify_resume(run_of(function, tmp_path / "other", num_workers=2))
    assert proof.reason == "checkpoint_000003 was made by 1 worker, but ScalingConfig requests 2"
    trainer = run_of(lambda: train.report({"x": 1}), tmp_path / "none")
    trainer.fit()
    proof = verify_resume(trainer)
    assert (proof.verdict, proof.exact) == ("unchecked", False)
    assert (
        str(proof) == f"cannot be checked: the run has no checkpoint to resume from\n  run: {tmp_path / 'none' / 'run'}"
    )


def test_what_was_resumed_itself_is_not_taken_for_the_original(tmp_path):
    """After a failure the reports that count are those of a resumed attempt: compared with them, any replay agrees."""

    def function():
        checkpoint = train.get_checkpoint()
        first = checkpoint.to_dict()["i"] if checkpoint else 0
        drawn = random.Random(first)  # Restarts with the attempt, so it is not restored.
        for i in range(first + 1, 7):
            kept = Checkpoint.from_dict({"i": i}) if i in (2, 5) else None
            train.report({"drawn": drawn.random()}, checkpoint=kept)
            if i == 4 and first == 0:
                raise ValueError("once")

    trainer = run_of(function, tmp_path, failure_config=FailureConfig(max_failures=1))
    trainer.fit()
    proof = verify_resume(trainer, num_steps=2)
    assert (proof.verdict, proof.checkpoint) == ("differs", "checkpoint_000002"), proof
    uninterrupted = random.Random(0)
    drawn = [uninterrupted.random() for _ in range(4)]
    assert [difference.original for difference in proof.differences] == drawn[2:]


def test_a_script_that_fails_when_it_is_resumed_does_not_resume_and_one_that_fails_anyway_is_unchecked(tmp_path):
    def function():
        assert train.get_checkpoint() is None, "never tried before"
        for i in range(3):
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))

    proof = verify_resume(run_of(function, tmp_path))
    assert proof.verdict == "differs"
    assert str(proof).startswith("does not resume: the function fails when resumed: ")
    assert "never tried before" in proof.reason
    proof = verify_resume(run_of(lambda: 1 / 0, tmp_path / "other"))
    assert proof.verdict == "unchecked"
    assert "ZeroDivisionError" in proof.reason


def test_metrics_that_differ_by_nature_can_be_ignored_and_numbers_may_differ_a_little(tmp_path):
    def vary(i):
        return {"i": i, "perf": {"luck": os.urandom(4).hex()}, "loss": 1 + 1e-9 * random.random()}

    trainer = run_of(counting(lambda i: {}, metrics=vary), tmp_path)
    trainer.fit()
    assert {found.name for found in verify_resume(trainer).differences} == {"perf/luck", "loss"}
    assert {found.name for found in verify_resume(trainer, ignore=["perf/*"]).differences} == {"loss"}
    proof = verify_resume(trainer, ignore=["perf/*"], tolerance=1e-6)
    assert proof.exact, proof
    assert proof.not_compared == ("perf/luck",)


def test_a_name_that_is_used_again_is_committed_again_in_a_shadow(tmp_path):
    """The copy is of a second attempt, and a commit never replaces one of a later attempt."""

    def function():
        checkpoint = train.get_checkpoint()
        first = checkpoint.to_dict()["i"] if checkpoint else 0
        for i in range(first + 1, 5 if first < 4 else 7):
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}), checkpoint_dir_name="last")
            if i == 2 and first == 0:
                raise ValueError("once")

    trainer = run_of(function, tmp_path / "runs", failure_config=FailureConfig(max_failures=1))
    start = trainer.fit().checkpoint
    assert start.to_dict()["i"] == 4
    arguments = trainer.trainer_arguments
    shadow = run_shadow(arguments, tmp_path / "shadow", enough=lambda observed: False, start=Path(start.path))
    assert Checkpoint(shadow.find_checkpoint(6)).to_dict()["i"] == 6


@pytest.mark.parametrize("wrong", [{"num_steps": 0}, {"num_steps": True}, {"tolerance": -1.0}])
def test_wrong_arguments_are_refused(wrong, tmp_path):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} must be"):
        verify_resume(run_of(lambda: None, tmp_path), **wrong)


def test_ctrl_c_ends_the_proof_and_is_no_difference(tmp_path):
    driver = os.getpid()

    def function():
        if train.get_checkpoint() is not None:
            os.kill(driver, signal.SIGINT)
            while True:
                train.report({"i": 0})
        for i in range(2):
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))

    trainer = run_of(function, tmp_path)
    trainer.fit()
    with pytest.raises(KeyboardInterrupt):
        verify_resume(trainer)


@pytest.mark.slow
def test_files_of_torch_are_looked_into_and_nothing_in_them_is_run(tmp_path):
    import torch

    from paceline.train.torch import TorchCheckpoint, TorchTrainer

    def function():
        torch.manual_seed(3)
        net = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        if checkpoint := train.get_checkpoint():
            net = TorchCheckpoint(checkpoint.path).get_model(net)
        for step in range(train.get_checkpoint() is not None, 6):
            net(torch.ones(2)).backward()
            optimizer.step()
            train.report({"step": step}, checkpoint=TorchCheckpoint.from_model(net))

    proof = verify_resume(TorchTrainer(function, run_config=RunConfig(storage_path=tmp_path)), ignore=["step"])
    assert [one.part for one in proof.not_restored] == ["optimizer"], proof
    assert {difference.name for difference in proof.differences} == {"model.pt:weight", "model.pt:bias"}
    assert "add optimizer.state_dict() to the checkpoint" in str(proof)


def test_pickles_in_a_checkpoint_are_compared_and_never_loaded(tmp_path):
    class Poison:
        def __init__(self, number):
            self.number = number

        def __reduce__(self):
            return os.mkdir, (str(tmp_path / f"poisoned-{self.number}"),)

    def function():
        checkpoint = train.get_checkpoint()
        first = int(checkpoint.path[-1]) if checkpoint is not None else 0
        for i in range(first, 3):
            state = {"i": i, "poison": Poison(i if first == 0 else 9)}
            train.report({"i": i}, checkpoint=Checkpoint.from_dict(state, allow_pickle=True))

    proof = verify_resume(run_of(function, tmp_path / "runs"))
    assert [difference.name for difference in proof.differences] == ["poison"], proof
    assert not list(tmp_path.glob("poisoned-*"))


def test_a_poisoned_file_of_torch_is_not_looked_into(tmp_path):
    import torch

    from paceline.train.torch.checkpoint import read_raw_weights

    class Poison:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "poisoned"),)

    poisoned = pickle.dumps(Poison(), protocol=2)
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as file:
        file.writestr("model/data.pkl", poisoned)
        file.writestr("model/version", "3")
    (tmp_path / "bare.pt").write_bytes(poisoned)
    (tmp_path / "noise.pt").write_bytes(os.urandom(200))
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    assert [read_raw_weights(tmp_path / f"{name}.pt") for name in ("model", "bare", "noise")] == [None] * 3
    assert read_raw_weights(tmp_path / "good.pt")["w"].shape == (2,)
    assert not (tmp_path / "poisoned").exists()


@pytest.mark.slow
def test_in_this_process_the_hooks_are_taken_away_again(tmp_path):
    import torch
    from torch.nn.modules import module
    from torch.optim import optimizer

    def function():
        torch.manual_seed(3)
        net = torch.nn.Linear(2, 1)
        adam = torch.optim.Adam(net.parameters())
        if checkpoint := train.get_checkpoint():
            net.load_state_dict(checkpoint.to_dict()["net"])
        for _ in range(4):
            net(torch.ones(2)).backward()
            adam.step()
            train.report({}, checkpoint=Checkpoint.from_dict({"net": net.state_dict()}))

    proof = verify_resume(run_of(function, tmp_path, num_workers=0))
    assert [one.part for one in proof.not_restored] == ["optimizer"], proof
    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks
    assert not optimizer._global_optimizer_pre_hooks
