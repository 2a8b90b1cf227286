"""Calls a user's function: where it runs, how it is prepared once per process, and where it fails.

A class is instantiated once in each process of its pool and called for every batch. A plain function needs no pool: it
runs where the rows are, which saves a transfer to another process.

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
from typing import Any, ClassVar, Literal, TypeVar, get_args

from paceline._core.arguments import bad_value, check_bool, check_choice, check_int, check_number
from paceline.data.block import Block, list_columns
from paceline.data.context import DataContext
from paceline.data.planning.plan import PoolSpec, SkippedRows, Transform, TransformScope
from paceline.data.task_options import warn_unused
from paceline.data.transforms.async_calls import DEFAULT_CALLS_IN_FLIGHT, call_ahead, is_async

T = TypeVar("T")

OnError = Literal["raise", "skip"]

_OURS = f"{Path(__file__).parents[2]}/"
_INSTALLED = (
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<frozen ",
)


@dataclass(frozen=True, eq=False)
class UserCall:
    fn: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    constructor_args: tuple[Any, ...] = ()
    constructor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    pool: PoolSpec | None = None
    on_error: OnError = "raise"
    num_in_flight: int = DEFAULT_CALLS_IN_FLIGHT
    """How many calls of an async function run at the same time."""
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
        if not is_class and (self.constructor_args or self.constructor_kwargs):
            raise ValueError(
                f"fn_constructor_args and fn_constructor_kwargs are for classes, got the function {self.name}\n\n"
                "hint: use fn_args and fn_kwargs"
            )
        check_choice("on_error", self.on_error, get_args(OnError))

    @property
    def is_async(self) -> bool:
        return is_async(self.fn)

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
                error.add_note(f"in {transform.name}, while creating {self.name}{user_line(error)}")
                raise
        if not self.args and not self.kwargs:
            return called  # type: ignore[no-any-return]
        return lambda rows: called(rows, *self.args, **self.kwargs)


@dataclass(frozen=True)
class UserTransform(Transform):
    call: UserCall

    can_divide = True
    takes_async: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.call.is_async and not self.takes_async:
            raise TypeError(
                f"fn must be a plain function, got {self.call.name}, which is async\n\n"
                "hint: map, flat_map, filter and map_batches take async functions"
            )

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
            self.add_location_note(error, first, block.num_rows, block.columns)
            raise

    def _call_halving(self, block: Block, first: int, results: Callable[[Block], Iterable[T]]) -> Iterator[T]:
        try:
            values = list(results(block))
        except Exception as error:  # noqa: BLE001
            if block.num_rows == 1 or not self.transform.can_divide:
                self.record_skipped(error, first, block.num_rows)
                return
            middle = block.num_rows // 2
            yield from self._call_halving(block.slice(0, middle), first, results)
            yield from self._call_halving(block.slice(middle), first + middle, results)
        else:
            yield from values

    def call_rows(self, fn: Callable[[Any], T], rows: Iterable[Any], first: int) -> Iterator[tuple[int, T]]:
        """Yield what the function returns for each row, with the row's number. Skipped rows are left out."""
        call = self.transform.call
        if call.is_async:
            for number, (row, get_result) in enumerate(call_ahead(fn, rows, call.num_in_flight), first):
                for result in self.call_row(lambda _: get_result(), row, number):  # noqa: B023 -- called at once
                    yield number, result
            return
        for number, row in enumerate(rows, first):
            for result in self.call_row(fn, row, number):
                yield number, result

    def call_row(self, fn: Callable[[Any], T], row: Any, number: int) -> tuple[T, ...]:
        """What the function returns for a row; empty if the row is skipped."""
        try:
            return (fn(row),)
        except StopIteration as error:  # raised unchanged, it would silently end the rows here
            ended = RuntimeError(f"{self.transform.name} raised StopIteration")
            ended.__cause__ = error
            return self._handle_failure(ended, number)
        except Exception as error:  # noqa: BLE001
            return self._handle_failure(error, number, row if isinstance(row, dict) else ())

    def _handle_failure(self, error: Exception, row: int, columns: Iterable[str] = ()) -> tuple[()]:
        if not self.should_skip:
            self.add_location_note(error, row, 1, columns)
            raise error
        self.record_skipped(error, row)
        return ()

    def record_skipped(self, error: Exception, row: int, num_rows: int = 1) -> None:
        message = f"{type(error).__name__}: {error}{user_line(error)}"
        self.scope.skipped.append(SkippedRows(self.unit, row, num_rows, message))

    def add_location_note(self, error: Exception, first: int, num_rows: int, columns: Iterable[str]) -> None:
        rows = f"row {first}" if num_rows == 1 else f"rows {first} to {first + num_rows - 1}"
        after = self.transform.call.counted_after
        counted = f", counted after {after}" if after else ""
        error.add_note(f"in {self.transform.name}, at {rows} of {self.unit}{counted}{user_line(error)}")
        key = error.args[0] if isinstance(error, KeyError) and error.args else None
        if isinstance(key, str) and columns and key not in columns:
            error.add_note(f"the columns are: {list_columns(columns, key)}")


def user_line(error: BaseException) -> str:
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


