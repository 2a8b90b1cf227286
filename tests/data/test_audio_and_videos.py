"""Sound and video files as rows."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from read_back import block, pipeline

from paceline.data.read_media import read_audio, read_videos

RATE = 8000


def tone(frequency: float, seconds: float = 0.1, channels: int = 1) -> np.ndarray[Any, Any]:
    wave = np.sin(2 * np.pi * frequency * np.arange(int(RATE * seconds)) / RATE).astype(np.float32) / 2
    return np.stack([wave / (number + 1) for number in range(channels)], axis=1)


def test_sound_is_channels_by_samples_with_its_rate(tmp_path: Path) -> None:
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


def test_sound_of_several_lengths_and_formats_is_ragged(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", tone(440), RATE)
    soundfile.write(tmp_path / "b.ogg", tone(440, 0.2), RATE)
    amplitudes = block(read_audio(tmp_path)).columns["amplitude"]
    assert [amplitude.shape for amplitude in amplitudes] == [(1, 800), (1, 1600)]
    np.testing.assert_allclose(amplitudes[0][0], tone(440)[:, 0], atol=1e-4)


@pytest.mark.parametrize("content", [b"", b"RIFFbut not for long"], ids=["empty", "cut off"])
def test_broken_sound_is_named(tmp_path: Path, content: bytes) -> None:
    soundfile.write(tmp_path / "a.wav", tone(440), RATE)
    (tmp_path / "b.wav").write_bytes(content)
    with pytest.raises(ValueError, match=r"b\.wav cannot be read as sound"):
        block(read_audio(tmp_path))


def film(path: Path, num_frames: int = 12, height: int = 32, width: int = 48, audio_only: bool = False) -> None:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = Fraction(1, 10)
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), number * 20 % 256, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def test_each_frame_is_a_row_with_its_number(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4")
    film(tmp_path / "b.mp4", num_frames=3)
    found = block(read_videos(tmp_path, include_timestamps=True, include_paths=True))
    frames = found.columns["frame"]
    assert frames.shape == (15, 32, 48, 3)
    assert frames.dtype == np.uint8
    assert found.columns["frame_index"].tolist() == [*range(12), *range(3)]
    assert found.columns["path"].to_pylist() == [str(tmp_path / "a.mp4")] * 12 + [str(tmp_path / "b.mp4")] * 3
    np.testing.assert_allclose(frames[:12].mean(axis=(1, 2, 3)), np.arange(12) * 20, atol=6)
    np.testing.assert_allclose(found.columns["frame_timestamp"][:12, 0], np.arange(12) / 10, atol=1e-6)
    np.testing.assert_allclose(found.columns["frame_timestamp"][:11, 1], np.arange(1, 12) / 10, atol=1e-6)


def test_timestamps_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4")
    assert list(block(read_videos(tmp_path)).columns) == ["frame", "frame_index"]


def test_each_video_is_a_unit(tmp_path: Path) -> None:
    for name in "ab":
        film(tmp_path / f"{name}.mp4", num_frames=2)
    assert [task.unit.name for task in pipeline(read_videos(tmp_path)).tasks] == ["a.mp4", "b.mp4"]


@pytest.mark.parametrize("content", [b"", b"no video", "truncated"], ids=["empty", "other", "truncated"])
def test_broken_video_is_named(tmp_path: Path, content: Any) -> None:
    film(tmp_path / "a.mp4")
    film(tmp_path / "b.mp4")
    whole = (tmp_path / "b.mp4").read_bytes()
    (tmp_path / "b.mp4").write_bytes(whole[: len(whole) // 2] if content == "truncated" else content)
    with pytest.raises(
        ValueError, match=r"b\.mp4 cannot be read as video: (after 0 frames: Invalid data|there is no video)"
    ):
        block(read_videos(tmp_path))


def test_a_file_without_video_is_named(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", tone(440), RATE)
    with pytest.raises(ValueError, match=r"a\.wav cannot be read as video: there is no video in it"):
        block(read_videos(tmp_path / "a.wav"))


def test_of_a_video_that_can_be_played_without_its_end_the_frames_up_to_there_come(tmp_path: Path) -> None:
    film(tmp_path / "a.mkv", num_frames=60)
    whole = (tmp_path / "a.mkv").read_bytes()
    (tmp_path / "a.mkv").write_bytes(whole[: len(whole) * 2 // 3])
    indices = block(read_videos(tmp_path)).columns["frame_index"].tolist()
    assert indices == [*range(len(indices))]
    assert 10 < len(indices) < 60
