"""Batches as torch tensors: which columns can be one, without a copy where that is safe, and where they go."""

import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numbered_rows import Rows
from paceline.data.iterator import DataIterator

torch = pytest.importorskip("torch")
from paceline.data.batches.torch import concat_parts, make_tensor  # noqa: E402


def batches_of(columns, num_rows=4, **options):
    feeds = Rows([num_rows], block_rows=num_rows, columns=columns)
    return list(DataIterator(feeds).iter_torch_batches(**{"batch_size": 2, **options}))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("float32", torch.float32),
        ("float16", torch.float16),
        ("int8", torch.int8),
        ("uint16", torch.int32),
        ("uint32", torch.int64),
        ("uint64", torch.uint64),
        ("bool", torch.bool),
        ("complex64", torch.complex64),
        (">f4", torch.float32),
    ],
)
def test_numbers_become_tensors_that_keep_their_shape(kind, expected):
    def columns(ids):
        return {"x": ids.astype(kind), "y": np.stack([ids, ids], 1).astype(kind), "arrow": pa.array(ids % 2 == 1)}

    first, _ = batches_of(columns)
    assert first["arrow"].tolist() == [False, True]
    assert first["x"].dtype == expected
    assert first["x"].tolist() == np.array([0, 1]).astype(kind).tolist()
    assert first["y"].shape == (2, 2)


def test_memory_is_copied_only_where_it_may_not_be_written_to():
    blocks = []

    def columns(ids):
        fixed = ids.copy()
        fixed.flags.writeable = False
        blocks.append((ids, fixed))
        return {"own": ids, "fixed": fixed, "backwards": ids[::-1]}

    first, second = batches_of(columns)
    own, fixed = blocks[-1]
    assert [np.shares_memory(batch["own"].numpy(), own) for batch in (first, second)] == [True, True]
    first["fixed"] += 1
    assert fixed.tolist() == [0, 1, 2, 3]
    assert first["backwards"].tolist() == [3, 2]


def test_one_dtype_is_for_all_columns_and_a_dict_for_some():
    def columns(ids):
        return {"x": ids, "y": ids}

    assert {t.dtype for t in batches_of(columns, dtypes=torch.float16)[0].values()} == {torch.float16}
    first = batches_of(columns, dtypes={"y": torch.float32})[0]
    assert (first["x"].dtype, first["y"].dtype) == (torch.int64, torch.float32)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (lambda ids: {"name": [f"{i}" for i in ids]}, r"column 'name' has values of type str[\s\S]*hint: drop it"),
        (lambda ids: {"d": ids.astype("datetime64[s]")}, r"'d' has datetime64\[s\] values, and torch has no dates"),
        (lambda ids: {"l": [list(range(i)) for i in ids]}, r"column 'l' has arrays of different shapes"),
        (lambda ids: {"v": ids.astype(np.longdouble)}, r"cannot convert the column 'v' of type \w+ to a tensor"),
    ],
)
def test_a_column_that_is_no_tensor_is_named(columns, message):
    with pytest.raises(TypeError, match=message):
        batches_of(columns)


def test_collate_gets_arrays_and_its_result_is_what_comes_on_the_device():
    def collate(batch):
        assert threading.current_thread() is not threading.main_thread()
        return {"n": len(batch["name"]), "x": torch.as_tensor(batch["x"])}

    batches = batches_of(lambda ids: {"x": ids, "name": [f"{i}" for i in ids]}, collate_fn=collate)
    assert [(batch["n"], batch["x"].tolist()) for batch in batches] == [(2, [0, 1]), (2, [2, 3])]
    batches = batches_of(lambda ids: {"x": ids}, device="meta", collate_fn=lambda batch: [torch.ones(2)])
    assert [batch[0].device.type for batch in batches] == ["meta", "meta"]


