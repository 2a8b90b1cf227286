"""read_images, read_audio, read_videos and read_numpy: what comes of files, and what is refused."""

from pathlib import Path

import fsspec
import numpy as np
import pytest
import soundfile
from made_datasets import block, pipeline, write_video
from PIL import Image

from paceline.data.block import TensorType
from paceline.data.read import read_audio, read_images, read_numpy, read_videos
from paceline.data.sources import numpy as source


def picture(seed, height=8, width=6, channels=3):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def pictures(tmp_path):
    for number in range(5):
        Image.fromarray(picture(number)).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def test_images_of_several_sizes_and_modes_are_ragged_unless_size_and_mode_make_them_alike(tmp_path):
    shapes = [(30, 20, 3), (8, 7, 3), (4, 4, 1), (5, 3, 4)]
    for number, shape in enumerate(shapes):
        Image.fromarray(picture(number, *shape)).save(tmp_path / f"{number}.png")
    images = block(read_images(tmp_path)).columns["image"]
    assert images.dtype == object
    for number, shape in enumerate(shapes):
        np.testing.assert_array_equal(images[number], picture(number, *shape))
    Image.fromarray(picture(4)).convert("P").save(tmp_path / "4.gif")
    images = block(read_images(tmp_path, size=(5, 4), mode="RGB")).columns["image"]
    assert images.shape == (5, 5, 4, 3)
    expected = Image.fromarray(picture(0, 30, 20)).resize((4, 5), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(images[0], np.asarray(expected))
    assert block(read_images(tmp_path, size=(5, 4), mode="L")).columns["image"].shape == (5, 5, 4)


def test_a_large_jpeg_is_scaled_to_about_what_a_full_decode_gives(tmp_path):
    smooth = np.asarray(Image.fromarray(picture(0, 6, 5)).resize((400, 320), Image.Resampling.BICUBIC))
    Image.fromarray(smooth).save(tmp_path / "large.jpg", quality=95)
    (found,) = block(read_images(tmp_path, size=(40, 50), mode="RGB")).columns["image"]
    with Image.open(tmp_path / "large.jpg") as image:
        full = np.asarray(image.resize((50, 40), Image.Resampling.BILINEAR))
    assert found.shape == (40, 50, 3)
    assert np.abs(found.astype(int) - full).mean() < 3


def test_schema_and_units_are_known_beforehand(pictures):
    dataset = read_images(pictures, size=(4, 5), mode="RGB", include_paths=True, override_num_blocks=2)
    schema = dataset._plan.source.schema()
    assert schema.names == ["image", "path"]
    assert schema.types[0] == TensorType(np.dtype(np.uint8), (4, 5, 3)) == block(dataset).schema.types[0]
    assert read_images(pictures)._plan.source.schema() is None
    units = [(task.unit.name, task.unit.num_rows) for task in pipeline(dataset).tasks]
    assert units == [("0.png to 1.png (2 files)", 2), ("2.png to 4.png (3 files)", 3)]
    assert len(pipeline(read_images(pictures, override_num_blocks=99)).tasks) == 5


def test_shuffled_files_have_another_order_in_every_epoch_and_the_same_in_each(pictures):
    dataset = read_images(pictures, shuffle="files", include_paths=True, override_num_blocks=5)
    orders = [block(dataset, epoch).columns["path"].to_pylist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) != orders[0]


RATE = 8000


def tone(frequency, seconds=0.1, channels=1):
    wave = np.sin(2 * np.pi * frequency * np.arange(int(RATE * seconds)) / RATE).astype(np.float32) / 2
    return np.stack([wave / (number + 1) for number in range(channels)], axis=1)


def test_sound_is_channels_by_samples_with_its_rate(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(440, channels=2), RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "b.wav", tone(880, channels=2), RATE, subtype="FLOAT")
    dataset = read_audio(tmp_path, include_paths=True)
    found = block(dataset)
    assert found.columns["amplitude"].shape == (2, 2, 800)
    assert found.columns["amplitude"].dtype == np.float32
    np.testing.assert_array_equal(found.columns["amplitude"][1], tone(880, channels=2).T)
    assert found.columns["sample_rate"].tolist() == [RATE, RATE]
    assert found.columns["path"].to_pylist() == [str(tmp_path / name) for name in ("a.wav", "b.wav")]
    assert pipeline(dataset).num_rows == 2


def test_sound_of_several_lengths_and_formats_is_ragged(tmp_path):
    soundfile.write(tmp_path / "a.flac", tone(440), RATE)
    soundfile.write(tmp_path / "b.ogg", tone(440, 0.2), RATE)
    amplitudes = block(read_audio(tmp_path)).columns["amplitude"]
    assert [amplitude.shape for amplitude in amplitudes] == [(1, 800), (1, 1600)]
    np.testing.assert_allclose(amplitudes[0][0], tone(440)[:, 0], atol=1e-4)


def test_each_frame_is_a_row_with_its_number_and_each_video_a_unit(tmp_path):
    write_video(tmp_path / "a.mp4")
    write_video(tmp_path / "b.mp4", num_frames=3)
    dataset = read_videos(tmp_path, include_timestamps=True, include_paths=True)
    assert [task.unit.name for task in pipeline(dataset).tasks] == ["a.mp4", "b.mp4"]
    found = block(dataset)
    frames = found.columns["frame"]
    assert frames.shape == (15, 32, 48, 3)
    assert frames.dtype == np.uint8
    assert found.columns["frame_index"].tolist() == [*range(12), *range(3)]
    assert found.columns["path"].to_pylist() == [str(tmp_path / "a.mp4")] * 12 + [str(tmp_path / "b.mp4")] * 3
    np.testing.assert_allclose(frames[:12].mean(axis=(1, 2, 3)), np.arange(12) * 20, atol=6)
    np.testing.assert_allclose(found.columns["frame_timestamp"][:12, 0], np.arange(12) / 10, atol=1e-6)
    np.testing.assert_allclose(found.columns["frame_timestamp"][:11, 1], np.arange(1, 12) / 10, atol=1e-6)
    assert list(block(read_videos(tmp_path / "b.mp4")).columns) == ["frame", "frame_index"]


@pytest.mark.parametrize("content", ["other", "truncated", "sound"])
def test_broken_video_is_named(tmp_path, content):
    write_video(tmp_path / "a.mp4")
    soundfile.write(tmp_path / "b.wav", tone(440), RATE)
    whole, sound = (tmp_path / "a.mp4").read_bytes(), (tmp_path / "b.wav").read_bytes()
    broken = {"other": b"no video", "truncated": whole[: len(whole) // 2], "sound": sound}[content]
    (tmp_path / "b.mp4").write_bytes(broken)
    message = "it has no video stream" if content == "sound" else "(after 0 frames: Invalid|it has no video stream)"
    with pytest.raises(ValueError, match=rf"cannot read \S*b\.mp4 as video: {message}"):
        block(read_videos([tmp_path / "a.mp4", tmp_path / "b.mp4"]))


def test_of_a_video_that_can_be_played_without_its_end_the_frames_up_to_there_come(tmp_path):
    write_video(tmp_path / "a.mkv", num_frames=60)
    whole = (tmp_path / "a.mkv").read_bytes()
    (tmp_path / "a.mkv").write_bytes(whole[: len(whole) * 2 // 3])
    indices = block(read_videos(tmp_path)).columns["frame_index"].tolist()
    assert indices == [*range(len(indices))]
    assert 10 < len(indices) < 60


def test_rows_of_arrays_are_rows_and_arrays_of_archives_are_columns(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12).reshape(3, 2, 2))
    np.save(tmp_path / "b.npy", np.arange(12, 16).reshape(1, 2, 2))
    found = block(read_numpy(tmp_path, include_paths=True))
    np.testing.assert_array_equal(found.columns["data"], np.arange(16).reshape(4, 2, 2))
    assert found.columns["path"].to_pylist() == [str(tmp_path / "a.npy")] * 3 + [str(tmp_path / "b.npy")]
    np.savez(tmp_path / "a.npz", x=np.arange(6).reshape(3, 2), y=np.array([1.5, 2.5, 3.5]))
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros((1, 2), int), y=np.array([0.5]))
    found = block(read_numpy(str(tmp_path / "*.npz")))
    np.testing.assert_array_equal(found.columns["x"], [[0, 1], [2, 3], [4, 5], [0, 0]])
    assert found.columns["y"].tolist() == [1.5, 2.5, 3.5, 0.5]


@pytest.mark.parametrize("where", ["local", "remote"])
def test_a_large_array_is_read_in_ranges(tmp_path, monkeypatch, where):
    monkeypatch.setattr(source, "_UNIT_BYTES", 1000)
    monkeypatch.setattr(source, "_BLOCK_BYTES", 300)
    array = np.random.default_rng(0).random((50, 10))
    np.save(tmp_path / "a.npy", array)
    filesystem = None
    path = str(tmp_path / "a.npy")
    if where == "remote":
        filesystem = fsspec.filesystem("memory")
        filesystem.pipe_file("/large/a.npy", Path(path).read_bytes())
        path = "/large/a.npy"
    dataset = read_numpy(path, filesystem=filesystem, include_paths=True)
    units = [task.unit for task in pipeline(dataset).tasks]
    assert [unit.num_rows for unit in units] == [12, 12, 12, 12, 2]
    assert units[1].name == "a.npy (rows 12 to 23)"
    found = block(dataset)
    np.testing.assert_array_equal(found.columns["data"], array)
    assert len(found.columns["path"]) == 50


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.zeros((3, 0)), np.asfortranarray(np.arange(6).reshape(2, 3))])
def test_unusual_arrays_are_read(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    found = block(read_numpy(tmp_path))
    assert found.num_rows == len(array)
    if len(array):
        np.testing.assert_array_equal(found.columns["data"], array)
        np.save(tmp_path / "b.npy", np.zeros((1, 7)))
        assert [row.shape for row in block(read_numpy(tmp_path)).columns["data"]][-1] == (7,), "shapes may differ"
