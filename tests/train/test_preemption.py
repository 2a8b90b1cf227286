"""The machine is about to be taken away: who is told, where all stop, what is kept, how the script ends."""

import itertools
import os
import signal

import pytest
from training_scripts import HEAD

from paceline import train
from paceline.train import Checkpoint, PreemptionError, Result


def test_a_notice_is_seen_by_code_that_looks_for_it_without_reporting_meanwhile(fit):
    def function():
        rank, num_looks = train.get_context().get_world_rank(), 0
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        while train.get_preemption_info() is None:
            num_looks += 1
        looks = train.collective.gather(num_looks)
        train.report({"looks": looks}, checkpoint=Checkpoint.from_dict({"rank": rank}))

    first, second = fit(function).metrics["looks"]
    assert first == second


def test_all_ranks_see_the_notice_in_the_same_step_the_last(fit, tmp_path):
    def function():
        rank = train.get_context().get_world_rank()
        for i in range(10_000):
            if i == 10 + 3 * rank and rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            train.collective.barrier()
            info = train.get_preemption_info()
            if info is not None:
                (tmp_path / f"rank_{rank}").write_text(f"{i} {info.preempted_ranks}")
                assert info.deadline_ms > 1e12
                assert len(info.preempted_node_ids) == 1
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}) if info is not None else None)

    with pytest.raises(PreemptionError) as caught:
        fit(function)
    last = caught.value.result.metrics["i"]
    assert (tmp_path / "rank_0").read_text() == (tmp_path / "rank_1").read_text() == f"{last} [1]"
    assert caught.value.result.checkpoint.to_dict() == {"i": last}
    assert isinstance(caught.value, SystemExit)
    assert isinstance(caught.value, train.TrainingFailedError)
    assert caught.value.code == 75


@pytest.mark.parametrize("saves", [True, False])
def test_in_this_process_a_notice_stops_at_the_next_report_and_handlers_are_given_back(fit, capfd, saves):
    before = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)]

    def function():
        for i in itertools.count():  # a report does not wait for the driver: it may hear of the notice much later
            if i == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            on_stop = (lambda i=i: Checkpoint.from_dict({"i": i})) if saves else None
            train.report({"i": i}, Checkpoint.from_dict({"i": 1}) if i == 1 else None, checkpoint_on_stop=on_stop)

    with pytest.raises(PreemptionError) as caught:
        fit(function, 0)
    result = caught.value.result
    assert result.status == Result.from_path(result.path).status == "preempted"
    assert result.checkpoint.to_dict() == {"i": result.metrics["i"] if saves else 1}
    warning = "nothing newer than the last checkpoint, checkpoint_000002, will be saved: pass checkpoint_on_stop"
    assert capfd.readouterr().err.count(warning) == (not saves)
    assert [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)] == before


def test_a_process_that_the_users_code_forks_ends_when_it_is_told_to(fit):
    def function():
        import multiprocessing

        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join(60)
        assert child.exitcode == -signal.SIGTERM
        return "not preempted"

    assert fit(function, 1).return_value == "not preempted"


def test_a_handler_of_the_scripts_own_is_left_alone(run_script):
    script = f"""{HEAD}
signal.signal(signal.SIGTERM, lambda *_: print("mine"))

def function(config):
    os.kill(config["driver"], signal.SIGTERM)
    train.report({{"i": 0}})

fit(function, 1)
print("complete")
"""
    ended = run_script(script)
    assert (ended.returncode, ended.stdout) == (0, "mine\ncomplete\n"), ended.stderr
