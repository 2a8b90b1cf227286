"""A large block is converted in pieces that fit the processor's cache, and each is written as soon as it is made."""

import numpy as np
import pytest

import paceline.data
from paceline.data.block import Block, ConcatenatedBlock
from paceline.data.exec.packed_blocks import PieceWriter, view_block

ROWS = 50_000


def number_rows(batch):
    return {"x": batch["data"][:, 0].astype(np.float32), "y": batch["data"][:, :3]}


def change_type(batch):
    kind = np.float32 if batch["data"][0, 0] < 20_000 else np.float64
    return {"x": batch["data"][:, 0].astype(kind)}


def double_rows_later(batch):
    times = 1 if batch["data"][0, 0] < 20_000 else 2
    return {"x": np.repeat(batch["data"][:, 0], times)}


def drop_rows(batch):
    return {"x": batch["data"][:, 0][batch["data"][:, 0] % 3 == 0]}


def write_text(batch):
    return {"x": [str(number) for number in batch["data"][:, 0]]}


def yield_thirds(batch):
    for third in np.array_split(batch["data"][:, 0], 3):
        yield {"x": third}


def drop_all(batch):
    return {"x": batch["data"][:0, 0]}


@pytest.mark.parametrize(
    "function", [number_rows, change_type, double_rows_later, drop_rows, write_text, yield_thirds, drop_all]
)
def test_processes_deliver_the_rows_of_all_pieces_and_resume_within_them(data_context, function):
    dataset = paceline.data.range_tensor(ROWS, shape=(64,), override_num_blocks=1).map_batches(function)
    expected = [row["x"] for row in dataset.iter_rows()]
    data_context.inline_below = 0
    iterator = dataset.iterator()
    found, states = [], []
    for batch in iterator.iter_batches(batch_size=3001):
        found += batch["x"].tolist()
        states.append((len(found), iterator.get_state()))
    assert found == expected
    for num_rows, state in states[3::5]:
        again = dataset.iterator()
        again.set_state(state)
        assert [row for batch in again.iter_batches(batch_size=3001) for row in batch["x"].tolist()] == found[num_rows:]


def test_pieces_are_written_while_the_next_is_not_made_and_any_other_use_makes_all():
    made = []

    def pieces():
        for number in range(4):
            made.append(number)
            yield Block({"x": np.full(5, number)})

    memory, written = np.zeros(1000, np.uint8), []
    writer = PieceWriter(Block({"x": np.zeros(5, np.int64)}), 20)
    for piece in ConcatenatedBlock(pieces(), 20).stream_parts():
        assert writer.fits(piece)
        writer.write(piece, memory)
        written.append(len(made))
    assert written == [1, 2, 3, 4]
    assert not writer.fits(Block({"x": np.zeros(1, np.int64)})), "it is full"
    expected = np.repeat(range(4), 5).tolist()
    assert view_block(writer.finish(), memory).column("x").tolist() == expected
    whole = ConcatenatedBlock(pieces(), 20)
    assert (whole.num_rows, whole.column("x").tolist()) == (20, expected)
