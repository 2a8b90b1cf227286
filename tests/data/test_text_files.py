"""read_csv, read_json, read_text and read_binary_files: types, streams, packed files, and files that do not fit."""

import gzip
import json
import os

import pandas as pd
import pyarrow as pa
import pytest
from made_datasets import blocks_of, column, rows_of, source_of
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from paceline.data import read_binary_files, read_csv, read_json, read_text
from paceline.data.block import Block
from paceline.data.sources import media, text


@pytest.fixture
def frame(tmp_path):
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


def test_batches_are_what_pandas_reads(tmp_path, frame, monkeypatch):
    monkeypatch.setattr(text, "CSV_BLOCK_BYTES", 4096)
    blocks = blocks_of(read_csv(tmp_path))
    assert len(blocks) > 6
    pd.testing.assert_frame_equal(Block.concat(blocks).to_pandas(), frame, check_dtype=False)
    units = source_of(read_csv(tmp_path)).units()
    assert [unit.name for unit in units] == ["a.csv", "b.csv.gz", "c.csv"]
    assert [(unit.num_rows, unit.num_bytes) for unit in units] == [
        (None, (tmp_path / unit.name).stat().st_size) for unit in units
    ]
    assert [unit.file for unit in source_of(read_csv(tmp_path)).units()] == [unit.file for unit in units]


def test_the_schema_is_that_of_the_first_file_and_its_columns_have_different_names(tmp_path):
    (tmp_path / "k=7").mkdir()
    (tmp_path / "k=7/a.csv").write_text("n,x,empty\n1,1.5,\n")
    dataset = read_csv(tmp_path, include_paths=True)
    source = source_of(dataset)
    assert source.schema().names == ["n", "x", "empty", "k", "path"]
    assert source.schema().types[:3] == [pa.int64(), pa.float64(), pa.string()]
    projected = source.project_columns(["k", "n"]).units()
    assert [row for unit in projected for block in unit.read() for row in block.rows()] == [{"k": 7, "n": 1}]
    (tmp_path / "k=7/a.csv").write_text("n,n\n1,2\n")
    with pytest.raises(ValueError, match=r"a\.csv has two columns named 'n'"):
        read_csv(tmp_path)


def test_options_of_pyarrow_are_used(tmp_path):
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


PACKED = gzip.compress(b"n,s\n" + b"".join(b"%d,%d\n" % (row, hash(row / 7)) for row in range(5000)))


@pytest.mark.parametrize(
    ("content", "message"),
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
def test_a_later_file_that_does_not_fit_is_named_with_the_column(tmp_path, content, message):
    (tmp_path / "a.csv").write_text("n,s\n1,x\n")
    (tmp_path / ("b.csv.gz" if content[:1] == b"\x1f" else "b.csv")).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        rows_of(read_csv(tmp_path))


def test_a_value_that_does_not_fit_is_named_with_its_row_and_its_column_where_only_some_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CSV_BLOCK_BYTES", 1024)
    lines = [f"7,x,{row}" for row in range(1000)]
    lines[900] = "7,x,none"
    (tmp_path / "a.csv").write_text("n,s\n1,x\n")
    (tmp_path / "b.csv").write_text("\n".join(["other,s,n", *lines]))
    options = arrow_csv.ConvertOptions(include_columns=["n"])
    with pytest.raises(ValueError, match=r"b\.csv .*column 'n', after row \d{3}: .*'none'\n\nhint: "):
        rows_of(read_csv(tmp_path, convert_options=options))


ROWS = [{"n": number, "s": f"row {number}", "l": [number], "o": {"k": number / 2}} for number in range(500)]


def _lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


FORMS = {
    "lines": ("a.jsonl", _lines(ROWS).encode(), ROWS),
    "no last end": ("a.json", _lines(ROWS).rstrip("\n").encode(), ROWS),
    "empty lines": ("a.json", ("\n\n" + _lines(ROWS).replace("\n", "\n\n")).encode(), ROWS),
    "mark": ("a.json", b"\xef\xbb\xbf" + _lines(ROWS).encode(), ROWS),
    "array": ("a.json", json.dumps(ROWS).encode(), ROWS),
    "indented array": ("a.json", json.dumps(ROWS, indent=2).encode(), ROWS),
    "packed lines": ("a.jsonl.gz", gzip.compress(_lines(ROWS).encode()), ROWS),
    "packed array": ("a.json.gz", gzip.compress(json.dumps(ROWS).encode()), ROWS),
    "object": ("a.json", json.dumps(ROWS[3]).encode(), [ROWS[3]]),
    "indented object": ("a.json", json.dumps(ROWS[3], indent=2).encode(), [ROWS[3]]),
    "array of numbers": ("a.json", b"[1, 2]", [{"item": 1}, {"item": 2}]),
}


@pytest.mark.parametrize(("name", "content", "rows"), FORMS.values(), ids=FORMS)
def test_rows_come_of_every_form(tmp_path, name, content, rows, monkeypatch):
    monkeypatch.setattr(text, "JSON_PIECE_BYTES", 3000)
    (tmp_path / name).write_bytes(content)
    assert rows_of(read_json(tmp_path)) == rows


def test_files_have_one_schema_or_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"b": "x"}\n')
    (tmp_path / "b.jsonl").write_text('{"a": 1.5, "c": true}\n')
    dataset = read_json(tmp_path)
    assert source_of(dataset).schema().types == [pa.float64(), pa.string(), pa.bool_()]
    assert [column(dataset, name) for name in "abc"] == [[1.0, None, 1.5], [None, "x", None], [None, None, True]]
    (tmp_path / "c.jsonl").write_text('{"a": "x"}\n')
    with pytest.raises(ValueError, match=r"column 'a' has incompatible types: \w+ in .*a\.jsonl, string in .*c\.jsonl"):
        read_json(tmp_path)


