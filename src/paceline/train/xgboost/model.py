"""XGBoost's model: its checkpoint, the callback that reports it, its predictor, and how a worker trains one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.trees.predictor import TreePredictor
from paceline.train.trees.reports import ModelCheckpoint, TreeReportCallback
from paceline.train.trees.tables import Categories, FeatureTable
from paceline.train.trees.training_spec import TRAIN, BoostingLibrary, BoostingSpec

if TYPE_CHECKING:
    import xgboost


class XGBoostCheckpoint(ModelCheckpoint):
    """A checkpoint with one file, `model.ubj`, for `xgboost.Booster(model_file=...)`.

    train.report(metrics, checkpoint=XGBoostCheckpoint.from_model(booster))
    booster = XGBoostCheckpoint(result.checkpoint.path).get_model()
    """

    MODEL_FILENAME: ClassVar[str] = "model.ubj"

    def get_model(self) -> xgboost.Booster:
        """Load the booster."""
        return super().get_model()

    @staticmethod
    def _write(booster: Any, file: Path) -> None:
        # The suffix selects the format.
        booster.save_model(str(file))

    @staticmethod
    def _read(file: Path) -> xgboost.Booster:
        import xgboost

        booster = xgboost.Booster()
        booster.load_model(str(file))
        return booster


try:
    from xgboost.callback import TrainingCallback
except ImportError:
    # The class exists without XGBoost, like all our names; creating an instance raises with a hint.
    TrainingCallback = object


class ReportCallback(TreeReportCallback, TrainingCallback):  # type: ignore[misc]
    """A callback for `xgboost.train`. Use it on every rank.

        xgboost.train(params, matrix, evals=[...], callbacks=[ReportCallback(frequency=10)])

    `metrics`: a name such as `"valid-auc"`, a list of names, or a dict from reported name to XGBoost's name; None
    reports all. Every `frequency` rounds, and at the end with `checkpoint_at_end`, the report includes the model as the
    file `filename`, whose suffix `.ubj` or `.json` selects the format. `results_postprocessing_fn` takes the metrics
    and returns those to report.
    """

    requires = ("xgboost",)
    checkpoint_class = XGBoostCheckpoint
    CHECKPOINT_NAME = XGBoostCheckpoint.MODEL_FILENAME

    _evals_log: Mapping[str, Mapping[str, Any]] | None = None
    """The metrics of all rounds, to which XGBoost adds; None before the first round."""

    # XGBoost does not say which round is the last, so a round is reported when the next one or the end comes. By then
    # it has also recorded whether the round was the best, which early stopping does after other callbacks.

    def before_training(self, model: Any) -> Any:
        self._evals_log = None
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
        """Called by XGBoost before each round: reports the round before it. Returning False continues training."""
        self._report_last_round(model, last=False)
        self._evals_log = evals_log
        return False

    def after_training(self, model: Any) -> Any:
        """Called by XGBoost at the end, also after early stopping: reports the last round."""
        self._report_last_round(model, last=True)
        return model

    def _report_last_round(self, model: Any, *, last: bool) -> None:
        if self._evals_log is not None:
            # Not `epoch`, which restarts at 0 when training continues from a model.
            self._report_round(model, model.num_boosted_rounds(), collect_metrics(self._evals_log), last=last)


RayTrainReportCallback = ReportCallback


def collect_metrics(evals_log: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of the last round, named `set-metric`; for cross-validation, their mean and standard
    deviation."""
    metrics: dict[str, float] = {}
    for name, histories in evals_log.items():
        for metric, history in histories.items():
            newest = history[-1]
            if isinstance(newest, tuple):
                metrics[f"{name}-{metric}-mean"], metrics[f"{name}-{metric}-std"] = map(float, newest)
            else:
                metrics[f"{name}-{metric}"] = float(newest)
    return metrics


class XGBoostPredictor(TreePredictor):
    __doc__ = TreePredictor.__doc__
    callback_class = ReportCallback

    def _read(self, checkpoint: Checkpoint, filename: str | None) -> Any:
        model = super()._read(checkpoint, filename)
        # One thread, as there is a process per core.
        model.set_param({"nthread": 1})
        return model

    def _feature_names(self) -> list[str] | None:
        names = self.model.feature_names
        return list(names) if names else None

    def _list_categories(self) -> Categories:
        return list_categories(self.model)

    def _predict_matrix(self, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        import xgboost

        rows = xgboost.DMatrix(
            matrix,
            feature_names=self._feature_names(),
            feature_types=self.model.feature_types if self._codes else None,
            enable_categorical=bool(self._codes),
            nthread=1,
        )
        predicted: np.ndarray[Any, Any] = self.model.predict(rows, **self._predict_kwargs)
        return predicted


def list_categories(model: Any) -> Categories:
    """Return the categories of a model that was trained with a DataFrame."""
    if "c" not in (model.feature_types or ()) or not hasattr(model, "get_categories"):
        return {}
    found = model.get_categories(export_to_arrow=True).to_arrow()
    return {name: values.to_pylist() for name, values in found if values is not None}


class XGBoostLibrary(BoostingLibrary):
    name = "XGBoost"
    train_kwargs = ("callbacks", "custom_metric", "early_stopping_rounds", "maximize", "obj", "verbose_eval")
    reserved_params: ClassVar[Mapping[str, str]] = {
        "num_boost_round": "it is an argument of its own, which also holds after a restart"
    }
    callback_class = ReportCallback

    def num_rounds(self, model: Any) -> int:
        return int(model.num_boosted_rounds())

    def list_categories(self, model: Any) -> Categories:
        return list_categories(model)

    def train(self, spec: BoostingSpec, tables: Mapping[str, FeatureTable], num_rounds: int, model: Any | None) -> None:
        import xgboost

        context = worker_context.current()
        assert context is not None
        if tables[TRAIN].categories and not hasattr(xgboost.Booster, "get_categories"):
            raise RuntimeError(
                f"columns of categories need XGBoost 3.1, which stores them in the model; got {xgboost.__version__}"
            )
        num_threads = context.begin.num_threads
        matrices = {
            name: xgboost.DMatrix(
                table.to_library(),
                label=table.labels,
                feature_names=list(table.names),
                enable_categorical=bool(table.categories),
                nthread=num_threads,
            )
            for name, table in tables.items()
        }
        xgboost.train(
            make_params(spec.params, num_threads, context.begin.devices),
            matrices[TRAIN],
            num_boost_round=num_rounds,
            evals=[(matrix, name) for name, matrix in matrices.items()],
            xgb_model=model,
            **{**spec.train_kwargs, "callbacks": self.list_callbacks(spec)},
        )


def make_params(params: Mapping[str, Any], num_threads: int, devices: tuple[int, ...]) -> dict[str, Any]:
    """Add the threads and GPU of this worker to the user's parameters, unless the user has set them."""
    params = dict(params)
    if "nthread" not in params and "n_jobs" not in params:
        params["nthread"] = num_threads
    if devices and params.get("device", "cuda") == "cuda":
        params["device"] = f"cuda:{devices[0]}"
    return params
