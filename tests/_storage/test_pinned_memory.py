"""Page-locked memory, with a stand-in for CUDA's registration; the real one is used by the tests on a GPU."""

import threading

import pytest

from paceline._core.system import UsableMemory
from paceline._storage import pinned_memory
from paceline._storage.pinned_memory import PinnedMemory
from paceline._storage.snapshot_memory import SnapshotMemory
from paceline._storage.state import read_state, take_snapshot

torch = pytest.importorskip("torch")

PIECE = 1 << 20


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(pinned_memory, "PIECE_BYTES", PIECE)


def filled(memory, nbytes):
    """Copy known bytes into the memory and return what it then holds."""
    values = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
    memory.reserve(nbytes)
    memory.copy(values, 0)
    held = b"".join(memory.views(nbytes))
    assert held == values.numpy().tobytes()
    return held


def test_bytes_cross_the_borders_of_pieces():
    registered = []
    memory = PinnedMemory(lambda address, nbytes: registered.append(nbytes) or True)
    filled(memory, 3 * PIECE + 5)
    assert registered == [PIECE] * 4
    before = filled(memory, 2 * PIECE)
    memory.clear(PIECE - 3, 6)
    assert b"".join(memory.views(2 * PIECE)) == before[: PIECE - 3] + bytes(6) + before[PIECE + 3 :]
    assert len(registered) == 4, "the second save locked memory again"
    memory.copy(torch.ones(3, dtype=torch.uint8), 5 * PIECE)  # Not reserved: it waits for its piece.
    assert len(registered) == 6


def test_a_save_takes_what_was_prepared_and_hurries_what_was_not():
    begun, may_go_on = threading.Event(), threading.Event()
    registered = []

    def register(address, nbytes):
        registered.append(address)
        begun.set()
        return may_go_on.wait(60)

    memory = PinnedMemory(register)
    assert memory.prepare(3 * PIECE)
    assert begun.wait(60)
    saving = threading.Thread(target=filled, args=(memory, 5 * PIECE))
    saving.start()
    may_go_on.set()
    saving.join(60)
    assert not saving.is_alive()
    assert len(registered) == len(set(registered)) == 5


def test_what_was_prepared_goes_unless_a_save_used_it():
    for is_used in (False, True):
        memory = PinnedMemory(lambda address, nbytes: True)
        assert memory.prepare(PIECE)
        memory._piece(0)
        if is_used:
            memory.reserve(PIECE)
        memory.release_unused()
        assert bool(memory._pieces) is is_used


def test_little_free_memory_is_left_to_the_user(monkeypatch):
    monkeypatch.setattr(pinned_memory, "usable_memory", lambda: UsableMemory(100 * PIECE, 8 * PIECE))
    memory = PinnedMemory(lambda address, nbytes: True)
    assert memory.prepare(2 * PIECE)
    assert not memory.prepare(2 * PIECE + 1)
    memory._piece(1)
    assert memory.can_hold(5 * PIECE)
    assert not memory.can_hold(5 * PIECE + 1)


def test_memory_that_cuda_does_not_take_is_used_unlocked(caplog):
    filled(PinnedMemory(lambda address, nbytes: False), PIECE)
    assert "cannot page-lock" in caplog.text


def test_an_allocation_that_fails_is_told_to_the_save(monkeypatch):
    def fail():
        raise OSError("out of memory")

    monkeypatch.setattr(pinned_memory, "_allocate_piece", fail)
    memory = PinnedMemory(lambda address, nbytes: True)
    with pytest.raises(MemoryError, match="copy of GPU values"):
        filled(memory, PIECE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: saves without host memory were not checked")
def test_without_memory_for_a_copy_values_are_streamed(tmp_path, monkeypatch):
    arena = SnapshotMemory()
    monkeypatch.setattr(arena.pinned, "can_hold", lambda nbytes: False)
    state = [torch.randn(3, device="cuda"), torch.randn(4 << 20, device="cuda"), torch.ones(2), torch.ones(5).cuda()]
    snapshot = take_snapshot(state, arena)
    assert snapshot.is_streamed
    snapshot.write(tmp_path)
    for ours, theirs in zip(read_state(tmp_path), state, strict=True):
        assert torch.equal(ours, theirs.cpu())
    assert not arena.pinned._pieces
