"""read_csv: types, streams, packed files, and what is said of files that do not fit."""

import gzip
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from units_read import blocks_of, column, rows_of, source_of

from paceline.data import read_csv
from paceline.data.block import Block
from paceline.data.sources import csv


@pytest.fixture
def frame(tmp_path: Path) -> pd.DataFrame:
    """1000 rows in three files, one of them packed; a quoted end of a line among them."""
    frame = pd.DataFrame(
        {
            "n": range(1000),
            "x": [row / 4 for row in range(1000)],
            "s": [f"row {row}" if row % 10 else 'quoted, "and"\nbroken' for row in range(1000)],
            "b": [row % 2 == 0 for row in range(1000)],
        }
    )
    frame[:300].to_csv(tmp_path / "a.csv", index=False)
    frame[300:600].to_csv(tmp_path / "b.csv.gz", index=False)
    frame[600:][["b", "s", "x", "n"]].to_csv(tmp_path / "c.csv", index=False)
    return frame


def test_batches_are_what_pandas_reads(tmp_path: Path, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv, "BLOCK_BYTES", 4096)
    blocks = blocks_of(read_csv(tmp_path))
    assert len(blocks) > 6
    pd.testing.assert_frame_equal(Block.concat(blocks).to_pandas(), frame, check_dtype=False)
    units = source_of(read_csv(tmp_path)).units()
    assert [unit.name for unit in units] == ["a.csv", "b.csv.gz", "c.csv"]
    assert [(unit.num_rows, unit.num_bytes) for unit in units] == [
        (None, (tmp_path / unit.name).stat().st_size) for unit in units
    ]
    assert [unit.file for unit in source_of(read_csv(tmp_path)).units()] == [unit.file for unit in units]


@pytest.mark.usefixtures("frame")
def test_projection_is_selection(tmp_path: Path) -> None:
    source = source_of(read_csv(tmp_path))
    projected = source.project_columns(["x", "n"])
    assert projected.schema().names == ["x", "n"]
    found = [row for unit in projected.units() for block in unit.read() for row in block.rows()]
    assert found == [{"x": row["x"], "n": row["n"]} for row in rows_of(read_csv(tmp_path))]
    assert source.project_columns([]) is None
    assert source.project_columns(["nowhere"]) is None


def test_the_schema_is_that_of_the_first_file_with_partitions_and_paths_as_columns(tmp_path: Path) -> None:
    (tmp_path / "k=7").mkdir()
    (tmp_path / "k=7/a.csv").write_text("n,x,empty\n1,1.5,\n")
    dataset = read_csv(tmp_path, include_paths=True)
    assert rows_of(dataset) == [{"n": 1, "x": 1.5, "empty": "", "k": 7, "path": str(tmp_path / "k=7/a.csv")}]
    source = source_of(dataset)
    assert source.schema().names == ["n", "x", "empty", "k", "path"]
    assert source.schema().types[:3] == [pa.int64(), pa.float64(), pa.string()]
    projected = source.project_columns(["k", "n"]).units()
    assert [row for unit in projected for block in unit.read() for row in block.rows()] == [{"k": 7, "n": 1}]


def test_options_of_pyarrow_are_used(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;x;3\n2;y;4\n")
    dataset = read_csv(
        tmp_path,
        read_options=arrow_csv.ReadOptions(column_names=["a", "b", "c"]),
        parse_options=arrow_csv.ParseOptions(delimiter=";"),
        convert_options=arrow_csv.ConvertOptions(include_columns=["c", "a"], column_types={"a": pa.float32()}),
    )
    assert rows_of(dataset) == [{"c": 3, "a": 1.0}, {"c": 4, "a": 2.0}]
    assert source_of(dataset).schema().types == [pa.int64(), pa.float32()]
    (tmp_path / "a.csv").write_bytes("s\nñandú\n".encode("latin-1"))
    assert column(read_csv(tmp_path, read_options=arrow_csv.ReadOptions(encoding="latin-1")), "s") == ["ñandú"]


@pytest.mark.parametrize("name", ["empty.csv", "a-empty.csv.gz"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"") if name.endswith("gz") else b"")
    assert rows_of(read_csv(tmp_path)) == []
    assert source_of(read_csv(tmp_path)).schema() is None
    (tmp_path / "b.csv").write_text("n\n1\n")
    (tmp_path / "header.csv").write_text("n\n")
    assert rows_of(read_csv(tmp_path)) == [{"n": 1}]


PACKED = gzip.compress(b"n,s\n" + b"".join(b"%d,%d\n" % (row, hash(row / 7)) for row in range(5000)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"s,n\nx,1\ny,none\n", r"b\.csv .*column 'n', .*invalid value 'none'"),
        (b"n,s\n1,x,y\n", r"b\.csv .*Expected 2 columns, got 3"),
        (b"n,s\n1,\xff\xfe\n", r"b\.csv .*column 's', .*UTF8"),
        (b"n\n1\n", r"b\.csv lacks the column 's' of the first file"),
        (b"n,s,more\n1,x,y\n", r"b\.csv has a column 'more' that the first file lacks"),
        (PACKED[: len(PACKED) // 2], r"cannot read \S*b\.csv\.gz as CSV: "),
    ],
    ids=["value", "columns", "encoding", "missing", "more", "truncated"],
)
def test_a_later_file_that_does_not_fit_is_named_with_the_column(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.csv").write_text("n,s\n1,x\n")
    (tmp_path / ("b.csv.gz" if content[:1] == b"\x1f" else "b.csv")).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        rows_of(read_csv(tmp_path))


def test_a_value_that_does_not_fit_is_named_with_its_row_and_its_column_where_only_some_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv, "BLOCK_BYTES", 1024)
    lines = [f"7,x,{row}" for row in range(1000)]
    lines[900] = "7,x,none"
    (tmp_path / "a.csv").write_text("n,s\n1,x\n")
    (tmp_path / "b.csv").write_text("\n".join(["other,s,n", *lines]))
    options = arrow_csv.ConvertOptions(include_columns=["n"])
    with pytest.raises(ValueError, match=r"b\.csv .*column 'n', after row \d{3}: .*'none'\n\nhint: "):
        rows_of(read_csv(tmp_path, convert_options=options))


def test_a_wrong_argument_or_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,n\n1,2\n")
    with pytest.raises(ValueError, match=r"a\.csv has two columns named 'n'"):
        read_csv(tmp_path)
    with pytest.raises(ValueError, match=r"parse_options must be a pyarrow\.csv\.ParseOptions.*, got ';'"):
        read_csv(tmp_path, parse_options=";")
    with pytest.raises(TypeError, match=r"read_csv\(\) has no argument 'delimiter'; it has .*parse_options"):
        read_csv(tmp_path, delimiter=";")
