"""What writers share: names of files, modes, compression; and sinks of a user."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_datasets import dataset_of

import paceline.data
from paceline.data import from_items
from paceline.data.datasource import (
    BlockBasedFileDatasink,
    Datasink,
    FileBasedDatasource,
    FilenameProvider,
    RowBasedFileDatasink,
)


class ByUnit(FilenameProvider):
    def get_filename_for_block(self, block, write_uuid, task_index, block_index):
        return f"{block['x'][0]}-{task_index}-{block_index}.parquet"


class ByRow(FilenameProvider):
    def get_filename_for_row(self, row, write_uuid, task_index, block_index, row_index):
        return f"{row['label']}-{task_index}-{row_index}.png"


def _names(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*.*"))


@pytest.mark.parametrize("in_processes", [False, True])
def test_a_provider_names_files_by_unit_and_first_rows(tmp_path, in_processes):
    units = [{"x": np.array([7, 8, 9])}], [{"x": np.array([4])}]
    dataset_of(*units, in_processes=in_processes).write_parquet(
        tmp_path / "a", filename_provider=ByUnit(), max_rows_per_file=2
    )
    assert _names(tmp_path / "a") == ["4-1-0.parquet", "7-0-0.parquet", "9-0-1.parquet"]


def test_names_are_unique_and_the_same_every_time(tmp_path):
    dataset = dataset_of([{"x": np.array([1, 2])}], [{"x": np.array([3])}])
    for name in ("a", "b"):
        dataset.write_csv(tmp_path / name, filename_provider=FilenameProvider(file_format="csv"), max_rows_per_file=1)
    first = _names(tmp_path / "a")
    assert len(first) == 3
    assert first == _names(tmp_path / "b")
    dataset.write_csv(tmp_path / "a", filename_provider=FilenameProvider("d"))
    assert len(_names(tmp_path / "a")) == 5
    dataset.write_parquet(tmp_path / "p", filename_provider=ByUnit())
    with pytest.raises(FileExistsError, match="must give new names"):
        dataset.write_parquet(tmp_path / "p", filename_provider=ByUnit())
    dataset.write_parquet(tmp_path / "p", filename_provider=ByUnit(), mode="overwrite")
    assert _names(tmp_path / "p") == ["1-0-0.parquet", "3-1-0.parquet"]


class Same(FilenameProvider):
    def get_filename_for_task(self, write_uuid, task_index):
        return "same.csv"


def test_a_name_given_twice_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"got 'same\.csv' twice"):
        dataset_of([{"x": [1]}], [{"x": [2]}]).write_csv(tmp_path / "a", filename_provider=Same())
    assert not (tmp_path / "a").exists()


def test_images_are_named_by_their_rows(tmp_path):
    rows = [{"label": name, "i": np.zeros((2, 2), np.uint8)} for name in "ab"]
    from_items(rows, override_num_blocks=1).write_images(tmp_path, "i", filename_provider=ByRow())
    assert _names(tmp_path) == ["a-0-0.png", "b-0-1.png"]


def test_modes_and_sizes_by_their_other_names(tmp_path):
    rows = from_items([{"x": n} for n in range(8)], override_num_blocks=8)
    rows.write_json(tmp_path / "a", num_rows_per_file=4, mode="create")
    assert len(_names(tmp_path / "a")) == 2
    rows.write_parquet(tmp_path / "b", min_bytes_per_file=16)
    assert [pq.read_metadata(file).num_rows for file in sorted((tmp_path / "b").iterdir())] == [2] * 4
    with pytest.raises(FileExistsError):
        rows.write_json(tmp_path / "a", mode="create")
    with pytest.raises(ValueError, match="files have no keys"):
        rows.write_json(tmp_path / "a", mode="upsert")
    with pytest.raises(FileNotFoundError, match="try_create_dir=False"):
        rows.write_json(tmp_path / "c", try_create_dir=False)
    with pytest.raises(ValueError, match="one is the older name"):
        rows.write_json(tmp_path / "c", num_rows_per_file=4, min_rows_per_file=4)


def test_files_are_compressed_where_a_reader_decompresses_them(tmp_path):
    rows, packed = from_items([{"txt": "a"}]), {"compression": "gzip"}
    rows.write_json(tmp_path / "j", arrow_open_stream_args=packed)
    assert json.loads(gzip.decompress((tmp_path / "j" / "part-000000.json.gz").read_bytes())) == {"txt": "a"}
    rows.write_tfrecords(tmp_path / "t", arrow_open_stream_args=packed)
    assert paceline.data.read_tfrecords(tmp_path / "t").take_all() == [{"txt": b"a"}]
    rows.write_webdataset(tmp_path / "w", arrow_open_stream_args=packed)
    assert paceline.data.read_webdataset(tmp_path / "w").take(1)[0]["txt"] == "a"
    with pytest.raises(ValueError, match="no reader would decompress"):
        rows.write_parquet(tmp_path / "p", arrow_open_stream_args=packed)


def test_arguments_of_the_libraries_come_from_functions(tmp_path):
    rows = from_items([{"x": "ä", "n": 1}])
    rows.write_csv(tmp_path / "c", arrow_csv_args_fn=lambda: {"delimiter": ";"}, include_header=False)
    assert (tmp_path / "c" / "part-000000.csv").read_text() == '"ä";1\n'
    rows.write_json(tmp_path / "j", pandas_json_args_fn=lambda: {"force_ascii": True})
    assert (tmp_path / "j" / "part-000000.json").read_text() == '{"x":"\\u00e4","n":1}\n'
    with pytest.raises(ValueError, match="orient of pandas_json_args_fn"):
        rows.write_json(tmp_path / "k", pandas_json_args_fn=lambda: {"orient": "split"})
    rows.write_tfrecords(tmp_path / "t", tf_schema={"n": pa.float32()})
    assert paceline.data.read_tfrecords(tmp_path / "t").schema().types[0] == pa.float32()


class Collected(Datasink):
    def __init__(self, path, least=None, broken=False):
        self.path, self.least, self.broken = path, least, broken
        self.calls = []

    @property
    def min_rows_per_write(self):
        return self.least

    def on_write_start(self, schema=None):
        self.calls.append(("start", schema.names))

    def write(self, blocks, ctx):
        rows = [value for table in blocks for value in table["x"].to_pylist()]
        (self.path / f"{ctx.task_idx}.json").write_text(json.dumps(rows))
        if self.broken:
            raise OSError("the place is broken")
        return len(rows)

    def on_write_complete(self, write_result):
        self.calls.append(("complete", write_result.num_rows, write_result.write_returns))

    def on_write_failed(self, error):
        self.calls.append(("failed", str(error)))


@pytest.mark.parametrize("concurrency", [None, 2])
def test_a_datasink_writes_each_unit_and_learns_of_the_end(tmp_path, concurrency):
    sink = Collected(tmp_path)
    from_items([{"x": n} for n in range(5)], override_num_blocks=3).write_datasink(sink, concurrency=concurrency)
    assert sink.calls == [("start", ["x"]), ("complete", 5, [1, 2, 2])]
    assert [json.loads((tmp_path / f"{n}.json").read_text()) for n in range(3)] == [[0], [1, 2], [3, 4]]


def test_a_datasink_gets_more_rows_at_a_time_and_learns_of_a_failure(tmp_path):
    rows = from_items([{"x": n} for n in range(5)], override_num_blocks=5)
    sink = Collected(tmp_path, least=2)
    rows.write_datasink(sink)
    assert sink.calls[-1] == ("complete", 5, [2, 2, 1])
    broken = Collected(tmp_path, broken=True)
    with pytest.raises(OSError, match="the place is broken"):
        rows.write_datasink(broken)
    assert broken.calls[-1] == ("failed", "the place is broken")


class Texts(RowBasedFileDatasink):
    def write_row_to_file(self, row, file):
        file.write(row["x"].encode())


class Joined(BlockBasedFileDatasink):
    def on_write_complete(self, write_result):
        assert (write_result.num_rows, write_result.size_bytes) == (3, len("a+b+c"))

    def write_block_to_file(self, block, file):
        file.write("+".join(block.to_arrow()["x"].to_pylist()).encode())


class Words(FileBasedDatasource):
    _FILE_EXTENSIONS = ("txt",)

    def _read_stream(self, f, path):
        yield {"word": f.read().decode().split("+")}


def test_files_of_a_users_format_are_written_whole_and_read_back(tmp_path):
    rows = from_items([{"x": name} for name in "abc"], override_num_blocks=1)
    rows.write_datasink(Texts(tmp_path / "r", file_format="txt"))
    assert [file.read_text() for file in sorted((tmp_path / "r").iterdir())] == ["a", "b", "c"]
    rows.write_datasink(Joined(tmp_path / "y=1", file_format="txt"))
    source = Words(tmp_path / "y=1", include_paths=True, partitioning="hive")
    read = paceline.data.read_datasource(source).take_all()
    assert [(row["word"], row["y"]) for row in read] == [("a", 1), ("b", 1), ("c", 1)]
    assert read[0]["path"].endswith("part-000000.txt")
