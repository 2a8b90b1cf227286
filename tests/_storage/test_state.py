"""The format of a saved state: what survives, what is refused, and how damaged files are read."""

import enum
import json
import math
import os
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline._storage import pinned_memory, state
from paceline._storage.files import hash_file
from paceline._storage.state import SnapshotMemory, has_state, read_state, take_snapshot, write_state
from paceline._storage.state_tree import MAX_DEPTH
from properties.test_state import facts

PIECE = pinned_memory.PIECE_BYTES

TORCH_DTYPES = {each for each in vars(torch).values() if isinstance(each, torch.dtype) and "torch.q" not in str(each)}
NUMPY_DTYPES = [
    *("?", "i1", "<u2", ">i4", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16", np.longdouble, "S3", "<U5", "V7"),
    *("<M8", "<M8[ns]", ">M8[25s]", "<m8[D]"),
    [("a", "<f4"), (("title", "b"), ">i2", (2, 3)), ("c", [("d", "S2")])],
    np.dtype([("a", "i1"), ("b", "f8"), ("c", "i1")], align=True),
]

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


class Level(int, enum.Enum):
    HIGH = 2


class Tagged(torch.Tensor):
    pass


class DTensor(torch.Tensor):
    """Stands in for torch.distributed.tensor.DTensor, which needs a process group."""

    def full_tensor(self):
        return self


def a_function():
    pass


@pytest.fixture
def saved(tmp_path):
    def save(tree, **options):
        allow_pickle = options.get("allow_pickle", False)
        written = write_state(tree, tmp_path, allow_pickle=allow_pickle)
        assert written == take_snapshot(tree, SnapshotMemory(), allow_pickle=allow_pickle).write(tmp_path)
        return read_state(tmp_path, **options)

    return save


PLAIN = [
    *(0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**5000, -(10**5000), True, None, 0.1, 5e-324, math.inf),
    *(-math.inf, "", "naïve\0", "\ud800 alone", b"", b"\0\xff", complex(-0.0, math.inf)),
    *([], (), {}, set(), frozenset(), [[]], ([],), {"a": {}}),
    *({1, 2.5, "x", None, (1, "y")}, frozenset({frozenset({1})})),
    *({"$dict": 1}, {"$": [{"$leaf": 0}]}, {"a": 1, "$b": 2}),
    {1: "int", 2.5: "float", None: "none", (1, ("x", None)): "tuple", b"k": "bytes", "s": "str"},
    *({True: 1, False: 0}, Counter({3: 2, "a": 1}), OrderedDict([("b", 1), ("a", OrderedDict())])),
]
NUMPY_SCALARS = [
    *(np.float32(0.1), np.float64(-0.0), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True)),
    *(np.complex64(1 - 2j), np.float16("nan"), np.str_("a\0"), np.str_(""), np.bytes_(b"a\0"), np.bytes_(b"")),
    *(np.datetime64("2024-02-29T01", "h"), np.datetime64("NaT", "s"), np.timedelta64(5, "ms"), np.void(b"abc")),
    np.array((1, 2.5), dtype=[("a", "<i4"), ("b", ">f8")])[()],
]


def make_tensor(dtype, shape):
    data = [number % 2 for number in range(math.prod(shape) * dtype.itemsize)]
    return torch.tensor(data, dtype=torch.uint8).view(dtype).view(shape)


def make_array(dtype, shape):
    return np.ndarray(shape, dtype, bytearray(n % 2 for n in range(math.prod(shape) * np.dtype(dtype).itemsize)))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    "values",
    [
        PLAIN,
        NUMPY_SCALARS,
        [make_tensor(dtype, shape) for dtype in TORCH_DTYPES for shape in ((), (0,), (3,), (2, 3), (2, 0, 4))],
        [make_array(dtype, shape) for dtype in NUMPY_DTYPES for shape in ((), (0,), (3,), (2, 3))],
    ],
    ids=["plain", "scalars", "tensors", "arrays"],
)
def test_every_kind_of_value_survives(saved, values):
    for value, restored in zip(values, saved(values), strict=True):
        assert facts(restored) == facts(value)
    third = saved([np.longdouble(1) / 3])[0]  # Six of its sixteen bytes mean nothing.
    assert (type(third), third) == (np.longdouble, np.longdouble(1) / 3)


