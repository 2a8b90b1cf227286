"""`with_parameters` on a cluster: objects are put into its store once, and are views of it in the trials."""

import numpy as np

from paceline.tune import session as tune
from paceline.tune.config import RunConfig
from paceline.tune.trainables.plans import planned
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.wrapped import with_parameters


def test_trials_share_objects_of_the_store(tmp_path):
    def trial(config, data):
        return {"sum": float(data.sum()), "writable": data.flags.writeable, "id": tune.get_context().get_trial_id()}

    plan = planned(with_parameters(trial, data=np.ones(1_000_000)))
    for number in range(2):
        run_config = RunConfig(name=f"trial_{number:05d}", storage_path=tmp_path)
        metrics = plan.trainer({}, run_config, None).fit().metrics
        assert metrics == {"sum": 1e6, "writable": False, "id": f"{number:05d}"}
    references = {plan._shared.handle(_chosen()).reference for _ in range(2)}
    assert len(references) == 1


def test_a_class_runs_as_a_trial(tmp_path):
    class Counts(Trainable):
        def setup(self, config, data):
            self.count = int(data[0])

        def step(self):
            self.count += 1
            return {"count": self.count, "done": self.count == 3}

    plan = planned(with_parameters(Counts, data=np.ones(10)))
    result = plan.trainer({}, RunConfig(name="trial_00000", storage_path=tmp_path), None).fit()
    assert result.metrics == {"count": 3, "done": True}


def _chosen():
    from paceline._core.choice import chosen

    return chosen()
