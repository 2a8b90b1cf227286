"""Formats with a library of their own, each with real files of it; and frames of other libraries."""

import sqlite3
import sys
import types

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import dataset_of
from pyarrow import fs, orc

import paceline.data
from paceline.data import from_items
from paceline.data.block import Block

ROWS = [{"x": n, "s": f"a b{n % 3}", "y": n / 2} for n in range(20)]


def rows_of(number=20, units=4):
    return from_items(ROWS[:number], override_num_blocks=units)


def failing():
    """Rows whose second unit raises."""

    def broken():
        yield Block.from_rows([{"x": -1, "s": "broken", "y": 0.0}])
        raise RuntimeError("the reader is broken")

    return dataset_of([{"x": [100], "s": ["new"], "y": [0.5]}], broken)


def read_all(dataset):
    return sorted(dataset.take_all(), key=lambda row: row["x"])


def check_resume(dataset):
    """From every batch on, the rest is the tail."""
    whole = [batch["x"].tolist() for batch in dataset.iterator().iter_batches(batch_size=3)]
    interrupted, again = dataset.iterator(), dataset.iterator()
    batches = iter(interrupted.iter_batches(batch_size=3))
    for _ in range(4):
        next(batches)
    again.set_state(interrupted.get_state())
    assert [batch["x"].tolist() for batch in again.iter_batches(batch_size=3)] == whole[4:]


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(-(2**40), 2**40), st.text("ab", max_size=2) | st.none()), min_size=1))
def test_orc_files_hold_what_pyarrow_finds_in_them(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("orc")
    table = pa.table({"x": [x for x, _ in pairs], "s": pa.array([s for _, s in pairs], pa.string())})
    paceline.data.from_arrow(table, override_num_blocks=2).write_orc(path, compression="zstd")
    files = sorted(path.iterdir())
    assert pa.concat_tables(orc.read_table(file) for file in files).equals(table)
    read = paceline.data.read_orc(path)
    assert read.take_all() == table.to_pylist()
    assert read.select_columns(["s"]).take_all() == table.select(["s"]).to_pylist()


def test_orc_refuses_tensors_and_options_that_pyarrow_does(tmp_path):
    with pytest.raises(ValueError, match="column 't' has tensors"):
        from_items([{"t": np.zeros((2, 2))}]).write_orc(tmp_path / "a")
    with pytest.raises(ValueError, match="pyarrow rejects"):
        rows_of().write_orc(tmp_path / "a", compression="rar")
    assert not (tmp_path / "a").exists()


def test_avro_records_are_rows(tmp_path):
    fastavro = pytest.importorskip("fastavro")
    kinds = (("x", "long"), ("s", ["null", "string"]))
    schema = {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in kinds]}
    records = [{"x": 1, "s": "a"}, {"x": 2, "s": None}]
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, records, codec="deflate")
    assert paceline.data.read_avro(tmp_path).take_all() == records
    (tmp_path / "a.avro").write_bytes((tmp_path / "a.avro").read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"cannot read \S*a\.avro as Avro"):
        paceline.data.read_avro(tmp_path).take_all()


def test_delta_tables_have_versions_partitions_and_whole_commits(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "t")
    rows_of().write_delta(path, partition_by=["s"])
    rows_of(5).write_delta(path)
    dataset = paceline.data.read_delta(path)
    assert read_all(dataset) == sorted(ROWS + ROWS[:5], key=lambda row: row["x"])
    assert dataset.columns() == ["x", "s", "y"]
    assert read_all(paceline.data.read_delta(path, 0, columns=["x"])) == [{"x": row["x"]} for row in ROWS]
    assert dataset.filter(expr="s == 'a b1' and x > 16").take_all() == [ROWS[19]]
    check_resume(dataset)
    with pytest.raises(RuntimeError, match="the reader is broken"):
        failing().write_delta(path)
    with pytest.raises(FileExistsError):
        rows_of().write_delta(path, mode="create")
    rows_of().write_delta(path, mode="ignore")
    assert deltalake.DeltaTable(path).version() == 1
    rows_of(2).write_delta(path, mode="overwrite")
    assert read_all(paceline.data.read_delta(path)) == ROWS[:2]
    with pytest.raises(ValueError, match="mode must be"):
        rows_of().write_delta(path, mode="upsert")


