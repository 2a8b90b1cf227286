"""JaxPredictor: a checkpoint applied to a dataset."""

import numpy as np
import pytest

import paceline.data
from paceline.train import Checkpoint
from paceline.train.jax import JaxPredictor, OrbaxCheckpoint

jax = pytest.importorskip("jax", reason="jax is not installed: JaxPredictor was not checked")
pytest.importorskip("orbax.checkpoint", reason="orbax is not installed: JaxPredictor was not checked")


def double(params, batch):
    return batch["id"] * params["factor"]


@pytest.mark.slow
def test_two_processes_apply_a_checkpoint_and_the_order_is_kept(data_processes):
    checkpoint = OrbaxCheckpoint.from_pytree({"model": {"params": {"factor": np.int32(2)}}, "step": 1})
    predicted = paceline.data.range(50).map_batches(
        JaxPredictor,
        fn_constructor_kwargs={"checkpoint": checkpoint, "apply": double, "params": "model/params"},
        batch_size=8,
        concurrency=2,
    )
    assert predicted.take_all() == [{"id": i, "predictions": 2 * i} for i in range(50)]


def test_a_batch_that_is_shorter_is_not_compiled_for_again():
    traced = []

    def apply(params, x):
        traced.append(x.shape)
        return {"sum": x.sum(axis=1) + params["b"], "x2": x * 2}

    checkpoint = Checkpoint.from_dict({"b": np.float32(1)})
    predictor = JaxPredictor.from_checkpoint(checkpoint, apply, feature_columns="x", keep_columns=["name"])
    names = np.array(["a", "b", "c", "d"], object)
    full_batch = predictor({"x": np.ones((4, 3), np.float32), "name": names})
    part = predictor({"x": np.ones((2, 3), np.float32), "name": names[:2]})
    assert traced == [(4, 3)]
    assert full_batch["sum"].tolist() == [4.0] * 4
    assert (part["sum"].tolist(), part["x2"].shape, part["name"].tolist()) == ([4.0] * 2, (2, 3), ["a", "b"])
    assert part.keys() == {"name", "sum", "x2"}


def test_what_does_not_fit_is_told_by_name():
    checkpoint = Checkpoint.from_dict({"w": np.ones(2)})
    rows = {"x": np.ones((2, 2), np.float32)}
    with pytest.raises(ValueError, match="params='a/b': the checkpoint has no 'a', only 'w'"):
        JaxPredictor(checkpoint, double, params="a/b")
    with pytest.raises(TypeError, match=r"checkpoint must be a paceline.train.Checkpoint.*, got 3"):
        JaxPredictor(3, double)
    with pytest.raises(TypeError, match="apply must be a function of the parameters and a batch, got None"):
        JaxPredictor(checkpoint, None)
    with pytest.raises(TypeError, match=r"cannot hold the column 'name' of type object[\s\S]*hint: name the columns"):
        JaxPredictor(checkpoint, double)({**rows, "name": np.array(["a", "b"], object)})
    with pytest.raises(ValueError, match=r"'predictions' has shape \(\) for a batch of 2 rows"):
        JaxPredictor(checkpoint, lambda params, batch: batch["x"].sum())(rows)
