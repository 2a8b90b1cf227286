"""Runs a script as a user's: top to bottom, and hands back what it ends with."""

import os
import sys
import tempfile
import textwrap
import types

import pytest


@pytest.fixture
def seed(tmp_path, monkeypatch):
    """Runs a script in this process, where the workers' imports are warm; the names it has at its end are returned.

    It runs in a directory of its own, which is also where temporary files and the runs of trainers are kept.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_STORAGE_PATH", str(tmp_path / "results"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "temporary"))  # Else torch sets it itself.
    monkeypatch.setattr(tempfile, "tempdir", None)

    def run(source: str) -> types.SimpleNamespace:
        path = tmp_path / "seed_script.py"
        path.write_text(textwrap.dedent(source))
        module = types.ModuleType("seed_script")
        module.__file__ = os.fspath(path)
        # As `__main__` does, it travels by value: workers could not import it.
        assert "seed_script" not in sys.modules
        exec(compile(path.read_text(), path, "exec"), module.__dict__)
        return types.SimpleNamespace(**vars(module))

    return run
