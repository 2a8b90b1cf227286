"""What each release wrote, and the command that looks at it."""

import shutil
from pathlib import Path

import pytest
from golden_runs import HERE, RELEASES

from paceline.cli import main


@pytest.fixture(params=RELEASES)
def golden(request, tmp_path):
    """A copy of what a release wrote: nothing here may change the folder itself."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "runs"))


@pytest.fixture
def paceline(capfd):
    """Calls the command in this process: its exit code, and what it printed."""

    def paceline(*arguments):
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return paceline
