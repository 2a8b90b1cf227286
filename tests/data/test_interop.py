"""Datasets of other libraries as ours, and what a trainer takes."""

import collections
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from made_datasets import block, pipeline
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from paceline.data.interop import as_dataset, from_huggingface, from_polars, from_tf, from_torch
from paceline.data.sources.shared_object import SharedObject


class Items(TorchDataset[Any]):
    """What a function makes of each index."""

    def __init__(self, num, make):
        self.num, self.make = num, make

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        if not 0 <= index < self.num:
            raise IndexError(index)
        return self.make(index)


Pair = collections.namedtuple("Pair", "x y")


def pair(index):
    return torch.full((2,), index**2, dtype=torch.float32), index


class Counting(IterableDataset[Any]):
    def __init__(self, num):
        self.num = num

    def __iter__(self):
        return iter({"n": number} for number in range(self.num))


@pytest.mark.parametrize("num", [0, 1, 17, 1000])
def test_items_of_a_torch_dataset_come_in_order_from_ranges(num):
    dataset = from_torch(Items(num, lambda index: index**2))
    assert [row["item"] for row in block(dataset).rows()] == [number**2 for number in range(num)]
    assert pipeline(dataset).num_rows == num
    assert len(pipeline(dataset).tasks) == min(num, 16)


def test_items_that_are_tensors_are_one_tensor_and_tuples_stay_in_one_column():
    dataset = from_torch(Items(10, lambda index: pair(index)[0]), override_num_blocks=2)
    ranges = ["items 0 to 4", "items 5 to 9"]
    assert [task.unit.name for task in pipeline(dataset).tasks] == [f"from_torch(Items) ({each})" for each in ranges]
    items = block(dataset).columns["item"]
    assert (items.shape, items.dtype) == ((10, 2), np.float32)
    items = block(from_torch(Items(3, pair))).columns["item"]
    assert [label for _, label in items] == [0, 1, 2]
    assert isinstance(items[0][0], torch.Tensor)


@pytest.mark.parametrize("make", [pair, lambda i: Pair(*pair(i)), lambda i: Pair(*pair(i))._asdict()])
def test_for_a_trainer_what_items_are_made_of_becomes_columns(make):
    found = block(as_dataset(Items(5, make)))
    names = ["item_0", "item_1"] if make is pair else ["x", "y"]
    assert list(found.columns) == names
    assert found.columns[names[0]].shape == (5, 2)
    assert found.columns[names[1]].tolist() == [0, 1, 2, 3, 4]


def test_an_iterable_dataset_is_one_unit_of_unknown_length():
    dataset = as_dataset(Counting(150))
    (task,) = pipeline(dataset).tasks
    assert task.unit.num_rows is None
    assert block(dataset).columns["n"].tolist() == [*range(150)]
    assert block(from_torch(Counting(2))).columns["item"].to_pylist() == [{"n": 0}, {"n": 1}]
    assert block(from_torch(Counting(0))).num_rows == 0


def test_items_are_fetched_many_at_once_and_one_that_fails_is_named():
    class Batched(Items):
        def __getitems__(self, indices):
            return [("batched", index) for index in indices]

    assert block(as_dataset(Batched(5, pair))).columns["item_0"].to_pylist() == ["batched"] * 5
    with pytest.raises(IndexError) as caught:
        block(from_torch(Items(5, lambda index: [1, 2, 3][index])))
    assert caught.value.__notes__ == ["item 3 of the torch dataset Items"]
    with pytest.raises(ValueError, match="equally many parts to be columns, got 1 and 2"):
        block(as_dataset(Items(40, lambda index: (1,) * (1 + index % 2))))


def test_what_cannot_be_pickled_or_is_no_torch_dataset_is_refused_at_once_by_name():
    class Unsized(TorchDataset[int]):
        def __getitem__(self, index):
            return index

    locked = Items(3, threading.Lock().acquire)
    with pytest.raises(TypeError, match=r"cannot pickle the torch dataset Items(.|\n)*lock(.|\n)*hint: "):
        from_torch(locked)
    with pytest.raises(TypeError, match=r"datasets\['train'\]: cannot pickle the torch dataset Items"):
        as_dataset(locked, "datasets['train']")
    with pytest.raises(TypeError, match="Unsized has no __len__"):
        from_torch(Unsized())
    with pytest.raises(TypeError, match="int has no __getitem__"):
        from_torch(5)


