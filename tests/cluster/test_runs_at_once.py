"""Runs on the cluster that threads of one process drive at the same time."""

import threading

from paceline import train
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig

NUM_RUNS = 3


def counting():
    """Made here, it travels by value."""

    def count(config):
        rank = train.get_context().get_world_rank()
        for step in range(1, 4):
            state = train.Checkpoint.from_dict({"number": config["number"], "step": step}) if rank == 0 else None
            train.report({"number": config["number"], "step": step}, checkpoint=state)
        return config["number"]

    return count


def test_three_fits_in_three_threads_come_to_what_each_would_alone(tmp_path):
    came = threading.Barrier(NUM_RUNS)
    found = [None] * NUM_RUNS

    def fit(number):
        came.wait()
        try:
            found[number] = DataParallelTrainer(
                counting(),
                train_loop_config={"number": number},
                scaling_config=ScalingConfig(2, resources_per_worker={"CPU": 0.5}),
                run_config=RunConfig(storage_path=tmp_path, name=f"run-{number}"),
            ).fit()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=fit, args=(number,)) for number in range(NUM_RUNS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [getattr(result, "return_value", result) for result in found] == list(range(NUM_RUNS))
    for number, result in enumerate(found):
        assert [*result.metrics_dataframe["step"]] == [1, 2, 3]
        assert result.checkpoint.to_dict() == {"number": number, "step": 3}
