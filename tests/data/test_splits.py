"""Splits partition the rows: none lost, none doubled, the same ones in every epoch, for all sizes."""

import ast
import math
import pickle
import threading
import time
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import READ, listed, numbers

from paceline.data.exec import streams

SIZES = range(41)
WORKERS = range(1, 5)


def ids(dataset, epoch=0):
    feeds = dataset._own_feeds()
    return [row["id"] for delivered in feeds.open(epoch, 0, 0) for row in delivered.block.rows()]


def numbered_dataset(size, *, counted=True):
    """So many rows, in units and blocks of several sizes."""
    first = size // 3
    return numbers([first // 2, first - first // 2], [0], [size - first], counted=counted)


@pytest.mark.parametrize("num", WORKERS)
def test_split_partitions_the_rows_of_every_size(num):
    for size in SIZES:
        parts = [ids(part) for part in numbered_dataset(size).split(num)]
        assert [*chain(*parts)] == [*range(size)]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        equal = [ids(part) for part in numbered_dataset(size).split(num, equal=True)]
        assert {len(part) for part in equal} == {size // num}
        assert [*chain(*equal)] == [*range(size - size % num)]
    for equal in (True, False):  # for all sizes, see `test_iterator_splits.py`
        shards = [[*shard.iter_rows()] for shard in numbered_dataset(11).streaming_split(num, equal=equal)]
        assert sum(map(len, shards)) == (11 - 11 % num if equal else 11)


@given(st.integers(0, 40), st.lists(st.integers(0, 50), min_size=1, max_size=4).map(sorted), st.booleans())
@settings(max_examples=60, deadline=None)
def test_split_at_indices_cuts_as_a_list_is_cut(size, indices, counted):
    rows = [*range(size)]
    parts = numbered_dataset(size, counted=counted).split_at_indices(indices)
    expected = [rows[a:b] for a, b in zip([0, *indices], [*indices, None], strict=True)]
    assert [ids(part) for part in parts] == expected
    assert [part.count() for part in parts] == [len(part) for part in expected]


@given(st.integers(0, 40), st.lists(st.integers(1, 30), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_split_proportionately_gives_each_its_part(size, hundredths):
    parts = numbered_dataset(size).split_proportionately([number / 100 for number in hundredths])
    found = [ids(part) for part in parts]
    assert [*chain(*found)] == [*range(size)]
    ends = np.cumsum(hundredths)
    assert [len(part) for part in found] == np.diff([0, *(ends * size // 100), size]).tolist()


@pytest.mark.parametrize("shuffle", [True, False])
def test_train_and_test_rows_are_all_rows_for_every_size(shuffle):
    for size in SIZES:
        for test_size in (0.1, 0.25, 0.29, 0.5, 0.9, 1, 7):
            dataset = numbered_dataset(size)
            if isinstance(test_size, int) and test_size >= size:
                with pytest.raises(ValueError, match="test_size must be less than the number of rows"):
                    dataset.train_test_split(test_size, shuffle=shuffle)
                continue
            train, test = map(ids, dataset.train_test_split(test_size, shuffle=shuffle, seed=3))
            assert sorted(train + test) == [*range(size)]
            expected = test_size if isinstance(test_size, int) else math.ceil(round(size * test_size, 6))
            assert len(test) == expected
            assert shuffle or train + test == [*range(size)]


def test_a_split_is_the_same_in_every_epoch():
    six = numbers(*([5] for _ in range(6)))
    for dataset in (six.random_shuffle(seed=5), six.randomize_block_order(seed=5), six.repartition(3, shuffle=True)):
        assert ids(dataset, 0) != ids(dataset, 1)
        parts = [*dataset.train_test_split(0.3, shuffle=True), *dataset.split(2), *dataset.split_at_indices([7])]
        for part in parts:
            assert ids(part, 0) == ids(part, 1)
        for pair in (parts[:2], parts[2:4], parts[4:]):
            assert sorted(ids(pair[0], 1) + ids(pair[1], 1)) == [*range(30)]


@given(st.lists(st.sampled_from("abc"), max_size=40), st.floats(0.05, 0.95), st.booleans())
@settings(max_examples=60, deadline=None)
def test_stratified_rows_keep_the_proportions_of_their_classes(labels, test_size, shuffle):
    cut = len(labels) // 2
    blocks = [{"id": np.arange(cut), "label": labels[:cut]}, {"id": np.arange(cut, len(labels)), "label": labels[cut:]}]
    dataset = listed(*([block] for block in blocks if len(block["label"])), [])
    train, test = dataset.train_test_split(test_size, stratify="label", shuffle=shuffle)
    train_ids, test_ids = ids(train), ids(test)
    assert sorted(train_ids + test_ids) == [*range(len(labels))]
    assert len(test_ids) == math.ceil(round(len(labels) * test_size, 9))
    assert (train.count(), test.count()) == (len(train_ids), len(test_ids))
    tested = Counter(labels[number] for number in test_ids)
    for label, count in Counter(labels).items():
        assert abs(tested[label] - count * len(test_ids) / len(labels)) < 1
    assert ids(test, 1) == test_ids


def test_missing_labels_are_a_class_of_their_own():
    dataset = listed([{"id": np.arange(8), "label": [None, 1.5, None, 1.5, None, 1.5, None, 1.5]}])
    _, test = dataset.train_test_split(4, stratify="label")
    assert ids(test) == [4, 5, 6, 7]
    with pytest.raises(TypeError, match="stratify must be a column of classes, got 'x'"):
        listed([{"x": [[1], [2]]}]).train_test_split(0.5, stratify="x")


def test_a_split_reads_no_more_than_it_needs():
    READ.clear()
    train, test = numbers([5], [5], [5], [5]).train_test_split(0.25)
    assert (train.count(), test.count()) == (15, 5)
    assert READ == []
    assert ids(test) == [15, 16, 17, 18, 19]
    assert {name for name, *_ in READ} == {"part-3.file"}
    calls = []
    uncounted = numbers([5], [5]).filter(lambda row: calls.append(row["id"]) or row["id"] % 2 == 0)
    assert [ids(part) for part in uncounted.split(2)] == [[0, 2], [4, 6, 8]]
    assert calls == [*range(10)], "rows that must be counted are computed once"


def test_workers_at_the_same_time_share_one_run_also_from_another_process(run_script, tmp_path, monkeypatch):
    for name in ("PATIENCE_S", "SHARED_PATIENCE_S"):  # however long the other process takes to start
        monkeypatch.setattr(streams, name, 100.0)
    log, joined = tmp_path / "read", tmp_path / "joined"

    class Noted:
        def __call__(self, batch):
            while batch["id"][0] > 0 and not joined.exists():
                time.sleep(0.01)
            with log.open("a") as file:
                file.write("".join(f"{number}\n" for number in batch["id"]))
            return batch

    dataset = numbers(*([5, 5] for _ in range(4))).map_batches(Noted, concurrency=1)
    *here, there = dataset.streaming_split(3, equal=False)
    parts = [[] for _ in here]

    def take(rank):
        parts[rank] += [row["id"] for row in here[rank].iter_rows()]

    (tmp_path / "iterator").write_bytes(pickle.dumps(there))
    threads = [threading.Thread(target=take, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    ended = run_script(
        "import pickle, pathlib\n"
        "rows = iter(pickle.loads(pathlib.Path('iterator').read_bytes()).iter_rows())\n"
        "first = next(rows)\n"
        "pathlib.Path('joined').touch()\n"
        "print([row['id'] for row in (first, *rows)])"
    )
    joined.touch()  # also where it failed
    for thread in threads:
        thread.join()
    parts.append(ast.literal_eval(ended.stdout))
    assert sorted(chain(*parts)) == [*range(40)]
    assert all(parts)
    assert sorted(map(int, log.read_text().split())) == [*range(40)]
