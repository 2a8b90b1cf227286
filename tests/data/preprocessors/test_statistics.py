"""Statistics of parts, merged, are those of the whole, wherever the rows are cut."""

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.block import Block
from paceline.data.preprocessors.one_pass import decoded, encoded
from paceline.data.preprocessors.statistics import Counts, Extremes, Moments, Quantiles, Statistic, Tokens, merged
from paceline.data.preprocessors.text import split_on_spaces

NUMBERS = st.one_of(
    st.none(), st.just(math.nan), st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: round(x, 6))
)
WORDS = st.one_of(st.none(), st.sampled_from(["a", "b", "ä", "", "b a", "a  a"]))


def _block(values: list[Any], kind: Any) -> Block:
    return Block({"x": pa.array(values, kind, from_pandas=False)})


def _in_parts(statistic: Statistic, values: list[Any], kind: Any, at: list[int]) -> Any:
    edges = sorted({0, len(values), *(place % (len(values) + 1) for place in at)})
    parts = [values[start:stop] for start, stop in pairwise(edges)] or [[]]
    # As between processes: every state goes through its bytes.
    states = [decoded(encoded(statistic.partial(_block(part, kind)))) for part in parts]
    return statistic.finish(decoded(encoded(merged(statistic, states))))


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, max_size=40), st.lists(st.integers(0, 100), max_size=8))
def test_moments_of_parts_are_those_of_the_whole(values: list[Any], at: list[int]) -> None:
    mean, std = _in_parts(Moments("x", "test"), values, pa.float64(), at)
    known = np.array([x for x in values if x is not None and not math.isnan(x)])
    if not len(known):
        assert (mean, std) == (None, None)
    else:
        scale = np.abs(known).max()
        assert mean == pytest.approx(known.mean(), abs=1e-9 * scale)
        assert std == pytest.approx(known.std(), rel=1e-6, abs=1e-7 * scale)
        assert (std == 0) == (len(set(known.tolist())) == 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, max_size=40), st.lists(st.integers(0, 100), max_size=8))
def test_extremes_of_parts_are_those_of_the_whole(values: list[Any], at: list[int]) -> None:
    known = [x for x in values if x is not None and not math.isnan(x)]
    expected = (min(known), max(known)) if known else (None, None)
    assert _in_parts(Extremes("x", "test"), values, pa.float64(), at) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, max_size=40), st.lists(st.integers(0, 100), max_size=8))
def test_quantiles_of_parts_are_those_of_numpy_for_the_whole(values: list[Any], at: list[int]) -> None:
    wanted = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
    found = _in_parts(Quantiles("x", wanted, 1 << 10, "test"), values, pa.float64(), at)
    known = [x for x in values if x is not None and not math.isnan(x)]
    if not known:
        assert found == [None] * len(wanted)
    else:
        assert found == pytest.approx(np.quantile(known, wanted).tolist(), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("shape", ["shuffled", "ascending", "descending", "heavy tail"])
def test_quantiles_beyond_the_precision_are_off_by_no_more_ranks_than_is_said(shape: str) -> None:
    num, precision = 50_000, 500
    values = np.arange(num, dtype=np.float64)
    if shape == "shuffled":
        np.random.default_rng(0).shuffle(values)
    elif shape == "descending":
        values = values[::-1].copy()
    elif shape == "heavy tail":
        values = np.random.default_rng(1).pareto(1.0, num)
    statistic = Quantiles("x", tuple(np.linspace(0, 1, 21).tolist()), precision, "test")
    states = [statistic.partial(Block({"x": part})) for part in np.array_split(values, 37)]
    whole = merged(statistic, states)
    assert sum(map(len, whole)) <= precision * (math.ceil(math.log2(num / precision)) + 1)
    assert sum(len(level) * 2**index for index, level in enumerate(whole)) == pytest.approx(num, abs=0)
    ranks = np.searchsorted(np.sort(values), statistic.finish(whole)) / num
    bound = math.log2(num / precision) / precision
    assert np.abs(ranks - np.linspace(0, 1, 21)).max() < bound


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, max_size=40), st.lists(st.integers(0, 100), max_size=8))
def test_counts_of_parts_are_those_of_the_whole_in_order_of_appearance(values: list[Any], at: list[int]) -> None:
    found = _in_parts(Counts("x"), values, pa.string(), at)
    assert list(found.items()) == list(Counter(values).items())


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, max_size=40), st.lists(st.integers(0, 100), max_size=8))
def test_tokens_of_parts_are_those_of_the_whole_in_order_of_appearance(values: list[Any], at: list[int]) -> None:
    found = _in_parts(Tokens("x", split_on_spaces), values, pa.string(), at)
    expected = Counter(token for text in values if text is not None for token in text.split(" "))
    assert list(found.items()) == list(expected.items())


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (np.array([2, 1, 2], np.int8), {2: 2, 1: 1}),
        (np.array([True, False, True]), {True: 2, False: 1}),
        (np.array([0.5, math.nan, -0.0, 0.0, math.nan]), {0.5: 1, None: 2, 0.0: 2}),
        (np.array([[1, 2], [2, 3]]), {1: 1, 2: 2, 3: 1}),
        (pa.array([["a", "b"], [], ["b", None], None]), {"a": 1, "b": 2, None: 2}),
        (pa.array(["b", "a", "b"]).dictionary_encode(), {"b": 2, "a": 1}),
        (pa.array([None, None]), {None: 2}),
        (pa.array([b"x", b"y", b"x"]), {b"x": 2, b"y": 1}),
    ],
    ids=["int8", "bool", "float", "tensor", "lists", "dictionary", "nulls", "bytes"],
)
def test_counts_of_every_kind_of_column(column: Any, expected: dict[Any, int]) -> None:
    statistic = Counts("x")
    state = decoded(encoded(statistic.partial(Block({"x": column}))))
    assert list(statistic.finish(state).items()) == list(expected.items())


def test_whole_lists_are_counted_as_tuples() -> None:
    state = Counts("x", in_lists=False).partial(Block({"x": pa.array([[1, 2], [2], [1, 2]])}))
    assert Counts("x", in_lists=False).finish(decoded(encoded(state))) == {(1, 2): 2, (2,): 1}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint64", "float16", "float32"])
def test_narrow_numbers_do_not_wrap_around(dtype: str) -> None:
    values = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max] if "int" in dtype else [-3, 5], dtype)
    block = Block({"x": values})
    assert Extremes("x", "test").finish(Extremes("x", "test").partial(block)) == tuple(values.tolist())
    mean, std = Moments("x", "test").finish(Moments("x", "test").partial(block))
    assert mean == pytest.approx(values.astype(np.float64).mean())
    assert std == pytest.approx(values.astype(np.float64).std())


def test_a_constant_column_has_no_deviation_whatever_rounding_does() -> None:
    statistic = Moments("x", "test")
    parts = [statistic.partial(Block({"x": np.full(size, 0.1)})) for size in (3, 7, 1, 11)]
    assert statistic.finish(merged(statistic, parts)) == (0.1, 0.0)
