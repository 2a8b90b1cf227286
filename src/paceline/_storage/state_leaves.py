"""Converts numpy, torch and JAX values of a state to raw bytes and back.

Small values (scalars, dtypes, sizes) are nodes of the tree; tensors, arrays and bytes are leaves next to it. Writing
imports none of the three: a value belongs to a library that is loaded. A JAX array comes back as a numpy array.
"""

import base64
import ctypes
import functools
import importlib
import math
import re
import reprlib
import sys
from collections.abc import Callable, Hashable
from typing import Annotated, Any, Literal

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0)]
Kind = Literal["tensor", "array", "bytes", "pickle"]

_NUMPY_DTYPE = re.compile(r"[<>|=][biufcmMSUV]\d{0,9}(\[\d{0,9}[A-Za-z]{1,7}\])?")
_LIMIT = 1 << 63


class Leaf(msgspec.Struct, frozen=True, gc=False):
    """A value whose bytes are stored outside the tree."""

    kind: Kind
    value: Any
    nbytes: int
    dtype: Any = None
    shape: tuple[int, ...] = ()
    on_gpu: bool = False


class Buffer(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Where the bytes of a leaf are, and their type."""

    kind: Kind
    offset: Natural
    nbytes: Natural
    dtype: Any = None
    shape: tuple[Natural, ...] = ()


class UnsupportedValueError(Exception):
    """Why a state cannot hold a value, and what to do; becomes a TypeError that names the path."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason, hint)
        self.reason = reason
        self.hint = hint


def encode_small_value(value: Any) -> dict[str, Any] | None:
    """Return the node of a numpy scalar, `torch.dtype` or `torch.Size`; None for anything else."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.generic):
        return _encode_scalar(value, numpy)
    if torch is not None and isinstance(value, torch.dtype):
        return {"$dtype": _dtype_name(value)}
    if torch is not None and type(value) is torch.Size:
        return {"$size": [int(length) for length in value]}
    return None


def make_leaf(value: Any) -> tuple[Hashable, Leaf] | None:
    """Return the leaf of a tensor, an array or bytes, and a key that is equal for values in the same memory."""
    if type(value) is bytes:
        return id(value), Leaf("bytes", value, len(value))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _make_tensor_leaf(value, torch)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return id(value), _make_array_leaf(value, numpy)
    jax = sys.modules.get("jax")
    # Missing while another thread is still importing JAX.
    if jax is not None and isinstance(value, getattr(jax, "Array", ())):
        return id(value), _make_array_leaf(_to_host_array(value, jax), sys.modules["numpy"])
    return None


def make_pickle_leaf(value: Any) -> tuple[Hashable, Leaf]:
    import pickle

    import cloudpickle

    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    try:
        data = dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UnsupportedValueError(
            f"cannot be pickled: {type(error).__name__}: {error}", "leave it out of the state"
        ) from error
    return id(value), Leaf("pickle", data, len(data))


def restore_scalar(payload: Any) -> Any:
    import numpy

    dtype, data = payload
    if dtype == "str":
        return numpy.str_(data)
    if dtype == "bytes":
        return numpy.bytes_(base64.b64decode(data))
    raw = bytearray(base64.b64decode(data))
    numpy_dtype = _parse_numpy_dtype(dtype)
    if len(raw) != numpy_dtype.itemsize:
        raise ValueError(f"a {numpy_dtype} does not have {len(raw)} bytes")
    return numpy.ndarray((), numpy_dtype, raw)[()]


def restore_array(buffer: Buffer, data: Any) -> Any:
    """Return an array over `data` itself, without a copy."""
    import numpy

    dtype = _parse_numpy_dtype(buffer.dtype)
    _check_size(buffer, dtype.itemsize)
    if not buffer.nbytes:
        return numpy.empty(buffer.shape, dtype)
    return numpy.ndarray(buffer.shape, dtype, data, buffer.offset)


def restore_tensor(buffer: Buffer, data: Any, torch: Any) -> Any:
    """Return a tensor over `data` itself, without a copy."""
    dtype = parse_torch_dtype(buffer.dtype, torch)
    if buffer.dtype.startswith("q"):
        raise ValueError(f"{buffer.dtype} is a quantized dtype")
    _check_size(buffer, dtype.itemsize)
    if not buffer.nbytes:
        return torch.empty(buffer.shape, dtype=dtype, device="cpu")
    raw = torch.frombuffer(data, dtype=torch.uint8, count=buffer.nbytes, offset=buffer.offset)
    return raw.view(dtype).view(buffer.shape)


def parse_torch_dtype(name: Any, torch: Any) -> Any:
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {reprlib.repr(name)}")
    return dtype


def view_as_copyable(tensor: Any, torch: Any) -> Any:
    """View the tensor's bits as a dtype that every device can copy, unlike float8 and similar types."""
    words = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128)
    return tensor.view(words[tensor.itemsize.bit_length() - 1])


