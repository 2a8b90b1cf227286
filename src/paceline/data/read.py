"""Functions that create datasets from tabular, text and binary files, and from objects in memory.

Paths and arguments are checked immediately, so errors point at the call. Rows are read when they are consumed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import bad_value, check_bool, check_instance, check_int, check_names, is_int
from paceline.data.block import Block, column_of
from paceline.data.dataset import Dataset
from paceline.data.expressions import Expr, parse_expression
from paceline.data.planning.plan import Read, ReorderUnits, Source
from paceline.data.sources import binary, csv, json, memory, parquet, text
from paceline.data.sources.files import Paths, list_files
from paceline.data.sources.footers import ParquetContents
from paceline.data.sources.media import MediaSource
from paceline.data.sources.schemas import table_to_block

JSON_FILE_EXTENSIONS = tuple(
    f"{kind}{packed}" for kind in ("json", "jsonl", "ndjson") for packed in ("", ".gz", ".bz2", ".zst", ".lz4")
)


@dataclass(frozen=True)
class FileShuffleConfig:
    """Shuffles files, and the parts of large files, differently in every epoch.

    The same seed gives the same orders; None means 0.
    """

    seed: int | None = None
    reseed_after_execution: bool = True
    """If False, every epoch has the same order."""

    def __post_init__(self) -> None:
        check_int("FileShuffleConfig.seed", self.seed, optional=True)
        check_bool("FileShuffleConfig.reseed_after_execution", self.reseed_after_execution)


Shuffle = Literal["files"] | FileShuffleConfig | None


def read_parquet(
    paths: Paths,
    *,
    filesystem: Any = None,
    columns: Sequence[str] | None = None,
    filter: Expr | str | Any | None = None,
    partitioning: Literal["hive"] | None = "hive",
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = ("parquet",),
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    **unknown: Any,
) -> Dataset:
    """Read Parquet files.

    `filter` is an expression such as `col("age") > 30`, the same as text, or a `pyarrow.compute` expression. Row groups
    whose statistics rule out a match are not read. Files may differ: a missing column is null, and numbers get the
    wider type. `concurrency` is accepted and ignored; `DataContext` sets the number of reading processes.
    """
    check_extra_arguments(read_parquet, unknown)
    check_common(concurrency, override_num_blocks, include_paths)
    if columns is not None:
        columns = check_names("columns", columns)
    files = list_files(paths, filesystem, file_extensions, partitioning, ignore_missing_paths)
    source = parquet.ParquetSource(
        name=format_call("read_parquet", paths),
        contents=ParquetContents(files),
        columns=tuple(columns) if columns is not None else None,
        filter=parse_filter(filter),
        include_paths=include_paths,
        num_units=override_num_blocks,
    )
    return make_dataset(source.validate(), shuffle)


def read_csv(
    paths: Paths,
    *,
    filesystem: Any = None,
    partitioning: Literal["hive"] | None = "hive",
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    **arrow_csv_args: Any,
) -> Dataset:
    """Read CSV files, optionally compressed (`.gz`, `.bz2`, `.zst`, `.lz4`).

    `arrow_csv_args` are `read_options`, `parse_options` and `convert_options` of `pyarrow.csv`. The beginning of the
    first file determines columns and types for all files. Files are read whole, so `override_num_blocks` has no effect.
    """
    from pyarrow import csv as arrow

    allowed = {
        "read_options": arrow.ReadOptions,
        "parse_options": arrow.ParseOptions,
        "convert_options": arrow.ConvertOptions,
    }
    check_extra_arguments(read_csv, arrow_csv_args, allowed)
    check_common(concurrency, override_num_blocks, include_paths)
    files = list_files(paths, filesystem, file_extensions, partitioning, ignore_missing_paths)
    options = csv.CsvOptions(*(arrow_csv_args.get(name) for name in allowed))
    source = csv.CsvSource(format_call("read_csv", paths), files, include_paths, options)
    return make_dataset(source.validate(), shuffle)


def read_json(
    paths: Paths,
    *,
    lines: bool = False,
    filesystem: Any = None,
    partitioning: Literal["hive"] | None = "hive",
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = JSON_FILE_EXTENSIONS,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    **arrow_json_args: Any,
) -> Dataset:
    """Read JSON files, optionally compressed: one row per line, an array of rows, or a single row.

    The layout is detected from the beginning of each file; `lines=True` forces one row per line. `arrow_json_args` are
    `read_options` and `parse_options` of `pyarrow.json`. Files are read whole, so `override_num_blocks` has no effect.
    """
    from pyarrow import json as arrow

    allowed = {"read_options": arrow.ReadOptions, "parse_options": arrow.ParseOptions}
    check_extra_arguments(read_json, arrow_json_args, allowed)
    check_common(concurrency, override_num_blocks, include_paths)
    check_bool("lines", lines)
    files = list_files(paths, filesystem, file_extensions, partitioning, ignore_missing_paths)
    options = json.JsonOptions(*(arrow_json_args.get(name) for name in allowed))
    source = json.JsonSource(format_call("read_json", paths), files, include_paths, lines, options)
    return make_dataset(source.validate(), shuffle)


def read_text(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    drop_empty_lines: bool = True,
    filesystem: Any = None,
    partitioning: Literal["hive"] | None = "hive",
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    **unknown: Any,
) -> Dataset:
    """Read lines of text files, optionally compressed, into the column `text`. Files are read whole."""
    check_extra_arguments(read_text, unknown)
    check_common(concurrency, override_num_blocks, include_paths)
    check_bool("drop_empty_lines", drop_empty_lines)
    try:
        "".encode(encoding)
    except (LookupError, TypeError):
        raise bad_value("encoding", "an encoding of Python such as 'utf-8'", encoding) from None
    files = list_files(paths, filesystem, file_extensions, partitioning, ignore_missing_paths)
    return make_dataset(
        text.TextSource(format_call("read_text", paths), files, include_paths, encoding, drop_empty_lines), shuffle
    )


def read_binary_files(
    paths: Paths,
    *,
    include_paths: bool = False,
    filesystem: Any = None,
    partitioning: Literal["hive"] | None = "hive",
    file_extensions: Sequence[str] | None = None,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    **unknown: Any,
) -> Dataset:
    """Read each file as one row, into the column `bytes`. Compressed files are decompressed."""
    check_extra_arguments(read_binary_files, unknown)
    check_common(concurrency, override_num_blocks, include_paths)
    files = list_files(paths, filesystem, file_extensions, partitioning, ignore_missing_paths)
    reader = binary.BinaryReader(binary.choose_binary_type(files))
    source = MediaSource(format_call("read_binary_files", paths), files, reader, include_paths, override_num_blocks)
    return make_dataset(source, shuffle)


def range(n: int, *, concurrency: int | None = None, override_num_blocks: int | None = None) -> Dataset:
    """Create a dataset of the integers 0 to n - 1, in the column `id`."""
    check_common(concurrency, override_num_blocks)
    return Dataset(
        Read(memory.RangeSource(f"range({check_int('n', n, at_least=0)})", n, num_units=override_num_blocks))
    )


def range_tensor(
    n: int,
    *,
    shape: Sequence[int] = (1,),
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Create a dataset of `n` tensors, each filled with its number from 0 to n - 1, in the column `data`."""
    check_common(concurrency, override_num_blocks)
    if not isinstance(shape, Sequence) or not shape or not all(is_int(size) and size >= 0 for size in shape):
        raise bad_value("shape", "a tuple of sizes such as (2, 2)", shape)
    name = f"range_tensor({check_int('n', n, at_least=0)}, shape={tuple(shape)})"
    return Dataset(Read(memory.RangeSource(name, n, "data", tuple(shape), override_num_blocks)))


