"""Joins against DuckDB, whatever the units, the memory and the processes, and the order of their rows."""

import datetime
import math
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import READ, BackwardsExecutor, all_rows, cut, listed, reading, rows

from paceline.data import from_arrow
from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec.exchange import resolve_barrier
from paceline.data.exec.pipeline import InlineExecutor
from paceline.data.planning.barriers import Join
from paceline.data.planning.joins import JOIN_TYPES, JoinSpec
from paceline.data.planning.key_hashes import hash_keys

KEYS = st.lists(
    st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from(["", "a", "b", "ab"])), max_size=20
)


def side(keys, cuts, kind, name):
    """Rows with two keys and their position, in units that end at these places."""
    table = pa.table(
        {
            "a": pa.array([a for a, _ in keys], kind),
            "b": pa.array([b for _, b in keys], pa.string()),
            name: pa.array(range(len(keys)), pa.int64()),
        }
    )
    ends = sorted(min(place, len(keys)) for place in cuts)
    spans = zip([0, *ends], [*ends, len(keys)], strict=True)
    blocks = [Block.from_arrow(table.slice(begin, end - begin)) for begin, end in spans]
    return table, reading(blocks, counted=False)


def join_in_duckdb(left, right, how):
    kind, *rest = how.split("_")
    if rest in (["semi"], ["anti"]):
        first, second = ("left_rows", "right_rows") if kind == "left" else ("right_rows", "left_rows")
        source = f"{first} {rest[0]} join {second}"
    else:
        source = f"left_rows {kind} join right_rows"
    columns = "a, b, l, r" if not rest or rest == ["outer"] else "a, b, " + kind[0]
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("left_rows", left)
        connection.register("right_rows", right)
        found = connection.execute(f"select {columns} from {source} using (a, b)").fetchall()
    return [dict(zip(columns.split(", "), row, strict=True)) for row in found]


def sort_rows(found):
    return sorted(found, key=lambda row: [(value is None, value or 0) for value in (row.get("l"), row.get("r"))])


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_rows_are_joined_as_duckdb_joins_them_whatever_the_units_and_the_memory(data):
    context = DataContext.get_current()
    context.target_max_block_size, context.execution_options.resource_limits.object_store_memory = 32 << 20, 1 << 30
    how = data.draw(st.sampled_from(JOIN_TYPES))
    cuts = st.lists(st.integers(0, 20), max_size=3)
    left, left_plan = side(data.draw(KEYS), data.draw(cuts), pa.int64(), "l")
    right, right_plan = side(
        data.draw(KEYS), data.draw(cuts), data.draw(st.sampled_from([pa.int32(), pa.uint64()])), "r"
    )
    spec = JoinSpec(how, ("a", "b"), ("a", "b"))
    wanted = rows(Join((left_plan, right_plan), spec))
    if left.num_rows and right.num_rows:  # otherwise the columns of one side may be unknown
        assert sort_rows(wanted) == sort_rows(join_in_duckdb(left, right, how))
    context.target_max_block_size = data.draw(st.sampled_from([64, 300, 32 << 20]))
    context.execution_options.resource_limits.object_store_memory = data.draw(st.sampled_from([0, 1000, 1 << 30]))
    other = Join((left_plan, right_plan), spec, data.draw(st.none() | st.integers(1, 6)))
    assert rows(other, executor=BackwardsExecutor()) == wanted


def test_rows_of_a_key_are_ordered_by_their_positions():
    left = cut({"k": [1, 2, 1, 1], "l": [0, 1, 2, 3]}, [2], [2])
    right = cut({"k": [1, 3, 1], "r": [0, 1, 2]}, [1], [2])
    found = left.join(right, "full_outer", on="k").take_all()
    assert [(row["l"], row["r"]) for row in found if row["k"] == 1] == [(0, 0), (0, 2), (2, 0), (2, 2), (3, 0), (3, 2)]
    assert {row["k"]: (row["l"], row["r"]) for row in found if row["k"] != 1} == {2: (1, None), 3: (None, 1)}


