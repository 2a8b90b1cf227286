"""Any state comes back as it was, bit for bit, and no document makes a reader do more than refuse it."""

import json
import struct
import tempfile
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from paceline._storage.state import SnapshotMemory, read_state, take_snapshot, write_state

CHARACTERS = st.characters() | st.characters(categories=["Cs"])
STRINGS = st.text(CHARACTERS, max_size=8) | st.sampled_from(["$dict", "$leaf", "$", "", "nan"])
NUMBERS = st.integers() | st.integers(-(2**200), 2**200) | st.floats() | st.complex_numbers() | st.booleans()
SCALARS = npst.array_dtypes(max_size=3) | npst.scalar_dtypes()
DTYPES = [
    *(torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.complex64),
    *(torch.int8, torch.uint16, torch.int64, torch.float64, torch.complex128),
]


@st.composite
def numpy_scalars(draw):
    dtype = draw(npst.scalar_dtypes())
    return np.frombuffer(draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)), dtype)[0]


@st.composite
def arrays(draw):
    array = draw(npst.arrays(SCALARS, npst.array_shapes(min_dims=0, min_side=0, max_side=4)))
    return draw(st.sampled_from([array, array.T, array[::-1] if array.ndim else array, np.asfortranarray(array)]))


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    nbytes = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=nbytes, max_size=nbytes))
    # A bool that is neither 0 nor 1 is no value.
    data = bytes(byte & 1 for byte in data) if dtype is torch.bool else data
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if nbytes else torch.empty(0, dtype=torch.uint8)
    tensor = flat.view(dtype).view(shape)
    views = [tensor, tensor.movedim(0, -1) if shape else tensor, tensor[1:] if shape else tensor]
    if dtype.is_complex:
        views.append(tensor.conj())
    if dtype.is_floating_point and dtype.itemsize > 1:
        views.append(torch.nn.Parameter(tensor))
    return draw(st.sampled_from(views))


def containers(parts):
    keyed = st.dictionaries(KEYS, parts, max_size=4)
    return (
        st.lists(parts, max_size=4)
        | st.lists(parts, max_size=4).map(tuple)
        | st.dictionaries(STRINGS, parts, max_size=4)
        | keyed
        | keyed.map(OrderedDict)
        | keyed.map(Counter)
        | parts.map(lambda part: [part, part])
    )


ATOMS = STRINGS | NUMBERS | st.none() | st.binary(max_size=80) | numpy_scalars() | st.sampled_from(DTYPES)
KEYS = st.recursive(
    ATOMS, lambda parts: st.lists(parts, max_size=3).map(tuple) | st.frozensets(parts, max_size=3), max_leaves=4
)
LEAVES = KEYS | st.sets(KEYS, max_size=4) | arrays() | tensors() | st.lists(st.integers(0, 9)).map(torch.Size)
STATES = st.recursive(LEAVES, containers, max_leaves=12)

TAGS = [
    *("$int", "$float", "$complex", "$bytes", "$scalar", "$tuple", "$set", "$frozenset", "$dict", "$ordered"),
    *("$counter", "$leaf", "$dtype", "$size", "$list", "version", "tree", "buffers", "kind", "offset", "shape"),
]
WORDS = st.sampled_from(["<f4", "|O8", "float32", "qint8", "tensor", "array", "pickle", "nan", "0x1", "AA==", "<U1"])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.integers()
    | st.floats(allow_nan=False)
    | WORDS
    | st.text(max_size=4),
    lambda parts: (
        st.lists(parts, max_size=4)
        | st.dictionaries(st.text(max_size=3), parts, max_size=3)
        | st.dictionaries(st.sampled_from(TAGS), parts, min_size=1, max_size=1)
    ),
    max_leaves=20,
)


def facts(value):
    """All that is to survive, in a form where equality means equal types, bits, order and sharing of memory."""
    return _facts(value, {})


