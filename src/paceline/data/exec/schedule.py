"""What happens next in the running of streams: events in, commands out. No clock, no socket, no memory of blocks.

A stream is a pipeline on its way to its members. Its units are worked on in order, by processes of the pool that each
stage has; the blocks that come of them are announced to the members in order. What has been granted and not yet been
passed by all that take it counts as in flight, and is bounded. The unit whose rows come next, the head, may always have
one block more than the bound, or those that wait behind it would wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from itertools import count

from paceline.data.exec.commands import (
    READERS,
    Announce,
    Assign,
    Bounds,
    Command,
    Course,
    Drop,
    End,
    Fail,
    Feed,
    FeedEnd,
    Free,
    Launch,
    Lend,
    Retire,
)
from paceline.data.exec.state import BlockState, ProcessState, StreamState, UnitState, WorkState

SMALLEST_CHARGE = 64 << 10
"""What a block counts at least: a descriptor and a mapping are not free either."""
MAX_STARTS = 3
"""So many processes of a pool may end in a row before any of them was ready."""


class Schedule:
    """Each method is an event; `commands()` gives what follows from those that were told since."""

    def __init__(self, limit: int, num_processes: int, *, max_blocks: int = 256, max_deaths: int = 3) -> None:
        self.limit = limit
        self.in_flight = 0
        self.num_blocks = 0
        self.peak = 0
        self._max_blocks = max_blocks
        self._max_deaths = max_deaths
        self._numbers = count(1)
        self._bounds: dict[Hashable, Bounds] = {READERS: Bounds(0, num_processes)}
        self._processes: dict[int, ProcessState] = {}
        self._streams: dict[int, StreamState] = {}
        self._works: dict[int, WorkState] = {}
        self._blocks: dict[int, BlockState] = {}
        self._bad_starts: dict[Hashable, int] = {}
        self._commands: list[Command] = []

    def number(self) -> int:
        """For a member: one that no process and no other member has."""
        return next(self._numbers)

    # Streams and members

    def opened(self, course: Course, bounds: dict[Hashable, Bounds]) -> int:
        stream = StreamState(
            next(self._numbers), course, head=course.unit, next_unit=course.unit, patient=course.patient
        )
        self._bounds |= bounds
        self._streams[stream.number] = stream
        return stream.number

    def can_join(self, stream: int) -> bool:
        """Whether a member would get all rows from the start on."""
        found = self._streams.get(stream)
        return found is not None and found.base == 0 and not found.failed

    def joined(self, stream: int, member: int) -> None:
        found = self._streams[stream]
        found.joined.add(member)
        found.passed[member] = 0
        for block in found.announced:
            self._announce(found, member, self._blocks[block])

    def left(self, stream: int, member: int, keeps: frozenset[int] = frozenset()) -> None:
        """`keeps`: blocks that it still has views of, which it will release one by one."""
        found = self._streams.get(stream)
        if found is None or member not in found.passed:
            return
        del found.passed[member]
        for block in [self._blocks[number] for number in found.announced]:
            if block.number not in keeps:
                block.holders.discard(member)
        if found.passed:
            self._taken(found)
        else:
            self.closed(stream)

    def gone(self, member: int) -> None:
        """Its process has ended: it has left all, and holds nothing."""
        for stream in list(self._streams):
            self.left(stream, member)
        self.released(member, list(self._blocks))

    def closed(self, stream: int) -> None:
        found = self._streams.pop(stream, None)
        if found is None:
            return
        for unit in found.units.values():
            self._abandon(unit)
        for number in found.announced:
            self._unwanted(self._blocks[number])

    def passed(self, stream: int, member: int, number: int) -> None:
        """The member has taken so many of the stream's blocks."""
        found = self._streams.get(stream)
        if found is not None and member in found.passed:
            found.passed[member] = max(found.passed[member], number)
            self._taken(found)

    def released(self, holder: int, blocks: list[int]) -> None:
        for number in blocks:
            block = self._blocks.get(number)
            if block is not None:
                block.holders.discard(holder)
                self._maybe_free(block)
            if holder in self._processes:
                self._processes[holder].holds.discard(number)

    def hurry(self, stream: int) -> None:
        """Members that have not joined are not waited for any longer."""
        if stream in self._streams:
            self._streams[stream].patient = False

    # Processes

    def ready(self, process: int) -> None:
        self._processes[process].ready = True
        self._bad_starts.pop(self._processes[process].pool, None)

    def died(self, process: int) -> None:
        found = self._processes.pop(process, None)
        if found is None:
            return
        for number in list(found.holds):
            self.released(process, [number])
        if not found.ready and not found.retired:
            self._bad_starts[found.pool] = self._bad_starts.get(found.pool, 0) + 1
        work = found.work
        if work is None:
            return
        self._end_work(work)
        stream = self._streams.get(work.stream)
        if work.over or stream is None:
            return
        unit = stream.units[work.unit]
        unit.works[work.stage] = None
        unit.deaths += 1
        self._abandon(unit)
        unit.reset()
        unit.failed = unit.deaths > self._max_deaths

    def wants(self, process: int, work: int, nbytes: int) -> None:
        found = self._current(process, work)
        if found is None:
            return
        if found.lent is not None:
            block = self._blocks[found.lent]
            if block.nbytes >= nbytes:
                return  # what was lent ahead is on its way
            found.lent, block.writer = None, None
            self._unwanted(block)
        found.wants = nbytes

    def lent_to(self, work: int) -> int:
        """The block that the work may write."""
        number = self._works[work].lent
        assert number is not None, "a block was written that nobody lent"
        return number

    def wrote(self, process: int, work: int, rows: int, offset: int, nbytes: int) -> None:
        found = self._works[work]
        number, found.lent = self.lent_to(work), None
        block = self._blocks[number]
        block.writer = None
        self._recharge(block, nbytes)
        if found.over:
            self._maybe_free(block)
            return
        stream = self._streams[found.stream]
        block.rows, block.offset, block.unit = rows, offset, found.unit
        stream.units[found.unit].outputs[found.stage].append(number)

    def needs(self, process: int, work: int) -> None:
        """It wants the next block of the stage before, and has passed the last one."""
        found = self._current(process, work)
        if found is not None:
            self._pass_fed(found)
            found.needs = True

    def done(self, process: int, work: int) -> None:
        found = self._works[work]
        if not found.over:
            unit = self._streams[found.stream].units[found.unit]
            unit.finished[found.stage] = True
            unit.works[found.stage] = None
        self._end_work(found)

    def failed(self, process: int, work: int) -> None:
        found = self._works[work]
        if not found.over:
            unit = self._streams[found.stream].units[found.unit]
            unit.failed = True
            unit.works[found.stage] = None
            final = unit.outputs[-1]
            unit.outputs[-1] = deque()
            self._abandon(unit)
            unit.reset()
            unit.outputs[-1] = final
        self._end_work(found)

    def idled(self, process: int) -> None:
        """It has had nothing to do for long."""
        found = self._processes.get(process)
        if found is None or found.work is not None or not found.ready or found.retired:
            return
        used = any(found.pool in pools for stream in self._streams.values() for pools in stream.course.chains)
        least = self._bounds[found.pool].least if used or found.pool == READERS else 0
        if sum(other.pool == found.pool and not other.retired for other in self._processes.values()) > least:
            self._retire(found)

    # What follows

    def commands(self) -> list[Command]:
        for stream in list(self._streams.values()):
            self._advance(stream)
        self._staff()
        self._feed()
        self._grant()
        found, self._commands = self._commands, []
        return found

    def _advance(self, stream: StreamState) -> None:
        """Announce what has come of the head, and go on to the next unit once that is all."""
        while not stream.over and not stream.failed:
            unit = stream.units.get(stream.head)
            if unit is None:
                return
            for number in unit.outputs[-1]:
                block = self._blocks[number]
                unit.skip = max(unit.skip, block.offset + block.rows)
                stream.announced.append(number)
                for member in stream.passed:
                    self._announce(stream, member, block)
            unit.outputs[-1].clear()
            if unit.failed:
                self._fail(stream, Fail(stream.number, unit.index, unit.deaths))
                return
            if not unit.finished[-1]:
                return
            del stream.units[stream.head]
            stream.head += 1
        if stream.over:
            for member in stream.passed.keys() - stream.ended:
                stream.ended.add(member)
                self._commands.append(End(stream.number, member))

    def _staff(self) -> None:
        """Give work to idle processes; start and end processes."""
        for stream in self._streams.values():
            for pool in {pool for pools in stream.course.chains for pool in pools}:
                self._launch(pool, self._bounds[pool].least - len(self._live(pool)))
        idle: dict[Hashable, list[ProcessState]] = {}
        for process in self._processes.values():
            if process.ready and process.work is None and not process.retired:
                idle.setdefault(process.pool, []).append(process)
        # The stream with the least under way is served first.
        ahead = sorted(self._streams.values(), key=lambda stream: (self._num_works(stream), stream.number))
        while ahead:
            ahead = [stream for stream in ahead if self._assigned(stream, idle)]
        self._launch_for_unserved()
        for pool, processes in idle.items():
            for process in processes[: len(self._live(pool)) - self._bounds[pool].most]:
                self._retire(process)

    def _assigned(self, stream: StreamState, idle: dict[Hashable, list[ProcessState]]) -> bool:
        for unit, stage in self._unserved(stream):
            if idle.get(unit.pools[stage]):
                self._assign(stream, unit, stage, idle[unit.pools[stage]].pop())
                return True
        return False

    def _launch_for_unserved(self) -> None:
        unserved: dict[Hashable, int] = {}
        for stream in self._streams.values():
            for unit, stage in self._unserved(stream):
                pool = unit.pools[stage]
                more = len(stream.course.chain_of) - stream.next_unit if unit.index == stream.next_unit else 1
                unserved[pool] = unserved.get(pool, 0) + more
                if unit.index == stream.head and not self._has_hope(stream, pool):
                    self._launch(pool, 1)
        for pool, num in unserved.items():
            live = self._live(pool)
            starting = sum(not process.ready for process in live)
            self._launch(pool, min(self._bounds[pool].most - len(live), num - starting))

    def _has_hope(self, stream: StreamState, pool: Hashable) -> bool:
        """Whether a process of the pool will come free by itself: one that waits for room, or for others, may not."""
        return any(
            work is None or (work.stream == stream.number and not work.over and work.wants is None and not work.needs)
            for work in (process.work for process in self._live(pool))
        )

    def _unserved(self, stream: StreamState) -> Iterator[tuple[UnitState, int]]:
        """Units and stages that could be worked on, those that come first first."""
        if stream.failed:
            return
        kept_free: set[Hashable] = set()
        for index in sorted(stream.units):
            unit = stream.units[index]
            if unit.failed:
                return
            for stage, pool in enumerate(unit.pools):
                if unit.works[stage] is not None or unit.finished[stage] or pool in kept_free:
                    continue
                if stage and not unit.outputs[stage - 1] and not unit.finished[stage - 1]:
                    # A later unit must not take the process that this one will need.
                    kept_free.add(pool)
                    continue
                yield unit, stage
        index = stream.next_unit
        if index < len(stream.course.chain_of) and (index == stream.head or self._fits(stream, stream.largest)):
            yield stream.fresh(index), 0

    def _assign(self, stream: StreamState, unit: UnitState, stage: int, process: ProcessState) -> None:
        if unit.index not in stream.units:
            stream.units[unit.index] = unit
            stream.next_unit = unit.index + 1
        work = WorkState(next(self._numbers), stream.number, unit.index, stage, process.number)
        unit.works[stage] = process.work = self._works[work.number] = work
        skip = unit.skip if stage == len(unit.pools) - 1 else 0
        self._commands.append(Assign(process.number, work.number, stream.number, unit.index, stage, skip))

    def _feed(self) -> None:
        for work in self._works.values():
            if not work.needs or work.over:
                continue
            unit = self._streams[work.stream].units[work.unit]
            ahead = unit.outputs[work.stage - 1]
            if ahead:
                work.needs, work.fed = False, ahead.popleft()
                self._blocks[work.fed].holders.add(work.process)
                self._processes[work.process].holds.add(work.fed)
                self._commands.append(Feed(work.process, work.number, work.fed))
            elif unit.finished[work.stage - 1]:
                work.needs = False
                self._commands.append(FeedEnd(work.process, work.number))

    def _grant(self) -> None:
        waiting = [work for work in self._works.values() if work.wants is not None and not work.over]
        heads = {stream.number: stream.head for stream in self._streams.values()}
        waiting.sort(key=lambda work: (work.unit - heads[work.stream], -work.stage, work.stream))
        for work in waiting:
            stream = self._streams[work.stream]
            assert work.wants is not None
            charge = max(work.wants, SMALLEST_CHARGE)
            is_head = work.unit == stream.head
            if self._fits(stream, charge, reserve=0 if is_head else stream.largest):
                self._lend(stream, work, charge)
            elif is_head and self._awaited(stream, work):
                if stream.announced and self._spare(stream):
                    continue  # for members that are still to join; `hurry` ends that
                self._lend(stream, work, charge)

        for work in self._works.values():
            if work.wants is None and work.lent is None and not work.over:
                self._lend_ahead(work)

    def _lend_ahead(self, work: WorkState) -> None:
        """Where there is plenty of room, a process need not ask and wait."""
        stream = self._streams[work.stream]
        charge = stream.typical
        if charge and 2 * (self.in_flight + charge) <= self.limit and self._fits(stream, charge, stream.largest):
            work.wants = charge
            self._lend(stream, work, charge)

    def _fits(self, stream: StreamState, charge: int, reserve: int = 0) -> bool:
        free = self.limit - self.in_flight - charge
        # A stream that nobody takes from leaves some room for those that are taken from.
        fair = stream.in_flight + charge <= 3 * (free + charge)
        return free >= reserve and fair and self.num_blocks < self._max_blocks

    def _awaited(self, stream: StreamState, work: WorkState) -> bool:
        """Whether those who take what this work gives have nothing left to take."""
        unit = stream.units[work.unit]
        if work.stage < len(unit.pools) - 1:
            following = unit.works[work.stage + 1]
            return not unit.outputs[work.stage] and (following is None or following.fed is None)
        return stream.base + len(stream.announced) == stream.num_taken

    def _spare(self, stream: StreamState) -> bool:
        """Whether blocks are kept for members to come; those of a stream that is in a hurry go."""
        if stream.patient and stream.waits_for_members:
            return True
        self._forget(stream)
        return False

    def _lend(self, stream: StreamState, work: WorkState, charge: int) -> None:
        assert work.wants is not None
        block = BlockState(next(self._numbers), work.wants, charge, stream.number, writer=work.process)
        stream.largest = max(stream.largest, charge)
        self._blocks[block.number] = block
        self.in_flight += charge
        stream.in_flight += charge
        self.num_blocks += 1
        self.peak = max(self.peak, self.in_flight)
        work.lent, work.wants = block.number, None
        self._commands.append(Lend(work.process, work.number, block.number, block.nbytes))

    # Parts of events

    def _announce(self, stream: StreamState, member: int, block: BlockState) -> None:
        block.holders.add(member)
        self._commands.append(Announce(stream.number, member, block.number, block.unit, block.offset))

    def _taken(self, stream: StreamState) -> None:
        """Some blocks may have been passed by all who joined."""
        if not stream.waits_for_members:
            self._forget(stream)

    def _forget(self, stream: StreamState) -> None:
        while stream.announced and stream.base < stream.num_taken:
            stream.base += 1
            self._unwanted(self._blocks[stream.announced.popleft()])

    def _unwanted(self, block: BlockState) -> None:
        block.wanted = False
        if block.writer is None:
            self._uncount(block)
        self._maybe_free(block)

    def _recharge(self, block: BlockState, nbytes: int) -> None:
        """It has become smaller than the room that was lent ahead."""
        charge = min(max(nbytes, SMALLEST_CHARGE), block.charge)
        stream = self._streams.get(block.stream)
        if block.counted:
            self.in_flight -= block.charge - charge
            if stream is not None:
                stream.in_flight -= block.charge - charge
        block.charge = charge
        if stream is not None:
            stream.typical = max(charge, stream.typical * 7 // 8)

    def _uncount(self, block: BlockState) -> None:
        if block.counted:
            block.counted = False
            self.in_flight -= block.charge
            if block.stream in self._streams:
                self._streams[block.stream].in_flight -= block.charge
            self.num_blocks -= 1

    def _maybe_free(self, block: BlockState) -> None:
        if not block.wanted and not block.holders and block.writer is None and block.number in self._blocks:
            self._uncount(block)
            del self._blocks[block.number]
            self._commands.append(Free(block.number))

    def _abandon(self, unit: UnitState) -> None:
        """Nothing that was made of the unit, and has not been announced, is wanted any more."""
        for work in unit.works:
            if work is not None and not work.over:
                work.over = True
                self._pass_fed(work)
                if work.lent is not None:
                    self._blocks[work.lent].wanted = False  # it goes once it has been written, or will not be
                if work.wants is not None or work.needs:
                    self._commands.append(Drop(work.process, work.number))
                work.wants, work.needs = None, False
        for outputs in unit.outputs:
            for number in outputs:
                self._unwanted(self._blocks[number])
            outputs.clear()

    def _pass_fed(self, work: WorkState) -> None:
        if work.fed is not None:
            number, work.fed = work.fed, None
            if number in self._blocks:
                self._unwanted(self._blocks[number])

    def _current(self, process: int, work: int) -> WorkState | None:
        found = self._works[work]
        if found.over:
            self._commands.append(Drop(process, work))
            return None
        return found

    def _end_work(self, work: WorkState) -> None:
        """Its process has nothing more to do with it."""
        self._works.pop(work.number, None)
        self._pass_fed(work)
        if work.lent is not None:
            block = self._blocks[work.lent]
            block.writer, work.lent = None, None
            self._unwanted(block)
        process = self._processes.get(work.process)
        if process is not None:
            process.work = None

    def _num_works(self, stream: StreamState) -> int:
        return sum(work.stream == stream.number and not work.over for work in self._works.values())

    def _live(self, pool: Hashable) -> list[ProcessState]:
        return [process for process in self._processes.values() if process.pool == pool and not process.retired]

    def _launch(self, pool: Hashable, num: int) -> None:
        for _ in range(num):
            if self._bad_starts.get(pool, 0) >= MAX_STARTS:
                self._give_up(pool)
                return
            process = ProcessState(next(self._numbers), pool)
            self._processes[process.number] = process
            self._commands.append(Launch(process.number, pool))

    def _give_up(self, pool: Hashable) -> None:
        del self._bad_starts[pool]
        for stream in self._streams.values():
            if not stream.failed and any(pool in pools for pools in stream.course.chains):
                self._fail(stream, Fail(stream.number, None, MAX_STARTS))

    def _fail(self, stream: StreamState, failure: Fail) -> None:
        stream.failed = True
        for unit in stream.units.values():
            self._abandon(unit)
        stream.units.clear()
        self._commands.append(failure)

    def _retire(self, process: ProcessState) -> None:
        process.retired = True
        self._commands.append(Retire(process.number))
