"""Batches made by a `collate_fn` of each kind, and padded batches of JAX."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paceline import data
from paceline.data import DataContext
from paceline.data.collate_fn import ArrowBatchCollateFn, CollateFn, NumpyBatchCollateFn, PandasBatchCollateFn
from paceline.data.iterator import DataIterator, DatasetIterator

jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")


def collate_as(base, kind, convert):
    class Collate(base):
        def __call__(self, batch):
            assert isinstance(batch, kind)
            return {"y": convert(np.asarray(batch["id"]) * 2)}

    return Collate()


KINDS = [(ArrowBatchCollateFn, pa.Table), (NumpyBatchCollateFn, dict), (PandasBatchCollateFn, pd.DataFrame)]


@pytest.mark.parametrize(("base", "kind"), KINDS)
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_base_class_of_collate_fn_says_which_batch_it_takes(framework, base, kind):
    collate_fn = collate_as(base, kind, np.asarray if framework == "jax" else torch.tensor)
    batches = getattr(data.range(5), f"iter_{framework}_batches")(batch_size=2, collate_fn=collate_fn)
    assert [batch["y"].tolist() for batch in batches] == [[0, 2], [4, 6], [8]]


def test_jax_batches_are_padded_to_one_size():
    ds = data.range(5)
    options = {"batch_size": 2, "synchronize_batches": True}
    padded = [batch["id"].tolist() for batch in ds.iter_jax_batches(paddings={"id": -1}, **options)]
    assert padded == [[0, 1], [2, 3], [4, -1]]
    (vectors,) = data.from_numpy(np.ones((1, 2), np.float32)).iter_jax_batches(paddings=np.nan, batch_size=2)
    np.testing.assert_array_equal(vectors["data"], [[1, 1], [np.nan, np.nan]])
    single = list(ds.iter_jax_batches(batch_size=5, collate_fn=lambda batch: batch["id"][:, None]))
    assert isinstance(single[0], jax.Array)
    assert single[0].shape == (5, 1)


def test_iterators_have_their_older_name_and_their_context():
    assert DatasetIterator is DataIterator
    assert data.range(2).iterator().get_context() is DataContext.get_current()
    with pytest.raises(NotImplementedError, match="CollateFn has no __call__"):
        CollateFn()({})