def test_a_schema_of_the_users_own_is_used(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": 2}\n')
    options = arrow_json.ParseOptions(
        explicit_schema=pa.schema([("a", pa.float32()), ("c", pa.string())]), unexpected_field_behavior="ignore"
    )
    assert rows_of(read_json(tmp_path, parse_options=options)) == [{"a": 1.0, "c": None}]


@pytest.mark.parametrize(
    ("read", "name", "content", "others"),
    [
        (read_csv, "empty.csv", b"", {"b.csv": "n\n1\n", "header.csv": "n\n"}),
        (read_csv, "a-empty.csv.gz", gzip.compress(b"", mtime=0), {"b.csv": "n\n1\n", "header.csv": "n\n"}),
        *((read_json, "a.json", content, {"b.json": '{"n": 1}'}) for content in (b"", b" \n\n ", b"[]")),
    ],
)
def test_an_empty_file_has_no_rows(tmp_path, read, name, content, others):
    (tmp_path / name).write_bytes(content)
    assert rows_of(read(tmp_path)) == []
    assert source_of(read(tmp_path)).schema() is None
    for other, rows in others.items():
        (tmp_path / other).write_text(rows)
    assert rows_of(read(tmp_path)) == [{"n": 1}]


def test_a_row_of_text_is_a_line_without_its_end(tmp_path):
    (tmp_path / "a.txt").write_bytes("one\r\ntwo\n\n  \nthree ñ\u2028\x0b\x85\n".encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"four\n"))
    (tmp_path / "c.txt").write_text("")
    assert column(read_text(tmp_path), "text") == ["one", "two", "three ñ\u2028\x0b\x85", "four"]
    kept = ["one", "two", "", "  ", "three ñ\u2028\x0b\x85", "four"]
    assert column(read_text(tmp_path, drop_empty_lines=False), "text") == kept


def test_long_texts_and_lines_of_json_come_in_pieces_and_a_longer_line_stays_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "TEXT_PIECE_BYTES", 1000)
    lines = [f"line {number} é" for number in range(1000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    blocks = blocks_of(read_text(tmp_path))
    assert len(blocks) > 5
    assert [row["text"] for block in blocks for row in block.rows()] == lines
    monkeypatch.setattr(text, "JSON_PIECE_BYTES", 3000)
    rows = [*ROWS[:250], {**ROWS[250], "s": "x" * 10_000}, *ROWS[251:]]
    (tmp_path / "a.jsonl").write_text(_lines(rows))
    blocks = blocks_of(read_json(tmp_path))
    assert len(blocks) > 5
    assert [row for block in blocks for row in block.rows()] == rows


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding_is_read(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("ñandú\nzwölf\n".encode(encoding))
    assert column(read_text(tmp_path, encoding=encoding), "text") == ["ñandú", "zwölf"]


def test_small_files_share_a_unit_and_large_ones_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(media.BinaryReader, "unit_bytes", 1000)
    monkeypatch.setattr(media.BinaryReader, "max_unit_files", 3)
    monkeypatch.setattr(media, "_BLOCK_BYTES", 700)
    contents = [os.urandom(size) for size in (10, 10, 10, 10, 5000, 400, 400, 0)]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}").write_bytes(content)
    units = source_of(read_binary_files(tmp_path)).units()
    assert [unit.name for unit in units] == ["0 to 2 (3 files)", "3", "4", "5 to 7 (3 files)"]
    assert [unit.num_rows for unit in units] == [3, 1, 1, 3]
    assert [block.num_rows for block in units[3].read()] == [2, 1]
    assert column(read_binary_files(tmp_path), "bytes") == contents
    for number, sizes in ((2, [4, 4]), (100, [1] * 8)):
        units = source_of(read_binary_files(tmp_path, override_num_blocks=number)).units()
        assert [unit.num_rows for unit in units] == sizes
