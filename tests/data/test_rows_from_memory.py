"""from_items, from_pandas, from_numpy, from_arrow, range and range_tensor."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from units_read import blocks_of, column, rows_of, source_of

from paceline import data
from paceline.data.block import TensorType
from paceline.data.sources.memory import cuts


@given(st.integers(0, 500), st.integers(0, 1 << 30), st.none() | st.integers(1, 600), st.integers(1, 64))
def test_cuts_leave_out_nothing(num_rows: int, num_bytes: int, number: int | None, least: int) -> None:
    found = cuts(num_rows, num_bytes, number, least)
    assert [row for start, stop in found for row in range(start, stop)] == list(range(num_rows))
    if number is not None:
        assert len(found) == min(number, num_rows)
    sizes = [stop - start for start, stop in found]
    assert not sizes or max(sizes) - min(sizes) <= 1


class TestItems:
    @pytest.mark.parametrize(
        "rows",
        [
            [{"a": 1, "b": "x"}, {"a": 2, "b": None}],
            [{"a": number} for number in range(1000)],
            [{"a": [1, 2]}, {"a": []}],
            [{"a": {"k": 1}}],
        ],
    )
    def test_dicts_are_rows(self, rows: list[dict[str, Any]]) -> None:
        assert rows_of(data.from_items(rows)) == rows

    def test_a_key_that_a_row_lacks_is_null_there_in_whichever_block(self) -> None:
        rows = [{"a": number} for number in range(200)] + [{"b": "x"}]
        dataset = data.from_items(rows)
        assert all(list(block.columns) == ["a", "b"] for block in blocks_of(dataset))
        assert rows_of(dataset)[-1] == {"a": None, "b": "x"}

    @pytest.mark.parametrize("items", [[1, 2, 3], ["a", "b"], [1.5, 2.5], [None, "x"], [b"x"]])
    def test_other_things_are_the_column_item(self, items: list[Any]) -> None:
        assert rows_of(data.from_items(items)) == [{"item": item} for item in items]

    def test_tensors_are_tensors(self) -> None:
        dataset = data.from_items([{"t": np.full((2, 2), number)} for number in range(3)])
        assert source_of(dataset).schema().types == [TensorType(np.dtype(np.int64), (2, 2))]
        assert [row["t"].tolist() for row in rows_of(dataset)] == [[[number] * 2] * 2 for number in range(3)]

    def test_there_are_many_units_for_many_rows_and_as_many_as_asked_for(self) -> None:
        assert len(source_of(data.from_items(list(range(1000)))).units()) == 64
        assert len(source_of(data.from_items([1, 2])).units()) == 2
        assert len(source_of(data.from_items(list(range(10)), override_num_blocks=3)).units()) == 3

    def test_no_items_are_no_rows(self) -> None:
        assert rows_of(data.from_items([])) == []
        assert source_of(data.from_items([])).schema() is None

    @pytest.mark.parametrize("items", [[1, {"a": 1}], [{"a": 1}, 2]])
    def test_dicts_and_other_things_do_not_go_together(self, items: list[Any]) -> None:
        with pytest.raises(ValueError, match=r"either all items must be dicts, or none"):
            data.from_items(items)

    @pytest.mark.parametrize("items", ["text", {"a": 1}])
    def test_what_is_no_list_is_refused(self, items: Any) -> None:
        with pytest.raises(ValueError, match="must be a list of rows"):
            data.from_items(items)


class TestFrames:
    def test_a_frame_is_its_rows(self) -> None:
        frame = pd.DataFrame({"n": range(100), "s": [None if row % 3 else str(row) for row in range(100)]})
        found = pd.concat([block.to_pandas() for block in blocks_of(data.from_pandas(frame))], ignore_index=True)
        assert found["n"].tolist() == frame["n"].tolist()
        assert [None if pd.isna(value) else value for value in found["s"]] == [
            None if pd.isna(value) else value for value in frame["s"]
        ]

    def test_a_list_of_frames_is_their_rows_one_after_the_other(self) -> None:
        frames = [pd.DataFrame({"n": range(start, start + 7)}) for start in (0, 7, 14)]
        dataset = data.from_pandas(frames)
        assert column(dataset, "n") == list(range(21))
        names = [unit.name for unit in source_of(dataset).units()]
        assert len(set(names)) == len(names)
        assert names[-1] == "from_pandas (rows 18 to 20)" or names[-1].startswith("from_pandas (rows ")

    def test_another_type_is_named(self) -> None:
        with pytest.raises(ValueError, match="dfs must be a DataFrame or a list of them, not dict"):
            data.from_pandas({"a": [1]})


class TestArrays:
    @pytest.mark.parametrize("shape", [(10,), (10, 3), (10, 2, 2)])
    def test_an_array_is_a_column(self, shape: tuple[int, ...]) -> None:
        array = np.arange(np.prod(shape)).reshape(shape)
        blocks = blocks_of(data.from_numpy(array))
        np.testing.assert_array_equal(np.concatenate([block.columns["data"] for block in blocks]), array)

    def test_a_list_of_arrays_is_their_rows(self) -> None:
        dataset = data.from_numpy([np.zeros((2, 3)), np.ones((1, 3))])
        assert [row["data"].tolist() for row in rows_of(dataset)] == [[0.0] * 3, [0.0] * 3, [1.0] * 3]

    def test_another_type_is_named(self) -> None:
        with pytest.raises(ValueError, match="ndarrays must be a ndarray or a list of them, not int"):
            data.from_numpy([1, 2])


class TestTables:
    def test_a_table_is_its_rows_and_a_unit_carries_no_more_than_its_own(self) -> None:
        table = pa.table({"n": range(100_000), "s": [f"{row:020}" for row in range(100_000)]})
        dataset = data.from_arrow(table)
        units = source_of(dataset).units()
        assert len(units) == 16
        assert len(pickle.dumps(units[0])) < table.nbytes / 10
        assert pa.concat_tables(block.to_arrow() for block in blocks_of(dataset)).to_pydict() == table.to_pydict()

    def test_tensors_and_batches_and_lists_of_them(self) -> None:
        values = np.arange(8.0).reshape(2, 2, 2)
        table = pa.table({"t": pa.FixedShapeTensorArray.from_numpy_ndarray(values)})
        dataset = data.from_arrow([table, table.to_batches()[0]])
        assert [row["t"].tolist() for row in rows_of(dataset)] == [*values.tolist(), *values.tolist()]

    def test_projection_is_selection(self) -> None:
        source = source_of(data.from_arrow(pa.table({"a": [1, 2], "b": [3, 4], "c": ["x", "y"]})))
        projected = source.projected(["c", "a"])
        assert projected is not None
        found = [row for unit in projected.units() for block in unit.read() for row in block.rows()]
        assert found == [{"c": "x", "a": 1}, {"c": "y", "a": 2}]
        assert source.projected(["a", "b", "c"]) is None
        assert source.projected(["nowhere"]) is None

    def test_a_table_without_rows_has_its_columns(self) -> None:
        source = source_of(data.from_arrow(pa.table({"a": pa.array([], pa.int64())})))
        assert list(source.units()) == []
        assert source.schema().names == ["a"]


class TestRange:
    @pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 1000])
    def test_numbers_from_zero(self, n: int) -> None:
        assert column(data.range(n), "id") == list(range(n))
        assert sum(unit.num_rows for unit in source_of(data.range(n)).units()) == n

    def test_long_units_come_in_pieces(self) -> None:
        (unit,) = source_of(data.range(3_000_000, override_num_blocks=1)).units()
        blocks = list(unit.read())
        assert [block.num_rows for block in blocks] == [1 << 20, 1 << 20, 3_000_000 - (2 << 20)]
        assert blocks[2].columns["id"][-1] == 2_999_999

    def test_tensors_are_filled_with_the_number(self) -> None:
        dataset = data.range_tensor(3, shape=(2, 2))
        assert [row["data"].tolist() for row in rows_of(dataset)] == [[[n, n], [n, n]] for n in range(3)]
        assert source_of(dataset).schema().types == [TensorType(np.dtype(np.int64), (2, 2))]
        assert rows_of(data.range_tensor(2))[1]["data"].tolist() == [1]

    def test_a_wrong_argument_is_named(self) -> None:
        for n in (-1, 1.5, True):
            with pytest.raises(ValueError, match=f"n={n}"):
                data.range(n)
        with pytest.raises(ValueError, match="shape="):
            data.range_tensor(3, shape=(-1,))
