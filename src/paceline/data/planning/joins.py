"""What a join is to compute: which rows are kept, which columns result, and which types of keys can be compared.

It does not join; `exec/joined_units.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from paceline.data.block import TensorType, list_columns
from paceline.data.column import is_text

JOIN_TYPES = (
    "inner",
    "left_outer",
    "right_outer",
    "full_outer",
    "left_semi",
    "right_semi",
    "left_anti",
    "right_anti",
)


class OutputColumn(NamedTuple):
    name: str
    origin: Literal["left", "right", "either"]
    """`either`: a key of the left row, or of the right one if there is no left row."""
    source: str
    """Its name in the dataset it comes from; for `either`, in the left one."""


@dataclass(frozen=True)
class JoinSpec:
    how: str
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    left_suffix: str | None = None
    right_suffix: str | None = None

    def __str__(self) -> str:
        keys = repr(list(self.left_on)) + (f" = {list(self.right_on)!r}" if self.right_on != self.left_on else "")
        suffixes = (self.left_suffix, self.right_suffix)
        return f"{self.how}, {keys}{f', suffixes {suffixes!r}' if any(suffixes) else ''}"

    def keeps_unmatched(self, side: int) -> bool:
        """Whether rows of the left (0) or right (1) dataset without a match are in the result."""
        return self.how in (("left_outer", "left_anti"), ("right_outer", "right_anti"))[side] or self.how == (
            "full_outer"
        )

    def may_miss(self, side: int) -> bool:
        """Whether a row of the result may have no row of the left (0) or right (1) dataset."""
        return self.how in (("right_outer", "full_outer"), ("left_outer", "full_outer"))[side]

    def list_output(self, left: Sequence[str], right: Sequence[str]) -> list[OutputColumn]:
        """List the columns of the result. The keys appear once, under the left dataset's names.

        In joins that keep all right rows, they have the right dataset's names.
        """
        for names, keys, which in ((left, self.left_on, "left"), (right, self.right_on, "right")):
            for key in keys:
                if key not in names:
                    raise KeyError(
                        f"join: the {which} dataset has no column {key!r}; its columns are: {list_columns(names, key)}"
                    )
        lefts = [OutputColumn(name, "left", name) for name in left]
        rights = [OutputColumn(name, "right", name) for name in right]
        match self.how:
            case "left_semi" | "left_anti":
                return lefts
            case "right_semi" | "right_anti":
                return rights
            case "right_outer":
                lefts = [column for column in lefts if column.name not in self.left_on]
            case _:
                rights = [column for column in rights if column.name not in self.right_on]
        if self.how == "full_outer":
            lefts = [column._replace(origin="either") if column.name in self.left_on else column for column in lefts]
        return self._with_suffixes(lefts, rights)

    def _with_suffixes(self, lefts: list[OutputColumn], rights: list[OutputColumn]) -> list[OutputColumn]:
        clashing = {column.name for column in lefts} & {column.name for column in rights}
        columns = [
            column._replace(name=column.name + (suffix or "")) if column.name in clashing else column
            for side, suffix in ((lefts, self.left_suffix), (rights, self.right_suffix))
            for column in side
        ]
        names = [column.name for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"join: two columns of the result would have the name {name!r}\n\n"
                    "hint: left_suffix and right_suffix are appended to names that both datasets have"
                )
        return columns

    def infer_types(self, left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
        """Infer the types of the result from those of the datasets; None if it depends on the rows."""
        types: dict[str, Any] = {}
        others = dict(zip(self.left_on, self.right_on, strict=True))
        for name, origin, source in self.list_output(list(left), list(right)):
            kind = right[source] if origin == "right" else left[source]
            if origin == "either":
                kind = kind if kind == right[others[source]] else None
            elif isinstance(kind, TensorType) and self.may_miss(int(origin == "right")):
                kind = None  # with a missing tensor, the column has no common shape
            types[name] = kind
        for left_key, right_key in others.items():
            check_comparable(left_key, left[left_key], right_key, right[right_key])
        return types

    def needed_columns(self, left: Sequence[str], right: Sequence[str], columns: Iterable[str]) -> list[set[str]]:
        """For each dataset, the columns that are needed for some columns of the result."""
        needed = [set(self.left_on), set(self.right_on)]
        wanted = {*columns}
        for name, origin, source in self.list_output(left, right):
            if name in wanted:
                needed[origin == "right"].add(source)
        # A name that both datasets have must stay in both, so that it gets its suffix.
        both = {*left} & {*right}
        shared = both & (needed[0] | needed[1])
        return [one | shared for one in needed]


def check_comparable(left: str, left_type: Any, right: str, right_type: Any) -> Any:
    """Return the type in which two keys are compared. Integers of any width are comparable, and so on."""
    if left_type is None or right_type is None:
        return None
    one, other = (_without_dictionary(kind) for kind in (left_type, right_type))
    if pa.types.is_null(one) or pa.types.is_null(other):
        kind = other if pa.types.is_null(one) else one
        one = other = pa.int8() if pa.types.is_null(kind) else kind
    family = _find_family(one)
    if family is not None and family == _find_family(other):
        return _find_common_type(one, other, family)
    raise TypeError(
        f"join: the keys {left!r} and {right!r} must have comparable types, got {left_type} and {right_type}\n\n"
        "hint: convert one of them before the join"
    )


def _without_dictionary(kind: Any) -> Any:
    return kind.value_type if not isinstance(kind, TensorType) and pa.types.is_dictionary(kind) else kind


def _find_family(kind: Any) -> str | None:
    if isinstance(kind, TensorType):
        return None
    if is_text(kind):
        return "text"
    if pa.types.is_timestamp(kind):
        return f"timestamp {kind.tz}"
    tests = {
        "integer": pa.types.is_integer,
        "float": pa.types.is_floating,
        "decimal": pa.types.is_decimal,
        "bool": pa.types.is_boolean,
        "date": pa.types.is_date,
        "time": pa.types.is_time,
        "duration": pa.types.is_duration,
        "bytes": lambda kind: (
            pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
            or pa.types.is_binary_view(kind)
            or pa.types.is_fixed_size_binary(kind)
        ),
    }
    return next((family for family, test in tests.items() if test(kind)), None)


def _find_common_type(one: Any, other: Any, family: str) -> Any:
    match family:
        case "text":
            return pa.large_string()
        case "bytes":
            return pa.large_binary()
        case "float":
            return pa.float64()
        case "integer":
            is_signed = {pa.types.is_signed_integer(one), pa.types.is_signed_integer(other)}
            if is_signed == {False}:
                return pa.uint64()
            # No integer type holds both negative numbers and all of uint64.
            return pa.decimal128(20, 0) if pa.uint64() in (one, other) else pa.int64()
    schemas = (pa.schema([("", kind)]) for kind in (one, other))
    return pa.unify_schemas(list(schemas), promote_options="permissive").field(0).type
