"""Names of Ray 1.x and 2.0 that stand for something else here."""

import numpy as np
import pytest

from paceline import train
from paceline.data import from_items
from paceline.data.preprocessors import Concatenator
from paceline.train import Checkpoint, RunConfig
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.predictor import Predictor
from paceline.train.trainer import Trainer
from paceline.tune import Tuner, grid_search


class Scaled(Predictor):
    def __init__(self, checkpoint, **options):
        super().__init__(**options)
        self._factor = checkpoint.to_dict()["factor"]

    def call_model(self, inputs):
        return inputs.sum(axis=1) * self._factor


@pytest.mark.usefixtures("data_processes")
def test_a_batch_predictor_transforms_and_predicts_and_keeps_the_columns_that_are_named():
    checkpoint = Checkpoint.from_dict({"factor": 2})
    checkpoint.set_preprocessor(Concatenator(["a", "b"], output_column_name="both"))
    predictor = BatchPredictor.from_checkpoint(checkpoint, Scaled)
    rows = from_items([{"a": 1, "b": 2, "id": 7}, {"a": 3, "b": 4, "id": 8}])
    predicted = predictor.predict(rows, feature_columns="both", keep_columns=["id"])
    assert predicted.take_all() == [{"id": 7, "predictions": 6}, {"id": 8, "predictions": 14}]
    predictor.set_preprocessor(None)
    assert predictor.get_preprocessor() is None
    with pytest.raises(ValueError, match="checkpoint must be"):
        BatchPredictor("path", Scaled)


def test_a_checkpoint_of_ray_1_is_read_from_its_path(tmp_path):
    Checkpoint.from_dict({"w": np.arange(3)}).to_directory(tmp_path)
    assert Trainer.load_checkpoint_from_path(tmp_path)["w"].tolist() == [0, 1, 2]


def test_the_config_of_a_trial_is_that_of_the_function(tmp_path):
    def train_func(config):
        train.report({"loss": config["lr"] * config["scale"]})

    trainable = Trainer(num_workers=2).to_tune_trainable(train_func)
    config = RunConfig(name="search", storage_path=tmp_path)
    results = Tuner(trainable, param_space={"lr": grid_search([1, 2]), "scale": 3}, run_config=config).fit()
    assert sorted(result.metrics["loss"] for result in results) == [3, 6]
