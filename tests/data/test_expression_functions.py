"""The functions of expressions compute what Python computes, and values of places are the same everywhere."""

import datetime as dt
import math
import re

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import numbers, rows

import paceline.data
from paceline.data.block import Block
from paceline.data.datatype import DataType, TypeCategory
from paceline.data.expressions import (
    col,
    download,
    evaluate_column,
    lit,
    monotonically_increasing_id,
    parse_expression,
    pyarrow_udf,
    random,
    rename_columns,
    star,
    udf,
    unnest,
    uuid,
    when,
)
from paceline.data.expressions.kernels import FUNCTIONS
from paceline.data.iterator import DataIterator
from paceline.data.order.feeds import LocalFeeds
from paceline.data.planning.optimizer import optimize_plan

TEXT = st.text(st.sampled_from("abAB1 ._-é中"), max_size=6) | st.none()


def compute(expr, values, kind=None):
    """The values in one chunk, in two, and with a renamed column: all the same."""
    array = pa.array(values, kind)
    half = len(array) // 2
    found = evaluate_column(expr, Block({"x": array})).to_pylist()
    assert evaluate_column(expr, Block({"x": pa.chunked_array([array[:half], array[half:]])})).to_pylist() == found
    assert evaluate_column(rename_columns(expr, {"x": "y"}), Block({"y": array})).to_pylist() == found
    return found


def check_each(cases, values, kind=None):
    for expr, python in cases:
        expected = [None if value is None else python(value) for value in values]
        assert compute(expr, values, kind) == expected, repr(expr)


@given(st.lists(TEXT, max_size=6))
@settings(max_examples=60, deadline=None)
def test_functions_of_text_are_those_of_python(values):
    x = col("x").str
    check_each(
        [
            (x.upper(), str.upper),
            (x.swapcase(), str.swapcase),
            (x.capitalize(), str.capitalize),
            (x.len(), len),
            (x.byte_len(), lambda s: len(s.encode())),
            (x.reverse(), lambda s: s[::-1]),
            (x.strip(), str.strip),
            (x.lstrip("ab"), lambda s: s.lstrip("ab")),
            (x.rstrip(characters=" ."), lambda s: s.rstrip(" .")),
            (x.slice(1, 3), lambda s: s[1:3]),
            (x.repeat(2), lambda s: s * 2),
            (x.lpad(4, "*"), lambda s: s.rjust(4, "*")),
            (x.pad(4, fillchar="-"), lambda s: s.ljust(4, "-")),
            (x.pad(4, side="left"), lambda s: s.rjust(4)),
            (x.starts_with("a"), lambda s: s.startswith("a")),
            (x.ends_with("b"), lambda s: s.endswith("b")),
            (x.contains("AB", ignore_case=True), lambda s: "ab" in s.lower()),
            (x.match("a%"), lambda s: s.startswith("a")),
            (x.match_regex("^[ab]+$"), lambda s: bool(re.search("^[ab]+$", s))),
            (x.count("a"), lambda s: s.count("a")),
            (x.find("b"), lambda s: s.encode().find(b"b")),
            (x.replace("a", "xy"), lambda s: s.replace("a", "xy")),
            (x.replace_regex("[ab]", "-"), lambda s: re.sub("[ab]", "-", s)),
            (x.split("a"), lambda s: s.split("a")),
            (x.split("a", max_splits=1), lambda s: s.split("a", 1)),
            (x.is_alpha(), str.isalpha),
            (x.is_digit(), str.isdigit),
            (x.is_lower(), str.islower),
            (x.is_ascii(), str.isascii),
            (
                x.extract("(?P<first>a)(?P<rest>.*)"),
                lambda s: (m := re.search("(?P<first>a)(?P<rest>.*)", s)) and m.groupdict(),
            ),
        ],
        values,
        pa.string(),
    )


NUMBERS = st.lists(st.integers(-5, 5) | st.none(), max_size=4) | st.none()


def at(index):
    return lambda values: values[index] if -len(values) <= index < len(values) else None


def sort_numbers(values, reverse=False):
    numbers = [value for value in values if value is not None]
    return sorted(numbers, reverse=reverse) + [None] * (len(values) - len(numbers))


