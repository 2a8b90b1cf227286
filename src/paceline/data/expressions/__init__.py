"""Expressions over columns: `(col("age") > 30) & col("name").is_not_null()`.

`Dataset.filter`, `with_column` and `with_columns` take them. They are computed on whole columns by Arrow, and the
columns they need are known before rows are read.
"""

from paceline._core.lazy_imports import explain_module
from paceline.data.expressions.functions import col as col
from paceline.data.expressions.functions import download as download
from paceline.data.expressions.functions import lit as lit
from paceline.data.expressions.functions import monotonically_increasing_id as monotonically_increasing_id
from paceline.data.expressions.functions import pyarrow_udf as pyarrow_udf
from paceline.data.expressions.functions import random as random
from paceline.data.expressions.functions import star as star
from paceline.data.expressions.functions import udf as udf
from paceline.data.expressions.functions import unnest as unnest
from paceline.data.expressions.functions import uuid as uuid
from paceline.data.expressions.functions import when as when
from paceline.data.expressions.nodes import BinaryNode as BinaryNode
from paceline.data.expressions.nodes import ColumnNode as ColumnNode
from paceline.data.expressions.nodes import Expr as Expr
from paceline.data.expressions.nodes import IsInNode as IsInNode
from paceline.data.expressions.nodes import LiteralNode as LiteralNode
from paceline.data.expressions.nodes import UnaryNode as UnaryNode
from paceline.data.expressions.nodes import as_expr as as_expr
from paceline.data.expressions.nodes import evaluate_column as evaluate_column
from paceline.data.expressions.nodes import rename_columns as rename_columns
from paceline.data.expressions.parser import parse_expression as parse_expression

__all__ = [
    "Expr",
    "col",
    "download",
    "lit",
    "monotonically_increasing_id",
    "pyarrow_udf",
    "random",
    "star",
    "udf",
    "unnest",
    "uuid",
    "when",
]

explain_module(__name__)
