"""Batches as TensorFlow tensors, and as a tf.data.Dataset."""

import numpy as np
import pyarrow as pa
import pytest

from numbered_rows import Rows
from paceline import data
from paceline.data.iterator import DataIterator

tf = pytest.importorskip("tensorflow")


def iterator(columns=lambda ids: {"x": np.stack([ids, ids], 1).astype(np.float32), "y": ids, "s": [*map(str, ids)]}):
    return DataIterator(Rows([4], block_rows=4, columns=columns))


def test_batches_are_dicts_of_tensors():
    first, second = iterator().iter_tf_batches(batch_size=2)
    assert first["x"].shape == (2, 2)
    assert second["y"].numpy().tolist() == [2, 3]
    assert first["s"].numpy().tolist() == [b"0", b"1"]
    [batch] = iterator(lambda ids: {"y": ids, "r": [*map(np.arange, ids)]}).iter_tf_batches(dtypes={"y": tf.float16})
    assert batch["y"].dtype == tf.float16
    assert batch["r"].to_list() == [[], [0], [0, 1], [0, 1, 2]]


def test_a_dataset_gives_features_and_labels_epoch_by_epoch():
    it = iterator()
    dataset = it.to_tf("x", "y", batch_size=2)
    assert dataset.element_spec == (tf.TensorSpec((None, 2), tf.float32), tf.TensorSpec((None,), tf.int64))
    for epoch in range(2):
        assert [labels.numpy().tolist() for _, labels in dataset] == [[0, 1], [2, 3]]
        assert it.get_state()["epoch"] == epoch + 1
    features, labels, additional = next(iter(iterator().to_tf(["x", "s"], "y", additional_columns=["y"])))
    assert sorted(features) == ["s", "x"]
    assert labels.numpy().tolist() == additional["y"].numpy().tolist() == [0]


@pytest.mark.parametrize("lengths", [[1, 2, 0, 3], [2, 2, 2, 2]], ids=["different", "equal"])
def test_lists_are_ragged_where_the_spec_says_so(lengths):
    it = iterator(lambda ids: {"r": [np.arange(lengths[i], dtype=np.float64) for i in ids], "y": ids})
    spec = tf.RaggedTensorSpec((None, None), tf.float32)
    dataset = it.to_tf("r", "y", batch_size=4, feature_type_spec=spec)
    [(ragged, _)] = list(dataset)
    assert ragged.to_list() == [[float(i) for i in range(length)] for length in lengths]
    assert spec.is_compatible_with(ragged)


@pytest.mark.parametrize(
    ("kind", "rows", "spec"),
    [
        (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6]], tf.TensorSpec((None, 2), tf.float32)),
        (pa.list_(pa.float32()), [[1, 2], [3, 4], [5, 6]], tf.RaggedTensorSpec((None, None), tf.float32)),
        (pa.large_list(pa.int16()), [[1, 2], [3], []], tf.RaggedTensorSpec((None, None), tf.int16)),
        (pa.list_(pa.string()), [[b"a"], [b"b", b"c"], []], tf.RaggedTensorSpec((None, None), tf.string)),
        (pa.list_(pa.list_(pa.int64())), [[[1], [2, 3]], [], [[]]], tf.RaggedTensorSpec((None,) * 3, tf.int64)),
    ],
    ids=str,
)
def test_lists_are_tensors_if_their_type_has_a_length_and_else_ragged(kind, rows, spec):
    dataset = data.from_arrow(pa.table({"x": pa.array(rows, kind), "y": range(3)}))
    tensors = dataset.to_tf("x", "y", batch_size=2)
    assert tensors.element_spec[0] == spec
    assert [row for x, _ in tensors for row in (x.to_list() if hasattr(x, "to_list") else x.numpy().tolist())] == rows
    [batch] = dataset.iter_tf_batches(batch_size=3)
    assert batch["x"].dtype == spec.dtype
    assert (batch["x"].to_list() if hasattr(batch["x"], "to_list") else batch["x"].numpy().tolist()) == rows


def test_columns_that_cannot_be_tensors_or_are_not_there_are_named():
    with pytest.raises(TypeError, match="column 'd' of type datetime64"):
        list(iterator(lambda ids: {"d": ids.astype("datetime64[s]")}).iter_tf_batches())
    with pytest.raises(ValueError, match="label_columns has an unknown column 'z'; the columns are: 'x', 'y', 's'"):
        iterator().to_tf("x", "z")
