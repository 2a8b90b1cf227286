"""read_webdataset: tar files of samples as rows and what is chosen of them."""

import pickle

import numpy as np
import pytest
from made_datasets import block, save_array, save_image, write_tar
from PIL import Image

from paceline.data.read import read_webdataset

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
PNG = save_image(PIXELS)


def tar(path, members, mode="w"):
    path.write_bytes(write_tar(*members.items(), mode=mode))
    return path


def samples(first, last):
    return {
        f"s{number}.{suffix}": content
        for number in range(first, last)
        for suffix, content in (("png", PNG), ("cls", b"%d" % number), ("json", b'{"n": %d}' % number))
    }


def test_files_with_one_key_are_a_row_and_decoded_by_suffix(tmp_path):
    members = {
        "a/one.png": PNG,
        "a/one.cls": b"7",
        "a/one.txt": "grün".encode(),
        "a/one.json": b'{"x": [1, 2]}',
        "a/one.npy": save_array(np.arange(3)),
        "a/one.seg.png": PNG,
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


@pytest.mark.parametrize(("name", "mode"), [("a.tar.gz", "w:gz"), ("a.tgz", "w:gz"), ("a.tar.xz", "w:xz")])
def test_packed_tar_files_are_read(tmp_path, name, mode):
    tar(tmp_path / name, {f"{number:04}.cls": b"%d" % number for number in range(200)}, mode)
    tar(tmp_path / "empty.tar", {})
    assert block(read_webdataset(tmp_path)).columns["cls"].tolist() == [*range(200)]


def test_the_decoder_decides_what_is_made_of_a_sample(tmp_path):
    tar(tmp_path / "a.tar", samples(0, 2))

    def double(sample):
        return {"key": sample["__key__"], "cls": 2 * int(sample["cls"])}

    doubled = [{"key": "s0", "cls": 0}, {"key": "s1", "cls": 2}]
    assert list(block(read_webdataset(tmp_path, decoder=double)).rows()) == doubled
    steps = [True, lambda sample: {"cls": sample["cls"] + 1}]
    assert block(read_webdataset(tmp_path, decoder=steps)).columns["cls"].tolist() == [1, 2]
    first, _ = block(read_webdataset(tmp_path, decoder=None)).rows()
    assert (first["png"], first["cls"]) == (PNG, b"0")
    image, _ = block(read_webdataset(tmp_path, decoder="PIL")).columns["png"]
    assert isinstance(image, Image.Image)
    np.testing.assert_array_equal(np.asarray(image), PIXELS)
    assert block(read_webdataset(tmp_path, expand_json=True)).columns["n"].tolist() == [0, 1]


@pytest.mark.parametrize("suffixes", [[".cls"], ["c*"], lambda suffix: suffix == "cls"])
def test_suffixes_are_chosen_among(tmp_path, suffixes):
    tar(tmp_path / "a.tar", samples(0, 2))
    assert list(block(read_webdataset(tmp_path, suffixes=suffixes)).columns) == ["__url__", "__key__", "cls"]


def test_files_are_chosen_among_and_renamed(tmp_path):
    tar(tmp_path / "a.tar", {"a.image": PNG, "a.cls": b"1", "b.image": PNG, "b.cls": b"2"})
    renamed = {"filerename": lambda name: name.replace(".image", ".png"), "fileselect": ["*.png", "a.*"]}
    found = block(read_webdataset(tmp_path, **renamed))
    assert found.columns["png"].shape == (2, 4, 4, 3)
    assert found.columns["cls"].to_pylist() == [1, None]


def test_only_the_requested_columns_are_decoded(tmp_path):
    tar(tmp_path / "a.tar", {"a.png": b"no image", "a.cls": b"1", "b.png": b"no image", "b.cls": b"2"})
    found = block(read_webdataset(tmp_path, include_paths=True).select_columns(["cls", "path"]), optimize=True)
    assert found.columns["cls"].tolist() == [1, 2]
    with pytest.raises(KeyError, match=r"unknown column 'jpg'; the columns are: .*'png', 'cls'"):
        block(read_webdataset(tmp_path, decoder=None).select_columns(["jpg"]), optimize=True)
