"""Names of written files that a user chooses, with the interface of Ray Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from paceline._core.arguments import check_file_name
from paceline._core.lazy_imports import explain_module
from paceline.data.block import Block


class FilenameProvider:
    """Names written files. Override one of the methods; without that, names are `<write_uuid>_<task_index>`.

    Names must be different, and the same every time: a unit that is written again gets the same arguments. `write_uuid`
    identifies the write by the rows to read and the files already there. `task_index` is the number of the unit.
    """

    def __init__(self, dataset_uuid: str | None = None, file_format: str | None = None) -> None:
        self._dataset_uuid = dataset_uuid
        self._file_format = file_format

    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        """Name the first file of a unit. The names of further ones end in `_1`, `_2` and so on."""
        parts = (getattr(self, "_dataset_uuid", None), write_uuid, f"{task_index:06d}")
        file_format = getattr(self, "_file_format", None)
        return "_".join(part for part in parts if part) + (f".{file_format}" if file_format else "")

    def get_filename_for_block(self, block: Any, write_uuid: str, task_index: int, block_index: int) -> str:
        """Name a file. `block` is a `pyarrow.Table` of its first rows, `block_index` its number in the unit."""
        path = PurePosixPath(self.get_filename_for_task(write_uuid, task_index))
        return path.name if not block_index else f"{path.stem}_{block_index}{path.suffix}"

    def get_filename_for_row(
        self, row: Mapping[str, Any], write_uuid: str, task_index: int, block_index: int, row_index: int
    ) -> str:
        """Name the file of one row, as in `write_images`. `row_index` is the row's number in the unit."""
        return self.get_filename_for_block(None, write_uuid, task_index, row_index)


@dataclass(frozen=True)
class FileNaming:
    """Asks a provider for the names of the files of one write."""

    provider: FilenameProvider
    write_uuid: str

    def name_file(self, block: Block, is_row: bool, unit: int, number: int, suffix: str) -> str:
        if is_row:
            row = next(block.slice(0, 1).rows())
            name = self.provider.get_filename_for_row(row, self.write_uuid, unit, 0, number)
        else:
            name = self.provider.get_filename_for_block(block.to_arrow(), self.write_uuid, unit, number)
        check_file_name("a name of filename_provider", name)
        return name if "." in name else f"{name}{suffix}"


explain_module(__name__)
