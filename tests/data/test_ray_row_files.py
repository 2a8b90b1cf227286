"""Files without a name for rows that wait: what is written comes back, and space is free again."""

import errno
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.block import Block
from paceline.data.exec.ray.ray_values import pack_for_ray, unpack_from_ray
from paceline.data.exec.ray.serving import row_files
from paceline.data.exec.ray.serving.row_files import ValueFiles


def num_open_files():
    return len(os.listdir("/proc/self/fd"))


def test_rows_come_back_as_they_were_and_the_directory_stays_empty(tmp_path):
    before = num_open_files()
    files = ValueFiles(tmp_path)
    block = Block({"id": np.arange(1000), "text": np.array([f"row {number}" for number in range(1000)])})
    runs = (True, np.arange(6, dtype=np.int32).reshape(2, 3))
    table = pa.table({"x": [1.5, None], "name": ["a", "b"]})
    numbers = [files.add(value) for value in ((runs, pack_for_ray(block)), table, table.slice(1), b"")]
    assert list(tmp_path.iterdir()) == []
    assert files.take(numbers[1]).equals(table)
    (in_runs, encoded), packed = files.take(numbers[0])
    assert (in_runs, encoded.tolist()) == (True, runs[1].tolist())
    rows = unpack_from_ray(packed)
    assert rows.columns["id"].tolist() == list(range(1000))
    assert list(rows.columns["text"]) == list(block.columns["text"])
    assert files.take(numbers[2]).to_pylist() == [{"x": None, "name": "b"}]
    assert files.num_bytes > 0
    assert files.take(numbers[3]) == b""
    assert files.num_bytes == 0
    files.add(table)
    files.close()
    assert num_open_files() == before


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=60), st.randoms(use_true_random=False))
def test_any_order_of_values_comes_back_and_few_files_hold_little_more_than_is_needed(actions, random):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "_FILE_BYTES", 4096)
        files, kept, largest = ValueFiles(row_files.Path(row_files.tempfile.gettempdir())), {}, 1
        for size, is_added in actions:
            if is_added or not kept:
                content = random.randbytes(size)
                kept[files.add(pa.py_buffer(content))] = content
                largest = max(largest, len(kept))
            elif random.random() < 0.2:
                number = random.choice(sorted(kept))
                del kept[number]
                files.discard(number)
            else:  # in order, as a worker takes them
                number = min(kept)
                assert files.take(number).to_pybytes() == kept.pop(number)
        assert len(files._files) <= largest
        for number, content in kept.items():
            assert files.take(number).to_pybytes() == content
        assert files.num_bytes == 0
        files.close()


def test_a_disk_that_is_full_leaves_the_values_before_and_room_for_later_ones(tmp_path, monkeypatch):
    files = ValueFiles(tmp_path)
    first = files.add(np.arange(1000))
    write, left = os.pwrite, [5000]

    def write_until_full(fd, data, offset):
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num = write(fd, data[: left[0]], offset)
        left[0] -= num
        return num

    monkeypatch.setattr(os, "pwrite", write_until_full)
    before = files.num_bytes
    with pytest.raises(OSError, match="No space left"):
        files.add(np.arange(1000))
    assert files.num_bytes == before
    assert os.fstat(files._files[0].fd).st_size == before
    monkeypatch.undo()
    second = files.add(np.arange(5))
    assert files.take(second).tolist() == [0, 1, 2, 3, 4]
    assert files.take(first).tolist() == list(range(1000))
