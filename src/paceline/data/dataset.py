"""Dataset: a lazy plan with the methods that people know. Each adds a node, or has the plan run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from paceline.data import look
from paceline.data.block import Block
from paceline.data.expressions import Expr, as_expr, parsed
from paceline.data.plan import Map, Node, Reorder, Union
from paceline.data.pool import Compute, Concurrency, pool_for
from paceline.data.transform import Transform
from paceline.data.transforms.batches import AddColumn, AnyFormat, MapBatches, format_named
from paceline.data.transforms.calls import Call, OnError, rows_changed_by
from paceline.data.transforms.columns import Drop, Rename, RenameAll, Select, Where, WithColumn
from paceline.data.transforms.rows import FilterRows, FlatMap, MapRows
from paceline.data.transforms.sample import RandomSample


class Dataset:
    """Rows that are read, transformed and handed out as a stream.

    Nothing is read before rows are asked for. A dataset is never changed: each method gives another one.
    """

    def __init__(self, plan: Node) -> None:
        self._plan = plan

    def map_batches(
        self,
        fn: Any,
        *,
        batch_size: int | Literal["default"] | None = None,
        compute: Compute | None = None,
        batch_format: AnyFormat = "default",
        zero_copy_batch: bool = False,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError = "raise",
    ) -> Dataset:
        """Batches through a function, a generator function, or a class that is made once in each of its processes.

        `batch_size=None` is a block as it comes; a batch never spans two units (such as files). A batch is a dict of
        arrays ("numpy", the default), a DataFrame or an Arrow table, and so is what the function returns or yields.
        Arrays may be written to, unless `zero_copy_batch`. Under `on_error="skip"` a batch that fails is halved until
        the rows that fail stand alone; they are left out, and recorded in `stats()`.
        """
        if batch_size == "default":
            batch_size = None
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise ValueError(f"batch_size must be a whole number of at least 1, or None, not {batch_size!r}")
        call = self._call(
            fn,
            (fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs),
            (compute, concurrency, num_cpus, num_gpus),
            on_error,
        )
        return self._mapped(MapBatches(call, batch_size, format_named(batch_format), zero_copy_batch))

    def map(
        self,
        fn: Any,
        *,
        compute: Compute | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError = "raise",
    ) -> Dataset:
        """Each row, a dict, through a function that returns another."""
        call = self._call(
            fn,
            (fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs),
            (compute, concurrency, num_cpus, num_gpus),
            on_error,
        )
        return self._mapped(MapRows(call))

    def flat_map(
        self,
        fn: Any,
        *,
        compute: Compute | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError = "raise",
    ) -> Dataset:
        """Each row through a function that returns a list of rows, or yields them."""
        call = self._call(
            fn,
            (fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs),
            (compute, concurrency, num_cpus, num_gpus),
            on_error,
        )
        return self._mapped(FlatMap(call))

    def filter(
        self,
        fn: Any = None,
        expr: str | Expr | None = None,
        *,
        compute: Compute | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError = "raise",
    ) -> Dataset:
        """The rows for which a function of the row is true, or an expression: `filter(expr="age > 30")`.

        An expression is faster: it goes over whole columns, and files that cannot hold such rows are not read.
        """
        if isinstance(fn, Expr) and expr is None:
            fn, expr = None, fn
        if (fn is None) == (expr is None):
            raise ValueError("filter takes a function or an expression: filter(fn) or filter(expr='age > 30')")
        if expr is not None:
            if not isinstance(expr, str | Expr):
                raise TypeError(f"expr must be text such as 'age > 30', or made with col(), not {expr!r}")
            return self._mapped(Where(parsed(expr) if isinstance(expr, str) else expr))
        call = self._call(
            fn,
            (fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs),
            (compute, concurrency, num_cpus, num_gpus),
            on_error,
        )
        return self._mapped(FilterRows(call))

    def select_columns(self, cols: str | Sequence[str]) -> Dataset:
        """These columns, in this order; a reader that can reads no others."""
        return self._mapped(Select(_names("select_columns", cols)))

    def drop_columns(self, cols: str | Sequence[str]) -> Dataset:
        return self._mapped(Drop(_names("drop_columns", cols)))

    def rename_columns(self, names: Mapping[str, str] | Sequence[str]) -> Dataset:
        """New names: of some columns, as a dict from old to new, or of all, as a list."""
        if isinstance(names, Mapping):
            _names("rename_columns", list(names)), _names("rename_columns", list(names.values()))
            return self._mapped(Rename(tuple(names.items())))
        return self._mapped(RenameAll(_names("rename_columns", names)))

    def add_column(
        self,
        col: str,
        fn: Callable[[Any], Any],
        *,
        batch_format: AnyFormat = "pandas",
        compute: Compute | None = None,
        concurrency: int | None = None,
        on_error: OnError = "raise",
    ) -> Dataset:
        """One more column, or another in the place of one: `fn` gives its values for a batch."""
        if not isinstance(col, str):
            raise TypeError(f"col must be the name of a column, not {col!r}")
        call = self._call(fn, (None, None, None, None), (compute, concurrency, None, None), on_error)
        return self._mapped(AddColumn(call, col, format_named(batch_format)))

    def with_column(self, column_name: str, expr: Expr) -> Dataset:
        """One more column, or another in the place of one, from an expression: `with_column("area", col("a") * 2)`."""
        if not isinstance(column_name, str):
            raise TypeError(f"column_name must be the name of a column, not {column_name!r}")
        if callable(expr):
            raise TypeError("with_column takes an expression, made with col()\n\nhint: for a function use add_column")
        return self._mapped(WithColumn(column_name, as_expr(expr)))

    def random_sample(self, fraction: float, *, seed: int | None = None) -> Dataset:
        """About this part of the rows, each with the same chance: the same ones every time."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be a number from 0 to 1, not {fraction!r}")
        return self._mapped(RandomSample(float(fraction), _seeded(seed)))

    def union(self, *other: Dataset) -> Dataset:
        """The rows of this one, then those of the others."""
        for one in other:
            _dataset("union", one)
        return Dataset(Union((self._plan, *(one._plan for one in other)))) if other else self

    def randomize_block_order(self, *, seed: int | None = None) -> Dataset:
        """Units, such as files, in another order in every epoch. The rows in them stay as they are."""
        return Dataset(Reorder(self._plan, _seeded(seed)))

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """The first rows; no more is read than they take."""
        return list(self._first(limit).rows())

    def take_batch(self, batch_size: int = 20, *, batch_format: AnyFormat = "default") -> Any:
        """The first rows as one batch."""
        found = self._first(batch_size)
        if not found.num_rows:
            raise ValueError("the dataset is empty: there is no batch to take")
        return found.to_batch(format_named(batch_format))

    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """All rows. With a limit, an error if there are more."""
        if limit is None:
            return [row for block in self._blocks() for row in block.rows()]
        rows = list(self._first(limit + 1).rows())
        if len(rows) > limit:
            raise ValueError(f"take_all(limit={limit}): the dataset has more rows than that")
        return rows

    def show(self, limit: int = 20) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a Dataset is not iterated itself\n\nhint: use iter_rows(), iter_batches() or take()")

    def _first(self, limit: int) -> Block:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ValueError(f"the number of rows to take must be a whole number that is not negative, not {limit!r}")
        return look.first_rows(self._plan, limit)

    def _blocks(self) -> Iterator[Block]:
        return look.blocks(self._plan)

    def _mapped(self, transform: Transform) -> Dataset:
        return Dataset(Map(self._plan, transform))

    def _call(
        self,
        fn: Any,
        arguments: tuple[
            Iterable[Any] | None, Mapping[str, Any] | None, Iterable[Any] | None, Mapping[str, Any] | None
        ],
        resources: tuple[Compute | None, Concurrency | None, float | None, float | None],
        on_error: OnError,
    ) -> Call:
        args, kwargs, constructor_args, constructor_kwargs = arguments
        compute, concurrency, num_cpus, num_gpus = resources
        return Call(
            fn,
            tuple(args or ()),
            dict(kwargs or {}),
            tuple(constructor_args or ()),
            dict(constructor_kwargs or {}),
            pool_for(fn, compute=compute, concurrency=concurrency, num_cpus=num_cpus, num_gpus=num_gpus),
            on_error,
            rows_changed_by(self._plan),
        )


def _names(method: str, cols: str | Sequence[str]) -> tuple[str, ...]:
    names = (cols,) if isinstance(cols, str) else tuple(cols)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong or not names:
        raise TypeError(f"{method} takes names of columns, not {wrong[0] if wrong else cols!r}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{method} was given {twice[0]!r} more than once")
    return names


def _seeded(seed: int | None) -> int:
    if seed is None:
        return 0
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be a whole number or None, not {seed!r}")
    return seed


def _dataset(method: str, other: Any) -> None:
    if not isinstance(other, Dataset):
        raise TypeError(f"{method} takes datasets, not {type(other).__name__}")
