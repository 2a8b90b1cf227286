"""What readers share: compressed streams, partitions of directories, paths left out; and options of single readers."""

import gzip
import logging
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_datasets import write_video

import paceline.data
from paceline.data import Datasource, ReadTask, col
from paceline.data.datasource.partitioning import Partitioning, PathPartitionFilter, PathPartitionParser
from paceline.data.read import read_csv, read_numpy, read_parquet, read_videos, read_webdataset


def test_a_stream_is_decompressed_as_the_user_says_not_as_it_is_named(tmp_path):
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"x\n1\n2\n"))
    (tmp_path / "b.gz").write_bytes(b"x\n3\n")
    packed = {"compression": "gzip", "buffer_size": 4096}
    assert read_csv(tmp_path / "a.csv", arrow_open_stream_args=packed).take_all() == [{"x": 1}, {"x": 2}]
    assert read_csv(tmp_path / "b.gz", arrow_open_stream_args={"compression": None}).take_all() == [{"x": 3}]
    with (tmp_path / "c.npy").open("wb") as file, gzip.open(file, "wb") as packed_file:
        np.save(packed_file, np.arange(1000.0))  # much smaller on disk, which is not "truncated"
    arrays = read_numpy(tmp_path / "c.npy", arrow_open_stream_args={"compression": "gzip"})
    assert arrays.count() == 1000


def _tree(root, *places):
    for number, place in enumerate(places):
        (root / place).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [number]}), root / place / "a.parquet")


def test_directories_become_typed_columns_and_rule_out_files(tmp_path):
    _tree(tmp_path, "2023/de", "2024/fr", "2024/de")
    how = Partitioning("dir", field_names=["year", "land"], field_types={"year": float})
    dataset = read_parquet(tmp_path, partitioning=how)
    assert dataset.filter(expr="year == 2024 and land == 'de'").take_all() == [{"x": 2, "year": 2024.0, "land": "de"}]
    assert str(dataset.schema().types[1]) == "double"
    only = PathPartitionFilter.of(lambda values: values["land"] == "de", "dir", str(tmp_path), ["year", "land"])
    assert [row["x"] for row in read_parquet(tmp_path, partitioning=None, partition_filter=only).take_all()] == [0, 2]
    none = PathPartitionFilter.of(lambda values: False)
    with pytest.raises(FileNotFoundError, match="partition_filter keeps none of the 3 files"):
        read_parquet(tmp_path, partition_filter=none)
    with pytest.raises(ValueError, match="field_names must name every directory"):
        read_parquet(tmp_path, partitioning=Partitioning("dir", field_names=["year"]))
    with pytest.raises(ValueError, match="field_names must be"):
        Partitioning("dir")


names = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3, unique=True)


@given(names, st.data())
def test_a_parser_gives_back_what_the_directories_say(fields, data):
    values = [data.draw(st.integers(-9, 9)) for _ in fields]
    types = dict.fromkeys(fields, int)
    hive = "/".join(f"{name}={value}" for name, value in zip(fields, values, strict=True))
    plain = "/".join(map(str, values))
    expected = dict(zip(fields, values, strict=True))
    assert PathPartitionParser.of("hive", "/d", fields, types)(f"/d/{hive}/f") == expected
    assert PathPartitionParser.of("dir", "/d", fields, types)(f"/d/{plain}/f") == expected
    assert PathPartitionParser.of("dir", "/elsewhere", fields)(f"/d/{plain}/f") == {}


def test_paths_are_skipped_and_each_row_has_a_hash_that_filters_do_not_change(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"x": range(10)}), tmp_path / name / "f.parquet", row_group_size=3)
    dataset = read_parquet(tmp_path, skip_paths=[tmp_path / "b", str(tmp_path / "c" / "f.parquet")])
    assert dataset.input_files() == [str(tmp_path / "a" / "f.parquet")]
    rows = read_parquet(tmp_path, include_row_hash=True).take_all()
    assert len({row["row_hash"] for row in rows}) == 30
    late = read_parquet(tmp_path, include_row_hash=True, filter=col("x") > 7).take_all()
    assert late == [row for row in rows if row["x"] > 7]
    assert read_parquet(tmp_path, include_row_hash=True).select_columns(["row_hash"]).take(1) == [
        {"row_hash": rows[0]["row_hash"]}
    ]


def test_raw_bytes_become_tensors(tmp_path):
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    pq.write_table(pa.table({"i": [image.tobytes() for image in images]}), tmp_path / "a.parquet")
    read = read_parquet(tmp_path, tensor_column_schema={"i": (np.uint8, (3, 4))}).take_batch()
    assert np.array_equal(read["i"], images)
    with pytest.raises(ValueError, match="column 'i' must be the 20 bytes"):
        read_parquet(tmp_path, tensor_column_schema={"i": (np.uint8, (4, 5))}).take_all()
    with pytest.raises(ValueError, match=r"tensor_column_schema\['i'\] must be a pair"):
        read_parquet(tmp_path, tensor_column_schema={"i": np.uint8})


def test_pickled_arrays_are_loaded_only_if_allowed(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}, None], object), allow_pickle=True)
    assert read_numpy(tmp_path, allow_pickle=True).count() == 2


def test_frames_are_sampled_and_resized(tmp_path):
    write_video(tmp_path / "a.mp4", num_frames=20, height=16, width=32)
    rows = read_videos(tmp_path, fps=4, resize=(8, 10)).take_all()
    assert [row["frame_index"] for row in rows] == [0, 3, 5, 8, 10, 13, 15, 18]
    assert rows[0]["frame"].shape == (8, 10, 3)
    assert read_videos(tmp_path, fps=100).count() == 20


def test_opened_tar_files_are_logged(tmp_path, caplog):
    paceline.data.from_items([{"txt": "a"}]).write_webdataset(tmp_path)
    with caplog.at_level(logging.WARNING, "paceline"):
        assert read_webdataset(tmp_path, verbose_open=True).count() == 1
    assert "opening" in caplog.text


class Numbers(Datasource):
    """Ten tasks of ten numbers; what it is asked for is kept in the rows' origin."""

    def __init__(self, distributed=True):
        self.distributed = distributed

    supports_distributed_reads = property(lambda self: self.distributed)

    def supports_projection_pushdown(self):
        return True

    def supports_predicate_pushdown(self):
        return True

    def get_read_tasks(self, parallelism, per_task_row_limit=None, data_context=None):
        columns, predicate = self.get_projection_map(), self.get_current_predicate()
        asked = f"{sorted(columns or ())} {predicate}"

        def read(begin):
            table = {"x": np.arange(begin, begin + 10), "asked": [asked] * 10, "rest": [0] * 10}
            return [{name: values for name, values in table.items() if columns is None or name in columns}]

        return [ReadTask(partial(read, begin)) for begin in range(0, 100, 10)]


def test_a_source_learns_of_columns_and_conditions_and_is_read_by_one_process_if_it_must():
    dataset = paceline.data.read_datasource(Numbers())
    rows = dataset.filter(expr="x > 97").select_columns(["asked"]).take_all()
    assert rows == [{"asked": "['asked', 'x'] (col('x') > 97)"}] * 2
    assert len(dataset.materialize().take_all()) == 100
    alone = paceline.data.read_datasource(Numbers(distributed=False))
    assert alone.materialize().num_blocks() == 1
    assert [row["x"] for row in alone.take_all()] == list(range(100))