@given(st.lists(NUMBERS, max_size=5), st.lists(st.lists(NUMBERS, max_size=3) | st.none(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_functions_of_lists_are_those_of_python(lists, nested):
    x = col("x").list
    cases = [
        (x.len(), len),
        (x[0], at(0)),
        (x.get(-2), at(-2)),
        (x[1:3], lambda values: values[1:3]),
        (x.slice(step=2), lambda values: values[::2]),
        (x.sort(), sort_numbers),
        (x.sort("descending"), lambda values: sort_numbers(values, reverse=True)),
    ]
    check_each(cases, lists, pa.list_(pa.int64()))
    check_each(
        cases[:2], [values and (values * 2)[:2] + [0] * (2 - len(values * 2)) for values in lists if values != []]
    )
    flat = [(x.flatten(), lambda outer: [value for inner in outer for value in inner or ()])]
    check_each(flat, nested, pa.list_(pa.list_(pa.int64())))


@given(
    st.lists(st.datetimes(dt.datetime(1950, 1, 1), dt.datetime(2100, 1, 1)) | st.none(), max_size=5),
    st.lists(st.fixed_dictionaries({"a": st.integers(0, 9) | st.none(), "b": TEXT}) | st.none(), max_size=5),
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3) | st.none(), max_size=5),
)
@settings(max_examples=40, deadline=None)
def test_functions_of_times_structs_and_maps_are_those_of_python(times, structs, maps):
    when_ = col("x").dt
    fields = ["year", "month", "day", "hour", "minute", "second"]
    check_each(
        [(getattr(when_, name)(), lambda t, name=name: getattr(t, name)) for name in fields], times, pa.timestamp("us")
    )
    check_each(
        [
            (when_.floor("hour"), lambda t: t.replace(minute=0, second=0, microsecond=0)),
            (when_.strftime("%Y/%m"), lambda t: f"{t.year:04}/{t.month:02}"),
        ],
        times,
        pa.timestamp("us"),
    )
    x = col("x").struct
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    check_each([(x["a"], lambda s: s["a"]), (x.field("b"), lambda s: s["b"]), (x[1], lambda s: s["b"])], structs, kind)
    pairs = [None if each is None else list(each.items()) for each in maps]
    keys, values = col("x").map.keys(), col("x").map.values()
    check_each(
        [(keys, lambda m: [k for k, _ in m]), (values, lambda m: [v for _, v in m])],
        pairs,
        pa.map_(pa.string(), pa.int64()),
    )


@given(st.lists(st.integers(-9, 9) | st.floats(-9, 9) | st.none(), max_size=6))
@settings(max_examples=60, deadline=None)
def test_functions_of_numbers_are_those_of_python(values):
    x = col("x")
    for expr, python in [
        (x.abs(), abs),
        (x.negate(), lambda v: -v),
        (x.sign(), lambda v: (v > 0) - (v < 0)),
        (x.ceil(), math.ceil),
        (x.floor(), math.floor),
        (x.round(), round),
        (x.trunc(), math.trunc),
        (x.exp(), math.exp),
        (x.sin() + x.cos() * x.tan(), lambda v: math.sin(v) + math.cos(v) * math.tan(v)),
        (x.atan() + (x / 10).asin() + (x / 10).acos(), lambda v: math.atan(v) + math.asin(v / 10) + math.acos(v / 10)),
        (
            (x.abs() + 1).ln() + (x.abs() + 1).log2() + (x.abs() + 1).log10(),
            lambda v: sum(log(abs(v) + 1) for log in (math.log, math.log2, math.log10)),
        ),
        (x.power(2), lambda v: v**2),
        (x.cast(DataType.string()).cast(pa.float64()), lambda v: v),
        (when(x > 3, 1).when(x > 0, 2).otherwise(x), lambda v: 1 if v > 3 else 2 if v > 0 else v),
    ]:
        expected = [None if value is None else python(value) for value in values]
        assert compute(expr, values, pa.float64()) == pytest.approx(expected), repr(expr)
    filled = [7 if value is None else value for value in values]
    assert compute(x.fill_null(7), values, pa.float64()) == pytest.approx(filled)
    assert compute(when(x.is_null(), lit("none")).when(x > 0, "more"), values, pa.float64()) == [
        "none" if value is None else "more" if value > 0 else None for value in values
    ]
    assert compute(lit(2).power(x.cast("i8")), [-1, None, 3]) == [0.5, None, 8]
    assert compute(x.is_in(lit([1, 2])), [1, 3]) == [True, False]


def test_a_column_without_any_value_is_null_whatever_its_type():
    for expr in (
        col("x").str.contains("a"),
        ~col("x").str.is_alpha(),
        col("x").list[0],
        col("x").struct["a"].str.len(),
    ):
        assert compute(expr, [None, None]) == [None, None]
    assert paceline.data.from_items([{"x": None}, {"x": "ab"}]).filter(expr="x.str.contains('a')").count() == 1


def test_tensors_become_lists():
    block = Block({"x": np.arange(12).reshape(2, 2, 3), "y": np.arange(4).reshape(2, 2)})
    assert evaluate_column(col("x").arr.to_list(), block).to_pylist() == np.arange(12).reshape(2, 2, 3).tolist()
    assert evaluate_column(col("y").arr.to_list().list[1], block).to_pylist() == [1, 3]


def test_columns_are_all_computed_from_those_there_were():
    rows = [{"a": 1, "s": {"p": 1, "q": "x"}}, {"a": 2, "s": None}]
    ds = paceline.data.from_items(rows).with_columns(
        {"a": col("a") + 1}, star(), unnest(col("s")), (col("a") * 10).alias("ten"), col("a").alias("old")
    )
    assert ds.drop_columns("s").take_all() == [
        {"a": 2, "p": 1, "q": "x", "ten": 10, "old": 1},
        {"a": 3, "p": None, "q": None, "ten": 20, "old": 2},
    ]
    assert col("a").name == "a"
    assert (col("a") + 1).name is None
    assert (col("a") + 1).alias("b").name == "b"
    assert (col("a") + 1).structurally_equals(col("a") + 1)
    assert not (col("a") + 1).structurally_equals(col("a") + 2)


@udf(return_dtype=DataType.int32())
class AddOffset:
    created = 0

    def __init__(self, offset):
        type(self).created += 1
        self.offset = offset

    def __call__(self, values):
        return [None if value is None else value + self.offset for value in values.to_pylist()]


@pyarrow_udf(pa.struct([("low", pa.int64()), ("high", pa.int64())]))
def spread(values, by):
    return [{"low": value - by, "high": value + by} for value in values.to_pylist()]


def test_functions_and_classes_of_users_take_whole_columns():
    ds = paceline.data.range(6, override_num_blocks=3).with_columns(
        {"b": AddOffset(5)(col("id"))}, unnest(spread(col("id"), by=1))
    )
    assert AddOffset.cls.created == 0
    assert ds.select_columns(["b", "high"]).take_all() == [{"b": i + 5, "high": i + 1} for i in range(6)]
    assert AddOffset.cls.created == 1  # for all three units
    assert str(ds.schema().types[1]) == "int32"


@pytest.mark.parametrize("result", [None, 3, [1], "ab"])
def test_a_result_that_is_no_column_is_refused_with_its_place(result):
    wrong = udf(int)(lambda values: result)
    with pytest.raises((TypeError, ValueError), match="must return a value for each") as raised:
        paceline.data.range(4, override_num_blocks=2).with_column("b", wrong(col("id"))).take_all()
    assert "at rows 0 to 1 of" in "".join(raised.value.__notes__)


def test_downloads_read_each_file_and_name_the_one_that_is_missing(tmp_path):
    uris = []
    for number in range(3):
        (tmp_path / f"{number}.bin.gz").write_bytes(b"x" * number)
        uris.append(f"file://{tmp_path}/{number}.bin.gz" if number else str(tmp_path / "0.bin.gz"))
    ds = paceline.data.from_arrow(pa.table({"uri": [*uris, None]})).with_column("bytes", download("uri"))
    assert [row["bytes"] for row in ds.take_all()] == [b"", b"x", b"xx", None]
    (tmp_path / "1.bin.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"1\.bin\.gz no longer exists"):
        ds.take_all()


def places(ds, epoch=0):
    return rows(optimize_plan(ds._plan), epoch)


def with_places(ds):
    return ds.with_columns(
        {
            "new": random(),
            "other": random(),
            "fixed": random(seed=1, reseed_after_execution=False),
            "uuid": uuid(),
            "key": monotonically_increasing_id(),
        }
    )


def test_random_numbers_and_ids_follow_from_the_place_of_a_row():
    part = paceline.data.range(60, override_num_blocks=4)
    ds = with_places(part.union(part))
    rows = places(ds)
    for name in ("new", "other", "fixed", "uuid", "key"):
        assert len({row[name] for row in rows}) == 120, name
    assert rows == places(with_places(part.union(part)))
    assert [row["key"] for row in rows] == sorted(row["key"] for row in rows)
    later = places(ds, epoch=1)
    assert all((one["new"] != two["new"]) and one["uuid"] == two["uuid"] for one, two in zip(rows, later, strict=True))
    assert [row["fixed"] for row in rows] == [row["fixed"] for row in later]
    assert all(0 <= row["new"] < 1 for row in rows)
    assert 0.3 < np.mean([row["new"] for row in rows]) < 0.7
    assert places(with_places(numbers((3, 4), (5,)))) == places(with_places(numbers((7,), (1, 0, 4))))
    first, second = with_places(part).split_at_indices([17])
    assert places(first) + places(second) == places(with_places(part))


def test_other_processes_and_resumed_epochs_give_the_same_values():
    ds = with_places(paceline.data.range(40, override_num_blocks=4)).with_column("b", AddOffset(1)(col("id")))
    expected = places(ds)
    assert places(cloudpickle.loads(cloudpickle.dumps(ds))) == expected
    # What a new version must give too, or a run resumed with it would mix two orders.
    assert expected[1]["uuid"] == "072ab9fc-65ad-439b-980c-7ba30a87b76d"
    iterator = ds.iterator()
    batches = iter(iterator.iter_batches(batch_size=7, batch_format="pandas"))
    seen = [next(batches) for _ in range(2)]
    resumed = DataIterator(LocalFeeds(ds._plan), cursor=iterator.cursor())
    seen += list(resumed.iter_batches(batch_size=7, batch_format="pandas"))
    assert [row for batch in seen for row in batch.to_dict("records")] == expected


def test_text_has_fields_quoted_names_and_functions():
    rows = [{"u": {"age": 3, "n": {"z": "a`b"}}, "total price": 2.0, "x": -4}, {"u": None, "total price": None, "x": 1}]
    block = Block.from_rows(rows)
    for text, expected in {
        "u.age > 2": [True, None],
        "u.n.z == 'a`b'": [True, None],
        "`total price` * 2 == 4": [True, None],
        "x.abs() == 4 and u.n.z.str.starts_with('a')": [True, False],
        "is_null(`total price`) or is_in(x, [-4])": [True, True],
        "is_valid(u.age)": [True, False],
        "u.age.fill_null(0).power(2) >= 0": [True, True],
        "u.n.z.str.split(pattern='`').list.len() == 2": [True, None],
    }.items():
        assert evaluate_column(parse_expression(text), block).to_pylist() == expected, text


def test_types_are_made_checked_and_converted():
    list_type = DataType.list(DataType.string())
    assert list_type == DataType.from_arrow(pa.list_(pa.string()))
    assert list_type.is_of(TypeCategory.LIST)
    for made, python, numpy, categories in [
        (DataType.int8(), int, "i1", "integer numerical arrow"),
        (DataType.from_numpy("float32"), float, "f4", "floating numerical numpy"),
        (DataType(str), str, "O", "string python"),
        (DataType.bool(), bool, "?", "boolean arrow"),
        (DataType.uint64(), int, "u8", "integer uint64 numerical arrow"),
        (list_type, list, "O", "list nested arrow"),
        (DataType.large_list(int), list, "O", "list nested arrow"),
        (DataType.fixed_size_list(pa.int8(), 2), list, "O", "list nested arrow"),
        (DataType.struct([("a", DataType.binary())]), dict, "O", "struct nested arrow"),
        (DataType.map(str, int), list, "O", "map nested arrow"),
        (DataType.tensor((2, 3), "f4"), np.ndarray, "O", "tensor arrow"),
        (DataType.variable_shaped_tensor(DataType.float32()), np.ndarray, "O", "tensor"),
        (DataType.temporal("timestamp", "s", "UTC"), dt.datetime, "M8[s]", "temporal arrow"),
        (DataType.temporal("date32"), dt.date, "M8[D]", "temporal arrow"),
        (DataType.infer_dtype(b"a"), bytes, "O", "binary arrow"),
        (DataType.infer_dtype(None), type(None), "O", "null arrow"),
        (DataType.infer_dtype(np.zeros((2, 2))), np.ndarray, "O", "tensor arrow"),
    ]:
        assert made.to_python_type() is python, made
        assert made.to_numpy_dtype() == np.dtype(numpy), made
        checks = {name[3:-5] for name in dir(DataType) if name.startswith("is_") and name.endswith("_type")}
        found = {check for check in checks if getattr(made, f"is_{check}_type")()} - {"large_list"}
        assert found == set(categories.split()), made
    assert DataType.large_list(int).is_of("large_list")
    assert not list_type.is_of("large_list")
    assert DataType(dict).to_arrow_dtype([{"a": 1}]) == pa.struct([("a", pa.int64())])
    assert DataType.variable_shaped_tensor(int, 2).to_arrow_dtype() == pa.list_(pa.list_(pa.int64()))
    for wrong in (
        lambda: DataType(3),
        lambda: DataType.temporal("week"),
        lambda: list_type.is_of("cat"),
        lambda: DataType.temporal("date32", "s"),
        lambda: DataType(dict).to_arrow_dtype(),
    ):
        with pytest.raises((ValueError, TypeError)):
            wrong()


def test_every_function_has_a_namespace_or_a_method():
    for name in FUNCTIONS:
        kind, _, method = name.rpartition(".")
        owner = getattr(col("x"), kind) if kind else col("x")
        assert name == "coalesce" or callable(getattr(owner, method)), name
