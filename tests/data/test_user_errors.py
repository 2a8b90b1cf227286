"""A failing function is pointed to, by unit, row and its own line; or its rows are skipped and recorded."""

from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import listed, numbers

from paceline.data.exec.pipeline import InlineExecutor, lower_epoch

HERE = Path(__file__)


def line_of(text):
    """The number of the one line here that ends with a text, as a comment."""
    (number,) = [n for n, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith(f"# {text}")]
    return number


def notes_of(dataset, kind=ZeroDivisionError):
    with pytest.raises(kind) as raised:
        dataset.take_all()
    copied = cloudpickle.loads(cloudpickle.dumps(raised.value))
    assert copied.__notes__ == raised.value.__notes__
    return "\n".join(raised.value.__notes__)


def inverse(row):
    return {"x": 1 // (row["id"] - 7)}  # inverse


def inverses(batch):
    return {"x": [1 // (int(value) - 7) for value in batch["id"]]}  # inverses


@pytest.mark.parametrize(
    ("dataset", "place"),
    [
        (numbers([3], [2, 4]).map(inverse), "in map(inverse), at row 4 of part-1.file\n"),
        (
            numbers([3], [6]).rename_columns({"id": "n"}).add_column("id", lambda df: df["n"]).map(inverse),
            "in map(inverse), at row 4 of part-1.file\n",
        ),
        (
            numbers([3], [6]).filter(expr="id > 4").map(lambda row: row).map(inverse).map_batches(lambda batch: batch),
            "in map(inverse), at row 2 of part-1.file, counted after filter((col('id') > 4))\n",
        ),
        (numbers([3], [2, 4]).map_batches(inverses, batch_size=3), "map_batches(inverses), at rows 3 to 5 of part-1"),
    ],
    ids=["row", "after steps that keep rows", "after a step that drops rows", "batch"],
)
def test_rows_are_named_by_step_file_and_number_with_the_users_line(dataset, place):
    note = notes_of(dataset)
    assert place in note
    assert note.count("in map") == 1, "the steps before and after it are not blamed"
    comment = "inverses" if "inverses" in place else "inverse"
    assert f"{HERE}:{line_of(comment)} in " in note


def fails_in_numpy(batch):
    return {"x": np.linalg.inv(np.zeros((2, 2)))}  # numpy


def fails_late(batch):
    yield batch
    raise ZeroDivisionError  # late


def stops(row):
    return next(iter([]))  # stops


def five(row):
    return 5  # returns five


class Broken:
    def __init__(self):
        raise ZeroDivisionError("no model")  # made

    def __call__(self, row):
        return row


@pytest.mark.parametrize(
    ("dataset", "kind", "comment"),
    [
        (numbers([3]).map_batches(fails_in_numpy), np.linalg.LinAlgError, "numpy"),
        (numbers([3]).map_batches(fails_late), ZeroDivisionError, "late"),
        (numbers([3]).map(stops), RuntimeError, "stops"),
        (numbers([3]).flat_map(lambda row: [inverse({"id": 7})]), ZeroDivisionError, "inverse"),
        (numbers([3]).filter(lambda row: inverse({"id": 7})), ZeroDivisionError, "inverse"),
        (numbers([3]).add_column("x", lambda df: inverse({"id": 7})), ZeroDivisionError, "inverse"),
        (numbers([3]).map(Broken), ZeroDivisionError, "made"),
    ],
)
def test_the_line_is_the_users_own_wherever_it_was_raised(dataset, kind, comment):
    notes = notes_of(dataset, kind)
    assert f"{HERE}:{line_of(comment)} in " in notes
    assert comment != "made" or notes.startswith("in map(Broken), while creating Broken\n")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (numbers([3]).map_batches(lambda b: [1]), r"map_batches\(<lambda>\) must return a batch: .* got list"),
        (numbers([3]).map_batches(lambda b: None), r"got NoneType\n\nhint: does the function return its batch\?"),
        (numbers([3]).map_batches(lambda b: {"x": 5}), "the column 'x' of a batch must be an array"),
        (numbers([3]).map(lambda r: 5), r"map\(<lambda>\) must return rows as dicts, got int"),
        (numbers([3]).map(lambda r: None), r"got NoneType\n\nhint: does the function return its row\?"),
        (numbers([3]).flat_map(lambda r: r), r"flat_map\(<lambda>\) must return a list of rows, .* got dict"),
        (numbers([3]).flat_map(lambda r: [5]), r"flat_map\(<lambda>\) must return rows as dicts, got int"),
        (numbers([3]).filter(lambda r: np.ones(2)), r"filter\(<lambda>\) must return True or False .*\(2,\)"),
        (numbers([3]).add_column("x", lambda df: 5), r"add_column\('x', <lambda>\) must return a value for each row"),
        (numbers([3]).filter(expr="id + 1"), r"filter\(\(col\('id'\) \+ 1\)\) must be True or .*, got int64"),
        (numbers([2]).map(five), f"{HERE}:{line_of('returns five') - 1}$"),
        (numbers([3]).map_batches(lambda b: {"id": [1]}, udf_modifying_row_count=False), "because of udf_.*: 3, got 1"),
        (numbers([3]).map(five, on_error="skip"), "must return rows as dicts"),
        (numbers([3]).map_batches(lambda batch: 5, on_error="skip"), "must return a batch"),
        (numbers([3]).add_column("x", lambda df: [1, 2], on_error="skip"), "for each of 3 rows, got 2"),
    ],
)
def test_what_a_function_may_not_return_is_refused_with_its_name(dataset, message):
    with pytest.raises((TypeError, ValueError), match=f"(?s){message}"):
        dataset.take_all()


def run(dataset):
    executor = InlineExecutor()
    blocks = [delivered.block for delivered in executor.run(lower_epoch(dataset._plan, 0, executor))]
    return [row for block in blocks for row in block.rows()], executor.scope.skipped


def batches_checked(dataset, check):
    def checked(batch):
        for value in batch["id"]:
            check(int(value))
        return batch

    return dataset.map_batches(checked, batch_size=4, on_error="skip")


def generated(dataset, check):
    def checked(batch):
        for value in batch["id"]:
            check(int(value))
            yield {"id": [value]}

    return dataset.map_batches(checked, on_error="skip")


WAYS = {
    "map": lambda ds, check: ds.map(lambda row: check(row["id"]) or row, on_error="skip"),
    "flat_map": lambda ds, check: ds.flat_map(lambda row: (check(row["id"]) or row for _ in "1"), on_error="skip"),
    "filter": lambda ds, check: ds.filter(lambda row: check(row["id"]) is None, on_error="skip"),
    "map_batches": batches_checked,
    "generator": generated,
    "add_column": lambda ds, check: ds.add_column(
        "y", lambda df: [check(value) for value in df["id"]], on_error="skip"
    ).drop_columns("y"),
}


@pytest.mark.parametrize("way", sorted(WAYS))
@given(sizes=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=3), bad=st.sets(st.integers(0, 40)))
@settings(max_examples=25, deadline=None)
def test_exactly_the_rows_that_fail_are_skipped_and_recorded(way, sizes, bad):
    def check(value):
        if value in bad:
            raise ArithmeticError(f"bad {value}")  # bad

    rows, skipped = run(WAYS[way](numbers(*sizes), check))
    total = sum(map(sum, sizes))
    assert [row["id"] for row in rows] == [number for number in range(total) if number not in bad]
    places = [(f"part-{unit}.file", row) for unit, blocks in enumerate(sizes) for row in range(sum(blocks))]
    assert [(one.unit, one.row, one.num_rows) for one in skipped] == [
        (*places[number], 1) for number in sorted(bad) if number < total
    ]
    for one in skipped:
        assert "ArithmeticError: bad " in one.error
        assert f"{HERE}:{line_of('bad')} in check" in one.error


