"""Types, nullability and pyarrow's form of expressions, against what they compute."""

import pyarrow as pa
import pyarrow.dataset
import pytest

from paceline.data import Schema
from paceline.data.block import Block
from paceline.data.datatype import DataType
from paceline.data.expressions import col, download, evaluate_column, lit, random, star, udf, unnest, uuid, when

TABLE = pa.table(
    {
        "i": pa.array([1, None, -3], pa.int32()),
        "f": [0.5, float("nan"), None],
        "s": ["ab", None, "C"],
        "l": [[1, 2], [], None],
        "n": pa.array([3, 2, 1], pa.int64()),
    },
    schema=pa.schema(
        [
            ("i", pa.int32()),
            ("f", pa.float64()),
            ("s", pa.string()),
            ("l", pa.list_(pa.int64())),
            pa.field("n", pa.int64(), nullable=False),
        ]
    ),
)


@udf(DataType.int16())
def refuse(values):
    raise AssertionError("must not be called for a type")


EXPRESSIONS = [
    col("i") + 1,
    col("i") / col("n"),
    2 - col("f") * 3,
    (col("i") > 0) & col("s").is_not_null() | ~(col("n") == 2),
    -col("i"),
    col("s").is_null(),
    col("i").is_in([1, 7]),
    col("i").not_in([1]),
    col("s").str.upper().alias("upper"),
    col("s").str.starts_with("a"),
    col("s").fill_null("none"),
    col("n").cast(pa.float32()),
    col("f").floor(),
    when(col("i") > 0, "up").when(col("n") == 2, "two").otherwise("down"),
    when(col("i") > 0, 1),
    col("n"),
    lit(5),
]
OURS_ALONE = [col("i") // col("n"), col("n") % 2, col("n").power(2), col("l").list.get(0), random(seed=1), uuid()]


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=repr)
def test_pyarrow_computes_the_same(expr):
    ours = evaluate_column(expr, Block.from_arrow(TABLE))
    scanned = pyarrow.dataset.dataset(TABLE).to_table(columns={"x": expr.to_pyarrow()})["x"]
    assert scanned.cast(ours.type).to_pylist().__repr__() == ours.to_pylist().__repr__()


@pytest.mark.parametrize("expr", OURS_ALONE, ids=repr)
def test_what_pyarrow_lacks_is_refused(expr):
    with pytest.raises(ValueError, match="must be an expression that pyarrow has"):
        (expr == 1).to_pyarrow()


@pytest.mark.parametrize("expr", [*EXPRESSIONS, *OURS_ALONE], ids=repr)
def test_type_and_nullability_are_those_of_the_values(expr):
    values = evaluate_column(expr, Block.from_arrow(TABLE))
    assert expr.get_type(TABLE.schema) == expr.get_type(Schema(TABLE.schema)) == values.type
    assert expr.nullable(TABLE.schema) or not values.null_count
    named = expr.alias("x")
    assert named.to_field(TABLE.schema) == pa.field("x", values.type, nullable=expr.nullable(TABLE.schema))


def test_what_is_known_of_an_expression_without_rows():
    schema = TABLE.schema
    certain = [col("n"), col("n") + 1, col("s").is_null(), col("i").is_in([1]), random(), col("i").fill_null(0)]
    assert not any(expr.nullable(schema) for expr in certain)
    assert all(expr.nullable(schema) for expr in (col("i"), col("n") // 0, lit(None), refuse(col("n")), col("none")))
    assert (refuse(col("i")) * 2).get_type(schema) == pa.int64()
    assert download("s").get_type(schema) == pa.large_binary()
    assert [expr.get_type(schema) for expr in (col("none"), col("s") + 1, star(), unnest(col("s")))] == [None] * 4
    assert (col("i") + 1).to_field(schema) is None
    assert [expr.is_idempotent() for expr in (col("i") + 1, refuse(col("i")), random(), uuid().str.upper())] == [
        True,
        True,
        False,
        False,
    ]
