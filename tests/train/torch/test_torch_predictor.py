"""TorchPredictor: a checkpoint over a dataset, in processes that load it once, in order, with the columns asked for."""

import os

import numpy as np
import pytest
import torch
from torch import nn

import paceline.data
from paceline.train import Checkpoint
from paceline.train.torch import ShardedCheckpoint, TorchCheckpoint, TorchPredictor


def net(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)).to(dtype)


def expected(x, dtype=torch.float32):
    with torch.inference_mode():
        return net(dtype=dtype).eval()(torch.as_tensor(x, dtype=dtype)).float().numpy()


X = np.random.default_rng(0).normal(size=(6, 2))
BATCH = {"id": np.arange(6), "a": X[:, 0], "b": X[:, 1], "x": X}


@pytest.mark.parametrize("kind", ["model.pt", "shards", "state"])
def test_weights_come_from_any_kind_of_checkpoint(tmp_path, kind):
    if kind == "model.pt":
        checkpoint = TorchCheckpoint.from_model(net())
    elif kind == "shards":
        checkpoint = Checkpoint(ShardedCheckpoint.from_state({"model": net()}).to_directory(tmp_path / "shards"))
    else:
        checkpoint = Checkpoint(Checkpoint.from_dict({"model": net().state_dict()}).to_directory(tmp_path / "state"))
    predictor = TorchPredictor(checkpoint, lambda: net(1), feature_columns="x")
    np.testing.assert_array_equal(predictor.predict(BATCH)["predictions"], expected(X))


def test_columns_are_taken_and_kept_as_asked():
    def columns(**options):
        return TorchPredictor(None, net(), **options)(BATCH)

    assert list(columns(feature_columns="x")) == ["id", "a", "b", "x", "predictions"]
    assert list(columns(feature_columns="x", keep_columns=False)) == ["predictions"]
    found = columns(feature_columns=["a", "b"], keep_columns=["id"], output_column="score")
    assert list(found) == ["id", "score"]
    np.testing.assert_array_equal(found["score"], expected(X))
    np.testing.assert_array_equal(found["id"], BATCH["id"])
    alone = TorchPredictor(None, net())({"x": X})
    np.testing.assert_array_equal(alone["predictions"], expected(X))


def test_a_subclass_may_make_its_own_inputs_and_call_and_several_outputs_are_several_columns():
    class Scaled(TorchPredictor):
        def inputs(self, batch):
            return {"x": self.tensor(batch["x"]), "scale": 2.0}

        def call_model(self, inputs):
            assert torch.is_inference_mode_enabled()
            scaled = self.model(inputs["x"]) * inputs["scale"]
            return {"scaled": scaled, "both": scaled[:, None]} if self.named else (scaled, scaled[:, None])

    for named, columns in ((True, ["scaled", "both"]), (False, ["predictions_0", "predictions_1"])):
        Scaled.named = named
        predicted = Scaled(None, net()).predict(BATCH)
        np.testing.assert_array_equal(predicted[columns[0]], 2 * expected(X))
        assert (list(predicted), predicted[columns[1]].shape) == (columns, (6, 1))


def test_precision_and_types():
    low = TorchPredictor(None, net(), feature_columns="x", precision="bf16").predict(BATCH)["predictions"]
    assert low.dtype == np.float32
    np.testing.assert_allclose(low, expected(X), atol=0.05)
    assert not np.array_equal(low, expected(X))
    half = TorchPredictor(None, net(dtype=torch.bfloat16), feature_columns="x").predict(BATCH)["predictions"]
    np.testing.assert_array_equal(half, expected(X, torch.bfloat16))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TorchPredictor(None, net)(BATCH), "cannot choose the model's inputs"),
        (lambda: TorchPredictor(None, net, feature_columns="y")(BATCH), "unknown column 'y'"),
        (lambda: TorchPredictor(None, net, keep_columns="id"), "must be True, False or a list"),
        (lambda: TorchPredictor(None, lambda: 3), "model must be or return a torch.nn.Module, got int"),
        (lambda: TorchPredictor(None, net, precision="int8"), "precision must be 'bf16', 'fp16' or None, got 'int8'"),
        (lambda: TorchPredictor(None, nn.Flatten(0), feature_columns="x")(BATCH), "for a batch of 6 rows"),
    ],
)
def test_what_cannot_work_is_told(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_checkpoint_without_a_model_is_told_with_what_it_holds(tmp_path):
    state = Checkpoint(Checkpoint.from_dict({"net": 1}).to_directory(tmp_path / "state"))
    with pytest.raises(ValueError, match="has no 'model'; the keys are 'net'"):
        TorchPredictor(state, net)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights.bin").touch()
    with pytest.raises(ValueError, match=r"has no model; its files are weights\.bin"):
        TorchPredictor(str(tmp_path / "other"), net)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_cannot_be_used():
    with pytest.raises(ValueError, match="this process has no GPU"):
        TorchPredictor(None, net, use_gpu=True)


def test_many_processes_load_once_each_and_keep_the_order(tmp_path, data_processes):
    made = tmp_path / "made"
    made.mkdir()

    def model():
        (made / f"{os.getpid()}-{len(list(made.iterdir()))}").touch()
        return net(1)

    x = np.random.default_rng(1).normal(size=(400, 2)).astype(np.float32)
    rows = paceline.data.from_items([{"id": number, "x": row} for number, row in enumerate(x)])
    rows.repartition(8).write_parquet(str(tmp_path / "rows"))
    options = {"checkpoint": TorchCheckpoint.from_model(net()), "model": model}
    options |= {"feature_columns": "x", "keep_columns": ["id"]}
    predicted = paceline.data.read_parquet(str(tmp_path / "rows")).map_batches(
        TorchPredictor, fn_constructor_kwargs=options, batch_size=16, concurrency=2
    )
    predicted.write_parquet(str(tmp_path / "out"), resume=True)
    found = paceline.data.read_parquet(str(tmp_path / "out")).take_all()
    assert [row["id"] for row in found] == list(range(400))
    np.testing.assert_allclose([row["predictions"] for row in found], expected(x), rtol=1e-5, atol=1e-6)
    pids = [path.name.partition("-")[0] for path in made.iterdir()]
    assert len(pids) == len(set(pids)) == 2
    assert str(os.getpid()) not in pids


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: a pool that predicts on one was not checked")
def test_a_pool_with_a_gpu_predicts_on_it(tmp_path, data_processes):
    rows = paceline.data.from_items([{"x": row} for row in X.astype(np.float32)])
    predicted = rows.map_batches(
        TorchPredictor,
        fn_constructor_kwargs={"checkpoint": None, "model": net, "use_gpu": True, "precision": "bf16"},
        num_gpus=1,
        concurrency=1,
    )
    np.testing.assert_allclose([row["predictions"] for row in predicted.take_all()], expected(X), atol=0.05)
