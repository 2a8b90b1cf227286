"""Bytes that are cut anywhere come back whole, and bytes that are damaged anywhere come back as a valid prefix."""

from bisect import bisect_right
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._core.codec import MAX_FRAME, FrameReader, encode_frame, seal_line, unseal_line, valid_prefix

payloads = st.lists(st.binary(max_size=40), max_size=8)
lines = st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"\r")), max_size=5)


@given(payloads, st.lists(st.integers(0, 400), max_size=20))
def test_frames_cut_at_any_boundaries_come_back_whole_and_in_order(sent, cuts):
    stream = b"".join(map(encode_frame, sent))
    ends = list(accumulate(len(encode_frame(payload)) for payload in sent))
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader()
    got = []
    for start, end in pairwise(bounds):
        got += reader.feed(stream[start:end])
        assert got == sent[: bisect_right(ends, end)], "each comes with its last byte"


def test_a_length_over_the_limit_is_refused_before_anything_is_gathered():
    with pytest.raises(ValueError, match="a frame must have at most"):
        FrameReader().feed(MAX_FRAME.to_bytes(4, "big"))


@given(st.binary(max_size=60).filter(lambda data: b"\n" not in data))
def test_a_sealed_line_gives_its_payload_back_and_a_payload_with_a_newline_is_refused(payload):
    line = seal_line(payload)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert unseal_line(line) == payload
    with pytest.raises(AssertionError, match="newline"):
        seal_line(payload + b"\n")


@given(lines)
def test_lines_truncated_at_every_offset_give_the_lines_before_it(sent):
    data = b"".join(map(seal_line, sent))
    ends = [sum(map(len, map(seal_line, sent[:count]))) for count in range(len(sent) + 1)]
    for offset in range(len(data) + 1):
        num_whole = sum(end <= offset for end in ends) - 1
        assert list(valid_prefix(data[:offset])) == sent[:num_whole]


@settings(deadline=None, max_examples=50)
@given(lines, st.integers(1, 255))
def test_every_byte_altered_gives_a_prefix_that_holds_all_lines_before_it(sent, mask):
    data = b"".join(map(seal_line, sent))
    end = 0
    for number, payload in enumerate(sent):
        start, end = end, end + len(seal_line(payload))
        for offset in range(start, end):
            altered = data[:offset] + bytes([data[offset] ^ mask]) + data[offset + 1 :]
            prefix = list(valid_prefix(altered))
            assert prefix == sent[: len(prefix)]
            assert len(prefix) >= number
