"""read_json: lines, arrays and single objects, and types over files."""

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
def test_rows_come_of_every_form(
    tmp_path: Path, name: str, content: bytes, rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_PIECE", 3000)
    (tmp_path / name).write_bytes(content)
    assert rows_of(read_json(tmp_path)) == rows


def test_lines_come_in_pieces_and_one_longer_than_a_piece_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_PIECE", 3000)
    rows = [*ROWS[:250], {**ROWS[250], "s": "x" * 10_000}, *ROWS[251:]]
    (tmp_path / "a.jsonl").write_text(_lines(rows))
    blocks = blocks_of(read_json(tmp_path))
    assert len(blocks) > 5
    assert [row for block in blocks for row in block.rows()] == rows


def test_files_have_one_schema_or_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"b": "x"}\n')
    (tmp_path / "b.jsonl").write_text('{"a": 1.5, "c": true}\n')
    dataset = read_json(tmp_path)
    assert source_of(dataset).schema().types == [pa.float64(), pa.string(), pa.bool_()]
    assert rows_of(dataset) == [
        {"a": 1.0, "b": None, "c": None},
        {"a": None, "b": "x", "c": None},
        {"a": 1.5, "b": None, "c": True},
    ]
    (tmp_path / "c.jsonl").write_text('{"a": "x"}\n')
    with pytest.raises(ValueError, match=r"column 'a' has incompatible types: \w+ in .*a\.jsonl, string in .*c\.jsonl"):
        read_json(tmp_path)


def test_a_schema_of_the_users_own_is_used(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": 2}\n')
    options = arrow_json.ParseOptions(
        explicit_schema=pa.schema([("a", pa.float32()), ("c", pa.string())]), unexpected_field_behavior="ignore"
    )
    assert rows_of(read_json(tmp_path, parse_options=options)) == [{"a": 1.0, "c": None}]


def test_partitions_and_paths_are_columns_and_other_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "k=x").mkdir()
    (tmp_path / "README.md").write_text("# not JSON")
    (tmp_path / "k=x/a.json").write_text('{"n": 1}')
    dataset = read_json(tmp_path, include_paths=True)
    assert rows_of(dataset) == [{"n": 1, "k": "x", "path": str(tmp_path / "k=x/a.json")}]
    assert source_of(dataset).schema().names == ["n", "k", "path"]


@pytest.mark.parametrize("content", ["", " \n\n ", "[]"])
def test_an_empty_file_has_no_rows(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert rows_of(read_json(tmp_path)) == []
    (tmp_path / "b.json").write_text('{"n": 1}')
    assert rows_of(read_json(tmp_path)) == [{"n": 1}]
