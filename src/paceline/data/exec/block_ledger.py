"""The blocks of all streams, and the bytes that they take while they are in flight."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.data.exec import schedule_state as s

MIN_BLOCK_CHARGE = 64 << 10
"""The least a block counts: descriptors and mappings are not free."""


class BlockLedger:
    """Counts blocks from when they are lent until nobody wants them, and frees those that nobody uses."""

    def __init__(
        self, limit: int, max_blocks: int, streams: Mapping[int, s.StreamState], commands: list[s.ScheduleCommand]
    ) -> None:
        self.blocks: dict[int, s.BlockState] = {}
        self.in_flight = 0
        self.peak = 0
        self._num_counted = 0
        self._limit = limit
        self._max_blocks = max_blocks
        self._streams = streams
        self._commands = commands

    def fits(self, stream: s.StreamState, charge: int, reserve: int = 0) -> bool:
        free = self._limit - self.in_flight - charge
        # A stream that nobody takes from leaves room for active streams.
        fair = stream.in_flight + charge <= 3 * (free + charge)
        return free >= reserve and fair and self._num_counted < self._max_blocks

    def add(self, block: s.BlockState, stream: s.StreamState) -> None:
        self.blocks[block.number] = block
        stream.largest_charge = max(stream.largest_charge, block.charge)
        stream.in_flight += block.charge
        self.in_flight += block.charge
        self.peak = max(self.peak, self.in_flight)
        self._num_counted += 1

    def recharge(self, block: s.BlockState, nbytes: int) -> None:
        """The block is smaller than the room that was lent ahead."""
        charge = min(max(nbytes, MIN_BLOCK_CHARGE), block.charge)
        stream = self._streams.get(block.stream)
        if block.is_counted:
            self.in_flight -= block.charge - charge
            if stream is not None:
                stream.in_flight -= block.charge - charge
        block.charge = charge
        if stream is not None:
            stream.typical_charge = max(charge, stream.typical_charge * 7 // 8)

    def mark_unwanted(self, block: s.BlockState) -> None:
        block.is_wanted = False
        if block.writer is None:
            self._uncount(block)
        self.free_if_unused(block)

    def free_if_unused(self, block: s.BlockState) -> None:
        if not block.is_wanted and not block.holders and block.writer is None and block.number in self.blocks:
            self._uncount(block)
            del self.blocks[block.number]
            self._commands.append(s.FreeBlock(block.number))

    def _uncount(self, block: s.BlockState) -> None:
        if block.is_counted:
            block.is_counted = False
            self.in_flight -= block.charge
            if block.stream in self._streams:
                self._streams[block.stream].in_flight -= block.charge
            self._num_counted -= 1