def view_bytes(leaf: Leaf) -> memoryview:
    """Return the bytes of a leaf in host memory, read-only; copied only if they are not contiguous."""
    value = leaf.value
    if leaf.kind == "tensor":
        torch = sys.modules["torch"]
        value = value.detach() if value.is_contiguous() else view_as_copyable(value.detach(), torch).contiguous()
        address = value.data_ptr()
    elif leaf.kind == "array":
        value = sys.modules["numpy"].ascontiguousarray(value)
        address = value.ctypes.data
    else:
        return memoryview(value)
    array: Any = (ctypes.c_char * leaf.nbytes).from_address(address)
    array.owner = value  # Lives as long as the view.
    return memoryview(array).cast("B").toreadonly()


def _make_tensor_leaf(value: Any, torch: Any) -> tuple[Hashable, Leaf]:
    _check_tensor(value, torch)
    nbytes = value.nbytes
    shape = tuple(value.shape)
    # Without strides a matrix would equal its transpose; without these bits, a number its conjugate.
    conj, neg = value.is_conj(), value.is_neg()
    memory = (value.data_ptr(), shape, value.stride(), value.dtype, value.device, conj, neg)
    key: Hashable = memory if nbytes else id(value)
    if conj or neg:
        value = value.resolve_conj().resolve_neg()
    if not value.is_cpu and not value.is_cuda:
        value = value.cpu()
    on_gpu = value.is_cuda and nbytes > 0
    return key, Leaf("tensor", value, nbytes, _dtype_name(value.dtype), shape, on_gpu)


def _check_tensor(value: Any, torch: Any) -> None:
    kind = type(value)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        if hasattr(value, "full_tensor"):
            hint = "store x.full_tensor() or x.to_local(), or all of them with paceline.train.torch.ShardedCheckpoint"
        else:
            hint = "store a plain tensor of its values"
        raise UnsupportedValueError(f"is a {kind.__name__}, a tensor subclass with more than its values", hint)
    if value.is_nested:
        raise UnsupportedValueError("is a nested tensor", "store the list x.unbind()")
    if value.is_quantized:
        raise UnsupportedValueError(
            "is a quantized tensor", "store x.int_repr() with its scale and zero point, or x.dequantize()"
        )
    if value.layout is not torch.strided:
        hint = "store x.to_dense(), or its indices and values apart"
        raise UnsupportedValueError(f"is a tensor of layout {_dtype_name(value.layout)}", hint)
    if value.is_meta:
        raise UnsupportedValueError("is a tensor on the meta device, which holds no data", "give it values first")
    if value.nbytes and not value.untyped_storage().data_ptr():
        hint = "take the state where the values are present, such as inside FSDP's state_dict context"
        raise UnsupportedValueError("is a tensor whose memory has been freed", hint)


def _make_array_leaf(value: Any, numpy: Any) -> Leaf:
    if type(value) is not numpy.ndarray:
        raise UnsupportedValueError(
            f"is a {type(value).__name__}, an array subclass with more than its values",
            "store numpy.asarray(x)",
        )
    return Leaf("array", value, value.nbytes, _describe_numpy_dtype(value.dtype), value.shape)


