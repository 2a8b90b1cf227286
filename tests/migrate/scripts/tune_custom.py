"""A searcher, a scheduler and a stopper of one's own, imported from the modules that define their bases."""

import pickle

from ray import tune
from ray.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler
from ray.tune.search.searcher import Searcher
from ray.tune.stopper.stopper import Stopper


class Counts(Searcher):
    def __init__(self, metric="loss", mode="min"):
        super().__init__(metric=metric, mode=mode)
        self.num_suggested, self.completed = 0, {}

    def suggest(self, trial_id):
        if self.num_suggested == 3:
            return Searcher.FINISHED
        self.num_suggested += 1
        return {"x": self.num_suggested}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.completed[trial_id] = result

    def save(self, checkpoint_path):
        with open(checkpoint_path, "wb") as file:
            pickle.dump(self.num_suggested, file)

    def restore(self, checkpoint_path):
        with open(checkpoint_path, "rb") as file:
            self.num_suggested = pickle.load(file)


class StopsAtTwo(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        return TrialScheduler.STOP if result["training_iteration"] >= 2 else TrialScheduler.CONTINUE


class Never(Stopper):
    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return False


def objective(config):
    for step in range(5):
        tune.report({"loss": config["x"] * step})


searcher = Counts()
results = tune.Tuner(
    objective,
    param_space={"y": 1},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=10, search_alg=searcher, scheduler=StopsAtTwo()),
    run_config=tune.RunConfig(stop=Never()),
).fit()
assert [result.metrics["training_iteration"] for result in results] == [2, 2, 2]
assert len(searcher.completed) == 3