def test_skipping_calls_the_function_no_more_than_halving_takes_and_never_skips_an_interrupt():
    calls = []

    def checked(batch):
        calls.append(len(batch["id"]))
        if 100 in batch["id"]:
            raise ValueError
        return batch

    rows, skipped = run(numbers([256]).map_batches(checked, on_error="skip"))
    assert len(rows) == 255
    assert [one.row for one in skipped] == [100]
    assert len(calls) == 1 + 2 * 8
    with pytest.raises(KeyboardInterrupt):
        run(numbers([2]).map(interrupt, on_error="skip"))


def interrupt(row):
    raise KeyboardInterrupt


def test_a_missing_column_is_named_with_those_that_are_there_and_the_nearest():
    for dataset in (
        numbers([2]).select_columns(["x"]),
        numbers([2]).drop_columns(["x"]),
        numbers([2]).rename_columns({"x": "y"}),
        numbers([2]).filter(expr="x > 1"),
        numbers([2], schema=True).select_columns(["x"]),
        numbers([2], schema=True, ranges=True).filter(expr="x > 1"),
    ):
        with pytest.raises(KeyError, match="unknown column 'x'; the columns are: 'id'"):
            dataset.take_all()
    with pytest.raises(ValueError, match="must have a name for each of 1 columns: 'id'"):
        numbers([2]).rename_columns(["a", "b"]).take_all()
    with pytest.raises(ValueError, match=r"gives two of the columns .* one name"):
        listed([{"a": [1], "b": [2]}], schema=True).rename_columns({"a": "b"}).select_columns(["b"]).take_all()
    dataset = numbers([2]).rename_columns({"id": "price"})
    with pytest.raises(KeyError, match=r"unknown column 'pric'; the columns are: 'price' \(did you mean 'price'\?\)"):
        dataset.sort("pric").take()
    for change in (dataset.map(lambda row: row["pric"]), dataset.map_batches(lambda batch: batch["pric"])):
        with pytest.raises(KeyError) as raised:
            change.take()
        assert "the columns are: 'price' (did you mean 'price'?)" in raised.value.__notes__
