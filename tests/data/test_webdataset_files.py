"""Tar files of samples as rows."""

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from read_back import block, pipeline

from paceline.data.read_media import read_webdataset

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, "PNG")
    return buffer.getvalue()


def npy(array: Any, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def tar(path: Path, members: dict[str, bytes] | list[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def samples(first: int, last: int) -> dict[str, bytes]:
    return {
        f"s{number}.{suffix}": content
        for number in range(first, last)
        for suffix, content in (("png", png()), ("cls", b"%d" % number), ("json", b'{"n": %d}' % number))
    }


def test_files_with_one_key_are_a_row_and_decoded_by_suffix(tmp_path: Path) -> None:
    members = {
        "a/one.png": png(),
        "a/one.cls": b"7",
        "a/one.txt": "grün".encode(),
        "a/one.json": b'{"x": [1, 2]}',
        "a/one.npy": npy(np.arange(3)),
        "a/one.seg.png": png(),
        "a/one.pkl": pickle.dumps({"x": 1}),
        "a/one.bin": b"\x00\x01",
        "README": b"no sample",
    }
    path = tar(tmp_path / "a.tar", members)
    found = block(read_webdataset(tmp_path))
    (row,) = found.rows()
    assert row["__key__"] == "a/one"
    assert row["__url__"] == str(path)
    np.testing.assert_array_equal(row["png"], PIXELS)
    np.testing.assert_array_equal(row["seg.png"], PIXELS)
    np.testing.assert_array_equal(row["npy"], np.arange(3))
    assert (row["cls"], row["txt"], row["json"]) == (7, "grün", {"x": [1, 2]})
    assert row["pkl"] == pickle.dumps({"x": 1})
    assert row["bin"] == b"\x00\x01"


def test_rows_come_in_the_order_of_the_files_each_tar_a_unit(tmp_path: Path) -> None:
    tar(tmp_path / "b.tar", samples(3, 5))
    tar(tmp_path / "a.tar", samples(0, 3))
    dataset = read_webdataset(tmp_path, include_paths=True)
    assert [task.unit.name for task in pipeline(dataset).tasks] == ["a.tar", "b.tar"]
    found = block(dataset)
    assert found.columns["cls"].tolist() == [0, 1, 2, 3, 4]
    assert found.columns["png"].shape == (5, 4, 4, 3)
    assert found.columns["path"].to_pylist()[3] == str(tmp_path / "b.tar")


@pytest.mark.parametrize(("name", "mode"), [("a.tar.gz", "w:gz"), ("a.tgz", "w:gz"), ("a.tar.xz", "w:xz")])
def test_packed_tar_files_are_read(tmp_path: Path, name: str, mode: str) -> None:
    tar(tmp_path / name, samples(0, 3), mode)
    assert block(read_webdataset(tmp_path)).num_rows == 3


def test_many_samples_are_several_blocks(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {f"{number:04}.cls": b"%d" % number for number in range(200)})
    assert block(read_webdataset(tmp_path)).columns["cls"].tolist() == [*range(200)]


def test_a_sample_that_lacks_a_file_is_null_there(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {"a.txt": b"x", "b.cls": b"1"})
    found = block(read_webdataset(tmp_path))
    assert found.columns["txt"].to_pylist() == ["x", None]
    assert found.columns["cls"].to_pylist() == [None, 1]


def test_without_a_decoder_there_are_bytes(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", samples(0, 1))
    (row,) = block(read_webdataset(tmp_path, decoder=None)).rows()
    assert (row["png"], row["cls"]) == (png(), b"0")


def test_a_decoder_of_the_user_is_called_with_each_sample(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", samples(0, 2))

    def doubled(sample: dict[str, Any]) -> dict[str, Any]:
        return {"key": sample["__key__"], "cls": 2 * int(sample["cls"])}

    assert list(block(read_webdataset(tmp_path, decoder=doubled)).rows()) == [
        {"key": "s0", "cls": 0},
        {"key": "s1", "cls": 2},
    ]
    steps = [True, lambda sample: {"cls": sample["cls"] + 1}]
    assert block(read_webdataset(tmp_path, decoder=steps)).columns["cls"].tolist() == [1, 2]


def test_images_may_stay_those_of_pillow(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {"a.png": png()})
    (image,) = block(read_webdataset(tmp_path, decoder="PIL")).columns["png"]
    assert isinstance(image, Image.Image)
    np.testing.assert_array_equal(np.asarray(image), PIXELS)


@pytest.mark.parametrize("suffixes", [["cls"], [".cls"], ["c*"], lambda suffix: suffix == "cls"])
def test_suffixes_are_chosen_among(tmp_path: Path, suffixes: Any) -> None:
    tar(tmp_path / "a.tar", samples(0, 2))
    assert list(block(read_webdataset(tmp_path, suffixes=suffixes)).columns) == ["__url__", "__key__", "cls"]


def test_files_are_chosen_among_and_renamed(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {"a.image": png(), "a.cls": b"1", "b.image": png(), "b.cls": b"2"})
    dataset = read_webdataset(
        tmp_path,
        filerename=lambda name: name.replace(".image", ".png"),
        fileselect=["*.png", "a.*"],
    )
    found = block(dataset)
    assert found.columns["png"].shape == (2, 4, 4, 3)
    assert found.columns["cls"].to_pylist() == [1, None]


def test_fields_of_json_become_columns_if_asked_for(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {"a.json": json.dumps({"x": 1, "y": "u"}).encode()})
    (row,) = block(read_webdataset(tmp_path, expand_json=True)).rows()
    assert (row["x"], row["y"]) == (1, "u")


def test_a_tar_file_without_samples_has_no_rows(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {})
    tar(tmp_path / "b.tar", samples(0, 1))
    assert block(read_webdataset(tmp_path)).num_rows == 1


def cut(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes()[:at])


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (0, "it ends without the mark of its end: it is empty"),
        (100, "it ends within the header"),
        (700, r"(unexpected end of data|ends within)"),
        (1024, r"it ends without the mark of its end: .*cut off .*\(after 's0.txt'\)"),
        (1024 + 300, r"it ends within the header of a file: it was cut off \(after 's0.txt'\)"),
    ],
)
def test_a_tar_file_that_was_cut_off_is_named_wherever_it_was(tmp_path: Path, at: int, message: str) -> None:
    members = {f"s{number}.txt": b"x" * 400 for number in range(3)}
    cut(tar(tmp_path / "a.tar", members), at)
    with pytest.raises(ValueError, match=rf"a\.tar cannot be read as a tar file of samples: .*{message}"):
        block(read_webdataset(tmp_path))


def test_a_damaged_header_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", {f"s{number}.txt": b"x" * 400 for number in range(3)})
    content = bytearray(path.read_bytes())
    content[1024 + 10] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.tar .*the header of a file is damaged: .*\(after 's0.txt'\)"):
        block(read_webdataset(tmp_path))


def test_a_packed_tar_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    random = np.random.default_rng(0).bytes(20000)
    path = tar(tmp_path / "a.tgz", {"a.bin": random, "b.bin": random[::-1]}, "w:gz")
    cut(path, path.stat().st_size - 5000)
    with pytest.raises(ValueError, match=r"a\.tgz cannot be read as a tar file of samples"):
        block(read_webdataset(tmp_path))


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("s.cls", b"seven"), r"sample 's': its \.cls cannot be decoded"),
        (("s.png", b"no image"), r"sample 's': its \.png cannot be decoded: .*no format"),
        (("s.json", b"{"), r"sample 's': its \.json cannot be decoded"),
        (("s.npy", npy(np.array([None]), allow_pickle=True)), r"sample 's': its \.npy cannot be decoded"),
    ],
)
def test_what_cannot_be_decoded_is_named_with_its_sample(
    tmp_path: Path, member: tuple[str, bytes], message: str
) -> None:
    tar(tmp_path / "a.tar", [member])
    with pytest.raises(ValueError, match=rf"a\.tar cannot be read as a tar file of samples: {message}"):
        block(read_webdataset(tmp_path))


