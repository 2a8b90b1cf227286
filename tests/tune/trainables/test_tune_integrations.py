"""Other libraries in a trial, which report through callbacks of their own."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.train import Result

Run = Callable[..., Result]


def _skip_without(package: str) -> None:
    """Without importing it here: a trial does."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def test_lightgbm_reports_its_rounds_and_its_model(run_trial: Run) -> None:
    _skip_without("lightgbm")

    def trial(config: dict[str, Any]) -> None:
        import lightgbm
        import numpy as np

        from paceline.tune.integration.lightgbm import TuneReportCheckpointCallback

        x = np.arange(100.0)[:, None]
        dataset = lightgbm.Dataset(x, label=x[:, 0] % 2)
        params = {"objective": "binary", "metric": "auc", "verbosity": -1, "num_threads": 1, **config}
        callback = TuneReportCheckpointCallback({"auc": "train-auc"}, frequency=2)
        lightgbm.train(params, dataset, 3, valid_sets=[dataset], valid_names=["train"], callbacks=[callback])

    result = run_trial(trial, {"num_leaves": 4})
    assert set(result.metrics or {}) >= {"auc"}
    assert len(result.metrics_dataframe) == 3
    assert len(result.best_checkpoints or []) == 2


def test_xgboost_reports_its_rounds_and_its_model(run_trial: Run) -> None:
    _skip_without("xgboost")

    def trial(config: dict[str, Any]) -> None:
        import numpy as np
        import xgboost

        from paceline.tune.integration.xgboost import TuneReportCheckpointCallback

        x = np.arange(100.0)[:, None]
        matrix = xgboost.DMatrix(x, label=x[:, 0] % 2, nthread=1)
        params = {"objective": "binary:logistic", "eval_metric": "auc", "nthread": 1, **config}
        callback = TuneReportCheckpointCallback({"auc": "train-auc"}, frequency=2)
        xgboost.train(params, matrix, 4, evals=[(matrix, "train")], callbacks=[callback], verbose_eval=False)

    result = run_trial(trial, {"max_depth": 2})
    assert set(result.metrics or {}) >= {"auc"}
    assert len(result.metrics_dataframe) == 4
    assert len(result.best_checkpoints or []) == 2


@pytest.mark.timeout(120)
def test_lightning_reports_what_it_logged(run_trial: Run) -> None:
    _skip_without("lightning")

    def trial(config: dict[str, Any]) -> None:
        import lightning.pytorch as pl
        import torch

        from paceline.tune.integration.pytorch_lightning import TuneReportCheckpointCallback

        class Module(pl.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def training_step(self, batch: Any, index: int) -> Any:
                return self.layer(batch[0]).sum()

            def validation_step(self, batch: Any, index: int) -> None:
                self.log("val_loss", torch.tensor(config["loss"]))
                self.log("other", torch.tensor(1.0))

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 1)))
        trainer = pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            callbacks=[TuneReportCheckpointCallback({"loss": "val_loss"}, filename="model.ckpt")],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), loader, loader)

    result = run_trial(trial, {"loss": 0.5})
    assert result.metrics == {"loss": 0.5}
    assert len(result.metrics_dataframe) == 2
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        assert [path.name for path in Path(directory).glob("*.ckpt")] == ["model.ckpt"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"on": "never"}, "on='never' is none of"),
        ({"on": ["validation_end", "train_epoch_end"]}, "is none of"),
        ({"filename": "a/b"}, "filename='a/b' is not the name of a file"),
        ({"metrics": 3}, "metrics=3 is not a name"),
    ],
)
def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], told: str) -> None:
    # Nothing is run here that would have to be imported ahead.
    monkeypatch.setenv("PACELINE_PREWARM", "0")
    tuned = importlib.import_module("paceline.train.lightning.tuned")
    with pytest.raises(ValueError, match=told):
        tuned.TunedReporting(**arguments)
