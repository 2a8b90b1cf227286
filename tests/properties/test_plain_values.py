"""Metrics become JSON and come back as they were, or are refused by path."""

import enum
import json
import math
from fractions import Fraction

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from paceline._core.plain_values import decode_plain, from_plain, get_metric, to_plain

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
keys = text.filter(lambda key: key != "$number")
numbers = st.one_of(
    st.floats(),
    st.integers(),
    st.integers(2**63 - 2, 2**63 + 2),
    st.integers(-(2**63) - 2, -(2**63) + 2),
    st.integers(-(10**2000), 10**2000),
)
values = st.recursive(
    st.one_of(numbers, st.none(), st.booleans(), text),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)


def same(one, other):
    """Equal in value and in type, nan being equal to nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@given(values)
@example([math.nan, math.inf, -math.inf, -0.0])
@example([sign * (2**bits + by) for bits in (31, 53, 63, 64) for by in (-1, 0, 1) for sign in (1, -1)])
@example([sign * (10**digits - 1) for digits in (4300, 4301, 10_000) for sign in (1, -1)])
def test_any_value_comes_back_from_json_that_others_read_too(value):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    wire = msgspec.json.encode(to_plain(value))
    assert same(from_plain(msgspec.json.decode(wire)), value)
    assert same(from_plain(json.loads(wire, parse_constant=refuse)), value)


@given(st.lists(st.one_of(numbers, text), max_size=4))
def test_a_tuple_comes_back_as_it_was_if_types_are_kept_else_as_a_list(items):
    nested, as_lists = {"eval": (items, tuple(items), [tuple(items)])}, {"eval": [items, items, [items]]}
    wire = msgspec.Raw(msgspec.json.encode(to_plain(nested, keep_types=True)))
    assert same(decode_plain(wire), nested)
    assert same(from_plain(msgspec.json.decode(wire), as_lists=True), as_lists)
    assert same(from_plain(to_plain(nested)), as_lists)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint64", "bool"])
@pytest.mark.parametrize("shape", [(3,), (2, 2), (0, 3), (10, 100)])
def test_a_small_array_comes_back_as_it_was_if_types_are_kept(dtype, shape):
    values = {"f": [0.1, np.nan, -np.inf], "u": [2**64 - 1, 0, 200]}.get(dtype[0], [1, 0, 100])
    array = np.resize(np.array(values, dtype), shape)
    wire = msgspec.Raw(msgspec.json.encode(to_plain({"x": (array,)}, keep_types=True)))
    back = decode_plain(wire)["x"][0]
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array, equal_nan=dtype[0] == "f")
    for value in (msgspec.json.decode(wire), decode_plain(wire)):
        assert same(from_plain(value, as_lists=True), {"x": [array.tolist()]})


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        *((array, "must have at most 1000 .* save it in a") for array in (np.zeros(1001), np.zeros((2, 501), "int8"))),
        *((np.zeros(2, dtype), "must be one number") for dtype in ("c8", "M8[s]", np.longdouble)),
    ],
)
def test_an_array_that_is_large_or_not_of_json_numbers_is_refused_by_its_path(array, problem):
    with pytest.raises(ValueError, match=rf"(?s)^metrics\['x'\] {problem}"):
        to_plain({"x": array}, keep_types=True)


@given(
    st.lists(st.one_of(keys, st.integers(0, 3)), min_size=1, max_size=5),
    st.sampled_from([object(), b"bytes", {1, 2}, 1j, Fraction(1, 3), np.datetime64("2024-01-01"), np.clongdouble(1)]),
)
def test_values_without_a_plain_form_are_refused_by_their_path(steps, culprit):
    value = culprit
    path = ""
    for at in reversed(steps):
        value = {at: value} if isinstance(at, str) else [0] * at + [value]
        path = f"[{at!r}]{path}"
    with pytest.raises(TypeError) as refusal:
        to_plain(value)
    assert str(refusal.value).startswith(f"metrics{path} must be ")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        *(({key: 1}, TypeError, "the keys of metrics['eval'] must be ") for key in (None, (1, 2), True, b"loss")),
        ({"$number": "nan"}, ValueError, "metrics['eval'] has the key '$number'"),
        ({"name": "ab\ud800c"}, ValueError, r"metrics['eval']['name'] is a text with '\ud800' at position 2"),
        (["ok", "\udfff"], ValueError, r"metrics['eval'][1] is a text with '\udfff' at position 0"),
        ({"\ud800": 1}, ValueError, r"metrics['eval'] has a key with '\ud800' at position 0"),
        ({1: 0, "1": 0}, ValueError, "metrics['eval'] has the keys 1 and '1', which are the same text"),
        ({"0.5": 0, 0.5: 0}, ValueError, "metrics['eval'] has the keys '0.5' and 0.5, which are the same text"),
    ],
)
def test_values_that_could_not_come_back_are_refused_by_their_path(value, error, message):
    with pytest.raises(error) as refusal:
        to_plain({"eval": value})
    assert str(refusal.value).startswith(message)
    assert "\\ud" not in message or "hint: " in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float32(0.5), 0.5),
        (np.longdouble(2.5), 2.5),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.str_("good"), "good"),
        (np.float32("nan"), math.nan),
        (np.float32("-inf"), -math.inf),
        (np.array(3), 3),
        (np.array([[4.5]]), 4.5),
        (torch.tensor(1.5, requires_grad=True), 1.5),
        (torch.tensor([0.5], dtype=torch.bfloat16), 0.5),
        (torch.tensor([[7]]), 7),
        (torch.tensor(True), True),
        (torch.tensor(math.nan), math.nan),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_scalars_of_numpy_and_tensors_of_one_element_become_numbers(value, number):
    assert same(from_plain(msgspec.json.decode(msgspec.json.encode(to_plain({"x": value})))), {"x": number})


@pytest.mark.parametrize("value", [np.zeros((2, 3)), np.zeros(0), torch.zeros(2, 3)])
def test_an_array_of_many_elements_is_refused_with_its_path_and_shape(value):
    with pytest.raises(ValueError) as refusal:
        to_plain({"eval": [1, {"acc": value}]})
    first, _, hint = str(refusal.value).partition("\n\n")
    assert first.startswith("metrics['eval'][1]['acc'] must be one number, got a")
    assert str(tuple(value.shape)) in first
    assert hint.startswith("hint: ")


def test_subclasses_of_numbers_and_strings_become_the_plain_kind_and_number_keys_text():
    class Level(enum.IntEnum):
        HIGH = 3

    class Name(str):
        pass

    assert same(to_plain([Level.HIGH, Name("a")]), [3, "a"])
    assert to_plain({1: "a", 0.5: "b"}) == {"1": "a", "0.5": "b"}


def test_a_metric_is_looked_up_by_its_name_or_by_its_path():
    metrics = {"eval": {"loss": 1, "a/b": 2}, "eval/loss": 3, "x": {"y": {"z": 4}}}
    values = {"eval/loss": 3, "eval/a/b": 2, "x/y/z": 4, "x/y/none": None, "eval/loss/deeper": None}
    assert {path: get_metric(metrics, path) for path in values} == values
    assert get_metric([1], "x") is None


@pytest.mark.parametrize("text", ["junk", "", "0xzz", "9" * 5000])
def test_a_number_that_nobody_wrote_stays_what_it_is(text):
    assert from_plain({"$number": text}) == {"$number": text}