def test_a_bfloat16_array_of_ml_dtypes_survives(saved):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes comes with jax: its arrays were not checked")
    array = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    restored = saved([array, array[0, 1]])
    assert restored[0].dtype == array.dtype
    assert restored[0].tobytes() == array.tobytes()
    assert restored[1] == array[0, 1]


def test_training_resumes_from_real_state_dicts(saved, tmp_path, monkeypatch):
    # The first optimizer of a process imports the compiler, which sets this variable.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def make_parts():
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3])

    def step(model, optimizer, scheduler):
        optimizer.zero_grad()
        model(torch.ones(3, 4).cumsum(0)).sum().backward()
        optimizer.step()
        scheduler.step()

    first, second = make_parts(), make_parts()
    step(*first)
    parts = [part.state_dict() for part in first]
    generators = [random.getstate(), torch.get_rng_state(), np.random.get_state()]
    restored, (python, of_torch, _) = saved([parts, generators])
    assert restored[0]._metadata == parts[0]._metadata
    assert python == random.getstate()
    torch.set_rng_state(of_torch)
    for part, saved_part in zip(second, restored, strict=True):
        part.load_state_dict(saved_part)
    step(*first)
    step(*second)
    for ours, theirs in zip(first[0].state_dict().values(), second[0].state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_parameters_and_views_are_stored_as_plain_tensors_in_order(saved):
    restored = saved(torch.nn.Parameter(torch.ones(2)))
    assert type(restored) is torch.Tensor
    assert not restored.requires_grad
    base = torch.arange(1200, dtype=torch.float32).view(3, 400)
    z = torch.tensor([1 + 2j, 3 - 4j])
    views = [base.t(), base[:, ::3], base[:, 1], base[:1].expand(5, 400), base.requires_grad_()[1:]]
    views += [z, z.conj(), z.conj().imag]
    for restored, view in zip(saved(views), views, strict=True):
        assert torch.equal(restored, view.resolve_conj().resolve_neg())
        assert restored.is_contiguous()
    array = base.detach().numpy()
    for restored, view in zip(saved([array.T, array[::-1, ::2]]), [array.T, array[::-1, ::2]], strict=True):
        assert np.array_equal(restored, view)


def test_values_that_share_all_memory_are_stored_once_and_come_back_as_one(saved, tmp_path):
    weight = torch.nn.Parameter(torch.ones(32, 32))
    restored = saved([weight, weight, weight.data, weight.detach().view(32, 32)])
    assert len({id(each) for each in restored}) == 1
    assert (tmp_path / "state.bin").stat().st_size == weight.nbytes
    array = np.ones(3)
    restored = saved([array, array, array.copy(), torch.empty(0), torch.empty(0)])
    assert restored[0] is restored[1]
    assert restored[0] is not restored[2]
    assert restored[3] is not restored[4]
    square = torch.arange(9.0).view(3, 3)
    views = [square, square.t(), square.view(9), square.view(torch.int32), square[:2]]
    for restored, view in zip(saved(views), views, strict=True):
        assert torch.equal(restored, view)


REFUSED = {
    "a function": (a_function, " is a function: a state is made of numbers", "plain values"),
    "a class": (Colour, " is an EnumType:", "plain"),
    "a module": (torch.nn.Linear(1, 1), " is a Linear:", "state_dict()"),
    "an enum": (Colour.RED, " is a Colour:", "x.value"),
    "an int enum": (Level.HIGH, " is a Level:", "x.value"),
    "a named tuple": (Point(1, 2), " is a Point:", "tuple(x)"),
    "a defaultdict": (defaultdict(list), " is a defaultdict:", "dict(x)"),
    "a bytearray": (bytearray(b"x"), " is a bytearray:", "bytes(x)"),
    "a device": (torch.device("cpu"), " is a device:", "plain values"),
    "an object array": (np.array([None, "x"]), " has dtype object:", "tolist"),
    "strings of any size": (np.array(["x"], np.dtypes.StringDType()), " has dtype StringDType", "tolist"),
    "an object field": (np.zeros(2, [("a", "i4"), ("b", "O")]), " has dtype [", "tolist"),
    "overlapping fields": (
        np.zeros(2, {"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 2]}),
        " has dtype {",
        "fields one by one",
    ),
    "a masked array": (np.ma.masked_array([1], [True]), " is a MaskedArray,", "asarray"),
    "a sparse tensor": (torch.eye(2).to_sparse(), " is a tensor of layout sparse_coo", "to_dense"),
    "a meta tensor": (torch.ones(2, device="meta"), " is a tensor on the meta device", "values"),
    "a DTensor": (torch.ones(2).as_subclass(DTensor), " is a DTensor, a tensor subclass", "full_tensor()"),
    "a tensor subclass": (torch.ones(2).as_subclass(Tagged), " is a Tagged, a tensor subclass", "plain tensor"),
    "an uninitialized parameter": (torch.nn.UninitializedParameter(), " is a UninitializedParameter", "plain"),
    "a key": ({a_function: 1}, " has the key <function", "use numbers"),
    "a tensor as key": ({(1, torch.ones(1)): 1}, " has the key tensor([1.]), a Tensor", "use numbers"),
    "an element": ({Colour.RED}, " has the element <Colour.RED: 1>, a Colour", "use numbers"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "message", "hint"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_unsupported_values_with_their_path(tmp_path, value, message, hint):
    with pytest.raises(TypeError) as caught:
        write_state({"model": [1, {"hook": value}]}, tmp_path)
    first, _, last = str(caught.value).partition("\n\nhint: ")
    assert first.startswith(f"state['model'][1]['hook']{message}")
    assert "\n" not in first
    assert hint in last
    assert "allow_pickle=True" in last
    assert not has_state(tmp_path)


@pytest.mark.filterwarnings("ignore:.*quantiz.*")
def test_refuses_more_values_with_their_path(tmp_path):
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    with pytest.raises(TypeError, match=r"^state\['q'\] is a quantized tensor\n"):
        write_state({"q": quantized}, tmp_path)
    with pytest.raises(TypeError, match=r"^optimizer\[\(1, 'a'\)\] is a function"):
        take_snapshot({(1, "a"): a_function}, SnapshotMemory(), path="optimizer")
    state = torch.nn.Linear(1, 1).state_dict()
    state.note = 1
    with pytest.raises(TypeError, match=r"^state\['m'\]\.note is an attribute"):
        write_state({"m": state}, tmp_path)
    flat = torch.ones(8)
    view = flat[4:]
    flat.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match=r"^state\[0\] is a tensor whose memory has been freed"):
        write_state([view], tmp_path)
    with (tmp_path / "file").open("w") as file, pytest.raises(TypeError, match=r"^state\['f'\] cannot be pickled: "):
        write_state({"f": file}, tmp_path, allow_pickle=True)


def test_a_value_that_contains_itself_is_refused_and_one_that_stands_twice_is_not(saved, tmp_path):
    circle: list[Any] = [1]
    circle.append({"again": circle})
    for allow_pickle in (False, True):
        with pytest.raises(TypeError, match=r"^state\[1\]\['again'\] contains itself\n"):
            write_state(circle, tmp_path, allow_pickle=allow_pickle)
    shared = [1]
    assert saved([shared, shared, (shared,)]) == [[1], [1], ([1],)]


@pytest.mark.parametrize(
    "around",
    [lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: {1: x}, lambda x: OrderedDict(a=x)],
    ids=["list", "tuple", "dict", "pairs", "ordered"],
)
def test_nesting_survives_up_to_the_limit_and_is_refused_beyond(saved, around):
    tree = around(0)
    for _ in range(MAX_DEPTH - 1):
        tree = around(tree)
    assert saved(tree) == tree
    with pytest.raises(TypeError, match=f"is nested deeper than {MAX_DEPTH} levels"):
        saved(around(tree))


def test_a_pickle_is_stored_and_loaded_only_where_both_sides_say_so(tmp_path):
    factor = 3
    state = {"f": lambda x: x * factor, "key": {Colour.RED: 1}, "point": Point(1, 2), "n": np.array([None])}
    write_state(state, tmp_path, allow_pickle=True)
    with pytest.raises(ValueError, match=r"state\['f'\] cannot be read: it is a pickle(.|\n)*allow_pickle=True"):
        read_state(tmp_path)
    restored = read_state(tmp_path, allow_pickle=True)
    assert restored["f"](2) == 6
    assert restored["key"] == {Colour.RED: 1}
    assert restored["point"] == Point(1, 2)
    assert restored["n"].tolist() == [None]
    # Nothing is pickled that has a plain form.
    write_state({"w": torch.ones(2), "a": np.ones(2), "t": (1, {2})}, tmp_path, allow_pickle=True)
    assert read_state(tmp_path)["t"] == (1, {2})


def test_restored_values_are_writable_views_that_leave_the_file_alone_and_let_it_go(tmp_path):
    write_state({"t": torch.ones(1000), "a": np.ones(1000)}, tmp_path)
    before = (tmp_path / "state.bin").read_bytes()
    restored = read_state(tmp_path)
    restored["t"].add_(1)
    restored["a"] += 1
    assert restored["t"].sum() == restored["a"].sum() == 2000
    assert (tmp_path / "state.bin").read_bytes() == before
    maps = Path("/proc/self/maps").read_text().splitlines()
    ((start, end),) = [
        tuple(int(x, 16) for x in line.split()[0].split("-")) for line in maps if line.endswith(f"{tmp_path}/state.bin")
    ]
    assert start <= restored["t"].data_ptr() < end
    assert start <= restored["a"].ctypes.data < end
    tensor = restored["t"]
    del restored
    assert f"{tmp_path}/state.bin" in Path("/proc/self/maps").read_text()
    del tensor
    assert f"{tmp_path}/state.bin" not in Path("/proc/self/maps").read_text()


def test_map_location_says_where_tensors_go_and_the_default_device_does_not_matter(saved):
    restored = saved({"t": torch.ones(2), "a": np.ones(2)}, map_location="meta")
    assert restored["t"].device.type == "meta"
    assert type(restored["a"]) is np.ndarray
    tensors = [torch.ones(3, 2).t(), torch.empty(0)]
    torch.set_default_device("meta")
    try:
        restored = saved(tensors)
    finally:
        torch.set_default_device(None)
    assert [tensor.device.type for tensor in restored] == ["cpu", "cpu"]
    assert torch.equal(restored[0], tensors[0])


def test_every_buffer_is_aligned_to_64_bytes(tmp_path):
    write_state([torch.ones(1), b"x" * 65, np.ones(3), torch.ones(())], tmp_path)
    buffers = json.loads((tmp_path / "state.json").read_bytes())["buffers"]
    assert [buffer["offset"] for buffer in buffers] == [0, 64, 192, 256]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in read_state(tmp_path) if isinstance(tensor, torch.Tensor))


def test_the_entries_tell_size_and_hash_of_both_files_which_are_synced_though_writes_are_short(tmp_path, monkeypatch):
    write, synced = os.write, []
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: 1 << 20]))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    tensor = torch.randn(5 << 20)
    entries = write_state(tensor, tmp_path)
    assert synced == [f"{tmp_path}/state.bin", f"{tmp_path}/state.json"]
    assert [entry.path for entry in entries] == ["state.bin", "state.json"]
    assert list(entries) == [hash_file(tmp_path / entry.path, entry.path) for entry in entries]
    assert entries[0].size == 20 << 20
    assert torch.equal(read_state(tmp_path), tensor)


