"""Runs of one's own: temporary files are looked for in a directory that only this test uses."""

import contextlib
import functools
import tempfile

import cloudpickle
import oracle
import pytest

from paceline.train import DataParallelTrainer
from paceline.train.driver.run_spec import RunEnvironment

cloudpickle.register_pickle_by_value(oracle)  # Workers cannot import the modules of a test.


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return path


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """What a function comes to when nothing happens, computed once for each."""

    @functools.cache
    def get(kind, function, steps=oracle.STEPS):
        result = oracle.trainer_of(kind, function, tmp_path_factory.mktemp("undisturbed"), steps).fit()
        return oracle.expected(result, steps)

    return get


@pytest.fixture
def survive(tmp_path, temporary, undisturbed, fault_table):
    """Trains with faults, and compares what it comes to with an undisturbed run of `clean`.

    Its block gets the run's path and the trial that is recorded; what fails there is no survival either.
    """

    @contextlib.contextmanager
    def survive(
        name,
        faults,
        function=oracle.small,
        *,
        kind=DataParallelTrainer,
        clean=oracle.small,
        steps=oracle.STEPS,
        clock=None,
        ranks=(0, 1),
        broken=False,
        **options,
    ):
        expected = undisturbed(kind, clean, steps)
        surroundings = oracle.Surroundings()
        with fault_table.trying(name) as trial:
            trainer = oracle.trainer_of(kind, function, tmp_path, steps, **options)
            if clock is not None:
                trainer = trainer.replace_arguments(environment=RunEnvironment(clock=clock))
            result = faults.applied_to(trainer).fit()
            lasting = [fault for fault in faults.all if getattr(fault, "times", 1) is None]
            assert set(faults.unfired(result.path)) <= set(lasting), str(faults)
            surroundings.assert_nothing_is_left()
            oracle.assert_same(result.path, expected, ranks=ranks, broken=broken)
            trial.seconds = oracle.worst_stand(result.path, faults)
            yield result.path, trial

    return survive
