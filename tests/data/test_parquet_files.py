"""read_parquet: columns, types, units and errors, and row groups that are left out by their statistics."""

import math
import pickle
import re
from datetime import date, datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_datasets import blocks_of, column, rows_of, source_of

from paceline.data import FileShuffleConfig, col, lit, read_parquet
from paceline.data.block import Block, TensorType
from paceline.data.expressions import BinaryNode, evaluate_column
from paceline.data.planning.plan import Read, ReorderUnits
from paceline.data.sources import footers, parquet


@pytest.fixture
def many(tmp_path):
    """Three files with ten row groups of 10 rows each, and every kind of column."""
    for number in range(3):
        rows = range(number * 100, number * 100 + 100)
        table = pa.table(
            {
                "n": pa.array(rows, pa.int64()),
                "x": np.arange(rows.start, rows.stop, dtype=np.float32) / 2,
                "s": [None if row % 7 == 0 else f"row {row}" for row in rows],
                "l": [[row] * (row % 3) for row in rows],
                "d": pa.array([f"k{row % 3}" for row in rows]).dictionary_encode(),
                "t": pa.array([row * 1_000_000 for row in rows], pa.timestamp("us")),
                "a.b": pa.array([1] * 100, pa.int8()),
                "v": [{"k": row} for row in rows],
            }
        )
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=10)
    return tmp_path


def test_batches_are_what_pandas_reads(many):
    frame = pd.concat([pd.read_parquet(many / f"{number}.parquet") for number in range(3)], ignore_index=True)
    blocks = blocks_of(read_parquet(many))
    assert not any(block.to_numpy()[name].flags.owndata for block in blocks for name in "nx"), "numbers are not copied"
    found = Block.concat(blocks).to_pandas()
    assert list(found.columns) == list(frame.columns)
    for name in ("n", "x", "t"):
        pd.testing.assert_series_equal(found[name], frame[name], check_dtype=False)
    for name in ("s", "d", "v"):
        assert [None if pd.isna(v) else v for v in found[name]] == [None if pd.isna(v) else v for v in frame[name]]
    assert [list(row) for row in found["l"]] == [list(row) for row in frame["l"]]


@pytest.mark.parametrize("names", [["v", "n"], ["a.b", "s"], []])
def test_projection_is_selection(many, names):
    dataset = read_parquet(many)
    expected = [{name: row[name] for name in names} for row in rows_of(dataset)]
    projected = source_of(dataset).project_columns(names)
    assert projected is not None
    blocks = [block for unit in projected.units() for block in unit.read()]
    assert sum(block.num_rows for block in blocks) == 300
    assert all(list(block.columns) == names for block in blocks)
    if names:
        assert [row for block in blocks for row in block.rows()] == expected
        assert rows_of(read_parquet(many, columns=names)) == expected
    assert projected.schema().names == names
    assert [unit.name for unit in projected.units()] == [unit.name for unit in source_of(dataset).units()]


def test_units_are_row_groups_of_about_a_size_and_the_same_list_each_time(many, monkeypatch):
    assert [unit.name for unit in source_of(read_parquet(many)).units()] == [f"{i}.parquet" for i in range(3)]
    sizes = source_of(read_parquet(many)).contents.sizes[0][0]
    monkeypatch.setattr(parquet, "UNIT_BYTES", 4 * (sizes["n"] + sizes["x"]) + 8)
    dataset = read_parquet(many, columns=["n", "x"])
    units = source_of(dataset).units()
    assert [unit.groups for unit in units[:3]] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]
    assert units[1].name == "0.parquet (row groups 4 to 7)"
    assert [unit.num_rows for unit in units] == [40, 40, 20] * 3
    again = source_of(read_parquet(many, columns=["n", "x"])).units()
    assert [(unit.name, unit.groups, unit.num_rows, unit.num_bytes) for unit in again] == [
        (unit.name, unit.groups, unit.num_rows, unit.num_bytes) for unit in units
    ]
    assert column(dataset, "n") == list(range(300))
    copy = pickle.loads(pickle.dumps(source_of(dataset)))
    assert [unit.name for unit in copy.units()] == [unit.name for unit in units]
    assert (copy.name, copy.schema()) == (f"read_parquet('{many}')", source_of(dataset).schema())
    chosen = read_parquet(many, override_num_blocks=30)
    assert 24 <= len(source_of(chosen).units()) <= 30
    assert column(chosen, "n") == list(range(300))