def test_a_snapshot_does_not_see_what_happens_after_it(tmp_path):
    tensor, array, items = torch.ones(4), np.ones(4), {"a": [1]}
    snapshot = take_snapshot({"t": tensor, "a": array, "i": items}, SnapshotMemory())
    tensor.zero_()
    array[:] = 0
    items["a"].append(2)
    snapshot.write(tmp_path)
    restored = read_state(tmp_path)
    assert restored["t"].sum() == restored["a"].sum() == 4
    assert restored["i"] == {"a": [1]}


def test_the_arena_is_reused_and_grows():
    arena = SnapshotMemory()
    first = arena.reserve(10_000)
    first[:3] = b"abc"
    assert bytes(arena.reserve(5_000)[:3]) == b"abc"
    assert len(arena.reserve(1 << 20)) == 1 << 20
    assert bytes(first[:3]) == b"abc"
    arena.close()
    assert len(arena.reserve(0)) == 0


def test_equal_states_have_equal_bytes_whatever_the_order_of_a_set(tmp_path):
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    assert write_state([torch.ones(3), one], tmp_path) == write_state([torch.ones(3), other], tmp_path)


def test_nothing_of_numpy_or_torch_is_loaded_for_a_state_without_them(run_script, tmp_path):
    ended = run_script(
        "import sys\n"
        "from pathlib import Path\n"
        "from paceline._storage.state import read_state, write_state\n"
        "state = {'a': [1.5, (2, b'x')], 3: {4}}\n"
        "write_state(state, Path('.'))\n"
        "assert read_state(Path('.')) == state\n"
        "print([name for name in ('numpy', 'torch', 'cloudpickle') if name in sys.modules])\n"
    )
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