def test_two_files_for_one_column_are_an_error(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", [("s.txt", b"x"), ("s.txt", b"y")])
    with pytest.raises(ValueError, match=r"a\.tar .*sample 's' has two files that end in \.txt"):
        block(read_webdataset(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"suffixes": "jpg"}, "suffixes='jpg' must be a list"),
        ({"fileselect": 5}, "fileselect=5 must be a list"),
        ({"decoder": 5}, "decoder=5 must be a function"),
        ({"filerename": "x"}, "filerename='x' must be a function"),
    ],
)
def test_bad_arguments_are_refused_at_once(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    tar(tmp_path / "a.tar", {})
    with pytest.raises(ValueError, match=message):
        read_webdataset(tmp_path, **arguments)


def test_only_the_columns_asked_for_are_decoded(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {"a.png": b"no image", "a.cls": b"1", "b.png": b"no image", "b.cls": b"2"})
    found = block(read_webdataset(tmp_path, include_paths=True).select_columns(["cls", "path"]), optimize=True)
    assert found.columns["cls"].tolist() == [1, 2]


def test_a_column_that_is_not_there_is_an_error_that_says_which_are(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", samples(0, 1))
    with pytest.raises(KeyError, match=r"no column 'jpg'; there are: .*'png', 'cls', 'json'"):
        block(read_webdataset(tmp_path).select_columns(["jpg"]), optimize=True)
