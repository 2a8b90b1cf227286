"""Converts any value to short plain JSON for people to read, and masks what looks like a secret.

Never fails: a value without a plain form is shown by its `repr`, or else by the name of its type.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from paceline._core.plain_values import to_printable

MASK = "***"

_MAX_DEPTH = 8
_MAX_ITEMS = 1000
_MAX_LISTED = 100
_MAX_TEXT = 4000
_MAX_REPR = 200

_SECRET = re.compile(
    r"passw(or)?d|passphrase|secret|api_?key|access_?key|private_?key|credential|bearer|authorization"
    r"|(^|_)(auth|pwd|pass)$|(^|_)token$",
)
_LANGUAGE_TOKEN = re.compile(
    r"(^|_)(pad|eos|bos|unk|mask|sep|cls|special|start|end|stop|extra|image|image_token)_token$"
)
"""What language models call tokens."""
_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")
_PAIR = re.compile(r"([\w.-]+)(['\"]?\s*[=:]\s*)b?('[^']*'|\"[^\"]*\")")
"""A name and a string in the `repr` of an object."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def is_secret_name(name: str) -> bool:
    """Whether a key, an option or a variable of this name probably holds a secret."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_").replace(".", "_").strip("_")
    return bool(_SECRET.search(name)) and not _LANGUAGE_TOKEN.search(name)


def mask_value(value: Any, name: str = "", depth: int = 0) -> Any:
    """Return the plain form of a value. Masks values under a name that `is_secret_name`, and passwords in URLs."""
    if value is None or isinstance(value, bool):
        return value
    if name and is_secret_name(name) and isinstance(value, str | bytes | Mapping | Sequence) and len(value):
        return MASK
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, int):
        return int(value) if abs(int(value)) < 1 << 53 else _truncate_text(_safe_repr(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str | PurePath):
        return _truncate_text(_IN_URL.sub(rf"\1:{MASK}@", to_printable(str(value))))
    if depth >= _MAX_DEPTH and isinstance(value, Mapping | list | tuple | set | frozenset):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, Mapping):
        return _mask_mapping(value, depth)
    if isinstance(value, list | tuple | set | frozenset):
        return _mask_sequence(value, name, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and depth < _MAX_DEPTH:
        named = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value) if field.repr}
        return _mask_mapping(named, depth)
    return _mask_other(value, name, depth)


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command, with the values of secret options masked."""
    masked: list[str] = []
    masks_next = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if masks_next and not argument.startswith("-"):
            masked.append(MASK)
        elif equals and value and is_secret_name(option.lstrip("-")):
            masked.append(f"{to_printable(option)}={MASK}")
        else:
            masked.append(mask_value(argument))
        masks_next = not equals and argument.startswith("-") and is_secret_name(argument.lstrip("-"))
    return masked


def _mask_mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    try:
        items = list(value.items())
    except Exception:  # noqa: BLE001
        return {"": _short_repr(value)}
    masked: dict[str, Any] = {}
    for key, item in items[:_MAX_ITEMS]:
        named = _truncate_text(to_printable(key)) if isinstance(key, str) else _short_repr(key)
        masked[named] = mask_value(item, named, depth + 1)
    if len(items) > _MAX_ITEMS:
        masked["..."] = f"{len(items) - _MAX_ITEMS} more"
    return masked


def _mask_sequence(value: Any, name: str, depth: int) -> list[Any]:
    items = list(value) if not isinstance(value, set | frozenset) else sorted(value, key=_safe_repr)
    masked = [mask_value(item, "", depth + 1) for item in items[:_MAX_LISTED]]
    return masked if len(items) <= _MAX_LISTED else [*masked, f"... {len(items) - _MAX_LISTED} more"]


def _mask_other(value: Any, name: str, depth: int) -> Any:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and math.prod(n for n in shape if isinstance(n, int)) == 1 and hasattr(value, "item"):
        try:
            number = value.item()
        except Exception:  # noqa: BLE001
            return _short_repr(value)
        return mask_value(number, name, depth + 1)
    if isinstance(shape, tuple):
        return f"{type(value).__name__} of shape {shape}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    return _short_repr(value)


def _short_repr(value: Any) -> str:
    text = _ADDRESS.sub("", _IN_URL.sub(rf"\1:{MASK}@", to_printable(_safe_repr(value))))
    text = _PAIR.sub(lambda pair: f"{pair[1]}{pair[2]}{MASK}" if is_secret_name(pair[1]) else pair[0], text)
    return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}..."


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__}>"


def _truncate_text(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... ({len(text)} characters)"
