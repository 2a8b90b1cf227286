"""read_numpy: arrays and archives as rows, and large arrays in ranges."""

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from read_back import block, pipeline

from paceline.data.read_media import read_numpy
from paceline.data.sources import numpy as source


def test_rows_of_arrays_are_rows_and_arrays_of_archives_are_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(12).reshape(3, 2, 2))
    np.save(tmp_path / "b.npy", np.arange(12, 16).reshape(1, 2, 2))
    found = block(read_numpy(tmp_path, include_paths=True))
    np.testing.assert_array_equal(found.columns["data"], np.arange(16).reshape(4, 2, 2))
    assert found.columns["path"].to_pylist() == [str(tmp_path / "a.npy")] * 3 + [str(tmp_path / "b.npy")]
    np.savez(tmp_path / "a.npz", x=np.arange(6).reshape(3, 2), y=np.array([1.5, 2.5, 3.5]))
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros((1, 2), int), y=np.array([0.5]))
    found = block(read_numpy(str(tmp_path / "*.npz")))
    np.testing.assert_array_equal(found.columns["x"], [[0, 1], [2, 3], [4, 5], [0, 0]])
    assert found.columns["y"].tolist() == [1.5, 2.5, 3.5, 0.5]


@pytest.mark.parametrize("where", ["local", "remote"])
def test_a_large_array_is_read_in_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(source, "_UNIT_BYTES", 1000)
    monkeypatch.setattr(source, "_BLOCK_BYTES", 300)
    array = np.random.default_rng(0).random((50, 10))
    np.save(tmp_path / "a.npy", array)
    filesystem: Any = None
    path = str(tmp_path / "a.npy")
    if where == "remote":
        filesystem = fsspec.filesystem("memory")
        filesystem.pipe_file("/large/a.npy", Path(path).read_bytes())
        path = "/large/a.npy"
    dataset = read_numpy(path, filesystem=filesystem, include_paths=True)
    units = [task.unit for task in pipeline(dataset).tasks]
    assert [unit.num_rows for unit in units] == [12, 12, 12, 12, 2]
    assert units[1].name == "a.npy (rows 12 to 23)"
    found = block(dataset)
    np.testing.assert_array_equal(found.columns["data"], array)
    assert len(found.columns["path"]) == 50


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.zeros((3, 0)), np.asfortranarray(np.arange(6).reshape(2, 3))])
def test_unusual_arrays_are_read(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    np.save(tmp_path / "a.npy", array)
    found = block(read_numpy(tmp_path))
    assert found.num_rows == len(array)
    if len(array):
        np.testing.assert_array_equal(found.columns["data"], array)
        np.save(tmp_path / "b.npy", np.zeros((1, 7)))
        assert [row.shape for row in block(read_numpy(tmp_path)).columns["data"]][-1] == (7,), "shapes may differ"
