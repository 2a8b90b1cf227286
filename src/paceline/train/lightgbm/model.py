"""LightGBM's model: its checkpoint, the callback that reports it, its predictor, and how a worker trains one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from paceline.train.lightgbm.config import get_network_params
from paceline.train.trees.predictor import TreePredictor
from paceline.train.trees.reports import ModelCheckpoint, TreeReportCallback
from paceline.train.trees.tables import Categories, FeatureTable
from paceline.train.trees.training_spec import TRAIN, BoostingLibrary, BoostingSpec

if TYPE_CHECKING:
    import lightgbm


class LightGBMCheckpoint(ModelCheckpoint):
    """A checkpoint with one file, `model.txt`, for `lightgbm.Booster(model_file=...)`.

    train.report(metrics, checkpoint=LightGBMCheckpoint.from_model(booster))
    booster = LightGBMCheckpoint(result.checkpoint.path).get_model()
    """

    MODEL_FILENAME: ClassVar[str] = "model.txt"

    def get_model(self) -> lightgbm.Booster:
        """Load the booster."""
        return super().get_model()

    @staticmethod
    def _write(booster: Any, file: Path) -> None:
        # All rounds during training; after early stopping, those up to the best.
        booster.save_model(str(file))

    @staticmethod
    def _read(file: Path) -> lightgbm.Booster:
        import lightgbm

        return lightgbm.Booster(model_file=str(file))


class ReportCallback(TreeReportCallback):
    """A callback for `lightgbm.train`. Use it on every rank.

        lightgbm.train(params, dataset, valid_sets=[...], callbacks=[ReportCallback(frequency=10)])

    `metrics`: a name such as `"valid-auc"`, a list of names, or a dict from reported name to LightGBM's name; None
    reports all. Every `frequency` rounds, and at the end with `checkpoint_at_end`, the report includes the model as the
    file `filename`. `results_postprocessing_fn` takes the metrics and returns those to report.

    LightGBM calls its callbacks after the last round, but not if another callback stops training early; see
    `training_ended`.
    """

    checkpoint_class = LightGBMCheckpoint
    CHECKPOINT_NAME = LightGBMCheckpoint.MODEL_FILENAME

    # After the callbacks that record and print, before early stopping, which ends the round.
    order = 25
    before_iteration = False

    def __call__(self, env: Any) -> None:
        """Called by LightGBM after each round."""
        num_rounds = env.iteration + 1
        metrics = collect_metrics(env.evaluation_result_list or ())
        self._report_round(env.model, num_rounds, metrics, last=num_rounds == env.end_iteration)

    def training_ended(self, model: lightgbm.Booster) -> None:
        """Report the returned model, up to its best round, if training stopped early; otherwise do nothing.

        For code that uses early stopping; all ranks must call it.
        """
        self._report_end(model, model.current_iteration())


RayTrainReportCallback = ReportCallback


def collect_metrics(results: Iterable[Any]) -> dict[str, float]:
    """Return the metrics of a round, named `set-metric`; for cross-validation, their mean and standard deviation."""
    metrics: dict[str, float] = {}
    for name, metric, value, _, *deviation in results:
        if deviation and deviation[0] is not None:
            metrics[f"{name}-{metric}-mean"] = float(value)
            metrics[f"{name}-{metric}-stdv"] = float(deviation[0])
        else:
            metrics[f"{name}-{metric}"] = float(value)
    return metrics


def normalize_pandas_for_lightgbm(df: Any) -> Any:
    """Return the frame with columns that LightGBM reads: numbers and booleans of NumPy, and categories.

    Columns of pandas' nullable types and of Arrow become NumPy's; a missing value becomes nan.
    """
    import pandas

    def convert(column: Any) -> Any:
        dtype = column.dtype
        if not pandas.api.types.is_extension_array_dtype(dtype) or isinstance(dtype, pandas.CategoricalDtype):
            return column
        if isinstance(dtype, pandas.ArrowDtype) and str(dtype).startswith("dictionary"):
            return pandas.Series(pandas.Categorical(column.astype(object)), index=column.index, name=column.name)
        if not pandas.api.types.is_numeric_dtype(dtype):  # A text or a time: LightGBM says that it is not a number.
            return column
        if column.hasnans:
            return column.astype("float64")
        is_bool = pandas.api.types.is_bool_dtype(dtype)
        is_integer = pandas.api.types.is_integer_dtype(dtype)
        return column.astype("bool" if is_bool else "int64" if is_integer else "float64")

    return pandas.DataFrame({name: convert(df[name]) for name in df.columns}, index=df.index)


class LightGBMPredictor(TreePredictor):
    __doc__ = TreePredictor.__doc__
    callback_class = ReportCallback

    def _feature_names(self) -> list[str] | None:
        return list(self.model.feature_name())

    def _list_categories(self) -> Categories:
        return list_categories(self.model)

    def _predict_matrix(self, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # One thread, as there is a process per core; callers can override it.
        predicted: np.ndarray[Any, Any] = self.model.predict(matrix, **{"num_threads": 1, **self._predict_kwargs})
        return predicted


def list_categories(model: Any) -> Categories:
    """Return the categories of a model that was trained with a DataFrame."""
    categories = model.pandas_categorical or []
    features = model.feature_name()
    places = model.params.get("categorical_feature") or [] if categories else []
    return {features[place]: each for place, each in zip(places, categories, strict=True)}


_ADDRESSES = "workers choose their ports and exchange them; see LightGBMConfig"
_ROUNDS = "num_boost_round sets the number of rounds, also after a restart"

_CHOICES = {
    "tree_learner": ("tree_learner", "tree", "tree_type", "tree_learner_type"),
    "pre_partition": ("pre_partition", "is_pre_partition"),
    "time_out": ("time_out",),
    "num_threads": ("num_threads", "num_thread", "nthread", "nthreads", "n_jobs"),
}
"""Network parameters that the user may set, with all their aliases."""
_LEARNERS = ("data", "data_parallel", "voting", "voting_parallel")
"""Tree learners for which each worker has its own rows."""


class LightGBMLibrary(BoostingLibrary):
    name = "LightGBM"
    train_kwargs = ("callbacks", "feval")
    reserved_params: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("machines", "workers", "nodes"), _ADDRESSES),
        **dict.fromkeys(("machine_list_filename", "machine_list_file", "machine_list", "mlist"), _ADDRESSES),
        **dict.fromkeys(("num_machines", "num_machine", "local_listen_port", "local_port", "port"), _ADDRESSES),
        **dict.fromkeys(("num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees"), _ROUNDS),
        **dict.fromkeys(("num_round", "num_rounds", "nrounds", "num_boost_round", "n_estimators"), _ROUNDS),
        "max_iter": _ROUNDS,
    }
    allowed_values: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(_CHOICES["tree_learner"], _LEARNERS),
        **dict.fromkeys(_CHOICES["pre_partition"], (True,)),
    }
    callback_class = ReportCallback

    def num_rounds(self, model: Any) -> int:
        return int(model.current_iteration())

    def list_categories(self, model: Any) -> Categories:
        return list_categories(model)

    def train(self, spec: BoostingSpec, tables: Mapping[str, FeatureTable], num_rounds: int, model: Any | None) -> None:
        import lightgbm

        network = get_network_params()
        for name, spellings in _CHOICES.items():
            if any(spelling in spec.params for spelling in spellings):
                network.pop(name, None)
        sets: dict[str, Any] = {}
        for name, table in tables.items():
            sets[name] = lightgbm.Dataset(
                table.to_library(), label=table.labels, feature_name=list(table.names), reference=sets.get(TRAIN)
            )
        callbacks = self.list_callbacks(spec)
        booster = lightgbm.train(
            {**spec.params, **network},
            sets[TRAIN],
            num_boost_round=num_rounds,
            valid_sets=list(sets.values()),
            valid_names=list(sets),
            init_model=model,
            callbacks=callbacks,
            feval=spec.train_kwargs.get("feval"),
        )
        callbacks[-1].training_ended(booster)