def test_a_directory_holds_a_state_when_both_files_are_there(tmp_path):
    assert not has_state(tmp_path)
    write_state(None, tmp_path)
    assert has_state(tmp_path)
    assert read_state(tmp_path) is None
    (tmp_path / "state.bin").unlink()
    assert not has_state(tmp_path)


def test_a_later_format_a_file_cut_short_and_buffers_that_overlap_are_refused(tmp_path):
    write_state([1], tmp_path)
    _alter(tmp_path, lambda document: document.update(version=7))
    with pytest.raises(ValueError, match=r"json has format 7; this Paceline reads format 1"):
        read_state(tmp_path)
    write_state(torch.ones(100), tmp_path)
    os.truncate(tmp_path / "state.bin", 384)
    with pytest.raises(ValueError, match=r"state\.bin has 384 bytes, but state\.json lists 448"):
        read_state(tmp_path)
    write_state([b"x" * 64, b"y" * 64], tmp_path)
    _alter(tmp_path, lambda document: document["buffers"].append(document["buffers"][0]))
    with pytest.raises(ValueError, match="overlap"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff\xfe", b"{", b"[]", b"3", b'{"version": 1}', b'{"version": true}', b"[" * 100_000, b"1" * 9000],
    ids=lambda text: repr(text)[:20],
)
def test_refuses_an_invalid_document_by_name(tmp_path, text):
    write_state([1], tmp_path)
    (tmp_path / "state.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"state\.json (is not valid JSON|is not a valid state)"):
        read_state(tmp_path)


BUFFERS: dict[str, tuple[dict[str, Any], str]] = {
    "beyond the end": ({"offset": 64}, "exceeds the"),
    "far beyond": ({"offset": 1 << 62}, "exceeds the"),
    "beyond 64 bits": ({"offset": 1 << 70}, "exceeds the"),
    "unaligned": ({"offset": 1, "nbytes": 4, "shape": [1]}, "exceeds the"),
    "before the start": ({"offset": -64}, "Expected `int` >= 0"),
    "no number": ({"offset": "0"}, "Expected `int`, got `str`"),
    "more bytes than the file": ({"nbytes": 65}, "exceeds the"),
    "fewer bytes than the shape": ({"nbytes": 4}, "do not fit the shape"),
    "a larger shape": ({"shape": [17]}, "do not fit the shape"),
    "a negative length": ({"shape": [-16]}, "Expected `int` >= 0"),
    "a shape that overflows to zero": ({"shape": [1 << 32, 1 << 32], "nbytes": 0}, "too large for any memory"),
    "a shape that overflows": ({"shape": [1 << 62, 16, 0], "nbytes": 0}, "too large for any memory"),
    "a larger dtype": ({"dtype": "float64"}, "do not fit the shape"),
    "no dtype": ({"dtype": "nn"}, "has no dtype 'nn'"),
    "a dtype of another kind": ({"dtype": ["<f4"]}, "has no dtype"),
    "a quantized dtype": ({"dtype": "qint32"}, "quantized"),
    "an unknown kind": ({"kind": "code"}, "Invalid enum value 'code'"),
    "a pickle": ({"kind": "pickle"}, "it is a pickle"),
    "an array of objects": ({"kind": "array", "dtype": "|O", "shape": [8]}, "has no dtype"),
    "an array of object fields": ({"kind": "array", "dtype": [["a", "|O8"]], "shape": [8]}, "has no dtype"),
    "an array of a dtype in code": ({"kind": "array", "dtype": "f4,(2,2)O"}, "has no dtype"),
    "an array of a bad field": ({"kind": "array", "dtype": [["a"]]}, "not enough values"),
    "an array of nested fields": ({"kind": "array", "dtype": json.loads("[" * 200 + "]" * 200)}, "values"),
    "an array of a subarray": ({"kind": "array", "dtype": [["a", "<f4", [1 << 40]]]}, "does not fit"),
    "an array of a larger shape": ({"kind": "array", "dtype": "<f4", "shape": [17]}, "do not fit the shape"),
    "an array of too many dimensions": ({"kind": "array", "dtype": "<f4", "shape": [16, *[1] * 99]}, "dimension"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BUFFERS.values(), ids=BUFFERS.keys())
def test_a_hostile_buffer_is_refused(tmp_path, change, message):
    write_state({"t": torch.ones(16)}, tmp_path)
    _alter(tmp_path, lambda document: document["buffers"][0].update(change))
    with pytest.raises(ValueError, match=rf"state\.json(:| is not a valid state:) (.|\n)*({message})"):
        read_state(tmp_path)


@pytest.mark.parametrize("dtype", ["u1", "<f4", "<f8"])
def test_the_largest_shape_that_a_dtype_may_have_survives_and_a_larger_one_is_refused(tmp_path, dtype):
    longest = ((1 << 63) - 1) // np.dtype(dtype).itemsize
    write_state(np.ndarray((longest, 0), dtype, b""), tmp_path)
    assert read_state(tmp_path).shape == (longest, 0)
    _alter(tmp_path, lambda document: document["buffers"][0].update(shape=[longest + 1, 0]))
    with pytest.raises(ValueError, match="too large for any memory"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    "node",
    [
        *({"$leaf": 1}, {"$leaf": -1}, {"$leaf": "0"}, {"$leaf": True}, {"$leaf": None}, {"$leaf": [0]}),
        *({"$eval": "1"}, {"$leaf": 0, "$tuple": []}, {"$": 1}, {"$int": 5}, {"$int": "one"}, {"$float": "1"}),
        *({"$float": []}, {"$complex": 1}, {"$bytes": 1}, {"$bytes": "é"}, {"$tuple": 1}),
        *({"$set": [[]]}, {"$set": {}}, {"$frozenset": [{}]}, {"$dict": 1}, {"$dict": [1]}, {"$dict": [[[], 1]]}),
        *({"$dict": [[1, 2, 3]]}, {"$ordered": []}, {"$ordered": [[[1]], None]}, {"$counter": [[{}, 1]]}),
        *({"$size": 1}, {"$size": ["a"]}, {"$dtype": "nn"}, {"$dtype": None}),
        *({"$scalar": 1}, {"$scalar": ["<f4", "AA=="]}, {"$scalar": ["|O8", "AAAAAAAAAAA="]}, {"$scalar": [[], []]}),
        *({"$scalar": ["<f4", 1]}, {"$scalar": ["<f4", "A"]}, {"$scalar": [None, ""]}, {"$dict": [[{"$set": []}, 1]]}),
    ],
    ids=str,
)
def test_a_hostile_node_is_refused_with_its_path(tmp_path, node):
    write_state({"a": [torch.ones(2)]}, tmp_path)
    _alter(tmp_path, lambda document: document.update(tree={"a": [0, node]}))
    with pytest.raises(ValueError, match=r"state\.json: state\['a'\]\[1\]"):
        read_state(tmp_path)
    if list(node) == ["$leaf"]:
        for read in (state.read_raw_state, lambda path: state.read_deferred_state(path, "state", path.joinpath)):
            with pytest.raises(ValueError, match=r"state\['a'\]\[1\]"):
                read(tmp_path)


def test_a_document_nested_too_deeply_is_refused(tmp_path):
    write_state(None, tmp_path)
    text = (tmp_path / "state.json").read_text()
    for depth in (300, 500, 900, 5000):
        for start, end in ('{"$tuple":[', "]}"), ("[", "]"):
            (tmp_path / "state.json").write_text(text.replace("null", start * depth + end * depth))
            try:
                read_state(tmp_path)
            except ValueError as error:
                assert "state.json" in str(error)  # noqa: PT017


def test_nothing_is_unpickled_from_a_document_that_calls_a_pickle_bytes(tmp_path):
    write_state({"a": b"x" * 200}, tmp_path)
    bomb = pickle.dumps(_Bomb())
    data = bomb + bytes(256 - len(bomb))
    (tmp_path / "state.bin").write_bytes(data)
    assert read_state(tmp_path)["a"] == data[:200]


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no CUDA device: asynchronous copies to pinned memory, and their order against kernels, were not checked",
)
class TestOnTheGpu:
    @pytest.fixture(autouse=True, params=[pinned_memory.PIECE_BYTES, 64 << 10])
    def memory(self, request, monkeypatch):
        monkeypatch.setattr(pinned_memory, "PIECE_BYTES", request.param)

    def test_values_survive_and_come_back_on_the_cpu_or_where_asked(self, tmp_path):
        base = torch.randn(64, 33, device="cuda")
        values = {
            "views": [base, base.t(), base[:, ::2], base[:1].expand(7, 33), base[3, 3], base[:0]],
            "dtypes": [torch.ones(5, device="cuda").to(d) for d in (torch.bfloat16, torch.float8_e4m3fn, torch.bool)],
            "complex": [torch.randn(3, dtype=torch.complex64, device="cuda").conj()],
            "mixed": [torch.randn(9), torch.nn.Parameter(torch.randn(1 << 20, device="cuda")), np.ones(3), b"x"],
        }
        arena = SnapshotMemory()
        for _ in range(2):
            take_snapshot(values, arena).write(tmp_path)
            restored = read_state(tmp_path)
            for name, parts in values.items():
                for ours, theirs in zip(restored[name], parts, strict=True):
                    assert not getattr(ours, "is_cuda", False)
                    assert facts(ours) == facts(theirs.cpu() if isinstance(theirs, torch.Tensor) else theirs)
        assert read_state(tmp_path, map_location="cuda")["views"][0].is_cuda

    def test_equal_states_have_equal_bytes_and_tied_tensors_are_stored_once(self, tmp_path):
        state = [torch.ones(3, device="cuda"), torch.ones(5, device="cuda", dtype=torch.int8), torch.ones(2)]
        arena = SnapshotMemory()
        expected = take_snapshot(state, arena).write(tmp_path)
        take_snapshot([torch.full((1000,), 255, dtype=torch.uint8, device="cuda")], arena).write(tmp_path)
        assert take_snapshot(state, arena).write(tmp_path) == expected
        weight = torch.nn.Parameter(torch.ones(16, 16, device="cuda"))
        write_state([weight, weight.data], tmp_path)
        first, second = read_state(tmp_path)
        assert first is second
        assert (tmp_path / "state.bin").stat().st_size == weight.nbytes

    def test_copies_run_after_what_came_before_and_before_what_comes_after(self, tmp_path):
        arena = SnapshotMemory()
        weight = torch.ones(8 << 20, device="cuda")
        turned = weight.view(2048, 4096).t()
        take_snapshot([weight, turned], arena).write(tmp_path)
        torch.cuda.synchronize()
        torch.cuda._sleep(1_000_000_000)
        weight.fill_(2)
        snapshot = take_snapshot([weight, turned], arena)
        weight.fill_(3)
        if pinned_memory.PIECE_BYTES == PIECE:  # Of more copies than some hundreds the driver makes us wait.
            assert not any(event.query() for event in snapshot._gpu_snapshot.events), "snapshot waited for the GPU"
        snapshot.write(tmp_path)
        for restored in read_state(tmp_path):
            assert bool((restored == 2).all())

    def test_memory_that_is_freed_after_the_snapshot_is_copied_first(self, tmp_path):
        arena = SnapshotMemory()
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            weight = torch.full((8 << 20,), 2.0, device="cuda")
        torch.cuda.synchronize()
        take_snapshot([weight], arena).write(tmp_path)
        torch.cuda._sleep(1_000_000_000)
        snapshot = take_snapshot([weight], arena)
        del weight
        with torch.cuda.stream(other):
            reused = torch.full((8 << 20,), 9.0, device="cuda")
        snapshot.write(tmp_path)
        assert bool((read_state(tmp_path)[0] == 2).all())
        assert bool((reused == 9).all())


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 64))
def test_bytes_in_pieces_are_the_same_bytes(offset, nbytes, size):
    covered = [
        piece * size + at + number
        for piece, at, part in pinned_memory._iter_spans(offset, nbytes, size)
        for number in range(part)
    ]
    assert covered == list(range(offset, offset + nbytes))
    assert all(0 < part <= size - at for _, at, part in pinned_memory._iter_spans(offset, nbytes, size))


class _Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


def _alter(directory, change):
    file = directory / "state.json"
    document = json.loads(file.read_bytes())
    change(document)
    file.write_text(json.dumps(document))
