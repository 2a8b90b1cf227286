"""The functions that make datasets: of files of rows, of text and of bytes, and of what is in memory.

Each looks at once at what it is given, so what is wrong with a path or an argument is said where it stands. Rows are
read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from paceline.data.arguments import called, check_common, condition, count, is_bool, is_count, names, no_others
from paceline.data.block import Block, column_of
from paceline.data.dataset import Dataset
from paceline.data.expressions import Expr
from paceline.data.files import Paths, listed
from paceline.data.plan import Node, Read, Reorder
from paceline.data.source import Source
from paceline.data.sources import binary, csv, json, memory, parquet, text
from paceline.data.sources.footers import Contents
from paceline.data.sources.schemas import block_of

JSON_FILE_EXTENSIONS = tuple(
    f"{kind}{packed}" for kind in ("json", "jsonl", "ndjson") for packed in ("", ".gz", ".bz2", ".zst", ".lz4")
)


@dataclass(frozen=True)
class FileShuffleConfig:
    """Files, and the parts in which a large one is read, change places: in another order in every epoch.

    The same seed gives the same orders; None counts as 0.
    """

    seed: int | None = None
    reseed_after_execution: bool = True
    """False: the same order in every epoch."""

    def __post_init__(self) -> None:
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ValueError(f"FileShuffleConfig(seed={self.seed!r}) must be a whole number or None")
        if not isinstance(self.reseed_after_execution, bool):
            raise ValueError(
                f"FileShuffleConfig(reseed_after_execution={self.reseed_after_execution!r}) must be True or False"
            )


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
    **others: Any,
) -> Dataset:
    """Rows of Parquet files.

    `filter` is an expression such as `col("age") > 30`, the same as text, or one of `pyarrow.compute`; row groups whose
    statistics show that no row in them can do are not read. Files may differ: a column that one lacks is null there,
    and numbers get the wider type. `concurrency` is accepted; how many processes read is the `DataContext`'s matter.
    """
    no_others(read_parquet, others)
    check_common(concurrency, override_num_blocks, include_paths)
    if columns is not None:
        columns = names("columns", columns)
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=partitioning,
        ignore_missing_paths=ignore_missing_paths,
    )
    source = parquet.Parquet(
        name=called("read_parquet", paths),
        contents=Contents(files),
        columns=tuple(columns) if columns is not None else None,
        filter=condition(filter),
        include_paths=include_paths,
        num_units=override_num_blocks,
    )
    return _dataset(source.checked(), shuffle)


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
    """Rows of CSV files, also of packed ones (`.gz`, `.bz2`, `.zst`, `.lz4`).

    `arrow_csv_args` are `read_options`, `parse_options` and `convert_options`, as `pyarrow.csv` has them. The columns
    and types of the first file's beginning are those of all files. Files are read whole, so `override_num_blocks`
    changes nothing.
    """
    from pyarrow import csv as arrow

    allowed = {
        "read_options": arrow.ReadOptions,
        "parse_options": arrow.ParseOptions,
        "convert_options": arrow.ConvertOptions,
    }
    no_others(read_csv, arrow_csv_args, allowed)
    check_common(concurrency, override_num_blocks, include_paths)
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=partitioning,
        ignore_missing_paths=ignore_missing_paths,
    )
    options = csv.Options(*(arrow_csv_args.get(name) for name in allowed))
    source = csv.Csv(called("read_csv", paths), files, options, include_paths)
    return _dataset(source.checked(), shuffle)


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
    """Rows of JSON files: a line for each row, an array of rows, or one row. Also packed ones.

    Which of the three a file is can be seen at its beginning; `lines=True` says it. `arrow_json_args` are
    `read_options` and `parse_options`, as `pyarrow.json` has them. Files are read whole, so `override_num_blocks`
    changes nothing.
    """
    from pyarrow import json as arrow

    allowed = {"read_options": arrow.ReadOptions, "parse_options": arrow.ParseOptions}
    no_others(read_json, arrow_json_args, allowed)
    check_common(concurrency, override_num_blocks, include_paths)
    is_bool("lines", lines)
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=partitioning,
        ignore_missing_paths=ignore_missing_paths,
    )
    options = json.Options(*(arrow_json_args.get(name) for name in allowed))
    source = json.Json(called("read_json", paths), files, lines, options, include_paths)
    return _dataset(source.checked(), shuffle)


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
    **others: Any,
) -> Dataset:
    """The lines of text files, also of packed ones, as the column `text`. Files are read whole."""
    no_others(read_text, others)
    check_common(concurrency, override_num_blocks, include_paths)
    is_bool("drop_empty_lines", drop_empty_lines)
    try:
        "".encode(encoding)
    except (LookupError, TypeError):
        raise ValueError(f"encoding={encoding!r} is none that Python knows; it is 'utf-8' or the like") from None
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=partitioning,
        ignore_missing_paths=ignore_missing_paths,
    )
    return _dataset(text.Text(called("read_text", paths), files, encoding, drop_empty_lines, include_paths), shuffle)


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
    **others: Any,
) -> Dataset:
    """The content of each file as a row, as the column `bytes`; packed files are unpacked."""
    no_others(read_binary_files, others)
    check_common(concurrency, override_num_blocks, include_paths)
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=partitioning,
        ignore_missing_paths=ignore_missing_paths,
    )
    source = binary.Binary(called("read_binary_files", paths), files, include_paths, override_num_blocks)
    return _dataset(source, shuffle)


def range(n: int, *, concurrency: int | None = None, override_num_blocks: int | None = None) -> Dataset:
    """The numbers 0 to n - 1, as the column `id`."""
    check_common(concurrency, override_num_blocks)
    return Dataset(Read(memory.Range(f"range({count(n)})", n, num_units=override_num_blocks)))


def range_tensor(
    n: int,
    *,
    shape: Sequence[int] = (1,),
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Tensors of a shape, filled with the numbers 0 to n - 1, as the column `data`."""
    check_common(concurrency, override_num_blocks)
    if not isinstance(shape, Sequence) or not shape or not all(is_count(size) for size in shape):
        raise ValueError(f"shape={shape!r} must be a tuple of sizes such as (2, 2)")
    name = f"range_tensor({count(n)}, shape={tuple(shape)})"
    return Dataset(Read(memory.Range(name, n, "data", tuple(shape), override_num_blocks)))


