"""The schedule against a world that does what it is told, late and out of order, and in which processes die.

Whatever happens: members get every row once and in order, the bytes in flight stay within their bound, somebody can
always do something until all is delivered, and memory is given back once, when nobody looks at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.exec import schedule_state as s
from paceline.data.exec.schedule import MAX_STARTS, Schedule

KB = 1 << 10
POOL, OTHER = "pool", "other"


@dataclass
class Worker:
    pool: object
    ready: bool = False
    assign: s.AssignWork | None = None
    inputs: list[int] = field(default_factory=list)
    inputs_over: bool = False
    asked: str = ""
    lent: s.LendBlock | None = None
    made: int = 0
    """Blocks that were written for this work, and rows in them."""
    rows: int = 0
    dropped: bool = False
    holds: set[int] = field(default_factory=set)


@dataclass
class Reader:
    seen: list[tuple[int, int, int]] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    holds: set[int] = field(default_factory=set)
    passed: int = 0
    ended: bool = False
    joined: bool = False
    left: bool = False


class World:
    """Units are lists of (rows, bytes) for each block; a stage with a pool gives a block for each that it takes."""

    def __init__(self, units, chain, limit, start, members):
        self.units, self.chain, self.limit, self.start = units, chain, limit, start
        self.schedule = Schedule(limit, 2)
        course = s.StreamSpec((0,) * len(units), (chain,), *start, num_members=members, is_patient=members > 1)
        self.stream = self.schedule.open_stream(course, {POOL: s.PoolBounds(1, 2), OTHER: s.PoolBounds(1, 1)})
        self.workers = {}
        self.readers = {self.schedule.next_number(): Reader() for _ in range(members)}
        self.blocks = {}
        self.written = {}
        self.freed = set()
        self.failed = None
        self.deaths = 0
        self.hurried = False

    def obey(self):
        while commands := self.schedule.take_commands():
            for command in commands:
                self.do(command)
        largest = max((max(size, 64 * KB) for unit in self.units for _, size in unit), default=0)
        assert self.schedule.in_flight <= self.limit + largest * len(self.chain)

    def do(self, command):
        match command:
            case s.LaunchProcess(process, pool):
                self.workers[process] = Worker(pool)
            case s.RetireProcess(process):
                del self.workers[process]
                self.schedule.on_process_died(process)
            case s.AssignWork(process):
                before = self.workers[process]
                assert before.assign is None, "two works at a time"
                self.workers[process] = Worker(before.pool, ready=True, assign=command, holds=before.holds)
            case s.LendBlock(process, work, block, _):
                assert block not in self.blocks
                self.blocks[block] = (0, 0, 0)
                if process in self.workers:
                    self.workers[process].lent = command
            case s.FeedBlock(process, _, block):
                assert block not in self.freed
                self.workers[process].inputs.append(block)
                self.workers[process].holds.add(block)
                self.workers[process].asked = ""
            case s.EndFeed(process, _):
                self.workers[process].inputs_over = True
                self.workers[process].asked = ""
            case s.DropWork(process, work):
                worker = self.workers.get(process)
                if worker is not None and worker.assign is not None and worker.assign.work == work:
                    worker.dropped = True
            case s.AnnounceBlock(_, member, block, unit, offset):
                assert block not in self.freed
                reader = self.readers[member]
                rows, _ = self.written[block]
                assert self.written[block][1] == offset
                reader.seen.append((unit, offset, rows))
                reader.waiting.append(block)
                reader.holds.add(block)
            case s.EndStream(_, member):
                self.readers[member].ended = True
            case s.FailStream():
                self.failed = command
            case s.FreeBlock(block):
                assert block not in self.freed, "freed twice"
                assert not any(block in reader.holds for reader in self.readers.values()), "freed while it is looked at"
                for worker in self.workers.values():
                    assert block not in worker.holds, "freed while a process looks at it"
                    assert worker.lent is None or worker.lent.block != block or worker.asked != "writing"
                self.freed.add(block)

    def actions(self):
        """What can happen by itself: without deaths, and with members that go on."""
        found = []
        for number, worker in self.workers.items():
            if not worker.ready:
                found.append(lambda n=number: self.be_ready(n))
            elif worker.assign is not None and (act := self.next_act(worker)) is not None:
                found.append(lambda n=number, w=worker, a=act: a(n, w))
        for number, reader in self.readers.items():
            if reader.joined and not reader.left:
                if reader.waiting:
                    found.append(lambda n=number, r=reader: self.pass_one(n, r))
                elif reader.ended:
                    found.append(lambda n=number, r=reader: self.leave(n, r))
            if not reader.joined and self.schedule.can_join(self.stream):
                found.append(lambda n=number, r=reader: self.join(n, r))
        return found

    def be_ready(self, number):
        self.workers[number].ready = True
        self.schedule.on_process_ready(number)

    def next_act(self, worker):
        assign = worker.assign
        assert assign is not None
        if worker.dropped:
            return self.finish
        if worker.asked == "room" and (worker.lent is None or worker.lent.nbytes < self.next_block(worker)[1]):
            return None
        if worker.asked in ("room", "writing"):
            return self.write
        if worker.asked == "input":
            return None
        blocks = self.units[assign.unit]
        if assign.stage and worker.made == len(worker.inputs) and not worker.inputs_over:
            return self.need
        if worker.made == (len(worker.inputs) if assign.stage else len(blocks)):
            return self.finish
        return self.want

    def next_block(self, worker):
        assert worker.assign is not None
        return self.units[worker.assign.unit][worker.made]

    def want(self, number, worker):
        assert worker.assign is not None
        size = self.next_block(worker)[1]
        if worker.lent is not None and worker.lent.work == worker.assign.work and worker.lent.nbytes >= size:
            worker.asked = "writing"
        else:
            worker.asked = "room"
            worker.lent = None
            self.schedule.on_room_requested(number, worker.assign.work, size)

    def write(self, number, worker):
        assign, lent = worker.assign, worker.lent
        assert assign is not None
        assert lent is not None
        rows, size = self.next_block(worker)
        last = assign.stage == len(self.chain) - 1
        begin = worker.rows
        worker.made += 1
        worker.rows += rows
        worker.asked, worker.lent = "", None
        skipped = min(max(assign.skip - begin, 0), rows) if last else 0
        # A block of which nothing is wanted is written all the same: the world is simpler so.
        self.written[lent.block] = (rows - skipped, begin + skipped)
        self.schedule.on_block_written(number, assign.work, rows - skipped, begin + skipped, size)

    def need(self, number, worker):
        assert worker.assign is not None
        worker.asked = "input"
        self.schedule.on_blocks_released(number, list(worker.holds))
        worker.holds.clear()
        self.schedule.on_input_requested(number, worker.assign.work)

    def finish(self, number, worker):
        assert worker.assign is not None
        self.schedule.on_blocks_released(number, list(worker.holds))
        worker.holds.clear()
        work, worker.assign, worker.lent = worker.assign.work, None, None
        worker.asked = ""
        self.schedule.on_work_done(number, work)

    def kill(self, number):
        del self.workers[number]
        self.deaths += 1
        self.schedule.on_process_died(number)

    def join(self, number, reader):
        reader.joined = True
        self.schedule.on_member_joined(self.stream, number)

    def pass_one(self, number, reader):
        block = reader.waiting.pop(0)
        reader.passed += 1
        self.schedule.on_blocks_passed(self.stream, number, reader.passed)
        reader.holds.discard(block)
        self.schedule.on_blocks_released(number, [block])

    def leave(self, number, reader):
        reader.left = True
        reader.holds.clear()
        reader.waiting.clear()
        self.schedule.on_member_left(self.stream, number)

    def hurry(self):
        self.hurried = True
        self.schedule.stop_waiting(self.stream)

    def expected(self):
        """Every row from the start on, as (unit, row of the unit)."""
        first, skip = self.start
        return [
            (unit, row)
            for unit in range(first, len(self.units))
            for row in range(skip if unit == first else 0, sum(rows for rows, _ in self.units[unit]))
        ]


blocks = st.tuples(st.integers(1, 3), st.integers(1, 40).map(lambda number: number * 16 * KB))
worlds = st.builds(
    World,
    units=st.lists(st.lists(blocks, max_size=4), max_size=6),
    chain=st.sampled_from([(s.READERS,), (s.READERS, POOL), (s.READERS, POOL, OTHER)]),
    limit=st.integers(1, 60).map(lambda number: number * 32 * KB),
    start=st.just((0, 0)),
    members=st.integers(1, 3),
)


@settings(max_examples=150, deadline=None)
@given(worlds, st.data())
def test_every_row_comes_once_and_in_order_whatever_dies(world, data):
    if world.units:
        unit = data.draw(st.integers(0, len(world.units) - 1), label="unit")
        rows = sum(rows for rows, _ in world.units[unit])
        skip = data.draw(st.integers(0, rows), label="skip")
        world = World(world.units, world.chain, world.limit, (unit, skip), len(world.readers))
    first = next(iter(world.readers))
    world.join(first, world.readers[first])
    world.obey()
    kills = data.draw(st.integers(0, 3), label="kills")
    while not all(reader.left for reader in world.readers.values() if reader.joined):
        actions = world.actions()
        if kills and world.workers and data.draw(st.integers(0, 9), label="kill?") == 0:
            kills -= 1
            victim = data.draw(st.sampled_from(sorted(world.workers)), label="victim")
            world.kill(victim)
        elif not actions:
            assert not world.hurried, "nobody can go on"
            world.hurry()
        else:
            actions[data.draw(st.integers(0, len(actions) - 1), label="action")]()
        world.obey()
        assert world.failed is None or world.deaths >= MAX_STARTS
        if world.failed is not None:
            return
    for reader in world.readers.values():
        if reader.joined:
            seen = [(unit, row) for unit, offset, rows in reader.seen for row in range(offset, offset + rows)]
            assert seen == world.expected()
    for worker in list(world.workers):
        world.kill(worker)
    world.obey()
    assert world.schedule.in_flight == 0
    assert set(world.blocks) == world.freed


def test_a_stream_whose_processes_are_all_held_up_by_another_gets_one_of_its_own():
    schedule = Schedule(64 * KB, 1)
    first = schedule.open_stream(s.StreamSpec((0, 0, 0), ((s.READERS,),)), {})
    schedule.on_member_joined(first, schedule.next_number())
    (launch,) = schedule.take_commands()
    assert isinstance(launch, s.LaunchProcess)
    schedule.on_process_ready(launch.process)
    (assign,) = schedule.take_commands()
    assert isinstance(assign, s.AssignWork)
    schedule.on_room_requested(assign.process, assign.work, 64 * KB)
    assert [type(command) for command in schedule.take_commands()] == [s.LendBlock]
    schedule.on_block_written(assign.process, assign.work, 1, 0, 64 * KB)
    schedule.on_room_requested(assign.process, assign.work, 64 * KB)
    assert [type(command) for command in schedule.take_commands()] == [s.AnnounceBlock], "its member has one to take"
    second = schedule.open_stream(s.StreamSpec((0,), ((s.READERS,),)), {})
    schedule.on_member_joined(second, schedule.next_number())
    assert [type(command) for command in schedule.take_commands()] == [s.LaunchProcess]
    assert schedule.take_commands() == []
