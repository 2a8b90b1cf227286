"""What expressions compute: a table from the name of a function to an Arrow kernel, or to a function made of some.

A name with a dot is a method of a namespace: `str.upper` is `col("x").str.upper()`. The arguments of a method are those
of its kernel, after the column. All functions keep the number of rows, and null gives null if not said otherwise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import check_choice, check_int

REFUSED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowIndexError)
"""What Arrow raises for values that it cannot compute with."""


def _divide(left: Any, right: Any) -> Any:
    return pc.divide(pc.cast(left, pa.float64(), safe=False), right)


def _floor_divide(left: Any, right: Any) -> Any:
    if not pa.types.is_integer(left.type) or not pa.types.is_integer(right.type):
        return pc.floor(_divide(left, right))
    right = pc.if_else(pc.equal(right, 0), pa.scalar(None, right.type), right)
    quotient = pc.divide(left, right)  # Arrow truncates towards zero
    rest = pc.subtract(left, pc.multiply(quotient, right))
    below = pc.and_(pc.not_equal(rest, 0), pc.not_equal(pc.less(rest, 0), pc.less(right, 0)))
    return pc.subtract(quotient, pc.cast(below, quotient.type))


def _remainder(left: Any, right: Any) -> Any:
    return pc.subtract(left, pc.multiply(_floor_divide(left, right), right))


BINARY_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": pc.add,
    "-": pc.subtract,
    "*": pc.multiply,
    "/": _divide,
    "//": _floor_divide,
    "%": _remainder,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "&": pc.and_kleene,
    "|": pc.or_kleene,
}
UNARY_OPERATIONS = {"not": pc.invert, "-": pc.negate, "is null": pc.is_null, "is not null": pc.is_valid}


def compute_binary(operation: str, left: Any, right: Any) -> Any:
    compute = BINARY_OPERATIONS[operation]
    try:
        return compute(left, right)
    except pa.ArrowInvalid:
        if not all(_is_number(side.type) for side in (left, right)):
            raise
    # Arrow refuses to round a large number to the type of the other side. Use that type if it is as precise.
    for wide, narrow in ((left.type, right), (right.type, left)):
        are_integers = pa.types.is_integer(wide) and pa.types.is_integer(narrow.type)
        if are_integers and isinstance(narrow, pa.Scalar) and narrow.is_valid and narrow.as_py() >= 0:
            other = pc.cast(narrow, wide)
            return compute(left, other) if narrow is right else compute(other, right)
    return compute(pc.cast(left, pa.float64(), safe=False), pc.cast(right, pa.float64(), safe=False))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _by_chunk(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of one `pyarrow.Array` take what an expression gives: it may be in chunks, or one value."""

    @functools.wraps(compute)
    def compute_chunks(values: Any, *args: Any, **options: Any) -> Any:
        if isinstance(values, pa.Scalar):
            return compute(pa.array([values.as_py()], values.type), *args, **options)[0]
        if isinstance(values, pa.ChunkedArray):
            empty = pa.array([], values.type)
            chunks = [compute(chunk, *args, **options) for chunk in values.chunks or [empty]]
            return pa.chunked_array(chunks)
        return compute(values, *args, **options)

    return compute_chunks


def _trim(side: str) -> Callable[..., Any]:
    def trim(strings: Any, characters: str | None = None) -> Any:
        if characters is None:
            return getattr(pc, f"utf8_{side}trim_whitespace")(strings)
        return getattr(pc, f"utf8_{side}trim")(strings, characters)

    return trim


def _pad(strings: Any, width: int, fillchar: str = " ", side: Literal["left", "right", "both"] = "right") -> Any:
    check_choice("side", side, ("left", "right", "both"))
    pad = {"left": pc.utf8_lpad, "right": pc.utf8_rpad, "both": pc.utf8_center}[side]
    return pad(strings, width, fillchar)


def _repeat(strings: Any, n: int) -> Any:
    return pc.binary_repeat(strings, check_int("n", n, at_least=0))


def _temporal(round_time: Callable[..., Any]) -> Callable[..., Any]:
    def round_to_unit(timestamps: Any, unit: str) -> Any:
        return round_time(timestamps, unit=unit)

    return round_to_unit


def _strftime(timestamps: Any, fmt: str) -> Any:
    return pc.strftime(timestamps, format=fmt)