def from_items(
    items: Sequence[Any], *, concurrency: int | None = None, override_num_blocks: int | None = None
) -> Dataset:
    """A row for each item: a dict has the columns, anything else is the column `item`."""
    check_common(concurrency, override_num_blocks)
    if isinstance(items, str | bytes | Mapping):
        raise ValueError(f"items={items!r} must be a list of rows, not a {type(items).__name__}")
    rows = list(items)
    dicts = sum(isinstance(row, Mapping) for row in rows)
    if 0 < dicts < len(rows):
        odd = next(index for index, row in enumerate(rows) if isinstance(row, Mapping) != isinstance(rows[0], Mapping))
        raise ValueError(
            f"items[0] is a {type(rows[0]).__name__} and items[{odd}] a {type(rows[odd]).__name__}: either all items "
            "must be dicts, or none"
        )
    block = Block.from_rows(rows)
    return Dataset(Read(memory.Memory(f"from_items({len(rows)} items)", (block,), override_num_blocks, least=64)))


def from_pandas(dfs: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """The rows of a `pandas.DataFrame`, or of a list of them, without their index."""
    try:
        import pandas
    except ImportError:
        raise ImportError('from_pandas() needs pandas\n\nhint: pip install "paceline[pandas]"') from None
    return _from("from_pandas", "dfs", dfs, pandas.DataFrame, Block.from_pandas, override_num_blocks)


def from_numpy(ndarrays: Any, *, column: str = "data", override_num_blocks: int | None = None) -> Dataset:
    """The rows of an array, which are along its first dimension, as one column; or of a list of arrays."""

    def block(array: np.ndarray[Any, Any]) -> Block:
        return Block({column: array if array.ndim else column_of([array.item()])})

    return _from("from_numpy", "ndarrays", ndarrays, np.ndarray, block, override_num_blocks)


def from_arrow(tables: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """The rows of a `pyarrow.Table`, or of a list of them."""

    def block(table: Any) -> Block:
        given = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        return block_of(given)

    return _from("from_arrow", "tables", tables, (pa.Table, pa.RecordBatch), block, override_num_blocks)


def _from(function: str, argument: str, given: Any, kind: Any, block: Any, number: int | None) -> Dataset:
    """From one thing of a kind, or from a list of them."""
    check_common(None, number)
    parts = list(given) if isinstance(given, list | tuple) else [given]
    for part in parts:
        if not isinstance(part, kind):
            name = kind[0].__name__ if isinstance(kind, tuple) else kind.__name__
            raise ValueError(f"{argument} must be a {name} or a list of them, not {type(part).__name__}")
    blocks = tuple(block(part) for part in parts)
    rows = sum(part.num_rows for part in blocks)
    return Dataset(Read(memory.Memory(f"{function}({rows} rows)", blocks, number)))


def _dataset(source: Source, shuffle: Shuffle) -> Dataset:
    plan: Node = Read(source)
    if shuffle is None:
        return Dataset(plan)
    config = FileShuffleConfig() if shuffle == "files" else shuffle
    if not isinstance(config, FileShuffleConfig):
        raise ValueError(f"shuffle={shuffle!r} must be None, 'files' or a FileShuffleConfig")
    return Dataset(Reorder(plan, seed=config.seed or 0, every_epoch=config.reseed_after_execution))
