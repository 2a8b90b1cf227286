"""Converts values, arguments and source code to a form that people may read, and masks what looks like a secret.

Never fails: a value without a plain form is shown by its `repr`, or else by the name of its type.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import functools
import io
import itertools
import math
import re
import threading
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from paceline._core.plain_values import to_printable

MASK = "***"
_parsing = threading.Lock()

_MAX_DEPTH = 8
_MAX_ITEMS = 1000
_MAX_LISTED = 100
_MAX_TEXT = 4000
_MAX_REPR = 200

_SECRET = re.compile(
    r"passw(or)?d|passphrase|secret|api_?key|access_?key|private_?key|credential|bearer|authorization"
    r"|(^|_)(auth|pwd|pass)$|(^|_)token$"
    r"|(^|_)(wandb|hf|huggingface|openai|anthropic|comet|neptune|clearml|aws|azure|gcp|google|github|gitlab|account"
    r"|storage|shared|service|sas|ssh|signing|encryption|master|license)_?key$",
)
_LANGUAGE_TOKEN = re.compile(
    r"(^|_)(pad|eos|bos|unk|mask|sep|cls|special|start|end|stop|extra|image|image_token)_token$"
)
"""What language models call tokens."""
_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")
_PAIR = re.compile(r"([\w.-]+)(['\"]?\s*[=:]\s*)b?('[^']*'|\"[^\"]*\")")
"""A name and a string in the `repr` of an object."""
_KNOWN_TOKEN = re.compile(
    r"\b(sk-[\w-]{16,}|hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,})"
)
"""What tokens of well-known services look like, whatever they are called."""
_CELL_COMMAND = re.compile(r"^([ \t]*)([!%].*)$", re.MULTILINE)
_STORED_COMMAND = re.compile(r"pass  # cell command (\d+)")
_SPACE = re.compile(r"\s+(?!-)")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_SEPARATOR = re.compile(r"""(?:\\?['"])?\]?\s*(?::[^=:\n"'#]{0,80}=|={1,2}|:)(?!=)\s*[\s(\[]*""")
_GIVEN = re.compile(
    r"""[bBrRfFuU]{0,2}(?:"{3}.*?"{3}|'{3}.*?'{3}|\\?"(?:\\[^"]|[^"\\\n])*\\?"|\\?'(?:\\[^']|[^'\\\n])*\\?')"""
    r"""|(?:(?:Bearer|Basic|Token)\s+)?[^\s"',;)}\]]+""",
    re.DOTALL,
)
"""What follows a name in text that is no Python (a comment, a command, an argument): `=` or `:`, and its value."""
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
            masked.append(mask_text(mask_value(argument)))
        masks_next = not equals and argument.startswith("-") and is_secret_name(argument.lstrip("-"))
    return masked


def mask_text(text: str) -> str:
    """Mask secrets in text that is no Python: `API_KEY=...`, `--token ...`, `"password": "..."`, known tokens."""
    pieces, done = [], 0
    for name in _NAME.finditer(text):
        if name.start() < done or not is_secret_name(name[0]):
            continue
        separator = _SEPARATOR.match(text, name.end())
        if separator is None and text[: name.start()].endswith("-"):
            separator = _SPACE.match(text, name.end())
        value = _GIVEN.match(text, separator.end()) if separator is not None else None
        if value is not None:
            pieces += [text[done : value.start()], MASK]
            done = value.end()
    return _KNOWN_TOKEN.sub(MASK, _IN_URL.sub(rf"\1:{MASK}@", "".join([*pieces, text[done:]])))


@functools.lru_cache(maxsize=8)  # All trials of a search have the same source.
def mask_source(source: str) -> str:
    """Mask the strings in Python code that are given to a name that `is_secret_name`; the other code stays as it is."""
    source = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    # Commands in a notebook's cell are no Python: they wait in comments.
    commands = [found[2] for found in _CELL_COMMAND.finditer(source)]
    numbers = itertools.count()
    code = _CELL_COMMAND.sub(lambda found: f"{found[1]}pass  # cell command {next(numbers)}", source)
    try:
        text = _replace_spans(code, [*_find_secret_literals(parse_python(code))], lambda _: f'"{MASK}"')
        text = _replace_spans(text, [*_find_texts(text)], mask_text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return "".join(map(_mask_line, source.splitlines(keepends=True)))
    return _STORED_COMMAND.sub(lambda found: mask_text(commands[int(found[1])]), text)


def parse_python(source: str | bytes) -> ast.Module:
    """Parse code. Python 3.11 raises a `SystemError` if two threads do so at a time, and one may not be ours."""
    with _parsing:
        for _ in range(3):
            with contextlib.suppress(SystemError):
                return ast.parse(source)
        return ast.parse(source)


def _mask_line(line: str) -> str:
    """Mask a line of code that cannot be parsed: if it names a secret, from the first quote on."""
    quote = re.search("""['"]""", line)
    if quote is None or not any(is_secret_name(name) for name in _NAME.findall(line)):
        return mask_text(line)
    return f"{line[: quote.start()]}{MASK}\n"


_Span = tuple[int, int, int, int]
"""First line, column, last line, column. Lines count from 1, columns are bytes."""


def _find_secret_literals(tree: ast.AST) -> Iterator[_Span]:
    for node in ast.walk(tree):
        for name, value in _iter_named_values(node):
            if is_secret_name(name):
                for literal in _iter_literals(value):
                    yield literal.lineno, literal.col_offset, literal.end_lineno or 0, literal.end_col_offset or 0


def _iter_named_values(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that code gives to values: variables, arguments, keys, options and what it compares."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _pair_target(target, value)
        case ast.AnnAssign(target=target, value=ast.AST() as value) | ast.NamedExpr(target=target, value=value):
            yield from _pair_target(target, value)
        case ast.AugAssign(target=target, value=value):
            yield from _pair_target(target, value)
        case ast.keyword(arg=str(name), value=value):
            yield name, value
        case ast.Dict(keys=keys, values=values):
            yield from ((_name_of(key), value) for key, value in zip(keys, values, strict=True) if key is not None)
        case ast.Call(args=[first, *others], keywords=keywords):
            # `os.getenv("API_KEY", "...")`, `parser.add_argument("--api-key", default="...")`
            named = [_name_of(each) for each in (first, *others) if isinstance(each, ast.Constant)]
            if named and is_secret_name(named[0]):
                given = (each for each in others if _name_of(each) not in named[:1])
                yield from ((named[0], each) for each in given if not _name_of(each).startswith("-"))
                yield from ((named[0], each.value) for each in keywords if each.arg in ("default", "value", "const"))
        case ast.Compare(left=left, comparators=values):
            yield from ((_name_of(left), value) for value in values)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            for option, value in itertools.pairwise(elements):  # ["--api-key", "..."]
                if isinstance(option, ast.Constant) and _name_of(option).startswith("-"):
                    yield _name_of(option).lstrip("-"), value
        case ast.arguments(posonlyargs=first, args=args, defaults=defaults, kwonlyargs=named_only, kw_defaults=more):
            takes = [*first, *args]
            yield from zip([each.arg for each in takes[len(takes) - len(defaults) :]], defaults, strict=True)
            yield from ((each.arg, value) for each, value in zip(named_only, more, strict=True) if value is not None)


def _pair_target(target: ast.AST, value: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(target, ast.Tuple | ast.List):
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            for each, own in zip(target.elts, value.elts, strict=True):
                yield from _pair_target(each, own)
        else:
            for each in target.elts:
                yield from _pair_target(each, value)
    else:
        yield _name_of(target), value


def _name_of(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Starred(value=ast.Name(id=name)):
            return name
        case ast.Constant(value=str(name)):
            return name
        case ast.Subscript(slice=key):
            return _name_of(key)
    return ""


def _iter_literals(value: ast.AST) -> Iterator[ast.expr]:
    """Yield the strings that make up a value, but not those that say where it comes from: `os.environ["API_KEY"]`."""
    match value:
        case ast.JoinedStr():
            yield value
        case ast.Constant(value=str() | bytes() as text):
            if text:
                yield value
        case ast.Subscript(value=inner):
            yield from _iter_literals(inner)
        case ast.Call(func=func, args=args, keywords=keywords):
            is_lookup = _name_of(func) in ("get", "getenv", "pop", "setdefault")
            for each in [func, *args[1 if is_lookup else 0 :], *(keyword.value for keyword in keywords)]:
                yield from _iter_literals(each)
        case _:
            for child in ast.iter_child_nodes(value):
                yield from _iter_literals(child)


def _find_texts(source: str) -> Iterator[_Span]:
    """Find the comments and strings of Python code: both may contain commands or other code."""
    lines = [line.decode("utf-8", "surrogatepass") for line in _split_lines(source)]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            (line, column), (last, end) = token.start, token.end
            columns = len(lines[line - 1][:column].encode()), len(lines[last - 1][:end].encode())
            yield line, columns[0], last, columns[1]


def _split_lines(source: str) -> list[bytes]:
    """Split as Python does, which counts columns in bytes."""
    return source.encode("utf-8", "surrogatepass").splitlines(keepends=True)


def _replace_spans(source: str, spans: Sequence[_Span], replace: Callable[[str], str]) -> str:
    lines = _split_lines(source)
    starts = [0, *itertools.accumulate(map(len, lines))]
    data = b"".join(lines)
    places = sorted({(starts[line - 1] + column, starts[last - 1] + end) for line, column, last, end in spans})
    pieces, done = [], 0
    for start, end in places:
        if start >= done:  # Else it is part of the one before.
            text = data[start:end].decode("utf-8", "surrogatepass")
            pieces += [data[done:start], replace(text).encode("utf-8", "surrogatepass")]
            done = end
    return b"".join([*pieces, data[done:]]).decode("utf-8", "surrogatepass")


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
    text = _PAIR.sub(_mask_pair, text)
    return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}..."


def _mask_pair(pair: re.Match[str]) -> str:
    return f"{pair[1]}{pair[2]}{MASK}" if is_secret_name(pair[1]) else pair[0]


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__}>"


def _truncate_text(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... ({len(text)} characters)"
