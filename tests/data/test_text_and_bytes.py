"""read_text and read_binary_files: lines and whole files."""

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pytest
from units_read import blocks_of, column, rows_of, source_of

from paceline.data import read_binary_files, read_text
from paceline.data.sources import binary, media, text


def test_a_row_of_text_is_a_line_without_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\r\ntwo\n\n  \nthree ñ\u2028\x0b\x85\n".encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"four\n"))
    (tmp_path / "c.txt").write_text("")
    assert column(read_text(tmp_path), "text") == ["one", "two", "three ñ\u2028\x0b\x85", "four"]
    kept = ["one", "two", "", "  ", "three ñ\u2028\x0b\x85", "four"]
    assert column(read_text(tmp_path, drop_empty_lines=False), "text") == kept


def test_long_texts_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_PIECE", 1000)
    lines = [f"line {number} é" for number in range(1000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    blocks = blocks_of(read_text(tmp_path))
    assert len(blocks) > 5
    assert [row["text"] for block in blocks for row in block.rows()] == lines


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes("ñandú\nzwölf\n".encode(encoding))
    assert column(read_text(tmp_path, encoding=encoding), "text") == ["ñandú", "zwölf"]


def test_partitions_and_paths_are_columns(tmp_path: Path) -> None:
    (tmp_path / "k=1").mkdir()
    (tmp_path / "k=1/a.txt").write_text("x\n")
    for read, name, kind, value in (
        (read_text, "text", pa.string(), "x"),
        (read_binary_files, "bytes", pa.binary(), b"x\n"),
    ):
        dataset = read(tmp_path, include_paths=True)
        assert rows_of(dataset) == [{name: value, "k": 1, "path": str(tmp_path / "k=1/a.txt")}]
        schema = source_of(dataset).schema()
        assert (schema.names, schema.types) == ([name, "k", "path"], [kind, pa.int64(), pa.string()])


def test_small_files_share_a_unit_and_large_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary.BinaryReader, "unit_bytes", 1000)
    monkeypatch.setattr(binary.BinaryReader, "max_unit_files", 3)
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


def test_packed_files_are_unpacked_and_one_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"content"))
    dataset = read_binary_files(tmp_path)
    assert column(dataset, "bytes") == [b"content"]
    (tmp_path / "a.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"/a\.gz no longer exists"):
        rows_of(dataset)
