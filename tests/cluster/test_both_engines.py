"""A program written once gives the same metrics, checkpoints and order of samples on both engines."""

import cloudpickle
import program
import pytest

cloudpickle.register_pickle_by_value(program)  # Workers cannot import the modules of a test.


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_program_comes_to_the_same_on_this_machine_and_on_a_cluster(tmp_path, capfd):
    files = program.written(tmp_path / "files")
    there = program.trained(tmp_path / "there", files)
    assert "2 workers on the Ray cluster at" in capfd.readouterr().err
    here = program.trained(tmp_path / "here", files, engine="local")
    assert "2 workers on this machine" in capfd.readouterr().err

    for name, value in here.items():
        assert there[name] == value, name