def _facts(value, numbers):
    kind = type(value)
    if isinstance(value, torch.Tensor):
        values = value.detach().resolve_conj().resolve_neg().contiguous()
        data = values.view(-1).view(torch.uint8).numpy().tobytes() if values.numel() else b""
        return "tensor", numbers.setdefault(id(value), len(numbers)), value.dtype, tuple(value.shape), data
    if kind is np.ndarray:
        number = numbers.setdefault(id(value), len(numbers))
        return "array", number, value.dtype.descr, value.dtype, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return kind.__name__.replace("longlong", "int64"), value.dtype, bytes(value.tobytes())
    if kind is float:
        return "float", "nan" if value != value else struct.pack("d", value)
    if kind is complex:
        return "complex", _facts(value.real, numbers), _facts(value.imag, numbers)
    if isinstance(value, dict):
        return kind, [(_facts(key, numbers), _facts(item, numbers)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return kind, [_facts(item, numbers) for item in value]
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(_facts(item, numbers)) for item in value)
    return kind, value


@settings(deadline=None, max_examples=200)
@given(STATES)
@example({"a": [torch.ones(2, 2), np.ones((2, 2)).T], 1: -0.0})
def test_any_state_comes_back_as_it_was(state):
    with tempfile.TemporaryDirectory() as directory:
        write_state(state, Path(directory))
        assert facts(read_state(Path(directory))) == facts(state)


@settings(deadline=None, max_examples=50)
@given(st.lists(STATES, min_size=2, max_size=4))
def test_earlier_contents_of_an_arena_do_not_show(states):
    arena = SnapshotMemory()
    with tempfile.TemporaryDirectory() as directory:
        for state in states:
            entries = take_snapshot(state, arena).write(Path(directory))
            assert facts(read_state(Path(directory))) == facts(state)
            assert take_snapshot(state, SnapshotMemory()).write(Path(directory)) == entries


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_hostile_change_of_a_state_is_read_or_refused(data):
    document = {
        "version": 1,
        "num_bytes": 64,
        "tree": {"t": {"$leaf": 0}, "a": [{"$leaf": 1}, {"$tuple": [1, {"$scalar": ["<f4", "AAAAAA=="]}]}]},
        "buffers": [
            {"kind": "tensor", "offset": 0, "nbytes": 16, "dtype": "float32", "shape": [4]},
            {"kind": "array", "offset": 0, "nbytes": 48, "dtype": [["a", "<f8", [2]], ["b", "<M8[s]"]], "shape": [2]},
        ],
    }
    # Walk to some part of the document and put something else there.
    part = document
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(part[key], dict | list) or not part[key] or data.draw(st.booleans()):
            part[key] = data.draw(JSON)
            break
        part = part[key]
    _read_or_refuse(document)


@settings(deadline=None, max_examples=200)
@given(st.integers(min_value=0), st.binary(min_size=1, max_size=4), st.integers(0, 4))
def test_a_damaged_document_is_read_or_refused(where, patch, cut):
    with tempfile.TemporaryDirectory() as directory:
        write_state({"t": torch.ones(4), "n": [1, {2: (3, None)}]}, Path(directory))
        file = Path(directory, "state.json")
        text = file.read_bytes()
        start = where % len(text)
        file.write_bytes(text[:start] + patch + text[start + cut :])
        try:
            facts(read_state(Path(directory)))
        except ValueError as error:
            assert "state." in str(error)  # noqa: PT017


@pytest.mark.parametrize("text", ['{"version":1,"num_bytes":"\\ud800"}', '{"version":1,"num\\ud800":0}'])
def test_half_a_character_in_a_document_is_refused_with_the_file(text):
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "state.json").write_text(text)
        with pytest.raises(ValueError, match=r"state\.json is not a valid state"):
            read_state(Path(directory))


def _read_or_refuse(document):
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "state.json").write_text(json.dumps(document))
        Path(directory, "state.bin").write_bytes(bytes(64))
        try:
            facts(read_state(Path(directory)))
        except ValueError as error:
            assert str(error).startswith(f"{directory}/state.")  # noqa: PT017
