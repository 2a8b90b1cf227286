"""Metrics as plain JSON: numbers, strings, lists and dicts, with nan, infinity and very large integers kept.

JSON has no nan and no infinity, and most writers turn both into null; a loss that became nan is the one number
its owner must not lose, so these values are written as `{"$number": "nan"}`.
"""

import math
from numbers import Real
from typing import Any

import msgspec

_ESCAPE = "$number"
_ESCAPE_WRITTEN = b'"$number"'
"""In JSON, which msgspec writes without a backslash for any of these letters."""
_INT_LIMIT = 1 << 63
_MAX_DECIMAL_BITS = 2000


def plain(value: Any, path: str = "metrics") -> Any:
    """`value` in plain form: numpy scalars and one-element tensors become numbers; the rest is refused by path."""
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {_ESCAPE: repr(value)}
    if kind is int:
        return value if -_INT_LIMIT <= value < _INT_LIMIT else {_ESCAPE: _digits(value)}
    if kind is str:
        return value if value.isascii() else _writable(value, f"{path} is a text with")
    if value is None or kind is bool:
        return value
    if isinstance(value, dict):
        return _dict(value, path)
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if hasattr(value, "item") and hasattr(value, "shape"):
        number = _number(value, path)
        if type(number) is not kind:
            return plain(number, path)
        if isinstance(number, Real):  # numpy's longdouble is its own item.
            return plain(float(number), path)
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return plain(base(value), path)
    raise TypeError(
        f"{path} is {_article(kind.__name__)}: it has to be a number, a string, None, or a list or dict of these"
    )


def unplain(value: Any) -> Any:
    """The value that `plain` was given, tuples as lists."""
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(value.get(_ESCAPE), str):
            return _restored(value)
        return {key: unplain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unplain(item) for item in value]
    return value


def restored(raw: msgspec.Raw) -> Any:
    """The value whose plain form was written as JSON."""
    value = msgspec.json.decode(raw)
    # To look for the word is much cheaper than to go through every value, and hardly any report has it.
    return unplain(value) if _ESCAPE_WRITTEN in bytes(raw) else value


def looked_up(metrics: Any, attribute: str) -> Any:
    """The metric under a name, or under a path such as `eval/loss`; None where there is none."""
    if not isinstance(metrics, dict):
        return None
    if attribute in metrics:
        return metrics[attribute]
    head, _, rest = attribute.partition("/")
    return looked_up(metrics.get(head), rest) if rest else None


def printable(text: str) -> str:
    """A text as any file can hold it, with what cannot be written spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _dict(value: dict[Any, Any], path: str) -> dict[str, Any]:
    items: dict[str, Any] = {}
    for key, item in value.items():
        text = as_key(key, path)
        if text in items:
            others = [other for other in value if str(other) == text]
            raise ValueError(
                f"{path} has the keys {' and '.join(map(repr, others))}, which are the same as text: {text!r}"
            )
        items[text] = plain(item, f"{path}[{key!r}]")
    return items


def _writable(text: str, about: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{about} {text[error.start]!r} at position {error.start}, half of a character, which cannot be stored\n\n"
            "hint: bytes.decode(..., errors='replace') does not make these"
        ) from None
    return text


def _digits(value: int) -> str:
    # The interpreter refuses to write, and to read, more than some thousand decimal digits.
    return str(value) if value.bit_length() < _MAX_DECIMAL_BITS else hex(value)


def _restored(value: dict[str, Any]) -> Any:
    text = value[_ESCAPE]
    try:
        return float(text) if text in ("nan", "inf", "-inf") else int(text, 16 if "x" in text else 10)
    except ValueError:
        return value  # Not written by `plain`; it stays what it is.


def _number(value: Any, path: str) -> Any:
    shape = tuple(value.shape)
    if math.prod(shape) != 1:
        raise ValueError(
            f"{path} is {_article(type(value).__name__)} of shape {shape}: it has to be one number\n\n"
            "hint: report a reduction of it, such as x.mean().item(), or x.tolist() to keep every element"
        )
    return value.item()


def as_key(key: Any, path: str) -> str:
    """A key of metrics as text."""
    if isinstance(key, str):
        if key == _ESCAPE:
            raise ValueError(f"{path} has the key {key!r}, which is kept for numbers that JSON cannot write")
        return key if key.isascii() else _writable(key, f"{path} has a key with")
    if isinstance(key, (int, float)) and not isinstance(key, bool):
        return str(key) if not isinstance(key, int) else _digits(key)
    raise TypeError(f"{path} has the key {key!r}: keys have to be strings")


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
