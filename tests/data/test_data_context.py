"""Settings of datasets: known ones are set, Ray's others are accepted with a warning, and misspelt ones refused."""

import copy
import dataclasses
import pickle
import warnings

import pytest

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
