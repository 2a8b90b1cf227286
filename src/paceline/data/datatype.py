"""Types of columns that `cast` and `udf` take: an Arrow type, a NumPy dtype or a Python type, under one interface."""

from __future__ import annotations

import builtins
import datetime
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from paceline._core.arguments import bad_value, check_choice, check_instance, check_int
from paceline._core.lazy_imports import explain_module
from paceline.data.column import as_arrow, column_of

_PYTHON_TYPES = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us"),
    datetime.date: pa.date32(),
    datetime.time: pa.time64("us"),
    datetime.timedelta: pa.duration("us"),
    type(None): pa.null(),
}
_WITH_UNIT = {"timestamp": pa.timestamp, "duration": pa.duration, "time32": pa.time32, "time64": pa.time64}
_DEFAULT_UNITS = {"timestamp": "us", "duration": "us", "time32": "s", "time64": "us"}
_DATES = {"date32": pa.date32(), "date64": pa.date64()}


class TypeCategory(enum.StrEnum):
    """Families of types, for `DataType.is_of`."""

    LIST = "list"
    LARGE_LIST = "large_list"
    STRUCT = "struct"
    MAP = "map"
    TENSOR = "tensor"
    TEMPORAL = "temporal"


@dataclass(frozen=True)
class _RaggedTensor:
    """Tensors of different shapes. In Arrow they are nested lists."""

    dtype: Any
    ndim: int


def _make_type(kind: Any) -> Any:
    def make(cls: type[DataType]) -> DataType:
        return cls(kind)

    return classmethod(make)


def _has_kind(*tests: Callable[[Any], bool]) -> Callable[[DataType], bool]:
    """Return a method that is true if the Arrow type passes one of the tests."""

    def has_kind(self: DataType) -> bool:
        kind = self._find_arrow_type()
        return kind is not None and not self.is_tensor_type() and any(test(kind) for test in tests)

    return has_kind


