"""How a user's function is called: made ready once in each process, and pointed to where it fails.

What it raises goes on as it is, with notes that name the unit, the row and the user's own line. Under
`on_error="skip"` the rows it fails on are found by halving, and recorded.
"""

from __future__ import annotations

import inspect
import linecache
import sysconfig
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, get_args

from paceline.data.block import Block
from paceline.data.plan import Map, Node, Reorder, Union
from paceline.data.transform import Pool, Scope, Skipped, Transform

T = TypeVar("T")

OnError = Literal["raise", "skip"]

_OURS = f"{Path(__file__).parents[2]}/"
_INSTALLED = (
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<frozen ",
)


@dataclass(frozen=True, eq=False)
class Call:
    """A function or class of the user, with all that it is called with."""

    fn: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    constructor_args: tuple[Any, ...] = ()
    constructor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    pool: Pool | None = None
    on_error: OnError = "raise"
    after: str | None = None
    """The last step before that changed which rows there are; None: rows are counted as they were read."""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"fn must be a function or a class with __call__, not {self.fn!r}")
        is_class = inspect.isclass(self.fn)
        if is_class and "__call__" not in dir(self.fn):
            raise TypeError(f"fn={self.fn.__name__} is a class without __call__: its objects are called with the rows")
        called = self.fn.__call__ if is_class else self.fn
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(f"{self.name} is async: a function over rows must be a plain one, or a generator")
        if not is_class and (self.constructor_args or self.constructor_kwargs):
            raise ValueError(
                f"fn_constructor_args and fn_constructor_kwargs are for classes, and {self.name} is a function\n\n"
                "hint: give it arguments with fn_args and fn_kwargs"
            )
        if self.on_error not in get_args(OnError):
            raise ValueError(f"on_error must be 'raise' or 'skip', not {self.on_error!r}")

    @property
    def name(self) -> str:
        if hasattr(self.fn, "__name__"):
            return str(self.fn.__name__)
        inner = getattr(self.fn, "func", None)  # of a functools.partial
        return getattr(inner, "__name__", None) or type(self.fn).__name__

    def ready(self, transform: Transform, scope: Scope) -> Callable[[Any], Any]:
        """What is called with the rows: an object of the user's class is made once in each process."""
        called = self.fn
        if inspect.isclass(self.fn):
            try:
                called = scope.made(transform, lambda: self.fn(*self.constructor_args, **self.constructor_kwargs))
            except Exception as error:
                error.add_note(f"in {transform.name}, when an object of {self.name} was made{_line_in(error)}")
                raise
        if not self.args and not self.kwargs:
            return called  # type: ignore[no-any-return]
        return lambda rows: called(rows, *self.args, **self.kwargs)


@dataclass(frozen=True)
class UserTransform(Transform):
    """A transform that calls a function of the user."""

    call: Call

    METHOD = ""

    @property
    def name(self) -> str:
        return f"{self.METHOD}({self.call.name})"

    @property
    def pool(self) -> Pool | None:
        return self.call.pool

    @property
    def key(self) -> object:
        return self.call.key

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        # The unit is noted now: once the rows come, the scope may be at another one.
        return self.run(blocks, Calls(self, scope, scope.unit))

    def run(self, blocks: Iterator[Block], calls: Calls) -> Iterator[Block]:
        raise NotImplementedError


class Calls:
    """The calls of one transform over the rows of one unit."""

    def __init__(self, transform: UserTransform, scope: Scope, unit: str) -> None:
        self._transform = transform
        self._scope = scope
        self._unit = unit
        self._fn: Callable[[Any], Any] | None = None

    @property
    def fn(self) -> Callable[[Any], Any]:
        if self._fn is None:
            self._fn = self._transform.call.ready(self._transform, self._scope)
        return self._fn

    @property
    def skips(self) -> bool:
        return self._transform.call.on_error == "skip"

    def over_batch(self, block: Block, first: int, results: Callable[[Block], Iterable[T]]) -> Iterator[T]:
        """What the function gives for the rows of a block, which begin with that number `first` of the unit."""
        if self.skips:
            yield from self._halved(block, first, results)
            return
        try:
            yield from results(block)
        except Exception as error:
            self.point_out(error, first, block.num_rows)
            raise

    def _halved(self, block: Block, first: int, results: Callable[[Block], Iterable[T]]) -> Iterator[T]:
        try:
            found = list(results(block))
        except Exception as error:  # noqa: BLE001  what a user's function raises can be anything
            if block.num_rows == 1:
                self.skip(error, first)
                return
            middle = block.num_rows // 2
            yield from self._halved(block.slice(0, middle), first, results)
            yield from self._halved(block.slice(middle), first + middle, results)
        else:
            yield from found

    def over_row(self, fn: Callable[[Any], T], row: Any, number: int) -> tuple[T, ...]:
        """What the function gives for a row; nothing where the row is skipped."""
        try:
            return (fn(row),)
        except StopIteration as error:  # raised on as it is, it would end the rows here
            ended = RuntimeError(f"{self._transform.name} raised StopIteration")
            ended.__cause__ = error
            return self._failed(ended, number)
        except Exception as error:  # noqa: BLE001  what a user's function raises can be anything
            return self._failed(error, number)

    def _failed(self, error: Exception, row: int) -> tuple[()]:
        if not self.skips:
            self.point_out(error, row)
            raise error
        self.skip(error, row)
        return ()

    def skip(self, error: Exception, row: int) -> None:
        said = f"{type(error).__name__}: {error}{_line_in(error)}"
        self._scope.skipped.append(Skipped(self._unit, row, 1, said))

    def point_out(self, error: Exception, first: int, num_rows: int = 1) -> None:
        """Note where a call failed."""
        rows = f"row {first}" if num_rows == 1 else f"rows {first} to {first + num_rows - 1}"
        after = self._transform.call.after
        counted = f", counted after {after}" if after else ""
        error.add_note(f"in {self._transform.name}, at {rows} of {self._unit}{counted}{_line_in(error)}")


def _line_in(error: BaseException) -> str:
    """The user's own line that an error comes from."""
    cause = error.__cause__.__traceback__ if error.__cause__ else None
    frames = [frame for frame in (*_frames(error.__traceback__), *_frames(cause)) if not frame[0].startswith(_OURS)]
    if not frames:
        return ""
    own = [frame for frame in frames if not frame[0].startswith(_INSTALLED)]
    path, line, function = own[-1] if own else frames[0]
    source = linecache.getline(path, line).strip()
    return f"\n  {path}:{line} in {function}" + (f": {source}" if source else "")


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next


def defined_at(fn: Any) -> str:
    """Where a function of the user is written, for an error that none of its lines raised."""
    try:
        path, (_, line) = inspect.getsourcefile(fn), inspect.getsourcelines(fn)
    except (TypeError, OSError):
        return ""
    return f"\n  {path}:{line}"


def rows_changed_by(plan: Node) -> str | None:
    """The last step of a plan after which a row's number is no longer that in its unit."""
    match plan:
        case Map(input=below, transform=transform):
            return rows_changed_by(below) if transform.keeps_rows else transform.name
        case Reorder(input=below):
            return rows_changed_by(below)
        case Union(parts=parts):
            return next((name for name in map(rows_changed_by, parts) if name), None)
    return None
