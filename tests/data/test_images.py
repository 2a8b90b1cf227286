"""Image files as rows."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs
import pytest
from PIL import Image
from read_back import block, pipeline

import paceline.data
from paceline.data.block import TensorType
from paceline.data.read_media import read_images
from paceline.data.sources.media import needed


def picture(seed: int, height: int = 8, width: int = 6, channels: int = 3) -> np.ndarray[Any, Any]:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number in range(5):
        Image.fromarray(picture(number)).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def test_images_of_one_size_are_one_tensor_in_the_order_of_their_names(pictures: Path) -> None:
    images = block(read_images(pictures)).columns["image"]
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, np.stack([picture(number) for number in range(5)]))


def test_the_path_of_each_is_a_column_if_asked_for(pictures: Path) -> None:
    paths = block(read_images(pictures, include_paths=True)).columns["path"].to_pylist()
    assert paths == [str(pictures / f"{number}.png") for number in range(5)]


def test_directories_of_hive_are_columns_if_asked_for(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / f"class={label}").mkdir()
        Image.fromarray(picture(0)).save(tmp_path / f"class={label}" / "0.png")
    assert list(block(read_images(tmp_path)).columns) == ["image"]
    found = block(read_images(tmp_path, partitioning="hive", include_paths=True))
    assert list(found.columns) == ["image", "class", "path"]
    assert found.columns["class"].to_pylist() == ["cat", "dog"]


def test_images_of_several_sizes_and_modes_are_ragged(tmp_path: Path) -> None:
    shapes = [(8, 6, 3), (8, 7, 3), (4, 4, 1), (5, 3, 4)]
    for number, shape in enumerate(shapes):
        Image.fromarray(picture(number, *shape)).save(tmp_path / f"{number}.png")
    images = block(read_images(tmp_path)).columns["image"]
    assert images.dtype == object
    for number, shape in enumerate(shapes):
        np.testing.assert_array_equal(images[number], picture(number, *shape))


def test_size_and_mode_make_them_alike(tmp_path: Path) -> None:
    Image.fromarray(picture(0, 30, 20)).save(tmp_path / "a.png")
    Image.fromarray(picture(1, 8, 6, 1)).save(tmp_path / "b.png")
    Image.fromarray(picture(2, 8, 6)).convert("P").save(tmp_path / "c.gif")
    found = block(read_images(tmp_path, size=(5, 4), mode="RGB"))
    assert found.columns["image"].shape == (3, 5, 4, 3)
    expected = np.asarray(Image.fromarray(picture(0, 30, 20)).resize((4, 5), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(found.columns["image"][0], expected)
    assert block(read_images(tmp_path, size=(5, 4), mode="L")).columns["image"].shape == (3, 5, 4)


def test_a_large_jpeg_is_scaled_to_about_what_a_full_decode_gives(tmp_path: Path) -> None:
    smooth = np.asarray(Image.fromarray(picture(0, 6, 5)).resize((400, 320), Image.Resampling.BICUBIC))
    Image.fromarray(smooth).save(tmp_path / "large.jpg", quality=95)
    (found,) = block(read_images(tmp_path, size=(40, 50), mode="RGB")).columns["image"]
    with Image.open(tmp_path / "large.jpg") as image:
        full = np.asarray(image.resize((50, 40), Image.Resampling.BILINEAR))
    assert found.shape == (40, 50, 3)
    assert np.abs(found.astype(int) - full).mean() < 3


def test_the_schema_is_known_beforehand_where_size_and_mode_are_given(pictures: Path) -> None:
    dataset = read_images(pictures, size=(4, 5), mode="RGB", include_paths=True)
    schema = dataset._plan.source.schema()  # type: ignore[attr-defined]
    assert schema.names == ["image", "path"]
    assert schema.types[0] == TensorType(np.dtype(np.uint8), (4, 5, 3)) == block(dataset).schema.types[0]
    assert read_images(pictures)._plan.source.schema() is None  # type: ignore[attr-defined]


def test_the_number_of_rows_is_known_beforehand(pictures: Path) -> None:
    assert pipeline(read_images(pictures)).num_rows == 5


def test_blocks_are_asked_for_by_number(pictures: Path) -> None:
    tasks = pipeline(read_images(pictures, override_num_blocks=2)).tasks
    assert [task.unit.num_rows for task in tasks] == [2, 3]
    assert [task.unit.name for task in tasks] == ["0.png to 1.png (2 files)", "2.png to 4.png (3 files)"]
    assert len(pipeline(read_images(pictures, override_num_blocks=99)).tasks) == 5


def test_shuffled_files_have_another_order_in_every_epoch_and_the_same_in_each(tmp_path: Path) -> None:
    for number in range(12):
        Image.fromarray(picture(number)).save(tmp_path / f"{number:02}.png")
    dataset = read_images(tmp_path, shuffle="files", include_paths=True, override_num_blocks=6)
    orders = [block(dataset, epoch).columns["path"].to_pylist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != sorted(orders[0])


@pytest.mark.parametrize(
    "content", [b"", b"no image at all", "truncated", "header only"], ids=["empty", "other", "truncated", "header"]
)
def test_a_broken_image_is_named(pictures: Path, content: Any) -> None:
    whole = (pictures / "0.png").read_bytes()
    content = {"truncated": whole[:-40], "header only": whole[:20]}.get(content, content)
    (pictures / "3.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"3\.png cannot be read as an image"):
        block(read_images(pictures))


def test_a_truncated_jpeg_is_named(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(picture(0, 64, 64)).save(buffer, "JPEG")
    (tmp_path / "half.jpg").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    with pytest.raises((ValueError, OSError), match=r"half\.jpg cannot be read"):
        block(read_images(tmp_path))


def test_a_file_that_is_gone_by_then_is_named(pictures: Path) -> None:
    dataset = read_images(pictures)
    (pictures / "2.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"2\.png is gone"):
        block(dataset)


def test_other_filesystems_are_read(pictures: Path) -> None:
    filesystem = pyarrow.fs.SubTreeFileSystem(str(pictures), pyarrow.fs.LocalFileSystem())
    assert block(read_images("0.png", filesystem=filesystem)).num_rows == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 5}, "size=5 must be"),
        ({"size": (0, 5)}, r"size=\(0, 5\) must be"),
        ({"mode": "rgb"}, "mode='rgb' is not one of Pillow's"),
        ({"shuffle": "rows"}, "shuffle='rows' must be None, 'files'"),
        ({"override_num_blocks": 0}, "override_num_blocks=0 must be"),
        ({"partitioning": "dir"}, "partitioning='dir' must be"),
    ],
)
def test_bad_arguments_are_refused_at_once(pictures: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_images(pictures, **arguments)


def test_a_directory_without_images_says_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(FileNotFoundError, match=r"no file that ends in .*\.png.* such as notes\.txt"):
        read_images(tmp_path)


def test_the_readers_are_at_hand_under_paceline_data() -> None:
    assert paceline.data.read_images is read_images


def test_a_library_that_is_missing_is_named_with_what_to_install() -> None:
    with pytest.raises(ImportError, match=r'read_images needs no_such_library(.|\n)*pip install "paceline\[images\]"'):
        needed("no_such_library", "read_images", "images")
