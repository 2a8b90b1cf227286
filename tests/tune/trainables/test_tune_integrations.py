"""Other libraries in a trial, which report through callbacks of their own."""

import importlib
import importlib.util
from pathlib import Path

import pytest


def _skip_without(package):
    """Without importing it here: a trial does."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def train_lightgbm(config):
    import lightgbm
    import numpy as np

    from paceline.tune.integration.lightgbm import TuneReportCheckpointCallback

    x = np.arange(100.0)[:, None]
    dataset = lightgbm.Dataset(x, label=x[:, 0] % 2)
    params = {"objective": "binary", "metric": "auc", "verbosity": -1, "num_threads": 1, "num_leaves": 4}
    callback = TuneReportCheckpointCallback({"auc": "train-auc"}, frequency=2)
    lightgbm.train(params, dataset, config["rounds"], valid_sets=[dataset], valid_names=["train"], callbacks=[callback])


def train_xgboost(config):
    import numpy as np
    import xgboost

    from paceline.tune.integration.xgboost import TuneReportCheckpointCallback

    x = np.arange(100.0)[:, None]
    matrix = xgboost.DMatrix(x, label=x[:, 0] % 2, nthread=1)
    params = {"objective": "binary:logistic", "eval_metric": "auc", "nthread": 1, "max_depth": 2}
    callback = TuneReportCheckpointCallback({"auc": "train-auc"}, frequency=2)
    xgboost.train(params, matrix, config["rounds"], evals=[(matrix, "train")], callbacks=[callback], verbose_eval=False)


@pytest.mark.parametrize(
    ("package", "trial", "rounds"),
    [("lightgbm", train_lightgbm, 3), pytest.param("xgboost", train_xgboost, 4, marks=pytest.mark.slow)],
)
def test_trees_report_their_rounds_and_their_model(run_trial, package, trial, rounds):
    _skip_without(package)
    result = run_trial(trial, {"rounds": rounds})
    assert set(result.metrics or {}) >= {"auc"}
    assert len(result.metrics_dataframe) == rounds
    assert len(result.best_checkpoints or []) == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_lightning_reports_what_it_logged(run_trial):
    _skip_without("lightning")

    def trial(config):
        import lightning.pytorch as pl
        import torch

        from paceline import tune
        from paceline.tune.integration.pytorch_lightning import TuneCallback, TuneReportCheckpointCallback

        class Reports(TuneCallback):
            def _handle(self, trainer, pl_module):
                tune.report({"epoch": trainer.current_epoch, "model": type(pl_module).__name__})

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def training_step(self, batch, index):
                return self.layer(batch[0]).sum()

            def validation_step(self, batch, index):
                self.log("val_loss", torch.tensor(config["loss"]))
                self.log("other", torch.tensor(1.0))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 1)))
        callback = TuneReportCheckpointCallback({"loss": "val_loss"}, filename="model.ckpt")
        quiet = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"), False)
        trainer = pl.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback, Reports(on=["fit_end"])], **quiet)
        trainer.fit(Module(), loader, loader)

    result = run_trial(trial, {"loss": 0.5})
    assert result.metrics == {"epoch": 2, "model": "Module"}
    assert [*result.metrics_dataframe["loss"][:2]] == [0.5, 0.5]
    assert len(result.metrics_dataframe) == 3
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        assert [path.name for path in Path(directory).glob("*.ckpt")] == ["model.ckpt"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_keras_reports_its_logs_and_its_model(run_trial):
    _skip_without("tensorflow")

    def trial(config):
        import numpy as np
        import tensorflow as tf

        from paceline.tune.integration.keras import TuneReportCallback, TuneReportCheckpointCallback

        model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        x = np.arange(4.0)[:, None]
        callback = TuneReportCheckpointCallback({"mse": "loss"}, frequency=2)
        model.fit(x, x, epochs=3, callbacks=[callback], verbose=0)
        model.fit(x, x, epochs=1, callbacks=[TuneReportCallback("loss", on="train_end")], verbose=0)

    result = run_trial(trial, {})
    assert [*result.metrics_dataframe["mse"].notna()] == [True, True, True, False]
    assert set(result.metrics or {}) == {"loss"}
    assert [Path(checkpoint.path).name for checkpoint, _ in result.best_checkpoints] == ["checkpoint_000002"]


def test_the_hooks_of_a_lightning_callback_are_those_of_its_events(monkeypatch):
    monkeypatch.setenv("PACELINE_PREWARM", "0")
    tuned = importlib.import_module("paceline.train.lightning.report")

    class Handles(tuned.TuneCallbackMixin):
        def _handle(self, trainer, pl_module):
            trainer.append(pl_module)

    callback, handled = Handles(on=["train_end", "validation_end"]), []
    callback.on_train_end(handled, "a")
    callback.on_train_batch_end(handled, "b", None, None, 0)
    callback.on_validation_end(handled, pl_module="c")
    assert handled == ["a", "c"]
    with pytest.raises(ValueError, match=r"on must be one of fit_start, .*, got 'never'"):
        Handles(on="never")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "never"}, "on must be 'train_epoch_end' or 'validation_end', got 'never'"),
        ({"filename": "a/b"}, "filename must be a plain file name, got 'a/b'"),
        ({"metrics": 3}, "metrics must be a name, .*, got 3"),
    ],
)
def test_wrong_arguments_are_refused(monkeypatch, arguments, message):
    # Nothing is run here that would have to be imported ahead.
    monkeypatch.setenv("PACELINE_PREWARM", "0")
    tuned = importlib.import_module("paceline.train.lightning.report")
    with pytest.raises(ValueError, match=message):
        tuned.TuneReportCallbackMixin(**arguments)