@dataclass(frozen=True)
class DataType:
    """The type of a column. Create it with a method: `DataType.int64()`, `DataType.list(DataType.string())`."""

    _physical_dtype: Any

    def __post_init__(self) -> None:
        kind = self._physical_dtype
        if not isinstance(kind, pa.DataType | np.dtype | type | _RaggedTensor):
            raise bad_value("_physical_dtype", "a pyarrow.DataType, a numpy.dtype or a Python type", kind)

    int8, int16, int32, int64 = (_make_type(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()))
    uint8, uint16, uint32, uint64 = (_make_type(kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()))
    float32, float64 = _make_type(pa.float32()), _make_type(pa.float64())
    string, binary, bool = _make_type(pa.string()), _make_type(pa.binary()), _make_type(pa.bool_())

    @classmethod
    def from_arrow(cls, arrow_type: Any) -> DataType:
        return cls(check_instance("arrow_type", arrow_type, pa.DataType, "a pyarrow type"))

    @classmethod
    def from_numpy(cls, numpy_dtype: Any) -> DataType:
        """Create it from a `numpy.dtype` or its name."""
        return cls(np.dtype(numpy_dtype))

    @classmethod
    def from_dtype(cls, dtype: Any) -> DataType:
        """Create it from a `DataType`, an Arrow type, a Python type, or a NumPy dtype or its name."""
        if isinstance(dtype, DataType):
            return dtype
        if isinstance(dtype, pa.DataType) or dtype in _PYTHON_TYPES:
            return cls(dtype)
        try:
            return cls.from_numpy(dtype)
        except TypeError:
            raise bad_value("dtype", "a DataType, or a type of pyarrow, NumPy or Python", dtype) from None

    @classmethod
    def infer_dtype(cls, value: Any) -> DataType:
        """Return the type of a value: of a NumPy value its dtype, of others the Arrow type."""
        if isinstance(value, np.ndarray) and value.ndim:
            return cls.tensor(value.shape, value.dtype)
        if isinstance(value, np.generic | np.ndarray):
            return cls(value.dtype)
        try:
            return cls(pa.scalar(value).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            return cls(type(value))

    @classmethod
    def list(cls, value_type: Any) -> DataType:
        return cls(pa.list_(as_arrow_type("value_type", value_type)))

    @classmethod
    def large_list(cls, value_type: Any) -> DataType:
        return cls(pa.large_list(as_arrow_type("value_type", value_type)))

    @classmethod
    def fixed_size_list(cls, value_type: Any, list_size: int) -> DataType:
        return cls(pa.list_(as_arrow_type("value_type", value_type), check_int("list_size", list_size, at_least=1)))

    @classmethod
    def struct(cls, fields: Sequence[tuple[str, Any]]) -> DataType:
        """`fields` are names with their types."""
        return cls(pa.struct([(name, as_arrow_type("fields", kind)) for name, kind in fields]))

    @classmethod
    def map(cls, key_type: Any, value_type: Any) -> DataType:
        return cls(pa.map_(as_arrow_type("key_type", key_type), as_arrow_type("value_type", value_type)))

    @classmethod
    def tensor(cls, shape: Sequence[int], dtype: Any) -> DataType:
        """Tensors that all have this shape."""
        return cls(pa.fixed_shape_tensor(as_arrow_type("dtype", dtype), tuple(shape)))

    @classmethod
    def variable_shaped_tensor(cls, dtype: Any, ndim: int = 2) -> DataType:
        """Tensors of different shapes, each with `ndim` dimensions."""
        return cls(_RaggedTensor(as_arrow_type("dtype", dtype), check_int("ndim", ndim, at_least=1)))

    @classmethod
    def temporal(cls, temporal_type: str, unit: str | None = None, tz: str | None = None) -> DataType:
        """`temporal_type` is "timestamp", "date32", "date64", "time32", "time64" or "duration"."""
        check_choice("temporal_type", temporal_type, (*_WITH_UNIT, *_DATES))
        if tz is not None and temporal_type != "timestamp":
            raise ValueError(f"tz is for timestamps, got tz={tz!r} with {temporal_type!r}")
        if temporal_type in _DATES:
            if unit is not None:
                raise ValueError(f"{temporal_type} has no unit, got unit={unit!r}")
            return cls(_DATES[temporal_type])
        zone = {} if tz is None else {"tz": tz}
        return cls(_WITH_UNIT[temporal_type](unit or _DEFAULT_UNITS[temporal_type], **zone))

    def to_arrow_dtype(self, values: Any = None) -> Any:
        """Return the Arrow type. For a Python type that Arrow does not know, it is inferred from `values`."""
        kind = self._find_arrow_type()
        if kind is not None:
            return kind
        if values is None or not len(values):
            raise TypeError(f"{self!r} has no Arrow type\n\nhint: pass values to infer it from")
        return as_arrow(column_of(builtins.list(values))).type

    def to_numpy_dtype(self) -> Any:
        """Return the NumPy dtype; that of objects for what NumPy has no dtype for."""
        if isinstance(self._physical_dtype, np.dtype):
            return self._physical_dtype
        kind = self._find_arrow_type()
        if kind is None or types.is_nested(kind) or types.is_null(kind) or self.is_tensor_type():
            return np.dtype(object)
        return pa.array([], kind).to_numpy(zero_copy_only=False).dtype

    def to_python_type(self) -> type:
        """Return the type of the values as Python objects: `int` for all integers, `list`, `dict`, ..."""
        if self.is_python_type():
            found: type = self._physical_dtype
            return found
        kind = self._find_arrow_type()
        if kind is None:
            return object
        if self.is_tensor_type():
            return np.ndarray
        if types.is_struct(kind):
            return dict
        if types.is_nested(kind):
            return builtins.list
        return next((python for python, test in _PYTHON_TESTS.items() if test(kind)), object)

    def _find_arrow_type(self) -> Any:
        kind = self._physical_dtype
        if isinstance(kind, pa.DataType):
            return kind
        if isinstance(kind, _RaggedTensor):
            nested = kind.dtype
            for _ in range(kind.ndim):
                nested = pa.list_(nested)
            return nested
        if isinstance(kind, np.dtype):
            try:
                return pa.from_numpy_dtype(kind)
            except pa.ArrowNotImplementedError:
                return None
        return _PYTHON_TYPES.get(kind)

    def is_arrow_type(self) -> builtins.bool:
        return isinstance(self._physical_dtype, pa.DataType)

    def is_numpy_type(self) -> builtins.bool:
        return isinstance(self._physical_dtype, np.dtype)

    def is_python_type(self) -> builtins.bool:
        return isinstance(self._physical_dtype, type)

    def is_tensor_type(self) -> builtins.bool:
        return isinstance(self._physical_dtype, pa.FixedShapeTensorType | _RaggedTensor)

    is_binary_type = _has_kind(types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    is_boolean_type = _has_kind(types.is_boolean)
    is_floating_type = _has_kind(types.is_floating)
    is_integer_type = _has_kind(types.is_integer)
    is_list_type = _has_kind(types.is_list, types.is_large_list, types.is_fixed_size_list)
    is_large_list_type = _has_kind(types.is_large_list)
    is_map_type = _has_kind(types.is_map)
    is_nested_type = _has_kind(types.is_nested)
    is_null_type = _has_kind(types.is_null)
    is_numerical_type = _has_kind(types.is_integer, types.is_floating, types.is_decimal)
    is_string_type = _has_kind(types.is_string, types.is_large_string)
    is_struct_type = _has_kind(types.is_struct)
    is_temporal_type = _has_kind(types.is_temporal)
    is_uint64_type = _has_kind(types.is_uint64)

    def is_of(self, category: TypeCategory | str) -> builtins.bool:
        """Whether the type belongs to a family, such as `TypeCategory.LIST` or "list"."""
        name = check_choice("category", str(category), [each.value for each in TypeCategory])
        found: builtins.bool = getattr(self, f"is_{name}_type")()
        return found

    def __repr__(self) -> str:
        return f"DataType({self._physical_dtype!s})"


_PYTHON_TESTS: dict[type, Callable[[Any], bool]] = {
    bool: types.is_boolean,
    int: types.is_integer,
    float: types.is_floating,
    str: lambda kind: types.is_string(kind) or types.is_large_string(kind),
    bytes: lambda kind: types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind),
    datetime.datetime: types.is_timestamp,
    datetime.date: types.is_date,
    datetime.time: types.is_time,
    datetime.timedelta: types.is_duration,
    type(None): types.is_null,
}


def as_arrow_type(name: str, value: Any) -> Any:
    """Return the Arrow type of an argument: a `DataType`, or what `DataType.from_dtype` takes."""
    try:
        return DataType.from_dtype(value).to_arrow_dtype()
    except (TypeError, ValueError):
        raise bad_value(name, "a DataType such as DataType.int64(), or a pyarrow type", value) from None


explain_module(__name__)
