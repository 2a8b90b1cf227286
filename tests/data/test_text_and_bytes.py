"""read_text and read_binary_files: lines and whole files."""

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from units_read import blocks_of, column, rows_of, source_of

from paceline.data import read_binary_files, read_text
from paceline.data.sources import binary, text


class TestText:
    def test_a_row_is_a_line_without_its_end(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes("one\r\ntwo\n\n  \nthree ñ".encode())
        (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"four\n"))
        assert column(read_text(tmp_path), "text") == ["one", "two", "three ñ", "four"]
        kept = ["one", "two", "", "  ", "three ñ", "four"]
        assert column(read_text(tmp_path, drop_empty_lines=False), "text") == kept

    def test_long_files_come_in_pieces(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(text, "_PIECE", 1000)
        lines = [f"line {number} é" for number in range(1000)]
        (tmp_path / "a.txt").write_text("\n".join(lines))
        blocks = blocks_of(read_text(tmp_path))
        assert len(blocks) > 5
        assert [row["text"] for block in blocks for row in block.rows()] == lines

    def test_other_signs_that_python_takes_for_ends_of_lines_are_none(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("one\u2028still\x0bone\x85\n")
        assert column(read_text(tmp_path), "text") == ["one\u2028still\x0bone\x85"]

    @pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
    def test_another_encoding_is_read(self, tmp_path: Path, encoding: str) -> None:
        (tmp_path / "a.txt").write_bytes("ñandú\nzwölf\n".encode(encoding))
        assert column(read_text(tmp_path, encoding=encoding), "text") == ["ñandú", "zwölf"]

    def test_partitions_and_paths_are_columns(self, tmp_path: Path) -> None:
        (tmp_path / "k=1").mkdir()
        (tmp_path / "k=1/a.txt").write_text("x\n")
        dataset = read_text(tmp_path, include_paths=True)
        assert rows_of(dataset) == [{"text": "x", "k": 1, "path": str(tmp_path / "k=1/a.txt")}]
        assert source_of(dataset).schema().names == ["text", "k", "path"]
        assert source_of(dataset).schema().types == [pa.string(), pa.int64(), pa.string()]

    def test_an_empty_file_has_no_lines(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("")
        assert rows_of(read_text(tmp_path)) == []

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("a.txt", b"fine\n\xff\xfe\n"),
            ("a.txt", b"cut in a sign \xc3"),
            ("a.txt.gz", b"not packed"),
            ("a.txt.gz", gzip.compress(os.urandom(10_000))[:5000]),
        ],
        ids=["garbage", "truncated", "not packed", "truncated packed"],
    )
    def test_a_broken_file_is_named(self, tmp_path: Path, name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} cannot be read as utf-8 text"):
            rows_of(read_text(tmp_path))

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [({"encoding": "klingon"}, "encoding='klingon'"), ({"drop_empty_lines": 0}, "drop_empty_lines=0")],
    )
    def test_a_wrong_argument_is_named(self, tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
        (tmp_path / "a.txt").write_text("x")
        with pytest.raises(ValueError, match=said):
            read_text(tmp_path, **arguments)
        with pytest.raises(TypeError, match=r"read_text\(\) has no argument 'errors'"):
            read_text(tmp_path, errors="ignore")


class TestBytes:
    def test_a_row_is_a_file(self, tmp_path: Path) -> None:
        contents = [os.urandom(number) for number in range(20)]
        for number, content in enumerate(contents):
            (tmp_path / f"{number:02}.bin").write_bytes(content)
        dataset = read_binary_files(tmp_path, include_paths=True)
        assert column(dataset, "bytes") == contents
        assert column(dataset, "path") == [str(tmp_path / f"{number:02}.bin") for number in range(20)]
        assert source_of(dataset).schema().names == ["bytes", "path"]

    def test_small_files_share_a_unit_and_large_ones_do_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(binary, "_UNIT_BYTES", 1000)
        monkeypatch.setattr(binary, "_UNIT_FILES", 3)
        monkeypatch.setattr(binary, "_PIECE_BYTES", 700)
        sizes = [10, 10, 10, 10, 5000, 400, 400, 400]
        for number, size in enumerate(sizes):
            (tmp_path / f"{number}").write_bytes(b"x" * size)
        units = source_of(read_binary_files(tmp_path)).units()
        assert [unit.num_rows for unit in units] == [3, 1, 1, 2, 1]
        assert [unit.name for unit in units] == ["0 to 2", "3", "4", "5 to 6", "7"]
        assert [block.num_rows for block in units[3].read()] == [1, 1]
        assert [len(row) for row in column(read_binary_files(tmp_path), "bytes")] == sizes
        assert [unit.num_rows for unit in source_of(read_binary_files(tmp_path, override_num_blocks=2)).units()] == [
            4,
            4,
        ]
        assert len(source_of(read_binary_files(tmp_path, override_num_blocks=100)).units()) == 8

    def test_packed_files_are_unpacked(self, tmp_path: Path) -> None:
        (tmp_path / "a.gz").write_bytes(gzip.compress(b"content"))
        assert column(read_binary_files(tmp_path), "bytes") == [b"content"]

    def test_a_broken_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.gz").write_bytes(gzip.compress(b"content")[:-9])
        with pytest.raises(OSError, match=r"a\.gz cannot be read"):
            rows_of(read_binary_files(tmp_path))

    def test_a_file_that_is_gone_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x")
        dataset = read_binary_files(tmp_path)
        (tmp_path / "a").unlink()
        with pytest.raises(FileNotFoundError, match=r"/a is gone"):
            rows_of(dataset)
