"""Expressions compute what pandas computes, with Arrow's nulls, and read what Python reads."""

import datetime as dt
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.block import Block
from paceline.data.expressions import col, evaluate_column, lit, parse_expression, rename_columns

WHOLE = st.integers(-20, 20) | st.none()
FLOATS = st.floats(-20, 20, width=32) | st.none()


ARITHMETIC = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.copysign(math.inf, a) * math.copysign(1, b) if a else math.nan,
    "//": lambda a, b: a // b if b else None,
    "%": lambda a, b: a % b if b else None,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def same(one, other):
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-5) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


@given(st.data(), st.sampled_from([(pa.int64(), WHOLE), (pa.float32(), FLOATS), (pa.float64(), FLOATS)]))
@settings(max_examples=200, deadline=None)
def test_numbers_are_computed_with_as_in_python(data, kind):
    dtype, values = kind
    sign = data.draw(st.sampled_from(sorted(ARITHMETIC if values is WHOLE else {*ARITHMETIC} - {"/", "//", "%"})))
    left, right = zip(*data.draw(st.lists(st.tuples(values, values), min_size=1, max_size=6)), strict=True)
    block = Block({"a": pa.array(left, dtype), "b": pa.array(right, dtype)})
    found = evaluate_column(parse_expression(f"a {sign} b"), block).to_pylist()
    expected = [None if None in pair else ARITHMETIC[sign](*pair) for pair in zip(left, right, strict=True)]
    assert all(map(same, found, expected)), (found, expected)


@st.composite
def conditions(draw, depth=2):
    if depth == 0 or draw(st.booleans()):
        column, sign = draw(st.sampled_from("ab")), draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
        return draw(
            st.sampled_from(
                [
                    f"{column} {sign} {draw(st.integers(-3, 3))}",
                    f"{column} in {draw(st.lists(st.integers(-3, 3), max_size=3))}",
                    f"{column} is None",
                    f"{column} is not None",
                    f"-2 <= {column} < {draw(st.integers(-3, 3))}",
                ]
            )
        )
    left, right = draw(conditions(depth - 1)), draw(conditions(depth - 1))
    return draw(st.sampled_from([f"({left}) and ({right})", f"({left}) or ({right})", f"not ({left})"]))


def holds(text, row):
    """What a filter keeps, in the logic of three values."""
    import ast

    def value(node):
        match node:
            case ast.BoolOp(op=op, values=parts):
                found = [value(part) for part in parts]
                deciding = isinstance(op, ast.Or)
                return deciding if deciding in found else None if None in found else not deciding
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = value(operand)
                return None if inner is None else not inner
            case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.In()]):
                return eval(compile(ast.Expression(node), "", "eval"), {}, row)
            case ast.Compare():
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                known = all(row[name] is not None for name in names)
                return eval(compile(ast.Expression(node), "", "eval"), {}, row) if known else None
        raise AssertionError(ast.dump(node))

    return value(ast.parse(text, mode="eval").body) is True


@given(conditions(), st.lists(st.tuples(st.integers(-4, 4) | st.none(), st.integers(-4, 4) | st.none()), max_size=8))
@settings(max_examples=100, deadline=None)
def test_conditions_hold_for_the_rows_for_which_they_hold_in_python(text, rows):
    block = Block({"a": pa.array([a for a, _ in rows], pa.int32()), "b": pa.array([b for _, b in rows], pa.int64())})
    found = [value is True for value in evaluate_column(parse_expression(text), block).to_pylist()]
    assert found == [holds(text, row) for row in block.rows()]
    renamed = rename_columns(parse_expression(text), {"a": "x"})
    assert [v is True for v in evaluate_column(renamed, block.rename({"a": "x"})).to_pylist()] == found


@given(st.sampled_from(["i1", "i4", "i8", "u1", "u8", "f2", "f4", "f8"]), st.lists(st.integers(0, 100), max_size=5))
@settings(max_examples=60, deadline=None)
def test_every_type_of_number_can_be_computed_with(dtype, values):
    frame = pd.DataFrame({"x": np.array(values, dtype)})
    block = Block.from_batch(frame)
    wide = frame["x"].astype("f8")
    for expr, expected in (
        (col("x") * 2 + 1, wide * 2 + 1),
        (1 - col("x") / 4, 1 - wide / 4),
        (-(lit(3) - col("x")), wide - 3),
        (col("x") >= 50, wide >= 50),
        (col("x").is_in([1, 2, 50]), wide.isin([1, 2, 50])),
        (col("x").not_in([]), ~wide.isin([])),
    ):
        assert evaluate_column(expr, block).to_pylist() == pytest.approx(expected.tolist())


def test_large_numbers_times_and_words_are_compared():
    block = Block(
        {
            "u": np.array([2**63, 5], "u8"),
            "i": np.array([2**62 + 1, -1]),
            "ns": np.array(["2024-01-01", "2024-06-01"], "M8[ns]"),
            "hour": np.array(["2024-01-01", "2024-06-01"], "M8[h]"),
            "day": [dt.date(2024, 1, 1), dt.date(2024, 6, 1)],
            "word": pa.array(["a", "b"]).dictionary_encode(),
        }
    )
    for expr, expected in (
        (col("u") > -1, [True, True]),
        (col("u") == 2**63, [True, False]),
        (col("i") < 1.5, [False, True]),
        (1.5 * col("i"), [1.5 * (2**62 + 1), -1.5]),
        (col("ns") > dt.datetime(2024, 2, 1), [False, True]),
        (col("hour") > dt.datetime(2024, 2, 1), [False, True]),
        (col("day") <= dt.date(2024, 1, 1), [True, False]),
        (parse_expression("word in ['b', 'c'] and word == 'b'"), [False, True]),
    ):
        assert evaluate_column(expr, block).to_pylist() == expected, repr(expr)


def test_a_value_alone_is_the_same_for_all_rows_and_an_expression_names_its_columns():
    block = Block({"x": [1, 2, 3]})
    assert evaluate_column(lit(1) + 2, block).to_pylist() == [3, 3, 3]
    assert evaluate_column(lit("a"), block.slice(0, 0)).to_pylist() == []
    assert evaluate_column(lit([1, 2]), block).to_pylist() == [[1, 2]] * 3
    assert parse_expression("a + b > 3 and not (c in [1]) or col('d e') is None").columns() == {"a", "b", "c", "d e"}


@pytest.mark.parametrize(
    "text", ["a >", "f(a) > 1", "a ** 2", "a.cast(3) == 1", "a.str.no() == 1", "a.power(b)", "a in b", ""]
)
def test_what_is_no_expression_over_columns_is_refused_with_what_may_be_used(text):
    with pytest.raises(ValueError, match="hint: use column names, values, comparisons"):
        parse_expression(text)


@pytest.mark.parametrize("expr", [col("word") + 1, ~col("number"), col("number") & True])
def test_what_cannot_be_computed_is_named(expr):
    with pytest.raises(TypeError, match="cannot compute ") as raised:
        evaluate_column(expr, Block({"word": ["a"], "number": [1]}))
    assert repr(expr) in str(raised.value)