def from_items(
    items: Sequence[Any], *, concurrency: int | None = None, override_num_blocks: int | None = None
) -> Dataset:
    """Create a dataset with one row per item. Dicts become columns; other items go into the column `item`."""
    check_common(concurrency, override_num_blocks)
    if isinstance(items, str | bytes | Mapping):
        raise bad_value("items", "a list of rows", items)
    rows = list(items)
    are_dicts = [isinstance(row, Mapping) for row in rows]
    if len(set(are_dicts)) > 1:
        odd = are_dicts.index(not are_dicts[0])
        raise ValueError(
            f"items must be all dicts or none, got a {type(rows[0]).__name__} in items[0] and a "
            f"{type(rows[odd]).__name__} in items[{odd}]"
        )
    block = Block.from_rows(rows)
    return Dataset(
        Read(memory.MemorySource(f"from_items({len(rows)} items)", (block,), override_num_blocks, min_units=64))
    )


def from_pandas(dfs: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """Create a dataset from a `pandas.DataFrame` or a list of them. The index is dropped."""
    try:
        import pandas
    except ImportError:
        raise ImportError('from_pandas() needs pandas\n\nhint: pip install "paceline[pandas]"') from None
    return _from_one_or_many("from_pandas", "dfs", dfs, pandas.DataFrame, Block.from_pandas, override_num_blocks)


def from_numpy(ndarrays: Any, *, column: str = "data", override_num_blocks: int | None = None) -> Dataset:
    """Create a one-column dataset from an array or a list of arrays. Rows are along the first dimension."""

    def block(array: np.ndarray[Any, Any]) -> Block:
        return Block({column: array if array.ndim else column_of([array.item()])})

    return _from_one_or_many("from_numpy", "ndarrays", ndarrays, np.ndarray, block, override_num_blocks)


def from_arrow(tables: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """Create a dataset from a `pyarrow.Table` or a list of them."""

    def block(table: Any) -> Block:
        return table_to_block(pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table)

    return _from_one_or_many("from_arrow", "tables", tables, (pa.Table, pa.RecordBatch), block, override_num_blocks)


def _from_one_or_many(function: str, argument: str, values: Any, kind: Any, block: Any, number: int | None) -> Dataset:
    """Create a dataset from one object of type `kind` or a list of them."""
    check_common(None, number)
    parts = list(values) if isinstance(values, list | tuple) else [values]
    for part in parts:
        if not isinstance(part, kind):
            name = kind[0].__name__ if isinstance(kind, tuple) else kind.__name__
            raise ValueError(f"{argument} must be a {name} or a list of them, got a {type(part).__name__}")
    blocks = tuple(block(part) for part in parts)
    rows = sum(part.num_rows for part in blocks)
    return Dataset(Read(memory.MemorySource(f"{function}({rows} rows)", blocks, number)))


def make_dataset(source: Source, shuffle: Shuffle) -> Dataset:
    config = parse_shuffle(shuffle)
    if config is None:
        return Dataset(Read(source))
    return Dataset(ReorderUnits(Read(source), seed=config.seed or 0, every_epoch=config.reseed_after_execution))


def parse_shuffle(shuffle: Shuffle) -> FileShuffleConfig | None:
    config = FileShuffleConfig() if shuffle == "files" else shuffle
    return check_instance("shuffle", config, FileShuffleConfig, "'files', a FileShuffleConfig", optional=True)  # type: ignore[no-any-return]


def parse_filter(value: Any) -> Any:
    if isinstance(value, str):
        return parse_expression(value)
    if value is None or isinstance(value, Expr | pc.Expression):
        return value
    raise bad_value("filter", "an expression: col('age') > 30, 'age > 30' or one of pyarrow.compute", value)


def check_extra_arguments(
    function: Callable[..., Any], values: Mapping[str, Any], allowed: Mapping[str, type] | None = None
) -> None:
    """Check that extra keyword arguments are allowed and have the right type."""
    allowed = allowed or {}
    for name, value in values.items():
        if name not in allowed:
            parameters = inspect.signature(function).parameters.values()
            names = [parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD]
            raise TypeError(f"{function.__name__}() has no argument {name!r}; it has {', '.join([*names, *allowed])}")
        if value is not None and not isinstance(value, allowed[name]):
            module = allowed[name].__module__.replace("._", ".")
            raise bad_value(name, f"a {module}.{allowed[name].__name__}", value)


def check_common(concurrency: Any, override_num_blocks: Any, include_paths: Any = False) -> None:
    check_int("concurrency", concurrency, at_least=1, optional=True)
    check_int("override_num_blocks", override_num_blocks, at_least=1, optional=True)
    check_bool("include_paths", include_paths)


def format_call(function: str, paths: Paths) -> str:
    """Format the call for messages, without credentials or URL options."""
    texts = [str(path).partition("?")[0] for path in (paths if isinstance(paths, list | tuple) else [paths])]
    scheme, _, rest = texts[0].partition("://")
    first = f"{scheme}://{rest.rpartition('@')[2]}" if rest else scheme
    more = f", ... {len(texts) - 1} more" if len(texts) > 1 else ""
    return f"{function}({first!r}{more})"
