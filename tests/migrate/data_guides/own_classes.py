"""Classes of one's own: sources of files and of tasks, sinks of a file for each row or block, and an aggregate."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data.aggregate import AggregateFnV2
from ray.data.block import Block, BlockAccessor, BlockMetadata
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


class SquareMean(AggregateFnV2):
    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None):
        name = alias_name or f"square_mean({on})"
        super().__init__(name, on=on, ignore_nulls=ignore_nulls, zero_factory=lambda: [0, 0])

    def aggregate_block(self, block: Block):
        accessor = BlockAccessor.for_block(block)
        num_rows = accessor.count(self._target_col_name, self._ignore_nulls)
        return [pc.sum(pc.power(block[self._target_col_name], 2)).as_py(), num_rows] if num_rows else None

    def combine(self, current_accumulator, new):
        return [current_accumulator[0] + new[0], current_accumulator[1] + new[1]]

    def finalize(self, accumulator):
        return accumulator[0] / accumulator[1]


ray.data.from_items([{"grid": [n] * 4} for n in range(4)]).write_datasink(GridDatasink("grids", "grid"))
open("grids/notes.txt", "w").close()
ds = ray.data.read_datasource(GridDatasource("grids", dtype=np.uint8))
assert sorted(row["grid"] for row in ds.take_all()) == [[n] * 4 for n in range(4)]
ds.write_datasink(Names("names", file_format="txt"))
assert ray.data.read_text("names").count() == 4
assert ray.data.read_datasource(Numbers(), override_num_blocks=2).sum("n") == 15
rows = ray.data.range(100).add_column("group_key", lambda frame: frame["id"].to_numpy() % 3)
assert rows.aggregate(SquareMean("id"))["square_mean(id)"] == sum(n * n for n in range(100)) / 100
by_group = rows.groupby("group_key").aggregate(SquareMean("id", alias_name="power")).take_all()
assert by_group[0]["power"] == sum(n * n for n in range(0, 100, 3)) / 34