@pytest.mark.parametrize("prefetch_batches", [0, 2])
def test_tensors_go_to_the_device_that_is_given_or_that_of_the_worker(prefetch_batches):
    def device_of(default_device, **options):
        it = DataIterator(Rows([4]), default_device=default_device)
        (batch,) = it.iter_torch_batches(prefetch_batches=prefetch_batches, **options)
        return batch["id"].device.type

    for device in ("meta", torch.device("meta"), lambda: "meta"):
        assert device_of(None, device=device) == "meta"
    assert device_of(None) == "cpu"
    assert device_of(lambda: torch.device("meta")) == "meta"
    assert device_of(lambda: torch.device("meta"), device="auto") == "meta"
    assert device_of(lambda: torch.device("meta"), device=None) == "cpu"
    assert device_of(lambda: torch.device("meta"), device="cpu") == "cpu"


def test_an_unknown_column_is_found_with_the_first_batch_where_no_schema_is_known(monkeypatch):
    monkeypatch.setattr(Rows, "schema", lambda self: None)
    with pytest.raises(ValueError, match="dtypes has an unknown column 'z'; the columns are: 'x'"):
        batches_of(lambda ids: {"x": ids}, dtypes={"z": torch.float32})


KINDS = ("float16", "float32", "float64", "int8", "uint8", "uint16", "uint32", "int64", "bool", ">f4", "complex64")


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    sizes=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    wanted=st.sampled_from([None, torch.float32, torch.bfloat16, torch.int32]),
    is_strided=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:Casting complex values to real", "ignore:.*discards the imaginary part")
def test_parts_that_are_put_together_are_the_tensor_that_all_rows_are(kinds, sizes, wanted, is_strided):
    parts = []
    for kind, size in zip(kinds, sizes, strict=False):
        values = (np.arange(size * 6).reshape(size, 6) % 5).astype(kind)
        values.flags.writeable = False
        parts.append(values[:, ::2] if is_strided else values)
    found = concat_parts([{"x": part} for part in parts], {"x": wanted}, pin_memory=False)["x"]
    expected = make_tensor("x", np.concatenate(parts), wanted)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert torch.equal(found, expected)


def test_parts_of_several_shapes_are_refused_by_the_name_of_their_column():
    parts = [{"x": np.zeros((2, 3))}, {"x": np.zeros((2, 4))}]
    with pytest.raises(TypeError, match=r"column 'x' has arrays of different shapes, such as \(3,\) and \(4,\)"):
        concat_parts(parts, None, pin_memory=False)
    with pytest.raises(TypeError, match="column 'x' has values of type str"):
        concat_parts([parts[0], {"x": np.array(["a"], object)}], None, pin_memory=False)


@pytest.mark.slow
def test_parts_are_put_together_without_threads_of_torch(run_script):
    script = """
import os, torch
import numpy as np
from paceline.data.batches.torch import concat_parts

parts = [{"x": np.ones((64, 50_000), np.uint8)}] * 4
before = len(os.listdir("/proc/self/task"))
concat_parts(parts, torch.float32, pin_memory=False)
assert len(os.listdir("/proc/self/task")) == before, "torch works on all cores, while data processes want them"
torch.cat([torch.from_numpy(part["x"]) for part in parts])
assert len(os.listdir("/proc/self/task")) > before, "this test sees nothing"
"""
    ended = run_script(script, env={"OMP_NUM_THREADS": "4"})
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: memory can be pinned")
def test_memory_cannot_be_pinned_without_a_gpu():
    with pytest.raises(ValueError, match="pin_memory=True needs a GPU"):
        batches_of(lambda ids: {"x": ids}, pin_memory=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: copying beside the current stream was not checked")
@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("prefetch_batches", [0, 1, 3])
def test_batches_arrive_whole_on_the_gpu_however_late_they_are_read(pin_memory, prefetch_batches):
    num_rows, width = 48, 1 << 18
    feeds = Rows([num_rows], block_rows=7, columns=lambda ids: {"x": np.repeat(ids[:, None], width, 1).astype("f4")})
    it = DataIterator(feeds)
    seen = []
    for used, batch in enumerate(
        it.iter_torch_batches(batch_size=4, device="cuda", pin_memory=pin_memory, prefetch_batches=prefetch_batches), 1
    ):
        assert batch["x"].device.type == "cuda"
        assert it.get_state()["row"] == used * 4
        torch.cuda._sleep(20_000_000)
        seen.append(torch.stack([batch["x"].amin(1), batch["x"].amax(1)]))
    rows = torch.cat(seen, 1).tolist()
    assert rows == [[float(row) for row in range(num_rows)]] * 2