def _to_host_array(value: Any, jax: Any) -> Any:
    """Return the values of a JAX array, all of which this process must hold."""
    if isinstance(value, jax.core.Tracer):
        raise UnsupportedValueError("is a traced value", "store what the compiled function returns, outside of it")
    if value.is_deleted():
        raise UnsupportedValueError(
            "is an array whose memory was donated", "store what the function it was donated to returned"
        )
    if not value.is_fully_addressable and not value.is_fully_replicated:
        raise UnsupportedValueError(
            "is an array that other workers hold a part of",
            "save it with paceline.train.jax.OrbaxCheckpoint.from_pytree, on all workers",
        )
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        raise UnsupportedValueError(
            f"has dtype {value.dtype}, which only JAX has", "store jax.random.key_data(x) of a random key"
        )
    return sys.modules["numpy"].asarray(value)


def _encode_scalar(value: Any, numpy: Any) -> dict[str, Any]:
    # An array of strings and numpy's own `str()` lose trailing zero characters.
    if type(value) is numpy.str_:
        return {"$scalar": ["str", str.__str__(value)]}
    data = bytes(value) if type(value) is numpy.bytes_ else numpy.asarray(value).tobytes()
    dtype = "bytes" if type(value) is numpy.bytes_ else _describe_numpy_dtype(value.dtype)
    if type(value) is not value.dtype.type:
        raise UnsupportedValueError(f"is a {type(value).__name__}, a subclass of a numpy scalar", "store x.item()")
    return {"$scalar": [dtype, base64.b64encode(data).decode()]}


@functools.lru_cache(maxsize=256)
def _describe_numpy_dtype(dtype: Any) -> Any:
    """Return the dtype in JSON, as in the header of an .npy file: `<f4`, or a list of fields."""
    if dtype.hasobject:
        raise UnsupportedValueError(
            f"has dtype {dtype}: its elements are references, not values",
            "store x.tolist(), or x.astype(...) with a dtype of fixed size",
        )
    if dtype.type.__module__ == "ml_dtypes":
        return f"ml_dtypes.{dtype.name}"
    try:
        description = dtype.str if dtype.names is None else _to_nested_lists(dtype.descr)
        if _parse_numpy_dtype(description) == dtype:
            return description
    except ValueError:
        pass
    raise UnsupportedValueError(f"has dtype {dtype}, which has no plain description", "store its fields one by one")


def _parse_numpy_dtype(description: Any) -> Any:
    """Parse a described dtype; only valid descriptions are passed to numpy."""
    import numpy

    if isinstance(description, str) and description.startswith("ml_dtypes."):
        return _find_ml_dtype(description.removeprefix("ml_dtypes."))
    try:
        dtype = numpy.lib.format.descr_to_dtype(_check_description(description))
    except (TypeError, SyntaxError, OverflowError, RecursionError) as error:
        raise ValueError(f"numpy has no dtype {reprlib.repr(description)}: {error}") from error
    # Descriptions cannot name objects; but if one did, bytes from a file would be followed as pointers.
    if dtype.hasobject:
        raise ValueError(f"numpy has no dtype {reprlib.repr(description)} of fixed size")
    return dtype


def _find_ml_dtype(name: str) -> Any:
    import numpy

    kind = getattr(importlib.import_module("ml_dtypes"), name, None)
    if not (isinstance(kind, type) and issubclass(kind, numpy.generic)):
        raise ValueError(f"ml_dtypes has no dtype {reprlib.repr(name)}")
    return numpy.dtype(kind)


def _check_description(description: Any) -> Any:
    if isinstance(description, str) and _NUMPY_DTYPE.fullmatch(description):
        return description
    if not isinstance(description, list):
        raise ValueError(f"numpy has no dtype {reprlib.repr(description)} of fixed size")
    fields = []
    for field in description:
        name, kind, *shape = field
        fields.append((tuple(name) if isinstance(name, list) else name, _check_description(kind), *map(tuple, shape)))
    return fields


def _to_nested_lists(value: Any) -> Any:
    return [_to_nested_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _check_size(buffer: Buffer, itemsize: int) -> None:
    if math.prod(max(length, 1) for length in buffer.shape) * max(itemsize, 1) >= _LIMIT:
        raise ValueError(f"shape {buffer.shape} is too large for any memory")
    if math.prod(buffer.shape) * itemsize != buffer.nbytes:
        raise ValueError(f"{buffer.nbytes} bytes do not fit the shape {buffer.shape} with {itemsize} bytes each")


def _dtype_name(thing: Any) -> str:
    return str(thing).removeprefix("torch.")
