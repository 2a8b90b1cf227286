"""read_json: lines, arrays and single objects, types over files, and what is said of what is none."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import json as arrow_json
from units_read import blocks_of, rows_of, source_of

from paceline.data import read_json
from paceline.data.sources import json as source_module

ROWS = [{"n": number, "s": f"row {number}", "l": [number], "o": {"k": number / 2}} for number in range(500)]


def _lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", _lines(ROWS).encode()),
        ("a.json", _lines(ROWS).rstrip("\n").encode()),
        ("a.json", ("\n\n" + _lines(ROWS).replace("\n", "\n\n")).encode()),
        ("a.json", b"\xef\xbb\xbf" + _lines(ROWS).encode()),
        ("a.json", json.dumps(ROWS).encode()),
        ("a.json", json.dumps(ROWS, indent=2).encode()),
        ("a.jsonl.gz", gzip.compress(_lines(ROWS).encode())),
        ("a.json.gz", gzip.compress(json.dumps(ROWS).encode())),
    ],
    ids=["lines", "no last end", "empty lines", "mark", "array", "indented array", "packed lines", "packed array"],
)
def test_rows_come_of_every_form(tmp_path: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_PIECE", 3000)
    (tmp_path / name).write_bytes(content)
    assert rows_of(read_json(tmp_path)) == ROWS


def test_lines_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_PIECE", 3000)
    (tmp_path / "a.jsonl").write_text(_lines(ROWS))
    blocks = blocks_of(read_json(tmp_path))
    assert len(blocks) > 5
    assert [row for block in blocks for row in block.rows()] == ROWS


def test_a_line_longer_than_a_piece_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_PIECE", 100)
    rows = [{"s": "short"}, {"s": "x" * 1000}, {"s": "short"}]
    (tmp_path / "a.jsonl").write_text(_lines(rows))
    assert rows_of(read_json(tmp_path)) == rows


@pytest.mark.parametrize("indent", [None, 2])
def test_a_single_object_is_a_row(tmp_path: Path, indent: int | None) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS[3], indent=indent))
    assert rows_of(read_json(tmp_path)) == [ROWS[3]]


def test_an_array_of_other_things_is_the_column_item(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2, 3]")
    assert rows_of(read_json(tmp_path)) == [{"item": 1}, {"item": 2}, {"item": 3}]


def test_fields_that_rows_or_files_lack_are_null_and_numbers_get_the_wider_type(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"b": "x"}\n')
    (tmp_path / "b.jsonl").write_text('{"a": 1.5, "c": true}\n')
    dataset = read_json(tmp_path)
    assert source_of(dataset).schema().types == [pa.float64(), pa.string(), pa.bool_()]
    assert rows_of(dataset) == [
        {"a": 1.0, "b": None, "c": None},
        {"a": None, "b": "x", "c": None},
        {"a": 1.5, "b": None, "c": True},
    ]


def test_types_that_do_not_go_together_name_both_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"a": "x"}\n')
    with pytest.raises(ValueError, match=r"'a' is int64 in .*a\.jsonl and string in .*b\.jsonl"):
        read_json(tmp_path)


@pytest.mark.parametrize("line", ['{"a": "text"}', '{"a": 1, "more": 2}'])
def test_a_row_that_does_not_fit_what_came_before_is_said(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_PIECE", 100)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 100 + line + "\n")
    with pytest.raises(ValueError, match=r"(?s)a\.jsonl cannot be read as JSON: after row \d+.*explicit_schema"):
        rows_of(read_json(tmp_path))


def test_a_schema_of_the_users_own_is_used(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": 2}\n')
    options = arrow_json.ParseOptions(
        explicit_schema=pa.schema([("a", pa.float32()), ("c", pa.string())]), unexpected_field_behavior="ignore"
    )
    assert rows_of(read_json(tmp_path, parse_options=options)) == [{"a": 1.0, "c": None}]


def test_partitions_and_paths_are_columns(tmp_path: Path) -> None:
    (tmp_path / "k=x").mkdir()
    (tmp_path / "k=x/a.json").write_text('{"n": 1}')
    dataset = read_json(tmp_path, include_paths=True)
    assert rows_of(dataset) == [{"n": 1, "k": "x", "path": str(tmp_path / "k=x/a.json")}]
    assert source_of(dataset).schema().names == ["n", "k", "path"]


def test_other_files_of_a_directory_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}')
    (tmp_path / "README.md").write_text("# not JSON")
    assert rows_of(read_json(tmp_path)) == [{"n": 1}]


@pytest.mark.parametrize("content", ["", " \n\n ", "[]"])
def test_an_empty_file_has_no_rows(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert rows_of(read_json(tmp_path)) == []
    (tmp_path / "b.json").write_text('{"n": 1}')
    assert rows_of(read_json(tmp_path)) == [{"n": 1}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"n": 1}\n{"n": \n', r"row 2: Expecting value"),
        (b'{"n": 1}\n[1]\n', r"row 2: it is a list, not an object"),
        (b'[{"n": 1}, {"n"', r"Expecting ':' delimiter"),
        (b'{"n": 1, \n "m": ', r"Expecting value"),
        (b"\x00\xff garbage", r"utf-8|Expecting value"),
    ],
    ids=["broken line", "no object", "truncated array", "truncated object", "garbage"],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"bad\.json cannot be read as JSON: .*({said})"):
        rows_of(read_json(tmp_path))


def test_the_number_of_a_broken_line_counts_from_the_beginning_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_PIECE", 100)
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 700 + "{oops}\n" + '{"n": 1}\n' * 50)
    with pytest.raises(ValueError, match=r"a\.jsonl cannot be read as JSON: row 701: "):
        rows_of(read_json(tmp_path))


def test_a_truncated_packed_file_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(_lines(ROWS).encode())
    (tmp_path / "a.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz cannot be read as JSON"):
        rows_of(read_json(tmp_path))


def test_a_wrong_argument_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}')
    with pytest.raises(ValueError, match=r"lines='yes' must be True or False"):
        read_json(tmp_path, lines="yes")
    with pytest.raises(TypeError, match=r"read_json\(\) has no argument 'orient'"):
        read_json(tmp_path, orient="records")