@pytest.fixture
def iceberg_threads():
    """Pyiceberg keeps threads for good."""
    concurrent = pytest.importorskip("pyiceberg.utils.concurrent")
    yield
    concurrent.ExecutorFactory.get_or_create().shutdown()
    concurrent.ExecutorFactory._instance = None


def test_iceberg_tables_are_filtered_overwritten_and_updated(tmp_path, iceberg_threads):
    from pyiceberg.catalog import load_catalog

    where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    catalog = load_catalog("c", **where)
    catalog.create_namespace("db")
    fields = [("x", pa.int64()), ("s", pa.string()), ("y", pa.float64())]
    catalog.create_table("db.t", schema=pa.schema(fields))
    options = {"name": "c", **where}

    def read(**more):
        return paceline.data.read_iceberg(table_identifier="db.t", catalog_kwargs=options, **more)

    assert read().take_all() == []
    rows_of().write_iceberg("db.t", options, snapshot_properties={"by": "test"})
    first = catalog.load_table("db.t").current_snapshot().snapshot_id
    assert read_all(read()) == ROWS
    assert read_all(read(row_filter="x >= 18", selected_fields=["x"])) == [{"x": 18}, {"x": 19}]
    assert read_all(read().select_columns(["x"])) == [{"x": row["x"]} for row in ROWS]
    check_resume(read())
    with pytest.raises(RuntimeError, match="the reader is broken"):
        failing().write_iceberg("db.t", options)
    assert read().count() == 20
    new = [{"x": 1, "s": "new", "y": 0.0}, {"x": 99, "s": "new", "y": 0.0}]
    from_items(new).write_iceberg("db.t", options, mode="upsert", upsert_kwargs={"join_cols": ["x"]})
    assert read_all(read(row_filter="s == 'new'")) == new
    assert read().count() == 21
    from_items(new[:1]).write_iceberg("db.t", options, mode="overwrite", overwrite_filter="x > 1")
    assert [row["x"] for row in read_all(read())] == [0, 1, 1]
    assert read(snapshot_id=first).count() == 20
    with pytest.raises(ValueError, match="'append', 'overwrite' or 'upsert'"):
        rows_of().write_iceberg("db.t", options, mode="create")


def test_lance_datasets_have_versions_filters_and_whole_commits(tmp_path):
    pytest.importorskip("lance")
    path = str(tmp_path / "t.lance")
    rows_of().write_lance(path)
    rows_of(3).write_lance(path, mode="append")
    read = paceline.data.read_lance
    assert read(path).take_all() == ROWS + ROWS[:3]
    assert read(path, version=1, columns=["y", "x"], filter="x > 18").take_all() == [{"y": 9.5, "x": 19}]
    assert read(path).select_columns(["s"]).count() == 23
    check_resume(read(path))
    with pytest.raises(RuntimeError, match="the reader is broken"):
        failing().write_lance(path, mode="append")
    assert read(path).count() == 23
    with pytest.raises(OSError, match="already exists"):
        rows_of().write_lance(path)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_chunks_are_rows(tmp_path, zarr_format):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "z", mode="w", zarr_format=zarr_format)
    a, b = np.arange(20).reshape(10, 2), np.arange(10.0)
    group.create_array("g/a", data=a, chunks=(4, 2))
    group.create_array("b", data=b, chunks=(5,))
    assert (tmp_path / "z" / "b" / ".zarray").exists() == (zarr_format == 2)
    read = paceline.data.read_zarr
    with pytest.raises(ValueError, match="no consolidated metadata"):
        read(tmp_path / "z")
    rows = read(tmp_path / "z", allow_full_metadata_scan=True).take_all()
    assert [row["array"] for row in rows] == ["b", "b", "g/a", "g/a", "g/a"]
    assert rows[4]["chunk_slices"].tolist() == [[8, 10], [0, 2]]
    assert rows[4]["chunk_index"].tolist() == [2, 0]
    assert np.array_equal(np.concatenate([row["chunk"] for row in rows[2:]]), a)
    aligned = read(tmp_path / "z", array_paths=["g/a", "b"], chunk_shapes=[4], align_axis_0=True, overlap=1).take_all()
    assert [(row["t_start"], row["t_stop"]) for row in aligned] == [(0, 4), (4, 8), (8, 10)]
    assert np.array_equal(aligned[1]["g/a"], a[4:9])
    assert np.array_equal(aligned[1]["b"], b[4:9])
    assert read(tmp_path / "z" / "b").count() == 2
    with pytest.raises(ValueError, match="filesystem must be one of fsspec"):
        read(tmp_path / "z" / "b", filesystem=fs.LocalFileSystem())
    if zarr_format == 2:
        zarr.consolidate_metadata(tmp_path / "z")
        assert read(tmp_path / "z").count() == 5
    with pytest.raises(ValueError, match="needs arrays of one chunk length"):
        read(tmp_path / "z", array_paths=["g/a", "b"], align_axis_0=True)


