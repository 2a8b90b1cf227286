"""`ray.air.session` of Ray 2.0, imported in the function, and configurations of AIR."""

from ray.air import Checkpoint
from ray.air.config import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_loop_per_worker(config):
    from ray.air import session

    loaded = session.get_checkpoint()
    assert loaded is None
    for epoch in range(config["num_epochs"]):
        session.report(
            {"epoch": epoch, "rank": session.get_world_rank()}, checkpoint=Checkpoint.from_dict({"epoch": epoch})
        )


trainer = TorchTrainer(
    train_loop_per_worker=train_loop_per_worker,
    train_loop_config={"num_epochs": 3},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="air", checkpoint_config=CheckpointConfig(num_to_keep=2)),
)
result = trainer.fit()
assert result.metrics["training_iteration"] == 3
assert result.checkpoint.to_dict()["epoch"] == 2
