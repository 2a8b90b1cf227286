"""One training script gives the same result on every engine; `tests/cluster` has the rest."""

from collections import Counter

import cloudpickle
import program
import pytest


@pytest.fixture(autouse=True, scope="module")
def _functions_travel_by_value():
    """Workers cannot import the modules of a test."""
    cloudpickle.register_pickle_by_value(program)
    yield
    cloudpickle.unregister_pickle_by_value(program)


def test_a_script_that_fails_in_the_middle_comes_to_what_it_comes_to_undisturbed(tmp_path):
    files = program.written(tmp_path / "files")
    failed, again = (program.trained(tmp_path / name, files) for name in ("failed", "again"))
    undisturbed = program.trained(tmp_path / "whole", files, fails=False)

    for name, value in failed.items():
        assert again[name] == value, f"{name}: or a comparison of two engines would say nothing"
    assert failed["metrics"]["step"] == list(range(1, program.STEPS + 1))
    for name in ("metrics", "samples", "rows", "best", "files"):
        assert failed[name] == undisturbed[name], name
    assert failed["returned"] == {**undisturbed["returned"], "resumed": True}
    assert failed["exceptions"] == [{1: "RuntimeError('planned after report 6')"}]
    assert undisturbed["exceptions"] == []
    for name, num in (("samples", 2 * program.SAMPLES_EACH), ("rows", 2 * program.ROWS_EACH)):
        counts = Counter(number for batch in undisturbed[name] for number in batch)
        assert counts == dict.fromkeys(range(num), program.EPOCHS), name
    assert len(undisturbed["manifests"]) == 2
    kinds = {"worker_failed of rank 1", "checkpoint_verified"}
    assert failed["journal"].keys() - undisturbed["journal"].keys() == kinds
    assert {metrics["step"] for _, metrics in undisturbed["best"]} <= {*program.AS_DICT, *program.AS_FILES}
