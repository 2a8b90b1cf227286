"""Files of NumPy as rows."""

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from read_back import block, pipeline

from paceline.data.read_media import read_numpy
from paceline.data.sources import numpy as source


def test_the_rows_of_an_array_are_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(12).reshape(3, 2, 2))
    np.save(tmp_path / "b.npy", np.arange(12, 16).reshape(1, 2, 2))
    found = block(read_numpy(tmp_path, include_paths=True))
    np.testing.assert_array_equal(found.columns["data"], np.arange(16).reshape(4, 2, 2))
    assert found.columns["path"].to_pylist() == [str(tmp_path / "a.npy")] * 3 + [str(tmp_path / "b.npy")]


def test_the_arrays_of_an_archive_are_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(6).reshape(3, 2), y=np.array([1.5, 2.5, 3.5]))
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros((1, 2), int), y=np.array([0.5]))
    found = block(read_numpy(tmp_path))
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


def broken(path: Path, how: str) -> None:
    np.save(path, np.arange(100.0))
    match how:
        case "empty":
            path.write_bytes(b"")
        case "other":
            path.write_bytes(b"no array at all, but longer than a header would be")
        case "truncated":
            path.write_bytes(path.read_bytes()[:-10])
        case "header":
            path.write_bytes(path.read_bytes()[:20])
        case "objects":
            np.save(path, np.array([{"a": 1}, None], dtype=object))
        case "single":
            np.save(path, np.float64(3))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("empty", ""),
        ("other", ""),
        ("truncated", "it has 918 bytes and should have 928: it was cut off"),
        ("header", ""),
        ("objects", "Python objects"),
        ("single", "single value"),
    ],
)
def test_a_broken_array_is_named(tmp_path: Path, how: str, message: str) -> None:
    np.save(tmp_path / "a.npy", np.arange(3.0))
    broken(tmp_path / "b.npy", how)
    with pytest.raises(ValueError, match=rf"b\.npy cannot be read as a NumPy array: .*{message}"):
        block(read_numpy(tmp_path))


def test_a_broken_archive_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(100))
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"a\.npz cannot be read as a NumPy array"):
        block(read_numpy(tmp_path))


def test_an_archive_with_columns_of_different_lengths_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(2))
    with pytest.raises(ValueError, match=r"a\.npz cannot be read.*'x' has 3, 'y' has 2"):
        block(read_numpy(tmp_path))


def test_arrays_of_different_shapes_are_ragged(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 2)))
    np.save(tmp_path / "b.npy", np.zeros((1, 3)))
    assert [row.shape for row in block(read_numpy(tmp_path)).columns["data"]] == [(2,), (3,)]
