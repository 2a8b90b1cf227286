"""Settings of datasets: which there are, what they refuse, resources as amounts, and who gets the context."""

import copy
import dataclasses
import math
import pickle
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import data, train
from paceline.data import DataContext, ExecutionOptions, ExecutionResources


def test_a_setting_that_does_not_exist_is_refused_with_the_nearest_name():
    context = DataContext()
    for target, name, nearest in (
        (context, "target_max_blocksize", "target_max_block_size"),
        (context, "use_push_based_shufle", "use_push_based_shuffle"),
        (context.execution_options, "resource_limit", "resource_limits"),
        (context.execution_options.resource_limits, "cpus", "cpu"),
    ):
        with pytest.raises(AttributeError, match=rf"has no setting '{name}'; the settings.*\n\nhint: .*'{nearest}'"):
            setattr(target, name, 1)
    assert context == DataContext()
    with pytest.raises(AttributeError, match="budget"):
        context.budget = 5


def test_a_setting_of_ray_that_means_nothing_here_warns_once_and_can_be_read(monkeypatch):
    monkeypatch.setattr("paceline.data.context._warned", set())
    with pytest.warns(UserWarning, match="DataContext.use_push_based_shuffle has no effect here"):
        DataContext().use_push_based_shuffle = True
    with pytest.warns(UserWarning, match="ExecutionOptions.verbose_progress has no effect here"):
        ExecutionOptions(verbose_progress=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        context = DataContext(ExecutionOptions(ExecutionResources(cpu=2), verbose_progress=False))
        context.use_push_based_shuffle = False
        assert context.use_push_based_shuffle is False
        context.target_max_block_size = 5
        for same in (copy.deepcopy(context), pickle.loads(pickle.dumps(context)), dataclasses.replace(context)):
            assert same == context


INF = math.inf
ONE, OTHER = ExecutionResources(1, 0, 100, 5), ExecutionResources(2, 1)


def amounts(resources):
    return tuple(resources.to_resource_dict().values())


@pytest.mark.parametrize(
    ("method", "expected"),  # computed with Ray 2.58
    [
        ("add", (3, 1, 100, 5)),
        ("subtract", (-1, -1, 100, 5)),
        ("max", (2, 1, 100, 5)),
        ("min", (1, 0, 0, 0)),
        ("floordiv", (0, 0, INF, INF)),
    ],
)
def test_resources_are_computed_as_in_ray(method, expected):
    assert amounts(getattr(ONE, method)(OTHER)) == expected


def test_resources_are_scaled_compared_and_shown():
    zero, inf = ExecutionResources.zero(), ExecutionResources.inf()
    assert amounts(ONE.scale(0.5)) == (0.5, 0, 50, 2)
    assert inf.scale(0) == zero
    assert ONE.subtract(ONE).is_zero()
    assert not ONE.subtract(OTHER).is_non_negative()
    assert ExecutionResources.combine_sum([]) == zero
    assert amounts(ExecutionResources.combine([ONE, OTHER, ONE], max)) == (2, 1, 100, 5)
    assert amounts(ExecutionResources.from_resource_dict({"CPU": 2, "memory": 7, "TPU": 1})) == (2, 0, 0, 7)
    assert ONE.copy(cpu=9) == ExecutionResources(9, 0, 100, 5)
    assert ONE.satisfies_limit(ExecutionResources.for_limits(cpu=1))
    assert ONE.satisfies_limit(ExecutionResources(object_store_memory=5), ignore_object_store_memory=True)
    assert not ONE.satisfies_limit(ExecutionResources(object_store_memory=5))
    shown = ExecutionResources(memory=1536, object_store_memory=5 << 40)
    assert (shown.memory_str(), shown.object_store_memory_str(), inf.memory_str()) == ("1.5KiB", "5.0TiB", "inf")


@given(*[st.builds(ExecutionResources, *[st.none() | st.integers(0, 1 << 40)] * 4)] * 2)
def test_the_larger_of_two_satisfies_no_smaller_limit(one, other):
    assert one.satisfies_limit(one.max(other))
    assert one.min(other).satisfies_limit(ExecutionResources.from_resource_dict(one.to_resource_dict()))
    assert one.add(other).subtract(other) == one.add(ExecutionResources.zero())


def test_limits_may_be_infinite_but_not_negative(monkeypatch):
    monkeypatch.setattr("paceline.data.context._warned", set())
    options = ExecutionOptions(ExecutionResources.for_limits(cpu=2))
    assert options.resource_limits == ExecutionResources(cpu=2)
    assert DataContext(options).budget > 0
    with pytest.raises(ValueError, match="resource_limits must be non-negative"):
        options.resource_limits = ONE.subtract(OTHER)
    with pytest.warns(UserWarning, match=r"ExecutionResources\.memory has no effect"):
        options.resource_limits = ExecutionResources(memory=5)


def test_output_is_turned_off_without_a_warning(monkeypatch):
    monkeypatch.setattr("paceline.data.context._warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        context = DataContext()
        context.enable_progress_bars = context.verbose_stats_logs = False
    with pytest.warns(UserWarning, match="enable_progress_bars has no effect"):
        context.enable_progress_bars = True


def test_a_context_is_current_within_its_block_and_keeps_values():
    before, other = DataContext.get_current(), DataContext()
    other.set_config("key", [1])
    with DataContext.current(other):
        assert DataContext.get_current().get_config("key") == [1]
    assert DataContext.get_current() is before
    copied = other.copy()
    copied.remove_config("key")
    copied.remove_config("key")
    assert (copied.get_config("key", 3), other.get_config("key")) == (3, [1])
    assert copied != other


def read_config(row):
    return {"value": DataContext.get_current().get_config("offset"), "inner": DataContext.in_data_process}


def test_data_processes_and_train_workers_have_the_context_of_their_driver(tmp_path):
    context = DataContext(inline_below=0)
    with DataContext.current(context):
        for value in (1, 2):
            context.set_config("offset", value)
            assert data.range(2).map(read_config).take_all() == [{"value": value, "inner": True}] * 2

        def train_fn():
            train.report(read_config({}))

        run_config = train.RunConfig(name="context", storage_path=str(tmp_path))
        trainer = train.DataParallelTrainer(train_fn, scaling_config={"num_workers": 2}, run_config=run_config)
        assert trainer.fit().metrics["value"] == 2