def _check_lists(lists: Any) -> Any:
    """Return the lists as Arrow lists: those of a map are its entries, those of a tensor its rows."""
    kind = lists.type
    if pa.types.is_fixed_size_list(kind) or pa.types.is_map(kind):
        item = (
            pa.struct([("key", kind.key_type), ("value", kind.item_type)]) if pa.types.is_map(kind) else kind.value_type
        )
        return lists.cast(pa.list_(item))
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise pa.ArrowInvalid(f"must be lists, got {kind}")
    return lists


def _build_lists(lengths: Any, values: Any) -> Any:
    """Build lists from their lengths, null for a null list, and the values of all of them."""
    offsets = np.concatenate([[0], np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False))])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values, mask=pc.is_null(lengths)).cast(
        pa.list_(values.type)
    )


@_by_chunk
def _list_get(lists: Any, index: int) -> Any:
    """The value at an index, counted from the end if negative; null where the list is shorter."""
    check_int("index", index)
    lists = _check_lists(lists)
    lengths = pc.list_value_length(lists)
    counts = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    begins = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else counts
    places = index if index >= 0 else counts + index
    is_inside = (places >= 0) & (places < counts)
    return lists.flatten().take(pa.array(begins + places, mask=~is_inside))


def _list_slice(lists: Any, start: int | None = None, stop: int | None = None, step: int | None = None) -> Any:
    start, step = check_int("start", start or 0, at_least=0), check_int("step", 1 if step is None else step, at_least=1)
    stop = check_int("stop", stop, at_least=start, optional=True)
    return pc.list_slice(lists, start, stop, step, return_fixed_size_list=False)


@_by_chunk
def _list_sort(
    lists: Any,
    order: Literal["ascending", "descending"] = "ascending",
    null_placement: Literal["at_start", "at_end"] = "at_end",
) -> Any:
    check_choice("order", order, ("ascending", "descending"))
    check_choice("null_placement", null_placement, ("at_start", "at_end"))
    lists = _check_lists(lists)
    rows = pa.table({"row": pc.list_parent_indices(lists), "value": lists.flatten()})
    keys = [("row", "ascending", "at_end"), ("value", order, null_placement)]
    indices = pc.sort_indices(rows, sort_keys=keys)
    return _build_lists(pc.list_value_length(lists), rows["value"].take(indices).combine_chunks())


@_by_chunk
def _list_flatten(lists: Any) -> Any:
    """One level of lists less; a null list inside is left out."""
    outer = _check_lists(lists)
    inner = _check_lists(outer.flatten())
    counts = pc.fill_null(pc.list_value_length(inner), 0).to_numpy(zero_copy_only=False)
    parents = pc.list_parent_indices(outer).to_numpy(zero_copy_only=False)
    totals = np.bincount(parents, counts, minlength=len(outer)).astype(np.int64)
    lengths = pa.array(totals, mask=pc.is_null(outer).to_numpy(zero_copy_only=False))
    return _build_lists(lengths, inner.flatten())


def _map_entries(part: str) -> Callable[..., Any]:
    @_by_chunk
    def take_entries(maps: Any) -> Any:
        if not pa.types.is_map(maps.type):
            raise pa.ArrowInvalid(f"must be maps, got {maps.type}")
        entries = _check_lists(maps)
        return _build_lists(pc.list_value_length(entries), pc.struct_field(entries.flatten(), part))

    return take_entries


@_by_chunk
def _array_to_list(arrays: Any) -> Any:
    """Arrays of a fixed size, or tensors, as lists, nested for tensors of several dimensions."""
    shape: list[int] = []
    if isinstance(arrays.type, pa.FixedShapeTensorType):
        shape, arrays = list(arrays.type.shape)[1:], arrays.storage
    lists = _check_lists(arrays)
    if not shape:
        return lists
    values = lists.flatten()
    for size in reversed(shape):
        values = pa.FixedSizeListArray.from_arrays(values, size).cast(pa.list_(values.type))
    lengths = pc.divide(pc.list_value_length(lists), int(np.prod(shape)))
    return _build_lists(lengths, values)


def _struct_field(structs: Any, field_name: str) -> Any:
    return pc.struct_field(structs, [field_name])


def _struct_field_by_index(structs: Any, index: int) -> Any:
    return pc.struct_field(structs, [check_int("index", index, at_least=0)])


def _cast(values: Any, target_type: Any, *, safe: bool = True) -> Any:
    return pc.cast(values, target_type, safe=safe)