def test_a_large_dataset_does_not_go_with_each_unit_and_is_loaded_once():
    tasks = pipeline(from_torch(TensorDataset(torch.arange(100_000)))).tasks
    sent = [cloudpickle.dumps(task.unit) for task in tasks]
    assert max(map(len, sent)) < 1000
    first, second = (cloudpickle.loads(unit) for unit in sent[:2])
    assert first.dataset.get() is second.dataset.get()
    assert next(int(item) for block in second.read() for (item,) in block.columns["item"]) == second.begin


def test_nothing_of_what_is_held_stays_when_it_is_dropped(data_context):
    held = SharedObject(bytes(1 << 20), "a megabyte")
    sent = cloudpickle.dumps(held)
    assert data_context.spill_path is not None
    assert list(Path(data_context.spill_path).iterdir()) == []
    assert cloudpickle.loads(sent).get() == bytes(1 << 20)
    assert held._location is not None
    descriptor = Path(f"/proc/self/fd/{held._location[1]}")
    assert descriptor.is_symlink()
    del held
    assert not descriptor.is_symlink()
    late = cloudpickle.loads(sent.replace(b"a megabyte", b"A MEGABYTE"))
    late._loaded = False
    with pytest.raises(RuntimeError, match=r"cannot fetch .*: process \d+, which holds it, has ended or dropped it"):
        late.get()
    for number in range(2):  # both may get the same place
        again = SharedObject(bytes([number]) * (1 << 17), "some bytes")
        assert cloudpickle.loads(cloudpickle.dumps(again)).get()[0] == number
        del again


def test_accepts_polars_frames_and_collects_lazy_ones_when_rows_are_read(tmp_path):
    frame = pl.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"], "c": [[1.0], [2.0, 3.0], []]})
    for found in (block(from_polars(frame)), block(from_polars(frame.lazy()))):
        assert found.to_arrow().to_pydict() == frame.to_dict(as_series=False)
    assert pipeline(from_polars(frame)).num_rows == 3
    frame.write_parquet(tmp_path / "a.parquet")
    dataset = as_dataset(pl.scan_parquet(tmp_path / "a.parquet").filter(pl.col("a") > 1))
    pl.DataFrame({"a": [4, 5]}).write_parquet(tmp_path / "a.parquet")
    assert block(dataset).columns["a"].to_pylist() == [4, 5]


TAKEN = {
    "pandas": pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
    "polars": pl.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
    "arrow": pa.table({"a": [1, 2], "b": ["x", "y"]}),
    "batch": pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", "y"]}),
    "rows": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
    "arrays": {"a": np.array([1, 2]), "b": np.array(["x", "y"])},
}


@pytest.mark.parametrize("value", TAKEN.values(), ids=TAKEN.keys())
def test_a_trainer_takes_frames_tables_arrays_and_rows(value):
    assert list(block(as_dataset(value)).rows()) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    np.testing.assert_array_equal(block(as_dataset(np.ones((3, 2)))).columns["data"], np.ones((3, 2)))
    assert block(as_dataset([1, 2])).columns["item"].tolist() == [1, 2]
    assert as_dataset(dataset := as_dataset(value)) is dataset


REFUSED = {
    "loader": (DataLoader(Items(3, pair)), r"a torch DataLoader has(.|\n)*hint: pass loader.dataset"),
    "path": ("train.parquet", r"must be a paceline.data.Dataset, .* got a str(.|\n)*read_parquet\('train"),
    "dict": ({"a": 1}, r"must be .* got a dict(.|\n)*hint: each value of a dict must be a numpy.ndarray"),
    "generator": (iter([1]), r"must be .* got a list_iterator(.|\n)*hint: use list"),
    "polars series": (pl.Series([1]), "must be .* got a polars.Series"),
    "lengths": ({"a": np.zeros(1), "b": np.zeros(2)}, ".*1 in 'a', 2 in 'b'"),
}