TIME = datetime.datetime(2024, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([0.0, -0.0, 1.5]), pa.array([-0.0, 1.5], pa.float32())),
        (pa.array([1, -3], pa.int8()), pa.array([1, -3], pa.int64())),
        (pa.array([5, 2**63], pa.uint64()), pa.array([5, -(2**63)], pa.int64())),
        (pa.array(["x" * 300 + "a", "é"]), pa.array(["x" * 300 + "a", "x" * 300 + "b", "é"], pa.large_string())),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "c"])),
        (pa.array([TIME], pa.timestamp("s")), pa.array([TIME, TIME], pa.timestamp("ns"))),
        (pa.array([TIME.date()], pa.date32()), pa.array([TIME.date()], pa.date64())),
        (pa.array([Decimal("1.50"), Decimal("7")]), pa.array([Decimal("1.5"), Decimal("7.000")])),
        (pa.array([b"ab"], pa.binary(2)), pa.array([b"ab", b"abc"])),
        (pa.array([True, False]), pa.array([False])),
    ],
    ids=lambda array: str(array.type),
)
def test_equal_keys_match_in_all_types_of_a_kind(left, right):
    found = from_arrow(pa.table({"k": left})).join(
        from_arrow(pa.table({"k": right, "r": range(len(right))})), "inner", on="k"
    )
    wanted = [
        (one, number) for one in left.to_pylist() for number, other in enumerate(right.to_pylist()) if one == other
    ]
    assert sorted((row["k"], row["r"]) for row in found.take_all()) == sorted(wanted)
    assert wanted
    assert found.schema().types[0] == left.type


def test_hashes_are_the_same_on_every_machine_and_equal_for_equal_numbers():
    hashes, is_missing = hash_keys(Block({"x": [1, 0], "y": pa.array(["ab", None])}), ["x", "y"])
    assert (hashes[0], is_missing.tolist()) == (824914582168877385, [False, True])
    whole = [-3, 0, 5, 2**53]
    kinds = [np.array(whole), np.array(whole, float), pa.array([Decimal(each) for each in whole])]
    assert len({hash_keys(Block({"x": kind}), ["x"])[0].tobytes() for kind in kinds}) == 1
    texts = Block({"x": pa.array([f"{number:0{number % 40}}" for number in range(2000)])})
    assert len(set(hash_keys(texts, ["x"])[0].tolist())) == len(set(texts.column("x").to_pylist()))


def test_rows_without_keys_are_spread_over_all_units():
    left = reading([Block({"k": pa.nulls(400, pa.int64())})])
    plan = Join((left, reading([Block({"k": [1]})])), JoinSpec("left_outer", ("k",), ("k",)), num_partitions=4)
    units = resolve_barrier(plan, 0, InlineExecutor())
    assert all(50 < sum(block.num_rows for block in unit.read()) < 150 for unit in units)


@pytest.mark.parametrize("missing", [None, math.nan])
def test_missing_keys_match_nothing_and_stay_what_they_are(missing):
    left, right = listed([{"k": [missing, 1.0], "l": [0, 1]}]), listed([{"k": [1.0, missing], "r": [0, 1]}])
    found = left.join(right, "full_outer", on="k").take_all()
    assert sorted((str(row["k"]), row["l"] is None, row["r"] is None) for row in found) == [
        ("1.0", False, False),
        (str(missing), False, True),
        (str(missing), True, False),
    ]


def test_columns_keep_their_types_where_rows_are_missing():
    tensors = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    columns = {
        "t": tensors,
        "n": np.array([1, 2], np.int16),
        "d": pa.array(["a", "b"]).dictionary_encode(),
        "o": [[1], []],
    }
    left, right = cut({"key": [1, 2, 3]}), cut({"id": [1, 2], **columns})
    for how in ("inner", "left_outer"):
        joined = left.join(right, how, on="key", right_on="id")
        block = all_rows(joined)
        assert list(block.columns) == ["key", "t", "n", "d", "o"]
        types = dict(zip(block.schema.names, block.schema.types, strict=True))
        assert types["n"] == pa.int16()
        assert types["d"] == pa.dictionary(pa.int32(), pa.string())
        by_key = {row["key"]: row for row in block.rows()}
        np.testing.assert_equal(by_key[2]["t"], tensors[1])
        assert (by_key[1]["d"], by_key[2]["o"]) == ("a", [])
        assert how == "inner" or [by_key[3][name] for name in columns] == [None] * 4
    assert left.join(right, "right_anti", on="key", right_on="id").take_all() == []
    nothing = from_arrow(pa.table({"id": pa.array([], pa.int8()), "x": pa.array([], pa.string())}))
    empty = left.join(nothing, "left_outer", on="key", right_on="id")
    assert {str(row["x"]) for row in empty.take_all()} == {"None"}


def test_only_the_needed_columns_are_read():
    def read(**names):
        return listed([{name: [1] for name in names.values()}], schema=True)

    left, right = read(a="id", b="v", c="w"), read(a="id", b="v", c="x")
    joined = left.join(right, "inner", right_suffix="_r").select_columns(["v_r", "x"])
    READ.clear()
    assert joined.take_all() == [{"v_r": 1, "x": 1}]
    assert [columns for _, columns, _ in READ] == [["id", "v"], ["id", "v", "x"]]
