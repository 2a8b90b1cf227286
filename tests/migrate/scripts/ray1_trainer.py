"""The `Trainer` of Ray 1.x: start, run, shutdown."""

from ray import train
from ray.train import Trainer


def train_func(config):
    for step in range(config["steps"]):
        train.report(loss=1 / (step + 1))
        train.save_checkpoint(step=step)
    return train.world_rank()


trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
assert trainer.run(train_func, config={"steps": 2}) == [0, 1]
assert trainer.latest_checkpoint == {"step": 1}
trainer.shutdown()