@pytest.mark.parametrize(("value", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_trainer_does_not_take_is_refused_with_what_it_does(value, message):
    with pytest.raises((TypeError, ValueError), match=rf"datasets\['train'\]: {message}"):
        as_dataset(value, "datasets['train']")


def test_no_library_is_imported_to_look_at_a_value(run_script):
    ended = run_script(
        "import sys\n"
        "from paceline.data import as_dataset\n"
        "as_dataset([{'a': 1}])\n"
        "names = ('torch', 'tensorflow', 'datasets', 'ray', 'polars', 'pandas')\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    assert ended.stdout == "[]\n", ended.stderr


@pytest.fixture(scope="module")
def tf():
    # Not in the test: it sets variables of the environment when it is imported.
    return pytest.importorskip("tensorflow")


def test_accepts_a_dataset_of_tensorflow(tf):
    dataset = tf.data.Dataset.from_tensor_slices({"x": np.arange(6).reshape(3, 2), "y": ["a", "b", "c"]})
    for ours in (from_tf(dataset), as_dataset(dataset)):
        found = block(ours)
        np.testing.assert_array_equal(found.columns["x"], np.arange(6).reshape(3, 2))
        assert found.columns["y"].to_pylist() == [b"a", b"b", b"c"]
    pairs = block(as_dataset(tf.data.Dataset.from_tensor_slices((np.arange(3), np.arange(3) * 2))))
    assert pairs.columns["item_1"].tolist() == [0, 2, 4]
    assert block(from_tf(tf.data.Dataset.range(100))).columns["item"].tolist() == [*range(100)]
    with pytest.raises(TypeError, match=r"must be a tf\.data\.Dataset, got a list"):
        from_tf([])


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets", reason="datasets is not installed: from_huggingface was not checked")


def test_hugging_face_tables_are_read_in_ranges_and_streams_as_a_whole(datasets):
    rows = {"text": [f"t{number}" for number in range(2500)], "n": [*range(2500)]}
    dataset = datasets.Dataset.from_dict(rows)
    for indexed in (from_huggingface(dataset), as_dataset(dataset)):
        assert len(pipeline(indexed).tasks) == 16
        assert pipeline(indexed).num_rows == 2500
        assert block(indexed).to_arrow().to_pydict() == rows
    stream = dataset.to_iterable_dataset(num_shards=4)
    for streaming in (from_huggingface(stream), as_dataset(stream)):
        assert [task.unit.num_rows for task in pipeline(streaming).tasks] == [None]
        assert block(streaming).to_arrow().to_pydict() == rows


def test_a_dataset_of_hugging_face_keeps_its_order_its_arrays_and_what_was_mapped(datasets):
    features = datasets.Features({"n": datasets.Value("int64"), "x": datasets.Array2D((2, 2), "float32")})
    rows = {"n": [*range(100)], "x": [np.eye(2) * number for number in range(100)]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    chosen, shuffled = dataset.select([5, 3, 8]), dataset.shuffle(seed=1)
    assert block(from_huggingface(chosen)).to_arrow()["n"].to_pylist() == [5, 3, 8]
    assert block(from_huggingface(shuffled)).to_arrow()["n"].to_pylist() == list(shuffled["n"])
    mapped = from_huggingface(dataset.to_iterable_dataset().map(lambda row: {"twice": row["n"] * 2}))
    assert block(mapped).to_arrow()["twice"].to_pylist() == [*range(0, 200, 2)]
    np.testing.assert_array_equal(from_huggingface(dataset).take_batch(100)["x"], np.stack(rows["x"]))


def test_what_would_be_passed_over_or_is_several_datasets_is_refused(datasets):
    dataset = datasets.Dataset.from_dict({"n": [1, 2]})
    with pytest.raises(ValueError, match=r"set_transform(.|\n)*hint: .*map_batches"):
        from_huggingface(dataset.with_transform(lambda batch: {"m": batch["n"]}))
    assert block(from_huggingface(dataset.with_format("numpy"))).to_arrow().to_pydict() == {"n": [1, 2]}
    splits = datasets.DatasetDict({"train": dataset, "test": dataset})
    for take in (from_huggingface, as_dataset):
        with pytest.raises(TypeError, match=r"the splits 'train', 'test'(.|\n)*from_huggingface\(dataset\['train'\]\)"):
            take(splits)
    with pytest.raises(TypeError, match=r"must be a datasets\.Dataset or"):
        from_huggingface(5)
