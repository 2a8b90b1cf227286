"""Decides what happens next while streams run: events in, commands out. No clock, no sockets, no block contents.

A stream is a pipeline on its way to its members. Its units are processed in order, by the process pool of each stage;
the resulting blocks are announced to the members in order. A block is in flight from when it is granted until all
members that take it have passed it, and the bytes in flight are bounded. The unit whose rows come next, the head, may
always exceed the bound by one block: otherwise everything behind it would wait forever.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator
from itertools import count

from paceline.data.exec import schedule_state as s
from paceline.data.exec.block_ledger import MIN_BLOCK_CHARGE, BlockLedger
from paceline.data.exec.process_pools import MAX_STARTS, ProcessPools


class Schedule:
    """Each method is an event; `take_commands()` returns what follows from the events since the last call."""

    def __init__(self, limit: int, num_processes: int, *, max_blocks: int = 256, max_deaths: int = 3) -> None:
        self.limit = limit
        self._max_deaths = max_deaths
        self._numbers = count(1)
        self._commands: list[s.ScheduleCommand] = []
        self._pools = ProcessPools(num_processes, self._numbers, self._commands)
        self._processes = self._pools.processes
        self._streams: dict[int, s.StreamState] = {}
        self._works: dict[int, s.WorkState] = {}
        self._ledger = BlockLedger(limit, max_blocks, self._streams, self._commands)
        self._blocks = self._ledger.blocks

    @property
    def in_flight(self) -> int:
        return self._ledger.in_flight

    @property
    def peak(self) -> int:
        return self._ledger.peak

    def next_number(self) -> int:
        """A number for a member, unique among processes and members."""
        return next(self._numbers)

    # Streams and members

    def open_stream(self, spec: s.StreamSpec, bounds: dict[Hashable, s.PoolBounds]) -> int:
        stream = s.StreamState(
            next(self._numbers), spec, head=spec.unit, next_unit=spec.unit, is_patient=spec.is_patient
        )
        self._pools.bounds |= bounds
        self._streams[stream.number] = stream
        return stream.number

    def can_join(self, stream: int) -> bool:
        """Whether a member that joins now would get all rows."""
        state = self._streams.get(stream)
        return state is not None and state.base == 0 and not state.is_failed

    def on_member_joined(self, stream: int, member: int) -> None:
        state = self._streams[stream]
        state.joined_members.add(member)
        state.num_passed[member] = 0
        for block in state.announced:
            self._announce(state, member, self._blocks[block])

    def on_member_left(self, stream: int, member: int, keeps: frozenset[int] = frozenset()) -> None:
        """`keeps`: blocks that it still has views of and will release one by one."""
        state = self._streams.get(stream)
        if state is None or member not in state.num_passed:
            return
        del state.num_passed[member]
        for block in [self._blocks[number] for number in state.announced]:
            if block.number not in keeps:
                block.holders.discard(member)
        if state.num_passed:
            self._forget_if_all_joined(state)
        else:
            self.close_stream(stream)

    def on_member_gone(self, member: int) -> None:
        """Its process has ended: it has left all streams, and holds nothing."""
        for stream in list(self._streams):
            self.on_member_left(stream, member)
        self.on_blocks_released(member, list(self._blocks))

    def close_stream(self, stream: int) -> None:
        state = self._streams.pop(stream, None)
        if state is None:
            return
        for unit in state.units.values():
            self._abandon(unit)
        for number in state.announced:
            self._ledger.mark_unwanted(self._blocks[number])

    def on_blocks_passed(self, stream: int, member: int, number: int) -> None:
        """The member has passed `number` of the stream's blocks in total."""
        state = self._streams.get(stream)
        if state is not None and member in state.num_passed:
            state.num_passed[member] = max(state.num_passed[member], number)
            self._forget_if_all_joined(state)

    def on_blocks_released(self, holder: int, blocks: list[int]) -> None:
        for number in blocks:
            block = self._blocks.get(number)
            if block is not None:
                block.holders.discard(holder)
                self._ledger.free_if_unused(block)
            if holder in self._processes:
                self._processes[holder].holds.discard(number)

    def stop_waiting(self, stream: int) -> None:
        """Stop waiting for members that have not joined."""
        if stream in self._streams:
            self._streams[stream].is_patient = False

    # Processes

    def on_process_ready(self, process: int) -> None:
        self._pools.mark_ready(process)

    def on_process_died(self, process: int) -> None:
        state = self._processes.pop(process, None)
        if state is None:
            return
        for number in list(state.holds):
            self.on_blocks_released(process, [number])
        self._pools.count_bad_start(state)
        work = state.work
        if work is None:
            return
        self._end_work(work)
        stream = self._streams.get(work.stream)
        if work.is_over or stream is None:
            return
        unit = stream.units[work.unit]
        unit.works[work.stage] = None
        unit.deaths += 1
        self._abandon(unit)
        unit.reset()
        unit.is_failed = unit.deaths > self._max_deaths

    def on_room_requested(self, process: int, work: int, nbytes: int) -> None:
        state = self._live_work(process, work)
        if state is None:
            return
        if state.lent_block is not None:
            block = self._blocks[state.lent_block]
            if block.nbytes >= nbytes:
                return  # the block lent ahead is on its way
            state.lent_block, block.writer = None, None
            self._ledger.mark_unwanted(block)
        state.requested_bytes = nbytes

    def lent_block(self, work: int) -> int:
        """The block that the work may write to."""
        number = self._works[work].lent_block
        assert number is not None, "a block was written that nobody lent"
        return number

    def on_block_written(self, process: int, work: int, rows: int, offset: int, nbytes: int) -> None:
        state = self._works[work]
        number, state.lent_block = self.lent_block(work), None
        block = self._blocks[number]
        block.writer = None
        self._ledger.recharge(block, nbytes)
        if state.is_over:
            self._ledger.free_if_unused(block)
            return
        stream = self._streams[state.stream]
        block.rows, block.offset, block.unit = rows, offset, state.unit
        stream.units[state.unit].outputs[state.stage].append(number)

    def on_input_requested(self, process: int, work: int) -> None:
        """It wants the next block of the previous stage, and has passed the last one."""
        state = self._live_work(process, work)
        if state is not None:
            self._release_fed_block(state)
            state.needs_input = True

    def on_work_done(self, process: int, work: int) -> None:
        state = self._works[work]
        if not state.is_over:
            unit = self._streams[state.stream].units[state.unit]
            unit.finished[state.stage] = True
            unit.works[state.stage] = None
        self._end_work(state)

    def on_work_failed(self, process: int, work: int) -> None:
        state = self._works[work]
        if not state.is_over:
            unit = self._streams[state.stream].units[state.unit]
            unit.is_failed = True
            unit.works[state.stage] = None
            final = unit.outputs[-1]
            unit.outputs[-1] = deque()
            self._abandon(unit)
            unit.reset()
            unit.outputs[-1] = final
        self._end_work(state)

    def on_process_idle(self, process: int) -> None:
        """It has had no work for a long time."""
        used = {pool for stream in self._streams.values() for pool in stream.spec.pools}
        self._pools.retire_if_spare(process, used)

    # Decisions

    def take_commands(self) -> list[s.ScheduleCommand]:
        for stream in list(self._streams.values()):
            self._advance(stream)
        self._assign_and_launch()
        self._feed_works()
        self._grant_room()
        commands = [*self._commands]
        self._commands.clear()
        return commands

    def _advance(self, stream: s.StreamState) -> None:
        """Announce the output of the head, and advance to the next unit once the head is complete."""
        while not stream.is_over and not stream.is_failed:
            unit = stream.units.get(stream.head)
            if unit is None:
                return
            for number in unit.outputs[-1]:
                block = self._blocks[number]
                unit.skip = max(unit.skip, block.offset + block.rows)
                stream.announced.append(number)
                for member in stream.num_passed:
                    self._announce(stream, member, block)
            unit.outputs[-1].clear()
            if unit.is_failed:
                self._fail(stream, s.FailStream(stream.number, unit.index, unit.deaths))
                return
            if not unit.finished[-1]:
                return
            del stream.units[stream.head]
            stream.head += 1
        if stream.is_over:
            for member in stream.num_passed.keys() - stream.ended_members:
                stream.ended_members.add(member)
                self._commands.append(s.EndStream(stream.number, member))

    def _assign_and_launch(self) -> None:
        """Assign work to idle processes; launch and retire processes."""
        for stream in self._streams.values():
            for pool in stream.spec.pools:
                if (least := self._pools.bounds[pool].least) > 0:
                    self._launch(pool, least - len(self._pools.live(pool)))
        idle = self._pools.list_idle()
        # The stream with the least work in progress is served first.
        num_works = Counter(work.stream for work in self._works.values() if not work.is_over)
        streams = sorted(self._streams.values(), key=lambda stream: (num_works[stream.number], stream.number))
        while streams and idle:
            streams = [stream for stream in streams if self._try_assign(stream, idle)]
        self._launch_for_ready_work()
        for pool, processes in idle.items():
            for process in processes[: len(self._pools.live(pool)) - self._pools.bounds[pool].most]:
                self._pools.retire(process)

    def _try_assign(self, stream: s.StreamState, idle: dict[Hashable, list[s.ProcessState]]) -> bool:
        for unit, stage in self._ready_work(stream):
            if idle.get(unit.pools[stage]):
                self._assign(stream, unit, stage, idle[unit.pools[stage]].pop())
                return True
        return False

    def _launch_for_ready_work(self) -> None:
        unserved: dict[Hashable, int] = {}
        for stream in self._streams.values():
            for unit, stage in self._ready_work(stream):
                pool = unit.pools[stage]
                more = len(stream.spec.chain_of) - stream.next_unit if unit.index == stream.next_unit else 1
                unserved[pool] = unserved.get(pool, 0) + more
                if unit.index == stream.head and not self._pools.will_free_up(pool, stream.number):
                    self._launch(pool, 1)
        for pool, num in unserved.items():
            live = self._pools.live(pool)
            starting = sum(not process.is_ready for process in live)
            self._launch(pool, min(self._pools.bounds[pool].most - len(live), num - starting))

    def _ready_work(self, stream: s.StreamState) -> Iterator[tuple[s.UnitState, int]]:
        return stream.iter_ready_work(has_room=self._ledger.fits(stream, stream.largest_charge))

    def _assign(self, stream: s.StreamState, unit: s.UnitState, stage: int, process: s.ProcessState) -> None:
        if unit.index not in stream.units:
            stream.units[unit.index] = unit
            stream.next_unit = unit.index + 1
        work = s.WorkState(next(self._numbers), stream.number, unit.index, stage, process.number)
        unit.works[stage] = process.work = self._works[work.number] = work
        skip = unit.skip if stage == len(unit.pools) - 1 else 0
        self._commands.append(s.AssignWork(process.number, work.number, stream.number, unit.index, stage, skip))

    def _feed_works(self) -> None:
        for work in self._works.values():
            if not work.needs_input or work.is_over:
                continue
            unit = self._streams[work.stream].units[work.unit]
            inputs = unit.outputs[work.stage - 1]
            if inputs:
                work.needs_input, work.fed_block = False, inputs.popleft()
                self._blocks[work.fed_block].holders.add(work.process)
                self._processes[work.process].holds.add(work.fed_block)
                self._commands.append(s.FeedBlock(work.process, work.number, work.fed_block))
            elif unit.finished[work.stage - 1]:
                work.needs_input = False
                self._commands.append(s.EndFeed(work.process, work.number))

    def _grant_room(self) -> None:
        waiting = [work for work in self._works.values() if work.requested_bytes is not None and not work.is_over]
        heads = {stream.number: stream.head for stream in self._streams.values()}
        waiting.sort(key=lambda work: (work.unit - heads[work.stream], -work.stage, work.stream))
        for work in waiting:
            stream = self._streams[work.stream]
            assert work.requested_bytes is not None
            charge = max(work.requested_bytes, MIN_BLOCK_CHARGE)
            is_head = work.unit == stream.head
            if self._ledger.fits(stream, charge, reserve=0 if is_head else stream.largest_charge):
                self._lend(stream, work, charge)
            elif is_head and stream.is_awaited(work):
                if stream.announced and stream.is_patient and stream.waits_for_members:
                    continue  # kept for members still to join, until `stop_waiting`
                self._forget_taken(stream)
                self._lend(stream, work, charge)

        for work in self._works.values():
            if work.requested_bytes is None and work.lent_block is None and not work.is_over:
                self._lend_ahead(work)

    def _lend_ahead(self, work: s.WorkState) -> None:
        """Where there is plenty of room, spare the process the request and the wait."""
        stream = self._streams[work.stream]
        charge = stream.typical_charge
        if (
            charge
            and 2 * (self._ledger.in_flight + charge) <= self.limit
            and self._ledger.fits(stream, charge, stream.largest_charge)
        ):
            work.requested_bytes = charge
            self._lend(stream, work, charge)

    def _lend(self, stream: s.StreamState, work: s.WorkState, charge: int) -> None:
        assert work.requested_bytes is not None
        block = s.BlockState(next(self._numbers), work.requested_bytes, charge, stream.number, writer=work.process)
        self._ledger.add(block, stream)
        work.lent_block, work.requested_bytes = block.number, None
        self._commands.append(s.LendBlock(work.process, work.number, block.number, block.nbytes))

    def _announce(self, stream: s.StreamState, member: int, block: s.BlockState) -> None:
        block.holders.add(member)
        self._commands.append(s.AnnounceBlock(stream.number, member, block.number, block.unit, block.offset))

    def _forget_if_all_joined(self, stream: s.StreamState) -> None:
        if not stream.waits_for_members:
            self._forget_taken(stream)

    def _forget_taken(self, stream: s.StreamState) -> None:
        while stream.announced and stream.base < stream.num_taken:
            stream.base += 1
            self._ledger.mark_unwanted(self._blocks[stream.announced.popleft()])

    def _abandon(self, unit: s.UnitState) -> None:
        """Discard all output of the unit that has not been announced."""
        for work in unit.works:
            if work is not None and not work.is_over:
                work.is_over = True
                self._release_fed_block(work)
                if work.lent_block is not None:
                    self._blocks[work.lent_block].is_wanted = False  # freed once it is written, or never will be
                if work.requested_bytes is not None or work.needs_input:
                    self._commands.append(s.DropWork(work.process, work.number))
                work.requested_bytes, work.needs_input = None, False
        for outputs in unit.outputs:
            for number in outputs:
                self._ledger.mark_unwanted(self._blocks[number])
            outputs.clear()

    def _release_fed_block(self, work: s.WorkState) -> None:
        if work.fed_block is not None:
            number, work.fed_block = work.fed_block, None
            if number in self._blocks:
                self._ledger.mark_unwanted(self._blocks[number])

    def _live_work(self, process: int, work: int) -> s.WorkState | None:
        state = self._works[work]
        if state.is_over:
            self._commands.append(s.DropWork(process, work))
            return None
        return state

    def _end_work(self, work: s.WorkState) -> None:
        """Its process is done with it."""
        self._works.pop(work.number, None)
        self._release_fed_block(work)
        if work.lent_block is not None:
            block = self._blocks[work.lent_block]
            block.writer, work.lent_block = None, None
            self._ledger.mark_unwanted(block)
        process = self._processes.get(work.process)
        if process is not None:
            process.work = None

    def _launch(self, pool: Hashable, num: int) -> None:
        """Launch processes; fail the streams that need them if they keep exiting before they are ready."""
        if self._pools.launch(pool, num):
            return
        for stream in self._streams.values():
            if not stream.is_failed and any(pool in pools for pools in stream.spec.chains):
                self._fail(stream, s.FailStream(stream.number, None, MAX_STARTS))

    def _fail(self, stream: s.StreamState, failure: s.FailStream) -> None:
        stream.is_failed = True
        for unit in stream.units.values():
            self._abandon(unit)
        stream.units.clear()
        self._commands.append(failure)