def test_bytes_that_unfold_when_they_are_decoded_go_into_smaller_units(tmp_path, monkeypatch):
    data = [bytes([row % 251]) * 100 for row in range(80)]
    plain = pa.table({"s": [value.decode("latin-1") for value in data]})
    pq.write_table(plain, tmp_path / "text.parquet", row_group_size=10, use_dictionary=False)
    packed = pa.table({"s": pa.array(data, pa.binary())})
    pq.write_table(packed, tmp_path / "bytes.parquet", row_group_size=10, use_dictionary=False)
    monkeypatch.setattr(parquet, "UNIT_BYTES", 20_500)
    assert [unit.num_rows for unit in source_of(read_parquet(tmp_path / "text.parquet")).units()] == [80]
    assert [unit.num_rows for unit in source_of(read_parquet(tmp_path / "bytes.parquet")).units()] == [20] * 4
    assert column(read_parquet(tmp_path / "bytes.parquet"), "s") == data


@pytest.mark.parametrize("whole", [0, 1 << 30])
def test_large_row_groups_come_in_pieces(tmp_path, monkeypatch, whole):
    table = pa.table({"n": range(5000), "s": [f"{row:050}" for row in range(5000)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2500)
    monkeypatch.setattr(parquet, "PIECE_BYTES", 32 << 10)
    monkeypatch.setattr(parquet, "WHOLE_BYTES", whole)
    blocks = blocks_of(read_parquet(tmp_path))
    assert len(blocks) > 5
    assert max(block.nbytes for block in blocks) < 64 << 10
    assert Block.concat(blocks).to_arrow().to_pydict() == table.to_pydict()


def test_a_file_that_has_changed_is_not_read_as_if_it_had_not(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"n": range(100)}), path, row_group_size=10)
    unit = source_of(read_parquet(path)).units()[0]
    pq.write_table(pa.table({"n": range(50)}), path, row_group_size=10)
    with pytest.raises(ValueError, match=r"x\.parquet has changed .* had 100 rows, now there are only 5 row groups"):
        list(unit.read())
    pq.write_table(pa.table({"n": range(200)}), path, row_group_size=20)
    with pytest.raises(ValueError, match=r"x\.parquet has changed .* had 100 rows, now they have 200"):
        list(unit.read())


def test_footers_are_kept_as_long_as_there_is_room(many, monkeypatch):
    reads = []
    read = pq.read_metadata
    monkeypatch.setattr(footers, "_cache", footers._FooterCache(room=2 * read(many / "0.parquet").serialized_size + 99))
    monkeypatch.setattr(pq, "read_metadata", lambda file: (reads.append(file), read(file))[1])
    files = source_of(read_parquet(many / "0.parquet")).files
    assert len(reads) == 1
    footers.read_footers(files)
    assert len(reads) == 1
    read_parquet([many / "1.parquet", many / "2.parquet"])
    footers.read_footers(files)
    assert len(reads) == 4


def test_files_have_one_schema_or_are_named(tmp_path):
    pq.write_table(pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"c": [True], "a": pa.array([2**40])}), tmp_path / "2.parquet")
    pq.write_table(pa.table({"a": [0.5], "b": pa.array(["y"]).dictionary_encode()}), tmp_path / "3.parquet")
    dataset = read_parquet(tmp_path)
    assert source_of(dataset).schema().types == [pa.float64(), pa.string(), pa.bool_()]
    assert [column(dataset, name) for name in "abc"] == [[1.0, 2.0**40, 0.5], ["x", None, "y"], [None, True, None]]
    assert all(block.schema == source_of(dataset).schema() for block in blocks_of(dataset))
    pq.write_table(pa.table({"a": ["x"], "c": [False]}), tmp_path / "4.parquet")
    message = r"'a' has incompatible types: int32 in .*1\.parquet, string in .*4\.parquet"
    with pytest.raises(ValueError, match=message):
        read_parquet(tmp_path)
    assert column(read_parquet(tmp_path, columns=["c"]), "c") == [None, True, None, False]


