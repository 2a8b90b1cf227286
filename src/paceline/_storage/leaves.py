"""The values of numpy, torch and JAX that a state may hold, and their way to raw bytes and back.

Small ones (scalars, dtypes, sizes) are nodes of the tree; tensors, arrays and bytes are leaves beside it.
Writing imports none of them: a value can only be of one that is loaded. Reading is handed torch; what was an array of
JAX comes back as one of numpy.
"""

import base64
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
    """A value whose bytes lie outside the tree."""

    kind: Kind
    value: Any
    nbytes: int
    dtype: Any = None
    shape: tuple[int, ...] = ()
    on_gpu: bool = False


class Buffer(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Where the bytes of a leaf lie, and what they are."""

    kind: Kind
    offset: Natural
    nbytes: Natural
    dtype: Any = None
    shape: tuple[Natural, ...] = ()


class Objection(Exception):
    """Why a value has no place in a state, and what to do; becomes a TypeError that names the path."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason, hint)
        self.reason = reason
        self.hint = hint


def small_node(value: Any) -> dict[str, Any] | None:
    """The node of a numpy scalar, `torch.dtype` or `torch.Size`; None for anything else."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.generic):
        return _scalar_node(value, numpy)
    if torch is not None and isinstance(value, torch.dtype):
        return {"$dtype": _name(value)}
    if torch is not None and type(value) is torch.Size:
        return {"$size": [int(length) for length in value]}
    return None


def leaf_of(value: Any) -> tuple[Hashable, Leaf] | None:
    """The leaf of a tensor, an array or bytes, and a key that is equal for values in the same memory."""
    if type(value) is bytes:
        return id(value), Leaf("bytes", value, len(value))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor_leaf(value, torch)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return id(value), _array_leaf(value, numpy)
    jax = sys.modules.get("jax")
    # Not there while another thread is still importing it.
    if jax is not None and isinstance(value, getattr(jax, "Array", ())):
        return id(value), _array_leaf(_host_array(value, jax), sys.modules["numpy"])
    return None


def pickled(value: Any) -> tuple[Hashable, Leaf]:
    import pickle

    import cloudpickle

    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    try:
        data = dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Objection(f"cannot be pickled: {type(error).__name__}: {error}", "leave it out of the state") from error
    return id(value), Leaf("pickle", data, len(data))


def restored_scalar(payload: Any) -> Any:
    import numpy

    dtype, data = payload
    if dtype == "str":
        return numpy.str_(data)
    if dtype == "bytes":
        return numpy.bytes_(base64.b64decode(data))
    raw = bytearray(base64.b64decode(data))
    stored = _numpy_dtype(dtype)
    if len(raw) != stored.itemsize:
        raise ValueError(f"one {stored} does not have {len(raw)} bytes")
    return numpy.ndarray((), stored, raw)[()]


def restored_array(buffer: Buffer, data: Any) -> Any:
    """An array over `data` itself, without a copy."""
    import numpy

    dtype = _numpy_dtype(buffer.dtype)
    _check_size(buffer, dtype.itemsize)
    if not buffer.nbytes:
        return numpy.empty(buffer.shape, dtype)
    return numpy.ndarray(buffer.shape, dtype, data, buffer.offset)


def restored_tensor(buffer: Buffer, data: Any, torch: Any) -> Any:
    """A tensor over `data` itself, without a copy."""
    dtype = torch_dtype(buffer.dtype, torch)
    if buffer.dtype.startswith("q"):
        raise ValueError(f"{buffer.dtype} is a quantized dtype")
    _check_size(buffer, dtype.itemsize)
    if not buffer.nbytes:
        return torch.empty(buffer.shape, dtype=dtype, device="cpu")
    raw = torch.frombuffer(data, dtype=torch.uint8, count=buffer.nbytes, offset=buffer.offset)
    return raw.view(dtype).view(buffer.shape)


def torch_dtype(name: Any, torch: Any) -> Any:
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {reprlib.repr(name)}")
    return dtype


def same_width(tensor: Any, torch: Any) -> Any:
    """The tensor's bits as elements that can be copied everywhere, as float8 and its like cannot."""
    words = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128)
    return tensor.view(words[tensor.itemsize.bit_length() - 1])


def _tensor_leaf(value: Any, torch: Any) -> tuple[Hashable, Leaf]:
    _check_tensor(value, torch)
    nbytes = value.nbytes
    shape = tuple(value.shape)
    # Without strides a matrix and its transpose would be one; without bits, a number and its conjugate.
    conj, neg = value.is_conj(), value.is_neg()
    memory = (value.data_ptr(), shape, value.stride(), value.dtype, value.device, conj, neg)
    key: Hashable = memory if nbytes else id(value)
    if conj or neg:
        value = value.resolve_conj().resolve_neg()
    if not value.is_cpu and not value.is_cuda:
        value = value.cpu()
    on_gpu = value.is_cuda and nbytes > 0
    return key, Leaf("tensor", value, nbytes, _name(value.dtype), shape, on_gpu)


