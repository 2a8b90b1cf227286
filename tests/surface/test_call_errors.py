"""A wrong argument, or a name that only Ray has, is answered with what there is. Right calls are left alone."""

import copy
import importlib
import inspect
import pickle
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from paceline import air, data, train, tune
from paceline._core import call_errors
from paceline.train.torch import TorchTrainer
from paceline.tune import stopper

DATASET = data.range(3)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: tune.TuneConfig(num_sample=3), "TuneConfig() has no argument 'num_sample'; it has metric, mode, "),
        (lambda: tune.TuneConfig(num_sample=3), "\n\nhint: did you mean num_samples?"),
        (lambda: TorchTrainer(train_fn=print), "hint: did you mean train_loop_per_worker?"),
        (lambda: TorchTrainer(print, {}, {}), "hint: TorchTrainer() has the arguments train_loop_per_worker, torch"),
        (lambda: DATASET.map_batches(print, batchsize=1), "Dataset.map_batches() has no argument 'batchsize'; it has"),
        (lambda: DATASET.iter_batches(batch_siz=1), "Dataset.iter_batches() has no argument 'batch_siz'"),
        (lambda: DATASET.write_lance("x", table_id=1), "the path of the dataset"),
        (lambda: DATASET.groupby("id").map_groups(print, batch_fmt=1), "did you mean batch_format?"),
        (lambda: data.range(3, parallelsm=2), "did you mean parallelism?"),
        (lambda: tune.choice(catgories=[1]), "did you mean categories?"),
        (lambda: air.RunConfig(storage_pth="x"), "did you mean storage_path?"),
        (lambda: stopper.TimeoutStopper(timout=3), "did you mean timeout?"),
        (lambda: train.Checkpoint.from_directory(pth="x"), "Checkpoint.from_directory() has no argument 'pth'"),
    ],
)
def test_an_unknown_argument_says_what_there_is(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(TypeError) as raised:
        call()
    assert told in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_an_error_from_inside_is_left_alone() -> None:
    def fail(error: Exception, *, arg: int = 0) -> None:
        raise error from KeyError("cause")

    for error in (TypeError("unsupported operand"), ModuleNotFoundError("no pandas", name="pandas")):
        with pytest.raises(type(error)) as raised:
            call_errors._wrap(fail)(error)
        assert raised.value is error
        assert isinstance(error.__cause__, KeyError)
    with pytest.raises(TypeError, match="'float' object cannot be interpreted"):
        call_errors._wrap(lambda stop: range(stop))(1.5)


def test_explained_classes_and_functions_stay_what_they_are() -> None:
    class Mine(TorchTrainer):
        def __init__(self, extra: int, **arguments: Any) -> None:
            super().__init__(print, **arguments)

    with pytest.raises(TypeError, match=r"TorchTrainer\(\) has no argument 'run_confg'"):
        Mine(1, run_confg={})
    config = tune.TuneConfig(num_samples=2)
    for value in (config, data.read_csv, data.Dataset.map_batches, tune.TuneConfig):
        assert pickle.loads(pickle.dumps(value)) == value
        assert cloudpickle.loads(cloudpickle.dumps(value)) == value
    assert copy.copy(config) == config
    assert [*inspect.signature(tune.TuneConfig).parameters][:2] == ["metric", "mode"]
    assert "categories" in inspect.signature(tune.choice).parameters
    assert train.report is sys.modules["paceline.train.session"].report
    assert train.report not in call_errors._explained, "it is called at every step"


@pytest.mark.parametrize(
    ("line", "kind", "told"),
    [
        ("from paceline.data import read_kafka", ImportError, "ray.data.read_kafka is not in Paceline: `read_sql` or"),
        ("import paceline.data; paceline.data.read_kafka", AttributeError, "not in Paceline: `read_sql` or"),
        ("from paceline.data.expressions import AliasExpr", ImportError, "made by functions and operators"),
        ("from paceline.tune import TorchTrainer", ImportError, "TorchTrainer is in paceline.train.torch"),
        ("from paceline.tune import TuneConfg", ImportError, "did you mean TuneConfig?"),
        ("from paceline.train.horovod import HorovodTrainer", ImportError, "use `TorchTrainer` or `TensorflowTrainer`"),
        ("from paceline.train.callbacks import TorchTensorboardProfilerCallback", ImportError, "`paceline profile "),
        ("from paceline.train.trainer import TrainingIterator", ImportError, "`Trainer.run_iterator()` returns"),
        ("from paceline.train import Trainer; Trainer().to_worker_group", AttributeError, "`run()` calls functions"),
        ("from paceline.train.huggingface import HuggingFaceTrainer", ImportError, "`prepare_trainer` of"),
        ("from paceline.train.sklearn import SklearnTrainer", ModuleNotFoundError, "fit the estimator in the function"),
        ("import paceline.train._internal.session", ModuleNotFoundError, "_internal is not in Paceline: private"),
        ("from paceline.air._internal import mlflow", ModuleNotFoundError, "import the public name instead"),
        ("from paceline.data import DatasetPipeline", ImportError, "iterate over it once per epoch"),
        ("import paceline.data; paceline.data.range(3).window", AttributeError, "streams by itself, with bounded"),
        ("import paceline.data; paceline.data.range(3).repeat", AttributeError, "iterate over the dataset once per"),
        ("import paceline.rllib", ModuleNotFoundError, "keep `import ray.rllib`"),
        ("import paceline; paceline.remote", AttributeError, "keep `import ray` and `ray.remote`"),
        ("import paceline.data; paceline.data.range(3).write_bigquery", AttributeError, "write Parquet, or see"),
        ("import paceline.data; paceline.data.FileShuffleConfig().get_seed", AttributeError, "this differs from Ray: "),
    ],
)
def test_a_name_that_only_ray_has_says_what_to_use(line: str, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind) as raised:
        exec(line, {})
    assert type(raised.value) is kind
    assert told in str(raised.value)


def test_names_of_a_module_of_ray_are_found_in_the_package_above() -> None:
    from paceline.air.integrations.mlflow import MLflowLoggerCallback  # type: ignore[import-not-found]

    from paceline.tune.experiment import Trial

    assert Trial is tune.Trial
    assert MLflowLoggerCallback is importlib.import_module("paceline.train.loggers").MLflowLoggerCallback
    assert importlib.import_module("paceline.train.constants").TRAIN_DATASET_KEY == train.TRAIN_DATASET_KEY
    assert not hasattr(data, "read_kafka")
    assert not hasattr(tune, "__path_of_nothing__")


def test_the_base_classes_of_older_versions_of_ray_are_those_of_ours() -> None:
    for module in ("base_trainer", "trainer"):
        base = importlib.import_module(f"paceline.train.{module}").BaseTrainer
        assert isinstance(TorchTrainer(print), base)
        assert isinstance(train.Trainer(num_workers=1), base)
    assert importlib.import_module("paceline.train.base_trainer").TrainingFailedError is train.TrainingFailedError
    assert issubclass(train.TrainingFailedError, importlib.import_module("paceline.train.error").RayTrainError)
    with pytest.raises(TypeError, match=r"Mine.training_loop would never be called[^$]*hint: pass the function as"):
        type("Mine", (train.BaseTrainer,), {"training_loop": print})


def test_calls_that_ray_takes_are_taken_here() -> None:
    assert tune.RunConfig(verbose=False).verbose == 0
    assert tune.with_parameters(print).trainable is print
    assert "train_func" in inspect.signature(train.Trainer.run).parameters
    changed = data.DataContext.get_current().copy()
    changed.execution_options.resource_limits.cpu = 7
    assert data.DataContext.get_current().execution_options.resource_limits.cpu != 7
    searched = train.ScalingConfig(num_workers=tune.grid_search([1, 2]))
    with pytest.raises(ValueError, match=r"must have no domains outside of a search\n\nhint: use Tuner\(trainer"):
        train.DataParallelTrainer(print, scaling_config=searched)
