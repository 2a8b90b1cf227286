"""A plan and its optimised form give the same rows, and readers read no more than is needed."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import Listed, listed, rows

from paceline.data.expressions import col, random, udf
from paceline.data.planning.optimizer import optimize_plan
from paceline.data.planning.plan import Map, Read, walk

NAMES = ["a", "b", "c", "d"]


@st.composite
def steps(draw, dataset, names):
    """One more step over columns that are there."""
    some = st.lists(st.sampled_from(names), min_size=1, max_size=len(names), unique=True)
    one = st.sampled_from(names)
    kind = draw(
        st.sampled_from(
            ["select", "drop", "rename", "rename_all", "with", "where", "filter", "map", "batches", "sample", "limit"]
            + ["shuffle", "sort", "order", "union", "repartition", "add", "random", "sift"]
        )
    )
    match kind:
        case "select":
            chosen = draw(some)
            return dataset.select_columns(chosen), chosen
        case "drop" if len(names) > 1:
            gone = draw(one)
            return dataset.drop_columns([gone]), [name for name in names if name != gone]
        case "rename":
            old, new = draw(one), draw(st.sampled_from([*NAMES, "e"]))
            if new in names and new != old:
                swapped = {old: new, new: old}
                return dataset.rename_columns(swapped), [swapped.get(name, name) for name in names]
            return dataset.rename_columns({old: new}), [new if name == old else name for name in names]
        case "rename_all":
            turned = names[1:] + names[:1]
            return dataset.rename_columns(turned), turned
        case "with":
            name = draw(st.sampled_from([*NAMES, "f"]))
            return dataset.with_column(name, col(draw(one)) + 1), list(dict.fromkeys([*names, name]))
        case "random":
            name = draw(st.sampled_from([*NAMES, "f"]))
            return dataset.with_column(name, (random() * 100).floor().cast(pa.int64())), list(
                dict.fromkeys([*names, name])
            )
        case "sift":
            return dataset.filter(expr=(random(seed=3) < 0.7) & (col(draw(one)) > 2)), names
        case "where":
            return dataset.filter(expr=f"{draw(one)} % 5 < {draw(st.integers(0, 5))}"), names
        case "filter":
            name = draw(one)
            return dataset.filter(lambda row: row[name] % 2 == 0), names
        case "map":
            return dataset.map(lambda row: row), names
        case "batches":
            return dataset.map_batches(lambda batch: batch, batch_size=3), names
        case "add":
            name = draw(one)
            return dataset.add_column("g", lambda df: df[name] * 2), list(dict.fromkeys([*names, "g"]))
        case "sample":
            return dataset.random_sample(0.7, seed=draw(st.integers(0, 3))), names
        case "limit":
            return dataset.limit(draw(st.integers(0, 12))), names
        case "shuffle":
            return dataset.random_shuffle(seed=1), names
        case "sort":
            return dataset.sort(draw(one)), names
        case "order":
            return dataset.randomize_block_order(seed=2), names
        case "union":
            return dataset.union(dataset), names
        case "repartition":
            return dataset.repartition(2), names
    return dataset, names


@st.composite
def datasets(draw):
    units, first = [], 0
    for sizes in draw(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=2), min_size=1, max_size=3)):
        blocks = []
        for size in sizes:
            numbers = np.arange(first, first + size)
            first += size
            blocks.append({name: numbers * (index + 1) for index, name in enumerate(NAMES)})
        units.append(blocks)
    dataset, names = listed(*units, schema=draw(st.booleans()), ranges=draw(st.booleans())), NAMES
    for _ in range(draw(st.integers(1, 5))):
        dataset, names = draw(steps(dataset, names))
    return dataset


@given(datasets())
@settings(max_examples=200, deadline=None)
def test_a_plan_and_its_optimised_form_give_the_same_rows(dataset):
    best = optimize_plan(dataset._plan)
    assert rows(best) == rows(dataset._plan)
    assert rows(optimize_plan(best)) == rows(best)


def source(plan):
    (found,) = [node.source for node in walk(plan) if isinstance(node, Read)]
    assert isinstance(found, Listed)
    return found


def four(**options):
    """Three units: a is 0 to 2, 10 to 12 and 20 to 22."""
    units = [[{name: np.arange(3) + 10 * unit for name in NAMES}] for unit in range(3)]
    return listed(*units, schema=True, ranges=True, **options)


@pytest.mark.parametrize(
    ("dataset", "columns"),
    [
        (four().select_columns(["c", "a"]), "ac"),
        (four().drop_columns(["a", "b"]), "cd"),
        (four().rename_columns({"a": "x"}).select_columns(["x"]), "a"),
        (four().rename_columns(["w", "x", "y", "z"]).select_columns(["y"]), "c"),
        (four().with_column("x", col("a") + col("b")).select_columns(["x"]), "ab"),
        (four().with_column("a", col("b") + 1).select_columns(["a"]), "b"),
        (four().with_columns({"x": col("a") + 1}).select_columns(["x"]), "a"),
        (four().filter(expr="d > 3").select_columns(["a"]), "ad"),
        (four().select_columns(["a", "b"]).filter(expr="a > 1").drop_columns("a"), "ab"),
        (four().random_shuffle().select_columns(["a"]), "a"),
        (four().sort("b").select_columns(["a"]), "ab"),
        (four().random_sample(0.5).select_columns(["a"]), "a"),
        (four().randomize_block_order().select_columns(["a"]), "a"),
        (four().select_columns(["a"]).map(lambda row: row), "a"),
        (four().map(lambda row: row).select_columns(["a"]), "abcd"),
        (four().filter(lambda row: True).select_columns(["a"]), "abcd"),
        (four().groupby("a").sum("b"), "ab"),
    ],
)
def test_only_the_columns_that_are_needed_are_read(dataset, columns):
    assert source(optimize_plan(dataset._plan)).columns == tuple(columns)


@pytest.mark.parametrize(
    ("dataset", "units"),
    [
        (four().filter(expr="a >= 11"), [1, 2]),
        (four().filter(expr="a >= 11").filter(expr="a < 20"), [1]),
        (four().rename_columns({"a": "x"}).filter(expr="x == 11"), [1]),
        (four().rename_columns({"a": "b", "b": "a"}).filter(expr="b == 11"), [1]),
        (four().select_columns(["a"]).filter(expr="a == 11").map(lambda row: row), [1]),
        (four().with_column("x", col("a") + 1).filter(expr="a == 11 and b == 11"), [1]),
        (four().with_column("a", col("a") + 100).filter(expr="a == 11"), [0, 1, 2]),
        (four().with_columns({"a": col("a") + 100}).filter(expr="a == 11"), [0, 1, 2]),
        (four().with_columns(udf(int)(lambda a: a)(col("a")).alias("f")).filter(expr="a == 11 and f > 0"), [1]),
        (four().with_column("r", random()).filter(expr="a == 11"), [0, 1, 2]),
        (four().filter(expr=(random() >= 0) & (col("a") == 11)), [0, 1, 2]),
        (four().random_shuffle().filter(expr="a == 11"), [0, 1, 2]),
        (four().limit(4).filter(expr="a == 11"), [0, 1, 2]),
        (four().map(lambda row: row).filter(expr="a == 11"), [0, 1, 2]),
        (four().random_sample(0.9).filter(expr="a == 11"), [0, 1, 2]),
        (four().filter(expr="a == 11").random_shuffle(), [1]),
    ],
)
def test_units_in_which_no_row_will_do_are_not_read(dataset, units):
    read = [number for number, unit in enumerate(source(optimize_plan(dataset._plan)).listed) if unit.num_rows]
    assert read == units


def test_two_selections_become_one_only_if_no_error_is_lost_and_other_plans_stay():
    plan = optimize_plan(four().select_columns(["a", "b"]).select_columns("a")._plan)
    assert [type(node) for node in walk(plan)].count(Map) == 1
    whole = four().map(lambda row: row).random_shuffle()._plan
    assert optimize_plan(whole) is whole
    wrong = four().select_columns(["a", "typo"]).select_columns(["a"])
    with pytest.raises(KeyError, match="unknown column 'typo'"):
        wrong.take_all()