def _check_tensor(value: Any, torch: Any) -> None:
    kind = type(value)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        if hasattr(value, "full_tensor"):
            hint = "store x.full_tensor() or x.to_local(), or save it with torch.distributed.checkpoint"
        else:
            hint = "store a plain tensor of its values"
        raise Objection(f"is a {kind.__name__}, a kind of tensor that is more than its values", hint)
    if value.is_nested:
        raise Objection("is a nested tensor", "store the list x.unbind()")
    if value.is_quantized:
        raise Objection("is a quantized tensor", "store x.int_repr() with its scale and zero point, or x.dequantize()")
    if value.layout is not torch.strided:
        hint = "store x.to_dense(), or its indices and values apart"
        raise Objection(f"is a tensor of layout {_name(value.layout)}", hint)
    if value.is_meta:
        raise Objection("is a tensor on the meta device, which holds no data", "give it values first")
    if value.nbytes and not value.untyped_storage().data_ptr():
        hint = "take the state where the values are present, such as inside FSDP's state_dict context"
        raise Objection("is a tensor whose memory has been freed", hint)


def _array_leaf(value: Any, numpy: Any) -> Leaf:
    if type(value) is not numpy.ndarray:
        raise Objection(
            f"is a {type(value).__name__}, a kind of array that is more than its values",
            "store numpy.asarray(x)",
        )
    return Leaf("array", value, value.nbytes, _numpy_description(value.dtype), value.shape)


def _host_array(value: Any, jax: Any) -> Any:
    """The values of an array of JAX, of which this process has to have all."""
    if isinstance(value, jax.core.Tracer):
        raise Objection("is a value that is being traced", "store what the compiled function returns, outside of it")
    if value.is_deleted():
        raise Objection("is an array whose memory was donated", "store what the function it was donated to returned")
    if not value.is_fully_addressable and not value.is_fully_replicated:
        raise Objection(
            "is an array of which other workers hold a part",
            "save it with paceline.train.jax.OrbaxCheckpoint.from_pytree, on all workers",
        )
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        raise Objection(f"has dtype {value.dtype}, which only JAX has", "store jax.random.key_data(x) of a random key")
    return sys.modules["numpy"].asarray(value)


def _scalar_node(value: Any, numpy: Any) -> dict[str, Any]:
    # Zeros at the end of a string are lost by an array of it, and by numpy's own `str()`.
    if type(value) is numpy.str_:
        return {"$scalar": ["str", str.__str__(value)]}
    data = bytes(value) if type(value) is numpy.bytes_ else numpy.asarray(value).tobytes()
    dtype = "bytes" if type(value) is numpy.bytes_ else _numpy_description(value.dtype)
    if type(value) is not value.dtype.type:
        raise Objection(f"is a {type(value).__name__}, a kind of numpy scalar of its own", "store x.item()")
    return {"$scalar": [dtype, base64.b64encode(data).decode()]}


@functools.lru_cache(maxsize=256)
def _numpy_description(dtype: Any) -> Any:
    """The dtype in JSON, as in the header of an .npy file: `<f4`, or a list of fields."""
    if dtype.hasobject:
        raise Objection(
            f"has dtype {dtype}: its elements are references, not values",
            "store x.tolist(), or x.astype(...) with a dtype of fixed size",
        )
    if dtype.type.__module__ == "ml_dtypes":
        return f"ml_dtypes.{dtype.name}"
    try:
        description = dtype.str if dtype.names is None else _listed(dtype.descr)
        if _numpy_dtype(description) == dtype:
            return description
    except ValueError:
        pass
    raise Objection(f"has dtype {dtype}, which has no plain description", "store its fields one by one")


def _numpy_dtype(description: Any) -> Any:
    """The dtype that was described; only what a description can be is let through to numpy."""
    import numpy

    if isinstance(description, str) and description.startswith("ml_dtypes."):
        return _ml_dtype(description.removeprefix("ml_dtypes."))
    try:
        dtype = numpy.lib.format.descr_to_dtype(_checked_description(description))
    except (TypeError, SyntaxError, OverflowError, RecursionError) as error:
        raise ValueError(f"numpy has no dtype {reprlib.repr(description)}: {error}") from error
    # Nothing gets here that names objects; but if it did, bytes from a file would be followed as pointers.
    if dtype.hasobject:
        raise ValueError(f"numpy has no dtype {reprlib.repr(description)} of fixed size")
    return dtype


def _ml_dtype(name: str) -> Any:
    import numpy

    kind = getattr(importlib.import_module("ml_dtypes"), name, None)
    if not (isinstance(kind, type) and issubclass(kind, numpy.generic)):
        raise ValueError(f"ml_dtypes has no dtype {reprlib.repr(name)}")
    return numpy.dtype(kind)


def _checked_description(description: Any) -> Any:
    if isinstance(description, str) and _NUMPY_DTYPE.fullmatch(description):
        return description
    if not isinstance(description, list):
        raise ValueError(f"numpy has no dtype {reprlib.repr(description)} of fixed size")
    fields = []
    for field in description:
        name, kind, *shape = field
        fields.append((tuple(name) if isinstance(name, list) else name, _checked_description(kind), *map(tuple, shape)))
    return fields


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def _check_size(buffer: Buffer, itemsize: int) -> None:
    if math.prod(max(length, 1) for length in buffer.shape) * max(itemsize, 1) >= _LIMIT:
        raise ValueError(f"no memory can hold the shape {buffer.shape}")
    if math.prod(buffer.shape) * itemsize != buffer.nbytes:
        raise ValueError(f"{buffer.nbytes} bytes are not the shape {buffer.shape} with {itemsize} bytes each")


def _name(thing: Any) -> str:
    return str(thing).removeprefix("torch.")