def test_sql_rows_are_one_transaction(tmp_path):
    def connect():
        return sqlite3.connect(tmp_path / "a.db")

    with connect() as connection:
        connection.execute("CREATE TABLE t (x INTEGER, s TEXT, y REAL)")
    connection.close()
    insert = "INSERT INTO t VALUES (?, ?, ?)"
    rows_of().write_sql(insert, connect)
    assert paceline.data.read_sql("SELECT * FROM t ORDER BY x", connect).take_all() == ROWS
    with pytest.raises(RuntimeError, match="the reader is broken"):
        failing().write_sql(insert, connect)
    assert paceline.data.read_sql("SELECT * FROM t", connect).count() == 20


def test_dask_partitions_are_units_and_units_are_partitions():
    frames = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"x": range(10), "s": list("abcdefghij")})
    dataset = paceline.data.from_dask(frames.from_pandas(frame, npartitions=3))
    assert dataset.take_all() == frame.to_dict("records")
    back = dataset.to_dask()
    assert back.npartitions == 3
    computed = back.compute(scheduler="synchronous")
    assert computed.to_dict("list") == frame.to_dict("list")


def test_blocks_are_tables_or_frames():
    dataset = paceline.data.from_blocks([pa.table({"x": [1]}), pd.DataFrame({"x": [2]})])
    assert dataset.take_all() == [{"x": 1}, {"x": 2}]


class StandIn:
    """What is used of frames of libraries that cannot be installed beside ours."""

    def __init__(self, frame):
        self.frame = frame

    def to_arrow(self):
        return pa.Table.from_pandas(self.frame, preserve_index=False)

    toArrow = to_arrow

    def _to_pandas(self):
        return self.frame

    @staticmethod
    def from_arrow(table):
        return StandIn(table.to_pandas())

    createDataFrame = from_arrow
    DataFrame = staticmethod(lambda frame: StandIn(frame))


@pytest.mark.parametrize(("name", "module"), [("modin", "modin.pandas"), ("daft", "daft"), ("spark", "pyspark.sql")])
def test_frames_of_other_libraries_are_converted_by_their_own_methods(monkeypatch, name, module):
    for part in {module, module.partition(".")[0]}:
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    for attribute in ("from_arrow", "DataFrame"):
        setattr(sys.modules[module], attribute, getattr(StandIn, attribute))
    kind = type("DataFrame", (StandIn,), {"__module__": f"{module}.dataframe"})
    frame = pd.DataFrame({"x": [1, 2]})
    convert = getattr(paceline.data, f"from_{name}")
    dataset = convert(kind(frame))
    assert dataset.take_all() == [{"x": 1}, {"x": 2}]
    back = getattr(dataset, f"to_{name}")(*([StandIn] if name == "spark" else []))
    assert back.frame.x.tolist() == [1, 2]
    with pytest.raises(TypeError, match="df must be a"):
        convert(frame)
