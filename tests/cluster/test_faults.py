"""Faults planted in runs on a cluster, with real signals on the nodes: each run ends as one that nothing happened to.

A run meets many faults, one after the other, since the agents stay where they are; the long sweep, one fault to a run,
is in `test_cluster_chaos.py`.
"""

import oracle
import pytest

from paceline._control.events import HangSuspected, PreemptionNoticeReceived
from paceline.testing import PHASES, At, Faults
from paceline.train import DataParallelTrainer, PreemptionError, ScalingConfig
from paceline.train.torch import TorchTrainer

pytestmark = pytest.mark.slow

KILLS = (
    Faults()
    .kill(1, ("spawn", 1))
    .kill(1, ("import", 2))
    .kill(1, ("step", 1))
    .kill(1, ("report", 1))
    .kill(1, ("snapshot", 2))
    .kill(1, At("upload", 2, 3))
    .kill(1, At("commit", 2, 3))
    .kill(0, "restore")
    .kill(0, ("retention", 2))
    .kill(0, "exit")
)
"""Each in an attempt of its own: nobody gets past the checkpoint of report 2 before the others."""
KILLS_OF_TORCH = Faults().kill(0, "rendezvous").kill(1, ("data", 4)).kill(0, ("collective", 6))


def test_a_run_with_a_rank_killed_in_each_phase_ends_as_an_undisturbed_one(fit_with):
    path = fit_with(KILLS)
    causes = [(fault.rank, "killed") for fault, _ in KILLS.fired(path)]
    assert oracle.causes(path) == causes, "each is told as what it was"
    assert {fault.at.phase for fault in (*KILLS.all, *KILLS_OF_TORCH.all)} == set(PHASES)


def test_a_run_of_torch_with_a_rank_killed_in_each_phase_of_its_own(fit_with):
    path = fit_with(KILLS_OF_TORCH, TorchTrainer, oracle.batched)
    assert oracle.causes(path) == [(fault.rank, "killed") for fault, _ in KILLS_OF_TORCH.fired(path)]


def test_hangs_of_every_kind_are_reported_with_the_process_status_and_restarted(fit_with):
    faults = Faults().hang(0, ("step", 3)).hang(1, ("step", 7), "stopped").hang(0, ("step", 11), "gil")
    path = fit_with(faults, steps=12, hang_timeout_s=3.0, hang_action="restart")
    hangs = [event.failure for event in oracle.history(path, HangSuspected)]
    assert [failure.rank for failure in hangs] == [0, 1, 0]
    asleep, stopped, gil = (failure.message for failure in hangs)
    assert "rank 0 has been stuck at" in asleep
    assert "rank 1 is stopped by a signal (SIGSTOP)" in stopped
    assert "rank 0 has been silent for" in gil
    assert "holds the GIL" in gil


def test_a_notice_ends_the_run_where_it_comes_to_the_drivers_node_and_an_attempt_elsewhere(
    tmp_path, cluster, undisturbed
):
    import ray

    here = ray.get_runtime_context().get_node_id()
    elsewhere = next(node for node in cluster.added if node != here)
    faults = Faults().preempt(1, 20.0, ("step", 3)).oom(0, ("step", 7))

    def fit(node):
        scaling = ScalingConfig(2, label_selector={"ray.io/node-id": node})
        trainer = oracle.trainer_of(DataParallelTrainer, oracle.small, tmp_path / node, scaling=scaling)
        return faults.applied_to(trainer).fit()

    result = fit(elsewhere)
    assert faults.unfired(result.path) == []
    with pytest.raises(PreemptionError) as caught:
        fit(here)
    for path, includes_driver in ((result.path, False), (caught.value.result.path, True)):
        (notice,) = oracle.history(path, PreemptionNoticeReceived)
        assert (notice.ranks, notice.includes_driver) == ((0, 1), includes_driver), "all who are on the node"
    oracle.assert_same(result.path, undisturbed(DataParallelTrainer, oracle.small))
    oracle.assert_same(fit(here).path, undisturbed(DataParallelTrainer, oracle.small))


def test_messages_lost_late_doubled_or_in_another_order_change_nothing(fit_with):
    faults = (
        Faults(seed=3)
        .duplicate("*", times=40)
        .reorder("*", times=40)
        .delay("CheckpointStaged", delay_s=0.05, rank=1)
        .delay("CheckpointCommitted", delay_s=0.05, rank=0)
        .drop("StacksSampled")
    )
    path = fit_with(faults, unfired=True)
    assert oracle.causes(path) == []