def _power(base: Any, exponent: Any) -> Any:
    """Integers stay integers unless an exponent is negative."""
    are_integers = pa.types.is_integer(base.type) and pa.types.is_integer(exponent.type)
    if are_integers and pc.any(pc.less(exponent, 0)).as_py():
        base = pc.cast(base, pa.float64(), safe=False)
    return pc.power(base, exponent)


_MATH = ("abs", "acos", "asin", "atan", "ceil", "cos", "exp", "floor", "ln", "log10", "log2", "negate")
_IS_TEXT = ("alnum", "alpha", "decimal", "digit", "lower", "numeric", "printable", "space", "title", "upper")
_UTF8 = ("capitalize", "center", "lower", "lpad", "reverse", "rpad", "swapcase", "title", "upper", "replace_slice")

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(pc, name) for name in (*_MATH, "round", "sign", "sin", "tan", "trunc", "is_nan", "coalesce")},
    "power": _power,
    "cast": _cast,
    **{f"str.{name}": getattr(pc, f"utf8_{name}") for name in _UTF8},
    **{f"str.is_{name}": getattr(pc, f"utf8_is_{name}") for name in _IS_TEXT},
    "str.is_ascii": pc.string_is_ascii,
    "str.byte_len": pc.binary_length,
    "str.len": pc.utf8_length,
    "str.contains": pc.match_substring,
    "str.match": pc.match_like,
    "str.match_regex": pc.match_substring_regex,
    "str.starts_with": pc.starts_with,
    "str.ends_with": pc.ends_with,
    "str.count": pc.count_substring,
    "str.count_regex": pc.count_substring_regex,
    "str.find": pc.find_substring,
    "str.find_regex": pc.find_substring_regex,
    "str.extract": pc.extract_regex,
    "str.replace": pc.replace_substring,
    "str.replace_regex": pc.replace_substring_regex,
    "str.slice": pc.utf8_slice_codeunits,
    "str.split": pc.split_pattern,
    "str.split_regex": pc.split_pattern_regex,
    "str.split_whitespace": pc.utf8_split_whitespace,
    "str.strip": _trim(""),
    "str.lstrip": _trim("l"),
    "str.rstrip": _trim("r"),
    "str.pad": _pad,
    "str.repeat": _repeat,
    "list.len": pc.list_value_length,
    "list.get": _list_get,
    "list.slice": _list_slice,
    "list.sort": _list_sort,
    "list.flatten": _list_flatten,
    **{f"dt.{name}": getattr(pc, name) for name in ("year", "month", "day", "hour", "minute", "second")},
    **{f"dt.{name}": _temporal(getattr(pc, f"{name}_temporal")) for name in ("ceil", "floor", "round")},
    "dt.strftime": _strftime,
    "struct.field": _struct_field,
    "struct.field_by_index": _struct_field_by_index,
    "map.keys": _map_entries("key"),
    "map.values": _map_entries("value"),
    "arr.to_list": _array_to_list,
}

NAMESPACES = sorted({name.partition(".")[0] for name in FUNCTIONS if "." in name})

_SAMPLES: dict[str, tuple[Any, Any]] = {
    "str": ("a", pa.string()),
    "list": ([1], pa.list_(pa.int64())),
    "dt": (0, pa.timestamp("us")),
}
"""A value of each namespace and its type; not an array, since making one imports pandas."""


def _make_sample(namespace: str) -> Any:
    value, kind = _SAMPLES[namespace]
    return pa.array([value], kind)


def call_function(function: str, values: Sequence[Any], options: Mapping[str, Any]) -> Any:
    kind = function.partition(".")[0]
    if kind in NAMESPACES and pa.types.is_null(values[0].type):
        # Rows without any value have no type: some units of a column may be like that.
        sample = FUNCTIONS[function](_make_sample(kind), **options).type if kind in ("str", "dt") else pa.null()
        return pa.scalar(None, sample) if isinstance(values[0], pa.Scalar) else pa.nulls(len(values[0]), sample)
    return FUNCTIONS[function](*values, **options)


def bind_options(function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Match the arguments after the column with a function's parameters, and try them on one row."""
    compute = FUNCTIONS[function]
    try:
        bound = inspect.signature(compute).bind(None, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function}: {error}") from None
    options = dict(list(bound.arguments.items())[1:])
    namespace = function.partition(".")[0]
    if namespace in _SAMPLES and options:
        try:
            compute(_make_sample(namespace), **options)
        except (TypeError, ValueError) as error:
            shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
            raise type(error)(f"{function}({shown}): {error}") from None
    return options
