"""Calls a user's function: prepares it once per process, and reports where it fails.

Its exceptions are raised unchanged, with notes that name the unit, the row and the user's own line. With
`on_error="skip"`, the failing rows are found by bisection and recorded.
"""

from __future__ import annotations

import inspect
import linecache
import sysconfig
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, get_args

from paceline._core.arguments import check_choice
from paceline.data.block import Block
from paceline.data.planning.plan import PoolSpec, SkippedRows, Transform, TransformScope

T = TypeVar("T")

OnError = Literal["raise", "skip"]

_OURS = f"{Path(__file__).parents[2]}/"
_INSTALLED = (
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<frozen ",
)


@dataclass(frozen=True, eq=False)
class UserCall:
    """A user's function or class, with its arguments."""

    fn: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    constructor_args: tuple[Any, ...] = ()
    constructor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    pool: PoolSpec | None = None
    on_error: OnError = "raise"
    counted_after: str | None = None
    """The last earlier step that changed the set of rows; None: rows are numbered as they were read."""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"fn must be a function or a class with __call__, got {self.fn!r}")
        is_class = inspect.isclass(self.fn)
        if is_class and "__call__" not in dir(self.fn):
            raise TypeError(
                f"fn must be a function or a class with __call__, got {self.fn.__name__}, a class without it"
            )
        called = self.fn.__call__ if is_class else self.fn
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(f"fn must be a plain function or a generator, got {self.name}, which is async")
        if not is_class and (self.constructor_args or self.constructor_kwargs):
            raise ValueError(
                f"fn_constructor_args and fn_constructor_kwargs are for classes, got the function {self.name}\n\n"
                "hint: use fn_args and fn_kwargs"
            )
        check_choice("on_error", self.on_error, get_args(OnError))

    @property
    def name(self) -> str:
        if hasattr(self.fn, "__name__"):
            return str(self.fn.__name__)
        inner = getattr(self.fn, "func", None)  # of a functools.partial
        return getattr(inner, "__name__", None) or type(self.fn).__name__

    def prepare(self, transform: Transform, scope: TransformScope) -> Callable[[Any], Any]:
        """Return the function to call with rows; a user's class is instantiated once per process."""
        called = self.fn
        if inspect.isclass(self.fn):
            try:
                called = scope.get_or_create(
                    transform, lambda: self.fn(*self.constructor_args, **self.constructor_kwargs)
                )
            except Exception as error:
                error.add_note(f"in {transform.name}, while creating {self.name}{_user_line(error)}")
                raise
        if not self.args and not self.kwargs:
            return called  # type: ignore[no-any-return]
        return lambda rows: called(rows, *self.args, **self.kwargs)


@dataclass(frozen=True)
class UserTransform(Transform):
    call: UserCall

    METHOD = ""

    @property
    def name(self) -> str:
        return f"{self.METHOD}({self.call.name})"

    @property
    def pool(self) -> PoolSpec | None:
        return self.call.pool

    @property
    def key(self) -> object:
        return self.call.key

    def result_error(self, expected: str, kind: type[Exception] = TypeError) -> Exception:
        """Return the error for a result of the user's function: none of its lines raised it, so it says where it is."""
        return kind(f"{self.name} must return {expected}{_definition_note(self.call.fn)}")

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        # Capture the unit now: when the rows arrive, the scope may be at another one.
        return self.run(blocks, UnitCalls(self, scope, scope.unit))

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        raise NotImplementedError


@dataclass(frozen=True)
class UnitCalls:
    """The calls of one transform on the rows of one unit."""

    transform: UserTransform
    scope: TransformScope
    unit: str

    @cached_property
    def fn(self) -> Callable[[Any], Any]:
        return self.transform.call.prepare(self.transform, self.scope)

    @property
    def should_skip(self) -> bool:
        return self.transform.call.on_error == "skip"

    def call_batch(self, block: Block, first: int, results: Callable[[Block], Iterable[T]]) -> Iterator[T]:
        """Yield what the function returns for the rows of a block, which starts at row `first` of the unit."""
        if self.should_skip:
            yield from self._call_halving(block, first, results)
            return
        try:
            yield from results(block)
        except Exception as error:
            self.add_location_note(error, first, block.num_rows)
            raise

    def _call_halving(self, block: Block, first: int, results: Callable[[Block], Iterable[T]]) -> Iterator[T]:
        try:
            values = list(results(block))
        except Exception as error:  # noqa: BLE001
            if block.num_rows == 1:
                self.record_skipped(error, first)
                return
            middle = block.num_rows // 2
            yield from self._call_halving(block.slice(0, middle), first, results)
            yield from self._call_halving(block.slice(middle), first + middle, results)
        else:
            yield from values

    def call_row(self, fn: Callable[[Any], T], row: Any, number: int) -> tuple[T, ...]:
        """What the function returns for a row; empty if the row is skipped."""
        try:
            return (fn(row),)
        except StopIteration as error:  # raised unchanged, it would silently end the rows here
            ended = RuntimeError(f"{self.transform.name} raised StopIteration")
            ended.__cause__ = error
            return self._handle_failure(ended, number)
        except Exception as error:  # noqa: BLE001
            return self._handle_failure(error, number)

    def _handle_failure(self, error: Exception, row: int) -> tuple[()]:
        if not self.should_skip:
            self.add_location_note(error, row)
            raise error
        self.record_skipped(error, row)
        return ()

    def record_skipped(self, error: Exception, row: int) -> None:
        message = f"{type(error).__name__}: {error}{_user_line(error)}"
        self.scope.skipped.append(SkippedRows(self.unit, row, 1, message))

    def add_location_note(self, error: Exception, first: int, num_rows: int = 1) -> None:
        rows = f"row {first}" if num_rows == 1 else f"rows {first} to {first + num_rows - 1}"
        after = self.transform.call.counted_after
        counted = f", counted after {after}" if after else ""
        error.add_note(f"in {self.transform.name}, at {rows} of {self.unit}{counted}{_user_line(error)}")


def _user_line(error: BaseException) -> str:
    """The user's own line that raised the error."""
    cause = error.__cause__.__traceback__ if error.__cause__ else None
    frames = [frame for frame in (*_frames(error.__traceback__), *_frames(cause)) if not frame[0].startswith(_OURS)]
    if not frames:
        return ""
    user_frames = [frame for frame in frames if not frame[0].startswith(_INSTALLED)]
    path, line, function = user_frames[-1] if user_frames else frames[0]
    source = linecache.getline(path, line).strip()
    return f"\n  {path}:{line} in {function}" + (f": {source}" if source else "")


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next


def _definition_note(fn: Any) -> str:
    try:
        path, (_, line) = inspect.getsourcefile(fn), inspect.getsourcelines(fn)
    except (TypeError, OSError):
        return ""
    return f"\n  {path}:{line}"
