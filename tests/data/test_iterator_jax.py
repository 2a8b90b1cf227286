"""Batches as JAX arrays."""

import numpy as np
import pytest

from numbered_rows import Rows
from paceline.data.iterator import DataIterator

jax = pytest.importorskip("jax")


def batches_of(columns, **options):
    feeds = Rows([4], block_rows=4, columns=columns)
    return list(DataIterator(feeds).iter_jax_batches(**{"batch_size": 2, **options}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [("float16", "float16"), ("uint16", "uint16"), ("bool", "bool"), ("int64", "int32"), ("float64", "float32")],
)
def test_numbers_become_arrays_of_the_types_that_jax_has(given, expected):
    first, second = batches_of(lambda ids: {"x": ids.astype(given)})
    assert isinstance(first["x"], jax.Array)
    assert str(first["x"].dtype) == expected
    for batch, numbers in ((first, [0, 1]), (second, [2, 3])):
        assert batch["x"].tolist() == np.array(numbers).astype(given).tolist()


def test_arrays_have_the_types_the_device_and_the_sharding_that_are_given():
    def columns(ids):
        return {"x": ids, "y": ids}

    assert {str(a.dtype) for a in batches_of(columns, dtypes=jax.numpy.bfloat16)[0].values()} == {"bfloat16"}
    first = batches_of(columns, dtypes={"y": np.float32})[0]
    assert (str(first["x"].dtype), str(first["y"].dtype)) == ("int32", "float32")
    device = jax.devices()[0]
    assert batches_of(columns, device=device)[0]["x"].devices() == {device}
    sharding = jax.sharding.SingleDeviceSharding(device)
    assert batches_of(columns, sharding=sharding)[0]["x"].sharding == sharding


def test_columns_and_places_that_cannot_be_are_refused():
    device = jax.devices()[0]
    with pytest.raises(ValueError, match="device and sharding cannot be combined"):
        batches_of(lambda ids: {"x": ids}, device=device, sharding=jax.sharding.SingleDeviceSharding(device))
    with pytest.raises(TypeError, match=r"cannot convert the column 'name' of type object to a JAX array[\s\S]*hint"):
        batches_of(lambda ids: {"name": [f"{i}" for i in ids]})