@dataclass(frozen=True)
class TaskPoolStrategy:
    """For functions: they run where the rows are, in at most `size` processes at a time."""

    size: int | None = None

    def __post_init__(self) -> None:
        check_int("TaskPoolStrategy.size", self.size, at_least=1, optional=True)


@dataclass(frozen=True)
class ActorPoolStrategy:
    """Dedicated processes for a function or class: `size` of them, or between `min_size` and `max_size`.

    `initial_size` processes start at once and stay; the default is `min_size`. An async function has up to
    `max_concurrent_calls_per_actor` calls in flight in each process, or else `max_tasks_in_flight_per_actor`, by
    default 16. Other functions are called one at a time, so `enable_true_multi_threading` has no effect.
    """

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    initial_size: int | None = None
    max_tasks_in_flight_per_actor: int | None = None
    max_concurrent_calls_per_actor: int | None = None
    enable_true_multi_threading: bool | None = None

    def __post_init__(self) -> None:
        sizes = ("size", "min_size", "max_size", "initial_size")
        for name in (*sizes, "max_tasks_in_flight_per_actor", "max_concurrent_calls_per_actor"):
            check_int(f"ActorPoolStrategy.{name}", getattr(self, name), at_least=1, optional=True)
        check_bool("ActorPoolStrategy.enable_true_multi_threading", self.enable_true_multi_threading, optional=True)
        least, most, initial = self.min_size, self.max_size, self.initial_size
        if self.size is not None and not least is most is initial is None:
            raise ValueError("ActorPoolStrategy takes either size or min_size and max_size with initial_size, not both")
        if least is not None and most is not None and least > most:
            raise ValueError(f"min_size must be at most max_size={most}, got {least}")
        if initial is not None and not (least or 1) <= initial <= (most or initial):
            raise ValueError(f"initial_size must be between min_size={least} and max_size={most}, got {initial}")
        unused = {"enable_true_multi_threading": self.enable_true_multi_threading or None}
        warn_unused("ActorPoolStrategy", unused, unused)

    @property
    def num_in_flight(self) -> int:
        return self.max_concurrent_calls_per_actor or self.max_tasks_in_flight_per_actor or DEFAULT_CALLS_IN_FLIGHT


Compute = ActorPoolStrategy | TaskPoolStrategy | Literal["actors", "tasks"]
Concurrency = int | tuple[int, int]


def parse_compute(compute: Compute | None) -> ActorPoolStrategy | TaskPoolStrategy | None:
    if isinstance(compute, str):
        is_pool = check_choice("compute", compute, ("actors", "tasks")) == "actors"
        return ActorPoolStrategy() if is_pool else TaskPoolStrategy()
    if compute is None or isinstance(compute, ActorPoolStrategy | TaskPoolStrategy):
        return compute
    raise TypeError(f"compute must be an ActorPoolStrategy or a TaskPoolStrategy, got {compute!r}")


def resolve_pool(
    fn: Any,
    compute: Compute | None,
    concurrency: Concurrency | None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
) -> PoolSpec | None:
    """Return the pool for a function or class; None means wherever the rows are."""
    check_number("num_cpus", num_cpus, at_least=0, optional=True)
    check_number("num_gpus", num_gpus, at_least=0, optional=True)
    if compute is not None and concurrency is not None:
        raise ValueError("compute and concurrency cannot be combined: both set the number of processes")
    compute = parse_compute(compute)
    is_class = inspect.isclass(fn)
    cpus = 1.0 if num_cpus is None else float(num_cpus)
    gpus = float(num_gpus or 0)
    bounds = _strategy_bounds(compute, is_class) if compute is not None else _concurrency_bounds(concurrency, is_class)
    if not is_class and not gpus and not isinstance(compute, ActorPoolStrategy):
        return None
    least, most = bounds
    if most is None:
        room = 1 if gpus else int(DataContext.get_current().num_processes / max(cpus, 1.0))
        most = max(least, room)
    return PoolSpec(least, most, cpus, gpus)


def _strategy_bounds(compute: ActorPoolStrategy | TaskPoolStrategy, is_class: bool) -> tuple[int, int | None]:
    match compute:
        case ActorPoolStrategy(size=int(size)):
            return size, size
        case ActorPoolStrategy(min_size=least, max_size=most, initial_size=initial):
            return initial or least or 1, most
        case TaskPoolStrategy(size=size) if not is_class:
            return 1, size
    raise ValueError(
        "compute=TaskPoolStrategy() is for functions: a class needs a pool of processes\n\n"
        "hint: use compute=ActorPoolStrategy(size=2) or concurrency=2"
    )


def _concurrency_bounds(concurrency: Concurrency | None, is_class: bool) -> tuple[int, int | None]:
    match concurrency:
        case None:
            return 1, None
        case int() if not isinstance(concurrency, bool):
            check_int("concurrency", concurrency, at_least=1)
            return (concurrency if is_class else 1), concurrency
        case (int(least), int(most)) if 1 <= least <= most:
            if not is_class:
                raise ValueError(f"concurrency must be one integer for a function, got {concurrency!r}")
            return least, most
    raise bad_value("concurrency", "a positive integer, or two of them: (least, most)", concurrency)
