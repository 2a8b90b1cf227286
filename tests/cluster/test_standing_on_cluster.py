"""Workers that stay between runs, on a cluster: orders reach them wherever they are."""

import os

import paceline.data
from paceline import train
from paceline.train import Trainer


def test_the_same_processes_on_several_nodes_serve_every_run(tmp_path):
    def steps():
        state = train.load_checkpoint() or {"step": 0}
        for step in range(state["step"], 3):
            train.save_checkpoint(step=step + 1)
            if step == 1 and state["step"] == 0 and train.world_rank() == 1:
                os.kill(os.getpid(), 9)
        return state["step"]

    def rows():
        return [row["id"] for row in train.get_dataset_shard().iter_rows()]

    with Trainer(num_workers=2, resources_per_worker={"CPU": 2}, logdir=tmp_path / "run", max_retries=1) as trainer:
        nodes = trainer.run(lambda: train.get_context().get_node_rank())
        assert sorted(nodes) == [0, 1]
        assert trainer.run(os.getpid) == trainer.run(os.getpid)
        taken = trainer.run(rows, dataset=paceline.data.range(6))
        assert sorted([*taken[0], *taken[1]]) == list(range(6))
        assert trainer.run(steps) == [2, 2]
        assert trainer.latest_checkpoint == {"step": 3}
