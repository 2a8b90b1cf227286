"""Custom file types: sources of files and of tasks, and sinks that write a file for each row or block."""

import os

import numpy as np
import pyarrow as pa
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import BlockBasedFileDatasink, Datasource, FileBasedDatasource, ReadTask, RowBasedFileDatasink


class GridDatasource(FileBasedDatasource):
    def __init__(self, paths, *, dtype):
        super().__init__(paths, file_extensions=["grid"])
        self.dtype = dtype

    def _read_stream(self, f, path):
        yield pa.table({"name": [os.path.basename(path)], "grid": [np.frombuffer(f.readall(), self.dtype).tolist()]})


class GridDatasink(RowBasedFileDatasink):
    def __init__(self, path, column):
        super().__init__(path, file_format="grid")
        self.column = column

    def write_row_to_file(self, row, file):
        file.write(np.array(row[self.column], np.uint8).tobytes())


class Names(BlockBasedFileDatasink):
    def write_block_to_file(self, block, file):
        file.write("".join(f"{name}\n" for name in block.to_arrow()["name"].to_pylist()).encode())


class Numbers(Datasource):
    def get_read_tasks(self, parallelism, *args, **kwargs):
        metadata = BlockMetadata(num_rows=3, size_bytes=24, input_files=None, exec_stats=None)
        return [ReadTask(lambda first=first: [pa.table({"n": range(first, first + 3)})], metadata) for first in (0, 3)]


ray.data.from_items([{"grid": [n] * 4} for n in range(4)]).write_datasink(GridDatasink("grids", "grid"))
open("grids/notes.txt", "w").close()
ds = ray.data.read_datasource(GridDatasource("grids", dtype=np.uint8))
assert sorted(row["grid"] for row in ds.take_all()) == [[n] * 4 for n in range(4)]
ds.write_datasink(Names("names", file_format="txt"))
assert ray.data.read_text("names").count() == 4
assert ray.data.read_datasource(Numbers(), override_num_blocks=2).sum("n") == 15
