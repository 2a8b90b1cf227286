"""Sources of files that a user decodes: a `FileBasedDatasource` lists files, and reads one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from paceline._core.arguments import bad_value, check_bool
from paceline._core.lazy_imports import explain_module
from paceline.data.block import Block, BlockMetadata
from paceline.data.datasource.datasource import Datasource, ReadTask
from paceline.data.open_args import parse_open_args
from paceline.data.order.shuffle import permutation
from paceline.data.read import FileShuffleConfig
from paceline.data.sources.files import InputFile, Paths, explain_read_errors, list_files
from paceline.data.sources.media import with_origin_columns
from paceline.data.sources.schemas import partition_fields


class FileBasedDatasource(Datasource):
    """Reads files: subclasses implement `_read_stream(f, path)`, which yields batches of an open file.

    `f` is a `pyarrow.NativeFile`, decompressed. Each file is a task. As in Ray, `_read_stream` is the name to override.
    """

    _FILE_EXTENSIONS: ClassVar[Sequence[str] | None] = None

    def __init__(
        self,
        paths: Paths,
        *,
        filesystem: Any = None,
        schema: Any = None,
        open_stream_args: Mapping[str, Any] | None = None,
        partition_filter: Any = None,
        partitioning: Any = None,
        ignore_missing_paths: bool = False,
        shuffle: FileShuffleConfig | str | None = None,
        include_paths: bool = False,
        file_extensions: Sequence[str] | None = None,
    ) -> None:
        self._schema = schema
        self._include_paths = check_bool("include_paths", include_paths)
        open_args = parse_open_args("open_stream_args", open_stream_args)
        extensions = self._FILE_EXTENSIONS if file_extensions is None else file_extensions
        files = list_files(
            paths, filesystem, extensions, partitioning, ignore_missing_paths, partition_filter, open_args
        )
        if shuffle is not None:
            if shuffle != "files" and not isinstance(shuffle, FileShuffleConfig):
                raise bad_value("shuffle", "'files', a FileShuffleConfig or None", shuffle)
            seed = shuffle.seed or 0 if isinstance(shuffle, FileShuffleConfig) else 0
            files = tuple(files[index] for index in permutation(len(files), seed))
        self._files = files

    def _read_stream(self, f: Any, path: str) -> Iterable[Any]:
        raise NotImplementedError(f"{type(self).__name__} must implement _read_stream(f, path)")

    def estimate_inmemory_data_size(self) -> int | None:
        """Estimate the size by the size of the files."""
        return sum(file.size for file in self._files)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return one task per file."""
        return [
            ReadTask(
                partial(_read_file, self, file),
                BlockMetadata(size_bytes=file.size or None, input_files=[str(file)]),
                self._schema,
                per_task_row_limit,
            )
            for file in self._files
        ]


def _read_file(source: FileBasedDatasource, file: InputFile) -> Iterator[Block]:
    partition = partition_fields(source._files)
    with explain_read_errors(file), file.stream() as stream:
        for batch in source._read_stream(stream, str(file)):
            yield with_origin_columns([(file, Block.from_batch(batch))], source._include_paths, partition)


explain_module(__name__)