def test_columns_that_cannot_be_read_are_named_with_their_file(tmp_path):
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("ns"))}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"t": pa.array([2**62], pa.timestamp("us"))}), tmp_path / "2.parquet")
    with pytest.raises(ValueError, match=r"cannot read \S*2\.parquet as Parquet: "):
        rows_of(read_parquet(tmp_path))
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"1\.parquet has two columns named 'a'"):
        read_parquet(tmp_path)


def test_tensors_are_arrays_whatever_their_shapes(tmp_path):
    values = np.arange(24, dtype=np.int16).reshape(4, 2, 3)
    table = pa.table({"t": pa.FixedShapeTensorArray.from_numpy_ndarray(values)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    dataset = read_parquet(tmp_path)
    (block,) = blocks_of(dataset)
    np.testing.assert_array_equal(block.columns["t"], values)
    assert source_of(dataset).schema().types == [TensorType(np.dtype(np.int16), (2, 3))]
    rows = pa.array([{"data": [1, 2], "shape": [1, 2]}, {"data": [1, 2, 3], "shape": [3, 1]}])
    _write_extension(tmp_path / "x.parquet", "ray.data.arrow_variable_shaped_tensor", b"2", rows)
    found = blocks_of(read_parquet(tmp_path))[0].columns["t"]
    assert [row.shape for row in found] == [(1, 2), (3, 1)]


@pytest.mark.parametrize("name", ["ray.data.arrow_tensor", "ray.data.arrow_tensor_v2"])
def test_tensors_of_ray_are_read_without_ray(tmp_path, name):
    values = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    rows = pa.array(values.reshape(3, 4).tolist(), pa.list_(pa.float32()))
    _write_extension(tmp_path / "x.parquet", name, b"[2, 2]", rows)
    dataset = read_parquet(tmp_path)
    np.testing.assert_array_equal(blocks_of(dataset)[0].columns["t"], values)
    assert source_of(dataset).schema().types == [TensorType(np.dtype(np.float32), (2, 2))]
    _write_extension(tmp_path / "x.parquet", name, b"[2, 2]", pa.concat_arrays([rows[:1], pa.nulls(1, rows.type)]))
    found = blocks_of(read_parquet(tmp_path))[0].columns["t"]
    assert (found[0].tolist(), found[1]) == (values[0].tolist(), None)


@pytest.mark.parametrize("before", ["pass", pytest.param("import ray.data", marks=pytest.mark.slow)])
def test_a_shape_that_is_no_json_is_not_unpickled(tmp_path, run_script, before):
    """In a process of its own: one that has imported Ray Data knows the type, and refuses such a shape itself."""
    rows = pa.array([[1.0]], pa.list_(pa.float32()))
    _write_extension(tmp_path / "x.parquet", "ray.data.arrow_tensor", pickle.dumps(Planted()), rows)
    ended = run_script(f"{before}\nimport paceline.data\nprint(paceline.data.read_parquet('x.parquet').take())")
    assert not (tmp_path / "planted").exists()
    if before == "pass":
        assert ended.stdout == "[{'t': [1.0]}]\n", ended.stderr
    else:
        assert re.search(r"cannot read \S*x\.parquet as Parquet", ended.stderr)


class Planted:
    """Leaves a file where it is unpickled."""

    def __reduce__(self):
        return open, ("planted", "w")


def _write_extension(path, name, details, storage):
    metadata = {"ARROW:extension:name": name.encode(), "ARROW:extension:metadata": details}
    field = pa.field("t", storage.type, metadata=metadata)
    pq.write_table(pa.Table.from_arrays([storage], schema=pa.schema([field])), path)


@pytest.mark.parametrize("condition", [col("n") >= 250, "n >= 250", pc.field("n") >= 250])
def test_only_rows_that_match_come(many, condition):
    dataset = read_parquet(many, filter=condition, columns=["x"])
    assert rows_of(dataset) == [{"x": number / 2} for number in range(250, 300)]
    assert all(unit.num_rows is None for unit in source_of(dataset).units())


def test_the_order_is_kept_when_pyarrow_filters(tmp_path):
    pq.write_table(pa.table({"n": range(400_000)}), tmp_path / "x.parquet")
    found = Block.concat(blocks_of(read_parquet(tmp_path, filter=pc.field("n") > 9)))
    assert (np.diff(found.to_numpy()["n"]) == 1).all()


def test_files_without_rows_give_none_but_their_columns(tmp_path):
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "1.parquet")
    dataset = read_parquet(tmp_path)
    assert list(source_of(dataset).units()) == []
    assert source_of(dataset).schema().names == ["n"]
    pq.write_table(pa.table({"n": [1]}), tmp_path / "2.parquet")
    assert rows_of(read_parquet(tmp_path)) == [{"n": 1}]


def test_files_change_places_as_the_shuffle_says(many):
    for shuffle, seed, every_epoch in (
        ("files", 0, True),
        (FileShuffleConfig(seed=3), 3, True),
        (FileShuffleConfig(reseed_after_execution=False), 0, False),
    ):
        plan = read_parquet(many, shuffle=shuffle)._plan
        assert isinstance(plan, ReorderUnits)
        assert isinstance(plan.input, Read)
        assert (plan.seed, plan.every_epoch) == (seed, every_epoch)
    for arguments in ({"seed": 1.5}, {"seed": True}, {"reseed_after_execution": None}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            FileShuffleConfig(**arguments)


DAY, MOMENT = date(2024, 2, 28), datetime(2024, 2, 28, 12)
VALUES = {
    "whole": (pa.int64(), st.sampled_from([-(2**63), -1, 0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1])),
    "narrow": (pa.int8(), st.integers(-3, 3)),
    "unsigned": (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    "float32": (pa.float32(), st.sampled_from([-math.inf, -0.0, 0.0, 0.1, 1.0, 2.0**24, math.inf, math.nan])),
    "float64": (pa.float64(), st.sampled_from([-math.inf, -0.0, 0.0, 0.1, 1.0, 2.0**53, math.inf, math.nan])),
    "text": (pa.string(), st.sampled_from(["", "a", "b", "ab", "é", "\U0001f600", "\uffff"])),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.integers(0, 3).map(lambda days: DAY + timedelta(days))),
    "time": (pa.timestamp("us"), st.integers(0, 3).map(lambda days: MOMENT + timedelta(days))),
    "exact": (pa.timestamp("ns"), st.integers(0, 3).map(lambda days: MOMENT + timedelta(days))),
}
ODD = st.sampled_from([None, math.nan, np.float32(0.1), np.float64(0.1), np.int8(1), 0.5, 16777217, 2.0**53, True, "a"])


@st.composite
def _cases(draw):
    """A column, values of it, and a condition on it: with few values to draw from, they often meet its bounds."""
    name = draw(st.sampled_from(sorted(VALUES)))
    values = VALUES[name][1]
    rows = draw(st.lists(st.none() | values, min_size=1, max_size=4))
    return name, rows, draw(_conditions(name, values))


def _conditions(name, values):
    signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    literals = (values | values | values | ODD).map(lit)
    leaves = (
        st.builds(BinaryNode, signs, st.just(col(name)), literals)
        | st.builds(BinaryNode, signs, literals, st.just(col(name)))
        | st.lists(st.none() | values, max_size=3).map(col(name).is_in)
        | st.sampled_from([col(name).is_null(), col(name).is_not_null(), col(name), lit(True), lit(False)])
    )
    return st.recursive(
        leaves,
        lambda inner: (
            inner.map(lambda one: ~one)
            | st.tuples(inner, inner).map(lambda two: two[0] & two[1])
            | st.tuples(inner, inner).map(lambda two: two[0] | two[1])
        ),
        max_leaves=3,
    )


UNFIT = (TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError)
"""How an expression, or Arrow, says that it does not compare such things at all."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("pruning") / "x.parquet"


def _wanted(predicate, block):
    return block.to_arrow().filter(evaluate_column(predicate, block))


@settings(max_examples=80, deadline=None)
@given(case=_cases(), group=st.integers(1, 3), statistics=st.booleans())
@example(("float32", [0.1], col("float32").is_in([0.1])), 1, True)
@example(("float32", [2.0**24], col("float32") == 16777217), 1, True)
@example(("whole", [2**53 + 1], col("whole") == 2.0**53), 1, True)
@example(("unsigned", [2**64 - 1], col("unsigned") > 1), 1, True)
@example(("float64", [math.nan, 1.0], ~(col("float64") == 1.0)), 2, True)
@example(("whole", [None, 1], ~col("whole").is_in([1])), 2, True)
@example(("whole", [1], ~(col("whole") < 1)), 1, True)
def test_pruned_and_filtered_is_filtered(path, case, group, statistics):
    name, rows, predicate = case
    table = pa.table({name: pa.array(rows, VALUES[name][0]), "row": range(len(rows))})
    try:
        expected = _wanted(predicate, Block.from_arrow(table)).column("row").to_pylist()
    except UNFIT:
        return
    pq.write_table(table, path, row_group_size=group, write_statistics=statistics)
    source = source_of(read_parquet(path))
    kept = [block for unit in (source.prune_units(predicate) or source).units() for block in unit.read()]
    assert [row for block in kept for row in _wanted(predicate, block).column("row").to_pylist()] == expected
    assert column(read_parquet(path, filter=predicate), "row") == expected


@pytest.mark.parametrize(
    ("predicate", "kept"),
    [
        (col("n") < 10, [0]),
        (lit(9) >= col("n"), [0]),
        (col("n") == 15, [1]),
        (col("n").is_in([3, 27]), [0, 2]),
        ((col("n") > 5) & (col("n") < 8), [0]),
        ((col("n") < 5) | (col("s") == "c"), [0, 2]),
        (~(col("n") < 20), [2]),
        (col("s").is_null(), [1]),
        (col("s") != "a", [2]),
        (col("n") == 99, []),
        (col("n") + 1 < 5, [0, 1, 2]),
        (((col("n") >= 20) & col("s").str.contains("c")).alias("is_late"), [2]),
        (col("u").struct["v"] > 3, [0, 1, 2]),
        (col("n") < "5", [0, 1, 2]),
        (col("nowhere") < 5, [0, 1, 2]),
    ],
)
def test_a_row_group_in_which_no_row_can_match_is_not_read(tmp_path, predicate, kept):
    table = pa.table({"n": range(30), "s": ["a"] * 10 + [None] * 10 + ["c"] * 10, "u": [{"v": n} for n in range(30)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    source = source_of(read_parquet(tmp_path / "x.parquet"))
    pruned = source.prune_units(predicate)
    assert (pruned is None) == (kept == [0, 1, 2])
    groups = [group for unit in (pruned or source).units() for group in unit.groups]
    assert groups == kept
    assert {unit.name for unit in (pruned or source).units()} <= {unit.name for unit in source.units()}


def test_partitions_are_pruned_by_their_values(tmp_path):
    for year in (2023, 2024, 2025):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"n": [year]}), tmp_path / f"year={year}/x.parquet")
    dataset = read_parquet(tmp_path, filter="year >= 2024")
    assert [unit.file.partition for unit in source_of(dataset).units()] == [(("year", 2024),), (("year", 2025),)]
    assert column(dataset, "n") == [2024, 2025]


def test_a_column_that_only_other_files_have_is_null(tmp_path):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [2], "m": [5]}), tmp_path / "b.parquet")
    assert column(read_parquet(tmp_path, filter=col("m") > 1), "n") == [2]
    assert column(read_parquet(tmp_path, filter=col("m").is_null()), "n") == [1]
    assert len(source_of(read_parquet(tmp_path, filter=col("m").is_null())).units()) == 1
