"""Row groups are left out by their statistics, and never one with a row that is wanted."""

import math
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from units_read import column, source_of

from paceline.data import col, lit, read_parquet
from paceline.data.block import Block
from paceline.data.expressions import BinaryNode, Expr, evaluate_column

DAY, MOMENT = date(2024, 2, 28), datetime(2024, 2, 28, 12)
VALUES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
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
ODD = st.sampled_from(
    [None, math.nan, np.float32(0.1), np.float64(0.1), np.int32(1), 0.5, 16777217, 2.0**53, True, "a"]
)


@st.composite
def _cases(draw: Any) -> tuple[str, list[Any], Expr]:
    """A column, values of it, and a condition on it: with few values to draw from, they often meet its bounds."""
    name = draw(st.sampled_from(sorted(VALUES)))
    values = VALUES[name][1]
    rows = draw(st.lists(st.none() | values, min_size=1, max_size=4))
    return name, rows, draw(_conditions(name, values))


def _conditions(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Expr]:
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
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pruning") / "x.parquet"


def _wanted(predicate: Expr, block: Block) -> Any:
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
def test_pruned_and_filtered_is_filtered(
    path: Path, case: tuple[str, list[Any], Expr], group: int, statistics: bool
) -> None:
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
        (col("n") < "5", [0, 1, 2]),
        (col("nowhere") < 5, [0, 1, 2]),
    ],
)
def test_a_row_group_in_which_no_row_can_match_is_not_read(tmp_path: Path, predicate: Expr, kept: list[int]) -> None:
    table = pa.table({"n": range(30), "s": ["a"] * 10 + [None] * 10 + ["c"] * 10})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    source = source_of(read_parquet(tmp_path / "x.parquet"))
    pruned = source.prune_units(predicate)
    assert (pruned is None) == (kept == [0, 1, 2])
    groups = [group for unit in (pruned or source).units() for group in unit.groups]
    assert groups == kept
    assert {unit.name for unit in (pruned or source).units()} <= {unit.name for unit in source.units()}


def test_partitions_are_pruned_by_their_values(tmp_path: Path) -> None:
    for year in (2023, 2024, 2025):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"n": [year]}), tmp_path / f"year={year}/x.parquet")
    dataset = read_parquet(tmp_path, filter="year >= 2024")
    assert [unit.file.partition for unit in source_of(dataset).units()] == [(("year", 2024),), (("year", 2025),)]
    assert column(dataset, "n") == [2024, 2025]


def test_a_column_that_only_other_files_have_is_null(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [2], "m": [5]}), tmp_path / "b.parquet")
    assert column(read_parquet(tmp_path, filter=col("m") > 1), "n") == [2]
    assert column(read_parquet(tmp_path, filter=col("m").is_null()), "n") == [1]
    assert len(source_of(read_parquet(tmp_path, filter=col("m").is_null())).units()) == 1
