"""A checkpoint as bytes, at an address, and by what it is made of."""

import io
import pickle
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest

from paceline.train import Checkpoint


@pytest.fixture(autouse=True)
def temporary_files_below_tmp_path(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def test_a_state_and_files_come_back_from_their_bytes(tmp_path):
    again = Checkpoint.from_bytes(Checkpoint.from_dict({"x": np.arange(3), "n": 1}).to_bytes())
    assert again.to_dict()["x"].tolist() == [0, 1, 2]
    assert again.holds_dict()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.bin").write_bytes(b"\0weights")
    again = Checkpoint.from_bytes(Checkpoint.from_directory(tmp_path).to_bytes())
    assert not again.holds_dict()
    with again.as_directory() as directory:
        assert Path(directory, "sub", "model.bin").read_bytes() == b"\0weights"


@pytest.mark.parametrize("name", ["../outside", "/outside"])
def test_bytes_cannot_write_outside_their_directory(name, tmp_path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        entry = tarfile.TarInfo(f"{tmp_path}{name}" if name.startswith("/") else name)
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    if name.startswith("/"):
        Checkpoint.from_bytes(data.getvalue())  # The leading slash is taken off: it stays inside.
    else:
        with pytest.raises(ValueError, match="must be the bytes of a checkpoint"):
            Checkpoint.from_bytes(data.getvalue())
    assert not (tmp_path / "outside").exists()


def test_a_pickle_is_not_the_bytes_of_a_checkpoint():
    class Harm:
        def __reduce__(self):
            return pytest.fail, ("it was unpickled",)

    with pytest.raises(ValueError, match="must be the bytes of a checkpoint"):
        Checkpoint.from_bytes(pickle.dumps(Harm()))
    with pytest.raises(TypeError, match="must be bytes from to_bytes"):
        Checkpoint.from_bytes("text")


def test_a_checkpoint_goes_to_an_address_and_comes_from_it(tmp_path):
    uri = (tmp_path / "there").as_uri()
    assert Checkpoint.from_dict({"x": 1}).to_uri(uri) == uri
    again = Checkpoint.from_uri(uri)
    assert again.to_dict() == {"x": 1}
    assert again.uri == uri


def test_what_it_is_made_of(tmp_path):
    assert Checkpoint.from_dict({"x": 1}).get_internal_representation() == ("dict", {"x": 1})
    assert Checkpoint.from_directory(tmp_path).get_internal_representation()[0] == "local_path"
    assert Checkpoint.from_dict({"x": 1}).uri is None
