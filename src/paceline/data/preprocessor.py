"""The base class of all preprocessors: fit, transform, and save as JSON.

The built-in ones declare the statistics they need (`_statistics`, `_learn`) and transform a block (`_transform_block`).
Your own may do the same, or override `_fit` and `_transform_numpy` or `_transform_pandas`. Every constructor argument
must be an attribute of the same name, so that the preprocessor can be saved and recreated.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from paceline._core.arguments import bad_value, check_instance, check_int, check_names
from paceline._core.errors import PacelineError
from paceline._core.frames import warn_caller
from paceline._core.lazy_imports import explain_module
from paceline.data.block import BatchFormat, Block, Column, as_arrow, as_numpy
from paceline.data.preprocessors.columns import check_columns
from paceline.data.preprocessors.fitting import NamedBlockFunction, Statistic, apply_function, compute_statistics
from paceline.data.preprocessors.json_values import (
    Functions,
    find_allowed,
    from_json_value,
    importable_name,
    name_functions,
    to_json_value,
)
from paceline.data.task_options import warn_unused

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

_PACKAGE = "paceline.data.preprocessors"


class ConstructorArgument:
    """What a constructor was given, as an attribute of the same name; on the class, it documents the attribute."""

    def __init__(self, owner: str, name: str) -> None:
        self.__doc__ = f"The argument `{name}` of {owner}."
        self._name = name

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        # The attribute of an instance comes first, so this is called only where there is none.
        if instance is None:
            return self
        raise AttributeError(f"{owner.__name__} has no attribute {self._name!r}: its constructor has not set it")


class PreprocessorNotFittedException(PacelineError, RuntimeError):
    """Raised if a preprocessor transforms before it is fitted."""


class Preprocessor:
    """Learns from a dataset with `fit`, then transforms datasets and batches."""

    class FitStatus(StrEnum):
        NOT_FITTABLE = "NOT_FITTABLE"
        """There is nothing to learn: it can transform immediately."""
        NOT_FITTED = "NOT_FITTED"
        PARTIALLY_FITTED = "PARTIALLY_FITTED"
        """A chain in which only some preprocessors are fitted."""
        FITTED = "FITTED"

    SERIALIZER_FORMAT_VERSION: ClassVar[int] = 1
    """Of what `to_dict` returns."""
    _is_fittable: ClassVar[bool] = True
    _attributes: ClassVar[dict[str, str]] = {}
    """Of arguments that cannot be attributes of the same name."""
    _fitted: bool = False
    _version: ClassVar[int] = 1
    _class_id: ClassVar[str | None] = None

    def __init__(self) -> None:
        self.stats_: dict[str, Any] = {}
        """What was learned, such as `mean(x)`; empty before fitting."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_class_id" not in vars(cls):
            cls._class_id = None  # a subclass is stored under its own name
        for name in (cls._attributes.get(name, name) for name in cls._argument_names()):
            if not hasattr(cls, name):
                setattr(cls, name, ConstructorArgument(cls.__name__, name))

    # Fitting

    def fit_status(self) -> FitStatus:
        if not self._is_fittable:
            return Preprocessor.FitStatus.NOT_FITTABLE
        return Preprocessor.FitStatus.FITTED if self._fitted else Preprocessor.FitStatus.NOT_FITTED

    def has_stats(self) -> bool:
        return bool(getattr(self, "stats_", None))

    def fit(self, ds: Dataset) -> Self:
        """Learn from a dataset, in one pass over its rows. Replaces what was learned before."""
        _check_dataset(ds, "fit")
        status = self.fit_status()
        if status is Preprocessor.FitStatus.NOT_FITTABLE:
            return self
        if status is not Preprocessor.FitStatus.NOT_FITTED:
            warn_caller(f"{self!r} was already fitted; replacing what it had learned")
        self._fit(ds)
        self._fitted = True
        return self

    @property
    def stat_computation_plan(self) -> Sequence[Statistic]:
        """The statistics that `fit` computes, in one pass; empty if it learns nothing, or in another way."""
        own_fit = type(self)._fit is not Preprocessor._fit
        return () if own_fit or self.fit_status() is Preprocessor.FitStatus.NOT_FITTABLE else tuple(self._statistics())

    def fit_transform(
        self,
        ds: Dataset,
        *,
        transform_num_cpus: float | None = None,
        transform_memory: float | None = None,
        transform_batch_size: int | None = None,
        transform_concurrency: int | None = None,
    ) -> Dataset:
        """Learn from a dataset, and return it transformed."""
        return self.fit(ds).transform(
            ds,
            num_cpus=transform_num_cpus,
            memory=transform_memory,
            batch_size=transform_batch_size,
            concurrency=transform_concurrency,
        )

    # Transforming

    def transform(
        self,
        ds: Dataset,
        *,
        batch_size: int | None = None,
        num_cpus: float | None = None,
        memory: float | None = None,
        concurrency: int | None = None,
    ) -> Dataset:
        """Return the transformed dataset, lazily. The arguments are those of `map_batches`; `memory` has no effect."""
        _check_dataset(ds, "transform")
        warn_unused("Preprocessor.transform", {"memory": memory})
        self._check_fitted("transform")
        return apply_function(
            ds,
            NamedBlockFunction(type(self).__name__, self._transform_checked),
            one_to_one=self._keeps_rows(),
            batch_size=batch_size,
            num_cpus=num_cpus,
            concurrency=concurrency,
        )

    def transform_batch(self, data: Any) -> Any:
        """Transform a batch: a dict of arrays, a pandas.DataFrame or a pyarrow.Table. Returns the same kind."""
        self._check_fitted("transform_batch")
        return apply_to_batch(data, self._transform_checked)

    def _transform_checked(self, block: Block) -> Block:
        check_columns(block, self._needed_columns(), type(self).__name__)
        return self._transform_block(block)

    # Saving and loading

    def to_dict(self) -> dict[str, Any]:
        """Return the preprocessor as JSON values, for a checkpoint's metadata or your own file."""
        cls = type(self)
        has_id = cls._class_id is not None or _is_ours(cls)
        return {
            "format": Preprocessor.SERIALIZER_FORMAT_VERSION,
            "type": cls.get_preprocessor_class_id() if has_id else importable_name(cls, cls.__name__),
            **({} if cls._version == 1 else {"version": cls._version}),
            "arguments": {
                key: to_json_value(value, f"{cls.__name__}.{key}") for key, value in self._arguments().items()
            },
            "fitted": self._fitted,
            "stats": to_json_value(getattr(self, "stats_", {}), f"{cls.__name__}.stats_"),
        }

    @staticmethod
    def from_dict(data: dict[str, Any], *, allowed_functions: Iterable[Callable[..., Any]] = ()) -> Preprocessor:
        """Recreate the preprocessor that `to_dict` was called on.

        Stored data may only name our preprocessors, and functions and classes in `allowed_functions`: otherwise, its
        author could make you run any code.
        """
        return Preprocessor._from_stored(data, name_functions(allowed_functions))

    @staticmethod
    def _from_stored(data: Any, functions: Functions) -> Preprocessor:
        if not isinstance(data, dict) or "type" not in data or "arguments" not in data:
            raise ValueError(f"data must be from Preprocessor.to_dict(), got {data!r:.100}")
        readable = Preprocessor.SERIALIZER_FORMAT_VERSION
        if data.get("format") != readable:
            raise ValueError(
                f"cannot read a {data['type']} in format {data.get('format')!r}; this release reads {readable}\n\n"
                "hint: it was saved by another release of Paceline"
            )
        functions = _our_functions() | dict(functions)
        cls = _find_class(data["type"], functions)
        if data.get("version", 1) > cls._version:
            found = f"version {data['version']} of {data['type']}"
            raise ValueError(f"cannot read {found}: this {cls.__name__} has version {cls._version}")
        preprocessor = cls._from_arguments(data["arguments"], functions)
        preprocessor._fitted = bool(data["fitted"])
        preprocessor.stats_ = from_json_value(data["stats"], functions)
        return preprocessor

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the preprocessor to one JSON file, atomically."""
        part = Path(f"{os.fspath(path)}.part")
        part.write_text(self.serialize(), encoding="utf-8")
        part.replace(path)

    @staticmethod
    def load(path: str | os.PathLike[str], *, allowed_functions: Iterable[Callable[..., Any]] = ()) -> Preprocessor:
        """Load a preprocessor that `save` wrote; `allowed_functions` as in `from_dict`."""
        text = Path(path).read_text(encoding="utf-8")
        try:
            return Preprocessor.deserialize(text, allowed_functions=allowed_functions)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error

    def serialize(self) -> str:
        """Return the preprocessor as JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @staticmethod
    def deserialize(serialized: str | bytes, *, allowed_functions: Iterable[Callable[..., Any]] = ()) -> Preprocessor:
        """Recreate the preprocessor that `serialize` was called on; `allowed_functions` as in `from_dict`."""
        try:
            data = json.loads(serialized)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"cannot parse a preprocessor: {error!s:.200}") from None
        return Preprocessor.from_dict(data, allowed_functions=allowed_functions)

    @classmethod
    def get_version(cls) -> int:
        """Return the version of the class, which is stored with each of its preprocessors."""
        return cls._version

    @classmethod
    def set_version(cls, version: int) -> None:
        """Set the version of your class: older ones then refuse to load what newer ones stored."""
        cls._version = check_int("version", version, at_least=1)

    @classmethod
    def get_preprocessor_class_id(cls) -> str:
        """Return the name that preprocessors of this class are stored under."""
        return cls._class_id or (cls.__name__ if _is_ours(cls) else f"{cls.__module__}:{cls.__qualname__}")

    @classmethod
    def set_preprocessor_class_id(cls, identifier: str) -> None:
        """Set the name that your class is stored under, so that it can move to another module."""
        if _is_ours(cls):
            raise TypeError(f"the name of {cls.__name__} cannot be changed: it is a class of Paceline")
        cls._class_id = check_instance("identifier", identifier, str, "a string")

    # For subclasses

    def get_input_columns(self) -> list[str]:
        return list(getattr(self, "columns", None) or ())

    def get_output_columns(self) -> list[str]:
        return list(getattr(self, "output_columns", None) or ())

    @classmethod
    def preferred_batch_format(cls) -> BatchFormat:
        """Return the format of the batches that the transform works on."""
        return "numpy" if cls._transform_pandas is Preprocessor._transform_pandas else "pandas"

    def _fit(self, ds: Dataset) -> Any:
        fit_together([self], ds)

    def _statistics(self) -> Sequence[Statistic]:
        raise NotImplementedError(f"{type(self).__name__} has neither _fit nor _statistics")

    def _learn(self, results: Sequence[Any]) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} has no _learn")

    def _transform_block(self, block: Block) -> Block:
        cls = type(self)
        if cls._transform_numpy is not Preprocessor._transform_numpy:
            return Block.from_batch(self._transform_numpy(block.to_numpy()))
        if cls._transform_pandas is not Preprocessor._transform_pandas:
            return Block.from_batch(self._transform_pandas(block.to_pandas()))
        raise NotImplementedError(f"{cls.__name__} has none of _transform_numpy, _transform_pandas, _transform_block")

    def _transform_numpy(self, data: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _transform_pandas(self, df: Any) -> Any:
        raise NotImplementedError

    def _keeps_rows(self) -> bool:
        """Whether each row gives one row. A function over whole batches may change their number."""
        return type(self)._transform_block is not Preprocessor._transform_block

    def _needed_columns(self) -> Sequence[str]:
        return self.get_input_columns()

    @classmethod
    def _argument_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def _arguments(self) -> dict[str, Any]:
        attributes = {name: self._attributes.get(name, name) for name in self._argument_names()}
        missing = [name for name in attributes.values() if not hasattr(self, name)]
        if missing:
            raise TypeError(
                f"cannot save {type(self).__name__}: its argument {missing[0]!r} is not an attribute\n\n"
                f"hint: set self.{missing[0]} in __init__"
            )
        return {name: getattr(self, attribute) for name, attribute in attributes.items()}

    @classmethod
    def _from_arguments(cls, stored: dict[str, Any], functions: Functions) -> Preprocessor:
        return cls(**{name: from_json_value(value, functions) for name, value in stored.items()})

    def _check_fitted(self, method: str) -> None:
        status = self.fit_status()
        if status in (Preprocessor.FitStatus.NOT_FITTED, Preprocessor.FitStatus.PARTIALLY_FITTED):
            raise PreprocessorNotFittedException(
                f"{self!r} is {status.value.lower().replace('_', ' ')}: {method} needs a fitted preprocessor\n\n"
                "hint: call fit(ds) on the training data first, or fit_transform(ds), or load() one that was saved"
            )

    def __repr__(self) -> str:
        attributes = {name: self._attributes.get(name, name) for name in self._argument_names()}
        given = {name: getattr(self, each) for name, each in attributes.items() if hasattr(self, each)}
        arguments = (f"{name}={_format_argument(value)}" for name, value in given.items())
        return f"{type(self).__name__}({', '.join(arguments)})"


class ColumnPreprocessor(Preprocessor):
    """Turns each of `columns` into one of `output_columns`: a subclass has `_transform_column`."""

    def __init__(self, columns: list[str], output_columns: list[str] | None = None) -> None:
        super().__init__()
        self.columns = check_column_names(columns)
        self.output_columns = check_output_columns(self.columns, output_columns)

    def _transform_block(self, block: Block) -> Block:
        pairs = zip(self.columns, self.output_columns, strict=True)
        columns = {output: self._transform_column(block, column) for column, output in pairs}
        return Block({**block.columns, **columns}, num_rows=block.num_rows)

    def _transform_column(self, block: Block, column: str) -> Column:
        raise NotImplementedError

    # For those that learn something about each column by itself

    def _learned_columns(self) -> Sequence[str]:
        return self.columns

    def _statistics(self) -> Sequence[Statistic]:
        return [self._statistic(column) for column in self._learned_columns()]

    def _learn(self, results: Sequence[Any]) -> dict[str, Any]:
        parts = map(self._learn_column, self._learned_columns(), results)
        return {name: value for part in parts for name, value in part.items()}

    def _statistic(self, column: str) -> Statistic:
        raise NotImplementedError(f"{type(self).__name__} has no _statistic")

    def _learn_column(self, column: str, result: Any) -> dict[str, Any]:
        """Return the entries of `stats_` for a column from the result of its statistic."""
        raise NotImplementedError(f"{type(self).__name__} has no _learn_column")


def fit_together(preprocessors: Sequence[Preprocessor], ds: Dataset) -> None:
    """Fit preprocessors on the same rows, in one pass."""
    statistics = [list(each._statistics()) for each in preprocessors]
    flat = [statistic for group in statistics for statistic in group]
    who = ", ".join(type(each).__name__ for each in preprocessors)
    results = iter(compute_statistics(ds, flat, who) if flat else [])
    for each, needed in zip(preprocessors, statistics, strict=True):
        each.stats_ = each._learn(list(islice(results, len(needed))))
        each._fitted = True


def check_column_names(columns: Any, argument: str = "columns") -> list[str]:
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise bad_value(argument, "a list of one or more columns", columns)
    return list(check_names(argument, columns))


def check_output_columns(columns: Sequence[str], output_columns: Any) -> list[str]:
    """Return the output columns: the input columns, or one new name for each."""
    if output_columns is None:
        return list(columns)
    names = check_column_names(output_columns, "output_columns")
    if len(names) != len(columns) or len(set(names)) < len(names):
        raise ValueError(
            f"output_columns must be {len(columns)} different names, one for each of {list(columns)!r}, got {names!r}"
        )
    return names


def apply_to_batch(data: Any, function: Any) -> Any:
    """Apply a block function to a batch, and return the same kind of batch. Unchanged columns are not converted."""
    before = Block.from_batch(data)
    after: Block = function(before)
    unchanged = {name for name, values in after.columns.items() if before.columns.get(name) is values}
    if isinstance(data, pa.Table | pa.RecordBatch):
        return pa.table(
            {name: data[name] if name in unchanged else as_arrow(after.columns[name]) for name in after.columns}
        )
    if hasattr(data, "iloc"):
        frame = after.drop(unchanged).to_pandas().set_axis(data.index, axis=0)
        originals = {str(name): data[name] for name in data.columns}
        series = {name: originals[name] if name in unchanged else frame[name] for name in after.columns}
        return type(data)(series, index=data.index)
    if isinstance(data, Block):
        return after
    if isinstance(data, dict):
        return {name: data[name] if name in unchanged else as_numpy(after.columns[name]) for name in after.columns}
    return after.to_numpy()


def _check_dataset(ds: Any, method: str) -> None:
    from paceline.data.dataset import Dataset

    if not isinstance(ds, Dataset):
        raise TypeError(
            f"{method} takes a Dataset, got a {type(ds).__name__}\n\n"
            "hint: create one with paceline.data.from_pandas, from_arrow, from_numpy or from_items; "
            "transform_batch takes a single batch"
        )


def _our_functions() -> dict[str, Any]:
    from paceline.data.preprocessors.text import split_on_spaces

    return name_functions([split_on_spaces])


def _is_ours(cls: type[Preprocessor]) -> bool:
    return cls.__module__.startswith(f"{_PACKAGE}.")


def _find_class(name: Any, functions: Functions) -> type[Preprocessor]:
    from paceline.data import preprocessors

    cls = getattr(preprocessors, name) if isinstance(name, str) and name in preprocessors.__all__ else None
    if cls is None and isinstance(name, str):
        cls = next((each for each in functions.values() if getattr(each, "_class_id", None) == name), None)
    if cls is None and isinstance(name, str) and ":" in name:
        cls = find_allowed(name, functions)
    if not (isinstance(cls, type) and issubclass(cls, Preprocessor)):
        raise ValueError(f"{name!r} is not a preprocessor")
    return cls


def _format_argument(value: Any) -> str:
    return str(getattr(value, "__name__", None) or repr(value)) if callable(value) else repr(value)


explain_module(__name__)
