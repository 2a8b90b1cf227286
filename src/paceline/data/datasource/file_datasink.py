"""Sinks of files that a user encodes: one file per row, or one per unit. They write as the writers of `Dataset` do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._core.arguments import check_int
from paceline._core.lazy_imports import explain_module
from paceline.data.block import Block, BlockAccessor
from paceline.data.datasource.datasink import Datasink
from paceline.data.datasource.filename_provider import FilenameProvider
from paceline.data.sinks.sink import FileWriter, FormatSink, compression_suffix, open_output
from paceline.data.write import Mode, SaveMode, TargetOptions, WriteOptions, choose_compression, write_dataset

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset


class FileDatasink(Datasink[None]):
    """Base of sinks of files. Files are staged, and appear when all are written, as those of `write_parquet`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Any = None,
        try_create_dir: bool = True,
        open_stream_args: Mapping[str, Any] | None = None,
        filename_provider: FilenameProvider | None = None,
        dataset_uuid: str | None = None,
        file_format: str | None = None,
        mode: Mode = SaveMode.APPEND,
    ) -> None:
        self.path = path
        self.file_format = file_format
        self.target_options = TargetOptions(
            filesystem=filesystem,
            mode=mode,
            concurrency=None,
            resume=False,
            try_create_dir=try_create_dir,
            arrow_open_stream_args=open_stream_args,
            filename_provider=filename_provider,
            ray_remote_args=None,
        )

    def get_name(self) -> str:
        """Return the name used in messages."""
        return type(self).__name__.removesuffix("Datasink")

    def encode_file(self, block: Block, file: Any) -> None:
        raise NotImplementedError


class RowBasedFileDatasink(FileDatasink):
    """Writes one file per row: subclasses implement `write_row_to_file`."""

    def write_row_to_file(self, row: dict[str, Any], file: Any) -> None:
        """Write a row to an open file, a `pyarrow.NativeFile`."""
        raise NotImplementedError(f"{type(self).__name__} must implement write_row_to_file(row, file)")

    def encode_file(self, block: Block, file: Any) -> None:
        self.write_row_to_file(next(block.rows()), file)


class BlockBasedFileDatasink(FileDatasink):
    """Writes one file per unit, or per `min_rows_per_file` rows: subclasses implement `write_block_to_file`."""

    def __init__(self, path: str | os.PathLike[str], *, min_rows_per_file: int | None = None, **options: Any) -> None:
        super().__init__(path, **options)
        self.min_rows_per_file = check_int("min_rows_per_file", min_rows_per_file, at_least=1, optional=True)

    def write_block_to_file(self, block: BlockAccessor, file: Any) -> None:
        """Write rows to an open file, a `pyarrow.NativeFile`: `block.to_arrow()` has them."""
        raise NotImplementedError(f"{type(self).__name__} must implement write_block_to_file(block, file)")

    def encode_file(self, block: Block, file: Any) -> None:
        self.write_block_to_file(BlockAccessor(block), file)


class DatasinkFileWriter(FileWriter):
    """Collects the rows of a file, and has the user write them at its end."""

    def __init__(self, path: Path, sink: DatasinkFiles) -> None:
        super().__init__(path, sink)
        self._blocks: list[Block] = []

    def write(self, block: Block) -> None:
        self._blocks.append(block)

    def close(self) -> None:
        with open_output(self.path, self.sink.compression) as file:
            self.sink.datasink.encode_file(Block.concat(self._blocks), file)
        self._blocks.clear()

    def abandon(self) -> None:
        self._blocks.clear()


@dataclass(frozen=True, eq=False)
class DatasinkFiles(FormatSink):
    datasink: Any
    compression: str | None

    name, writer = "write_datasink", DatasinkFileWriter

    @property
    def suffix(self) -> str:
        return f".{self.datasink.file_format or 'bin'}{compression_suffix(self.compression)}"


class DatasinkRowFiles(DatasinkFiles):
    one_row_each = True


def write_file_datasink(dataset: Dataset, datasink: FileDatasink, concurrency: int | None) -> tuple[int, int]:
    """Write as the writers of `Dataset` do, with files that the user encodes; return how many rows and bytes."""
    options = WriteOptions(**{**datasink.target_options, "concurrency": concurrency})  # type: ignore[typeddict-item]
    options["min_rows_per_file"] = getattr(datasink, "min_rows_per_file", None)
    kind = DatasinkRowFiles if isinstance(datasink, RowBasedFileDatasink) else DatasinkFiles
    files = write_dataset(dataset, datasink.path, kind(datasink, choose_compression(None, options)), options)
    return sum(file.num_rows for file in files), sum(file.num_bytes for file in files)


explain_module(__name__)
