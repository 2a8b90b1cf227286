"""Metrics as plain JSON: numbers, strings, lists and dicts, including nan, infinity and very large integers.

JSON has no nan and no infinity, and most writers turn both into null. A loss that became nan is the one number a user
must not lose, so these values are written as `{"$number": "nan"}`.

Reported tuples and small NumPy arrays come back as they were. They are written with the same reserved key, such as
`{"$number": "tuple", "items": [1, 2]}`. Views read them as lists.
"""

import math
from numbers import Real
from typing import Any

import msgspec

_ESCAPE = "$number"
_ESCAPE_WRITTEN = b'"$number"'
"""As written in JSON; msgspec escapes none of these letters."""
_TUPLE, _ARRAY = "tuple", "array"
_INT_LIMIT = 1 << 63
_MAX_DECIMAL_BITS = 2000
_MAX_ARRAY_ITEMS = 1000
"""A report is one line of the journal, which every reader of the run parses."""


def to_plain(value: Any, path: str = "metrics", *, keep_types: bool = False) -> Any:
    """Convert `value` to plain form; raise an error with the path if it has none.

    Numpy scalars and one-element arrays and tensors become numbers. With `keep_types`, tuples and small arrays can be
    read back as they are; otherwise tuples become lists, and arrays are refused.
    """
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {_ESCAPE: repr(value)}
    if kind is int:
        return value if -_INT_LIMIT <= value < _INT_LIMIT else {_ESCAPE: _format_int(value)}
    if kind is str:
        return value if value.isascii() else _check_encodable(value, f"{path} is a text with")
    if value is None or kind is bool:
        return value
    if isinstance(value, dict):
        return _dict_to_plain(value, path, keep_types)
    if isinstance(value, (list, tuple)):
        items = [to_plain(item, f"{path}[{index}]", keep_types=keep_types) for index, item in enumerate(value)]
        return {_ESCAPE: _TUPLE, "items": items} if keep_types and isinstance(value, tuple) else items
    if hasattr(value, "item") and hasattr(value, "shape"):
        if keep_types and _is_array(value) and value.size != 1 and value.dtype.kind in "biuf" and value.itemsize <= 8:
            return _array_to_plain(value, path)
        number = _single_item(value, path)
        if type(number) is not kind:
            return to_plain(number, path)
        if isinstance(number, Real):  # The item of a numpy longdouble is a longdouble.
            return to_plain(float(number), path)
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return to_plain(base(value), path)
    raise TypeError(
        f"{path} must be a number, a string, None, or a list or dict of these, got {with_article(kind.__name__)}"
    )


def from_plain(value: Any, *, as_lists: bool = False) -> Any:
    """The inverse of `to_plain`, except that tuples become lists if it did not keep types.

    With `as_lists`, all tuples and arrays become lists, also those in a value that is already converted.
    """
    if isinstance(value, dict):
        kind = value.get(_ESCAPE)
        if isinstance(kind, str) and len(value) == 1:
            return _parse_escaped_number(value)
        if kind in (_TUPLE, _ARRAY) and "items" in value:
            items = from_plain(value["items"], as_lists=as_lists)
            return items if as_lists else _restore_type(value, items)
        return {key: from_plain(item, as_lists=as_lists) for key, item in value.items()}
    if isinstance(value, list) or (as_lists and isinstance(value, tuple)):
        return [from_plain(item, as_lists=as_lists) for item in value]
    return value.tolist() if as_lists and _is_array(value) else value


def decode_plain(raw: msgspec.Raw) -> Any:
    """Decode a plain value from JSON."""
    value = msgspec.json.decode(raw)
    # Searching for the key is much cheaper than visiting every value, and hardly any report has it.
    return from_plain(value) if _ESCAPE_WRITTEN in bytes(raw) else value


def get_metric(metrics: Any, attribute: str) -> Any:
    """Return the metric of a name, or of a path such as `eval/loss`; None if there is none."""
    if not isinstance(metrics, dict):
        return None
    if attribute in metrics:
        return metrics[attribute]
    head, _, rest = attribute.partition("/")
    return get_metric(metrics.get(head), rest) if rest else None


def to_printable(text: str) -> str:
    """Return a text that any file can hold, with unencodable characters escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _dict_to_plain(value: dict[Any, Any], path: str, keep_types: bool) -> dict[str, Any]:
    items: dict[str, Any] = {}
    for key, item in value.items():
        text = key if type(key) is str and key.isascii() and key != _ESCAPE else to_metric_key(key, path)
        if text in items:
            duplicates = [other for other in value if str(other) == text]
            raise ValueError(
                f"{path} has the keys {' and '.join(map(repr, duplicates))}, which are the same text: {text!r}"
            )
        kind = type(item)
        # Almost every metric is one of these: spare it the path of an error.
        if (kind is float and math.isfinite(item)) or (kind is int and -_INT_LIMIT <= item < _INT_LIMIT):
            items[text] = item
        else:
            items[text] = to_plain(item, f"{path}[{key!r}]", keep_types=keep_types)
    return items


def _check_encodable(text: str, subject: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{subject} {text[error.start]!r} at position {error.start}: half of a character, not storable\n\n"
            "hint: bytes.decode(..., errors='replace') does not make these"
        ) from None
    return text


def _format_int(value: int) -> str:
    # The interpreter refuses to convert integers of more than some thousand decimal digits.
    return str(value) if value.bit_length() < _MAX_DECIMAL_BITS else hex(value)


def _parse_escaped_number(value: dict[str, Any]) -> Any:
    text = value[_ESCAPE]
    try:
        return float(text) if text in ("nan", "inf", "-inf") else int(text, 16 if "x" in text else 10)
    except ValueError:
        return value  # Not written by `to_plain`; left as it is.


def _restore_type(value: dict[str, Any], items: list[Any]) -> Any:
    if value[_ESCAPE] == _TUPLE:
        return tuple(items)
    import numpy

    return numpy.array(items, value["dtype"]).reshape(value["shape"])


def _is_array(value: Any) -> bool:
    """Return whether this is a NumPy array, without importing NumPy."""
    kind = type(value)
    return kind.__name__ == "ndarray" and kind.__module__ == "numpy"


def _array_to_plain(value: Any, path: str) -> dict[str, Any]:
    if value.size > _MAX_ARRAY_ITEMS:
        raise ValueError(
            f"{path} must have at most {_MAX_ARRAY_ITEMS} elements, got an array of shape {value.shape}\n\n"
            "hint: report a reduction of it, such as x.mean().item(), or save it in a checkpoint"
        )
    items = to_plain(value.tolist(), path)
    return {_ESCAPE: _ARRAY, "dtype": value.dtype.name, "shape": list(value.shape), "items": items}


def _single_item(value: Any, path: str) -> Any:
    shape = tuple(value.shape)
    if math.prod(shape) != 1:
        raise ValueError(
            f"{path} must be one number, got {with_article(type(value).__name__)} of shape {shape}\n\n"
            "hint: report a reduction of it, such as x.mean().item(), or x.tolist() to keep every element"
        )
    return value.item()


def to_metric_key(key: Any, path: str) -> str:
    """Convert a metric key to text."""
    if isinstance(key, str):
        if key == _ESCAPE:
            raise ValueError(f"{path} has the key {key!r}, which is reserved for numbers that JSON cannot write")
        return key if key.isascii() else _check_encodable(key, f"{path} has a key with")
    if isinstance(key, (int, float)) and not isinstance(key, bool):
        return str(key) if not isinstance(key, int) else _format_int(key)
    raise TypeError(f"the keys of {path} must be strings, got {key!r}")


def with_article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
