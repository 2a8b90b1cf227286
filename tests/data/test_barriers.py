"""Sort, zip, repartition, limit and slices against pandas and plain lists, whatever the units and the memory."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_of import Table, reading, rows, run, tables

from paceline.data.barriers import Materialize, Repartition, Sliced, Sort, Zip, limited, sliced
from paceline.data.block import Block
from paceline.data.exec.exchange import materialized, resolved
from paceline.data.exec.inline import InlineExecutor
from paceline.data.plan import Map, Node, Reorder, Union
from paceline.data.transform import Scope, Transform


@dataclass(frozen=True)
class Odd(Transform):
    """Only rows with an odd id."""

    name = "odd"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        for block in blocks:
            yield block.take(np.flatnonzero(np.asarray(block.column("id")) % 2)) if block.num_rows else block


@dataclass(frozen=True)
class Doubled(Transform):
    name = "doubled"
    keeps_rows = True

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        for block in blocks:
            yield block.with_column("id", np.asarray(block.column("id")) * 2) if block.num_rows else block


def ids(plan: Node, epoch: int = 0) -> list[int]:
    return [row["id"] for row in rows(plan, epoch)]


KEYS = st.lists(
    st.tuples(st.sampled_from(["i", "f", "s"]), st.booleans()), min_size=1, max_size=3, unique_by=lambda k: k[0]
)


@given(tables(), KEYS)
@settings(max_examples=100, deadline=None)
def test_rows_are_sorted_as_pandas_sorts_them(table: Table, keys: list[tuple[str, bool]]) -> None:
    names, descending = zip(*keys, strict=True)
    sorted_frame = table.frame.sort_values(
        list(names), ascending=[not down for down in descending], kind="stable", na_position="last"
    )
    assert ids(Sort(table.plan, names, descending)) == sorted_frame["id"].tolist()


def test_rows_of_one_key_are_divided_into_parts_that_fit(data_context) -> None:
    data_context.target_max_block_size = 800
    block = Block({"id": np.arange(1000), "key": np.zeros(1000, np.int64)})
    units = resolved(Sort(reading([block.slice(0, 300), block.slice(300)]), ("key",), (False,)), 0, InlineExecutor())
    assert [unit.num_rows for unit in units] == [sum(b.num_rows for b in unit.read()) for unit in units]
    assert len(units) > 10
    assert max(unit.num_rows for unit in units) < 250
    assert [row["id"] for unit in units for block in unit.read() for row in block.rows()] == [*range(1000)]


def test_times_are_sorted(data_context) -> None:
    data_context.target_max_block_size = 100
    stamps = np.array([5, 3, "NaT", 4, 1], "datetime64[s]").astype("datetime64[us]")
    plan = reading([Block({"id": np.arange(3), "t": stamps[:3]}), Block({"id": np.arange(3, 5), "t": stamps[3:]})])
    assert ids(Sort(plan, ("t",), (False,))) == [4, 1, 3, 0, 2]
    dates = pa.chunked_array([pa.array([3, None, 1], pa.date32())])
    assert ids(Sort(reading([Block({"id": np.arange(3), "t": dates})]), ("t",), (True,))) == [0, 2, 1]


def test_a_key_that_is_no_column_is_named() -> None:
    with pytest.raises(KeyError, match="no column 'nokey'; there are: 'id'"):
        run(Sort(reading([Block({"id": np.arange(3)})]), ("nokey",), (False,)))


def test_a_key_of_tensors_is_refused() -> None:
    with pytest.raises(TypeError, match="by the column 'x', which is of type"):
        run(Sort(reading([Block({"x": np.ones((3, 2))})]), ("x",), (False,)))


def test_keys_of_different_types_are_refused() -> None:
    plan = reading([Block({"x": np.arange(3)}), Block({"x": ["a", "b"]})])
    with pytest.raises(TypeError, match=r"sort\('x'\): the values of the keys cannot be compared"):
        run(Sort(plan, ("x",), (False,)))


# Slices


@given(tables(), st.integers(0, 40), st.none() | st.integers(0, 40), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_slice_has_its_rows(table: Table, start: int, length: int | None, mapped: bool) -> None:
    stop = None if length is None else start + length
    plan = Map(table.plan, Doubled()) if mapped else table.plan
    wanted = [row["id"] * (2 if mapped else 1) for row in table.rows][start:stop]
    assert ids(sliced(plan, start, stop)) == wanted
    assert ids(Sliced(plan, start, stop)) == wanted
    assert ids(Sliced(Reorder(plan, seed=3), start, stop)) == ids(Reorder(plan, seed=3))[start:stop]


@given(tables(), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_a_limit_counts_what_a_filter_leaves(table: Table, num_rows: int) -> None:
    odd = [row["id"] for row in table.rows if row["id"] % 2]
    assert ids(limited(Map(table.plan, Odd()), num_rows)) == odd[:num_rows]
    assert ids(Map(limited(table.plan, num_rows), Odd())) == [i for i in range(min(num_rows, len(table.rows))) if i % 2]


@dataclass(frozen=True)
class Untouchable:
    """A unit that must not be read."""

    name: str = "untouchable"
    num_rows: int | None = 1000
    num_bytes: int | None = None

    def read(self) -> Iterator[Block]:
        raise AssertionError("read")


def test_a_limit_reads_no_more_than_it_needs() -> None:
    from paceline.data.barriers import Ready
    from paceline.data.plan import Read

    few = reading([Block({"id": np.arange(10)})])
    plan = Union((few, Read(Ready("rest", (Untouchable(),)))))
    assert ids(limited(plan, 7)) == [*range(7)]
    assert ids(limited(Map(plan, Doubled()), 7)) == [*range(0, 14, 2)]
    assert ids(limited(Map(plan, Odd()), 5)) == [1, 3, 5, 7, 9]
    assert ids(limited(Map(plan, Odd()), 0)) == []


def test_what_comes_of_known_rows_is_known(data_context) -> None:
    units = resolved(Sliced(reading([Block({"id": np.arange(10)})] * 3), 5, 22), 0, InlineExecutor())
    assert [(unit.name, unit.num_rows) for unit in units] == [
        ("unit 0 (rows 5 to 10)", 5),
        ("unit 1", 10),
        ("unit 2 (rows 0 to 2)", 2),
    ]


@pytest.mark.parametrize("number", [-1, 1.5, True, None])
def test_a_limit_that_is_no_number_of_rows_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match=r"limit\(.*\): it must be an integer of 0 or more"):
        limited(reading([]), number)


# Repartition


@given(tables(), st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_so_many_blocks_have_nearly_equally_many_rows(table: Table, num_blocks: int) -> None:
    units = resolved(Repartition(table.plan, num_blocks), 0, InlineExecutor())
    sizes = [unit.num_rows for unit in units]
    assert len(units) == num_blocks
    assert max(sizes) - min(sizes) <= 1
    assert [[row["id"] for block in unit.read() for row in block.rows()] for unit in units] == [
        [*range(sum(sizes[:k]), sum(sizes[: k + 1]))] for k in range(num_blocks)
    ]
    assert sum(sizes) == len(table.rows)


@given(tables(), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_blocks_have_the_number_of_rows_asked_for(table: Table, size: int) -> None:
    units = resolved(Repartition(table.plan, target_num_rows_per_block=size), 0, InlineExecutor())
    sizes = [unit.num_rows for unit in units]
    assert sizes == [min(size, len(table.rows) - begin) for begin in range(0, len(table.rows), size)]
    assert [row["id"] for unit in units for block in unit.read() for row in block.rows()] == [*range(len(table.rows))]


@given(tables(), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_a_repartition_may_shuffle(table: Table, num_blocks: int) -> None:
    units = resolved(Repartition(table.plan, num_blocks, shuffle=True), 0, InlineExecutor())
    found = [[row["id"] for block in unit.read() for row in block.rows()] for unit in units]
    order = [row for part in found for row in part]
    assert sorted(order) == [*range(len(table.rows))]
    assert not found or max(map(len, found)) - min(map(len, found)) <= 1
    if len(table.rows) > 20:
        assert order != [*range(len(table.rows))]


@pytest.mark.parametrize("arguments", [{}, {"num_blocks": 0}, {"num_blocks": 2, "target_num_rows_per_block": 2}])
def test_a_repartition_into_nothing_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="repartition"):
        Repartition(reading([]), **arguments)


# Zip


@given(tables(), st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=80, deadline=None)
def test_rows_meet_by_their_position(table: Table, cuts: list[int]) -> None:
    count = len(table.rows)
    ends = sorted(min(place, count) for place in cuts)
    others = [
        Block({"id": np.arange(begin, end) * 10, "other": np.arange(begin, end)})
        for begin, end in zip([0, *ends], [*ends, count], strict=True)
    ]
    found = rows(Zip((table.plan, reading(others), reading([Block({"id": np.arange(count)})]))))
    assert [(row["id"], row["id_1"], row["other"], row["id_2"]) for row in found] == [
        (index, index * 10, index, index) for index in range(count)
    ]
    assert [row["s"] for row in found] == [row["s"] for row in table.rows]


def test_datasets_of_different_lengths_are_told_apart() -> None:
    short, long = (reading([Block({"id": np.arange(count)})]) for count in (3, 5))
    with pytest.raises(ValueError, match="the datasets have 3 and 5 rows"):
        run(Zip((short, long)))


# Kept


def test_what_is_materialized_is_computed_once() -> None:
    calls: list[int] = []

    @dataclass(frozen=True)
    class Noted(Transform):
        name = "noted"

        def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
            for block in blocks:
                calls.append(block.num_rows)
                yield block

    plan = Map(
        reading([Block({"id": np.arange(3)}), Block({"id": np.arange(3, 3)}), Block({"id": np.arange(3, 7)})]), Noted()
    )
    kept = materialized(plan, InlineExecutor())
    assert ids(kept) == ids(kept) == [*range(7)]
    assert calls == [3, 0, 4]
    assert [unit.num_rows for unit in kept.source.units()] == [3, 4]


def test_every_kind_of_column_comes_back() -> None:
    ragged = np.empty(3, dtype=object)
    ragged[:] = [np.arange(2), np.arange(3), np.arange(0)]
    columns = {
        "tensor": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "bool": np.array([True, False, True]),
        "time": np.array(["2020-01-01", "NaT", "2021-01-01"], "datetime64[ns]"),
        "text": pa.chunked_array([["a"], [None, "é"]]),
        "list": pa.chunked_array([[[1], None, [2, 3]]]),
        "ragged": ragged,
        "int": pa.chunked_array([pa.array([1, None, 3])]),
        "zoned": pa.chunked_array([pa.array([1, 2, 3], pa.timestamp("us", "UTC"))]),
        "category": pa.chunked_array([pa.array(["a", "b", "a"]).dictionary_encode()]),
    }
    block = Block(columns)
    for plan in (Materialize(reading([block])), Sort(reading([block]), ("text",), (False,))):
        [found] = run(plan)
        back = found.take([0, 1, 2]) if isinstance(plan, Materialize) else found.take([0, 2, 1])
        assert back.schema == block.schema
        for mine, theirs in zip(back.rows(), block.rows(), strict=True):
            for name, value in theirs.items():
                np.testing.assert_equal(mine[name], value, err_msg=name)


def test_units_of_one_name_keep_their_rows_apart() -> None:
    parts = tuple(reading([Block({"id": np.arange(first, first + 3)})]) for first in (0, 3, 6, 9))
    assert ids(Materialize(Union(parts))) == [*range(12)]


def test_no_rows_stay_no_rows() -> None:
    for nothing in (reading([]), reading([Block.empty()]), reading([Block({"id": np.arange(0)})] * 2)):
        assert run(Sort(nothing, ("id",), (False,))) == []
        assert run(Zip((nothing, nothing))) == []
        assert run(Repartition(nothing, 3)) == []
        assert run(Materialize(nothing)) == []
        assert run(Sliced(nothing, 1, 5)) == []
