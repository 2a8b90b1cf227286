"""Rows between two steps: in memory within the limit, in files beyond it, and nowhere afterwards."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from made_datasets import reading, rows

from paceline.data.block import Block
from paceline.data.exec import packed_blocks, spill
from paceline.data.exec.exchange import resolve_barrier
from paceline.data.exec.pipeline import InlineExecutor
from paceline.data.planning.barriers import Materialize, RandomShuffle
from paceline.data.planning.plan import Map, Transform
from processes import small_memory, wait_until


def numbers(count=1000, units=10):
    size = count // units
    return [Block({"id": np.arange(begin, begin + size)}) for begin in range(0, count, size)]


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*")) if root.exists() else []


def is_in_memory(path):
    return path.startswith("/proc/") and os.readlink(path).startswith("/memfd:")


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("limit", "num_in_memory"), [("none", 10), ("8000 bytes", 5), ("portable system", 0)])
def test_rows_beyond_the_limit_are_in_files(data_context, tmp_path, limit, num_in_memory, monkeypatch):
    if limit == "portable system":
        monkeypatch.setenv("PACELINE_PORTABLE", "1")
    if limit == "8000 bytes":  # half of it: five units of 800 bytes
        data_context.execution_options.resource_limits.object_store_memory = 8000
    gc.collect()  # What earlier tests opened is not counted.
    before = open_files()
    units = resolve_barrier(Materialize(reading(numbers())), 0, InlineExecutor())
    in_memory = [is_in_memory(piece.path) for unit in units for piece in unit.pieces]
    assert (in_memory.count(True), len(in_memory)) == (num_in_memory, 10)
    assert (files(tmp_path) == ["spill"]) == (limit != "portable system"), "a file with a name may be left behind"
    assert [row["id"] for unit in units for block in unit.read() for row in block.rows()] == [*range(1000)]
    del units
    gc.collect()
    assert [name for name in files(tmp_path) if name != "spill"] == []
    assert open_files() == before


def test_an_allowance_counts_for_all_units_together(tmp_path):
    stores, held = spill.open_spill(8, 5000, str(tmp_path))
    kept = []

    def write(place):
        with stores.open_writer(place) as writer:
            for _ in range(10):
                kept.append(writer.write(Block({"x": np.zeros(25)})).path == stores.memory)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(kept) == 80
    assert kept.count(True) == 25  # of 200 bytes each
    held.close()


@pytest.mark.parametrize("limit", [None, 8000])
def test_shuffles_use_the_same_memory_one_after_the_other_until_it_is_closed(data_context, limit):
    if limit is not None:  # the rest is in files
        data_context.execution_options.resource_limits.object_store_memory = limit
    gc.collect()
    before, executor = open_files(), InlineExecutor()
    executor.exchange_memory = spill.ReusableMemory()
    plan, seen = RandomShuffle(reading(numbers(2000)), 0), []
    for epoch in range(4):
        expected = rows_of(resolve_barrier(plan, epoch, InlineExecutor()))
        units = resolve_barrier(plan, epoch, executor)
        paths = {piece.path for unit in units for piece in unit.pieces}
        assert any(map(is_in_memory, paths))
        assert all(map(is_in_memory, paths)) == (limit is None)
        seen += [os.stat(path).st_ino for path in paths if is_in_memory(path)]
        assert rows_of(units) == expected
        if epoch == 2:
            units_of_two = units  # their rows must stay as they are while the next epoch is stored
        del units
    assert rows_of(units_of_two) == rows_of(resolve_barrier(plan, 2, InlineExecutor()))
    assert seen[0] == seen[1] == seen[2] != seen[3]
    del units_of_two
    executor.exchange_memory.close()
    gc.collect()
    assert open_files() == before


def rows_of(units):
    return [row["id"] for unit in units for block in unit.read() for row in block.rows()]


WRITERS = """
import os, sys
import numpy as np
from paceline.data.block import Block
from paceline.data.exec import packed_blocks

count, step, writing = 4000, 1 << 20, []
ready, start = os.pipe()
with open(sys.argv[1], "w+b") as file:
    for first in range(2):  # each makes the file longer, in turns with the other
        if (pid := os.fork()) == 0:
            os.close(start)
            os.read(ready, 1)
            for place in range(first, count, 2):
                packed_blocks.PackedWriter(Block({"x": np.full(3, place)})).write(file.fileno(), place * step)
            os._exit(0)
        writing.append(pid)
    os.close(start)
    os.close(ready)
    assert [os.waitpid(pid, 0)[1] for pid in writing] == [0, 0]
    length = len(packed_blocks.pack_block(Block({"x": np.full(3, 0)})))
    blocks = [packed_blocks.read_packed(file.fileno(), place * step, length) for place in range(count)]
    assert [block.column("x").tolist() for block in blocks] == [[place] * 3 for place in range(count)]
"""


def test_processes_that_write_at_once_leave_each_other_whole(run_script, tmp_path):
    ended = run_script(WRITERS, str(tmp_path / "rows"))
    assert ended.returncode == 0, ended.stderr


def test_a_unit_that_is_done_again_begins_anew(tmp_path):
    stores, held = spill.open_spill(2, 1000, str(tmp_path))
    for attempt in range(3):
        with stores.open_writer(1) as writer:
            first = writer.write(Block({"x": np.full(100, attempt)}))
            second = writer.write(Block({"x": np.full(100, attempt)}))
        assert (first.path == stores.memory, second.path == stores.memory) == (True, False)
        assert first.load().column("x").tolist() == second.load().column("x").tolist() == [attempt] * 100
    held.close()
    assert files(tmp_path) == []


@dataclass(frozen=True)
class Failing(Transform):
    name = "failing"

    def apply(self, blocks, scope):
        for block in blocks:
            if block.column("id")[0] >= 500:
                raise RuntimeError("the user's")
            yield block


def test_a_failure_on_the_way_leaves_nothing(data_context, tmp_path):
    data_context.execution_options.resource_limits.object_store_memory = 1000
    gc.collect()  # What earlier tests opened is not counted.
    before = open_files()
    with pytest.raises(RuntimeError, match="the user's") as caught:
        rows(RandomShuffle(Map(reading(numbers()), Failing()), 0))
    # Even while somebody keeps the error, whose frames refer to all that there was.
    assert files(tmp_path) == ["spill"]
    assert open_files() == before
    assert caught.value.__traceback__ is not None


def test_rows_outlive_copies_of_their_unit_and_the_unit_itself(data_context):
    block = Block({"x": np.arange(100_000), "s": ["text"] * 100_000})
    units = resolve_barrier(Materialize(reading([block])), 0, InlineExecutor())
    copies = cloudpickle.loads(cloudpickle.dumps(units))
    del copies
    gc.collect()
    [found] = units[0].read()
    del units
    gc.collect()
    assert np.array_equal(found.column("x"), np.arange(100_000))
    assert found.column("s")[99_999].as_py() == "text"


SPILLS = """
import os, signal, sys
import numpy as np
from paceline.data.block import Block
from paceline.data.exec import spill
stores, held = spill.open_spill(1, 0, sys.argv[1])
with stores.open_writer(0) as writer:
    piece = writer.write(Block({"x": np.arange(1000)}))
print("written", flush=True)
if sys.argv[2] == "stay":
    sys.stdin.read()
elif sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[2] == "fork":
    if (pid := os.fork()) == 0:
        held.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert piece.load().num_rows == 1000
    held.close()
"""


def test_without_proc_what_a_killed_process_left_is_removed_by_the_next(tmp_path, monkeypatch):
    def num_spilled(root):
        return len(list(root.rglob("*.rows")))

    monkeypatch.setenv("PACELINE_PORTABLE", "1")
    root = tmp_path / "spill"
    command = [sys.executable, "-c", SPILLS, str(root)]
    killed = subprocess.run([*command, "killed"], stdout=subprocess.DEVNULL, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert num_spilled(root) == 1
    living = subprocess.Popen([*command, "stay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert living.stdout is not None
    assert living.stdout.readline() == b"written\n"
    assert num_spilled(root) == 1  # the dead one's went, this one's came
    _, held = spill.open_spill(1, 0, str(root))
    assert num_spilled(root) == 2  # a living one's stays
    living.communicate(b"")
    assert living.returncode == 0
    held.close()
    assert files(root) == []


TRAINS = """
import time
from pathlib import Path
from paceline import data, train

data.DataContext.get_current().execution_options.resource_limits.object_store_memory = 1e6

def function():
    next(iter(train.get_dataset_shard("train").iter_batches(batch_size=10)))
    Path("taken").touch()
    time.sleep(1000)

dataset = data.range(2_000_000).sort("id", descending=True)
train.DataParallelTrainer(function, datasets={"train": dataset}, run_config=train.RunConfig(storage_path="runs")).fit()
"""


def test_nothing_is_left_of_a_killed_driver(tmp_path, processes_in):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    driver = subprocess.Popen([sys.executable, "-c", TRAINS], cwd=tmp_path, env=os.environ | {"TMPDIR": str(temporary)})
    try:
        wait_until((tmp_path / "taken").exists)
        num_bytes = 0
        for path in Path(f"/proc/{driver.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                num_bytes += path.stat().st_size if str(temporary) in os.readlink(path) else 0
        assert num_bytes > 15e6, "the rows are not in files"
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: not processes_in(tmp_path) and not files(temporary))


def test_a_fork_removes_nothing_and_other_directories_are_left_alone(tmp_path):
    subprocess.run([sys.executable, "-c", SPILLS, str(tmp_path), "fork"], stdout=subprocess.DEVNULL, check=True)
    assert files(tmp_path) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "paceline-spill-new").mkdir()  # of a process that has not come to lock it
    spill.remove_stale_spills(tmp_path)
    assert files(tmp_path) == ["mine", "paceline-spill-new"]
    os.utime(tmp_path / "paceline-spill-new", (0, 0))
    spill.remove_stale_spills(tmp_path)
    assert files(tmp_path) == ["mine"]


IN_A_SMALL_GROUP = """
import os, sys
from paceline import data

open(sys.argv[1], "w").write(str(os.getpid()))
numbers = data.range_tensor(100_000, shape=(1000,))
for rows in (numbers, numbers.random_shuffle(seed=1)):
    print(sum(len(batch["data"]) for batch in rows.iter_batches(batch_size=1000)))
"""


TEN_TIMES_THE_LIMIT = """
import os, sys
import numpy as np
from paceline import data

open(sys.argv[1], "w").write(str(os.getpid()))
data.DataContext.get_current().execution_options.resource_limits.object_store_memory = 32_000_000
NUM_ROWS = 8_000_000  # 320 MB


def columns(batch):
    mixed = batch["id"] * 2_654_435_761 % NUM_ROWS
    return {"group": mixed // 4, "x": mixed / 7, "a": batch["id"], "b": batch["id"], "c": batch["id"]}


def iterate(rows):
    return rows.iter_batches(batch_size=10_000)


rows = data.range(NUM_ROWS, override_num_blocks=16).map_batches(columns)
expected = NUM_ROWS * (NUM_ROWS - 1) // 2
last = -1.0
num_rows = 0
for batch in iterate(rows.sort("x")):
    assert batch["x"][0] >= last and (np.diff(batch["x"]) >= 0).all()
    last, num_rows = batch["x"][-1], num_rows + len(batch["x"])
assert num_rows == NUM_ROWS
print("sort", flush=True)
groups = [(len(batch["group"]), batch["sum(a)"].sum()) for batch in iterate(rows.groupby("group").sum("a"))]
assert [sum(each) for each in zip(*groups)] == [NUM_ROWS // 4, expected]
print("group", flush=True)
joined = rows.join(data.range(NUM_ROWS, override_num_blocks=16), "inner", on="a", right_on="id")
assert sum(batch["b"].sum() for batch in iterate(joined)) == expected
print("join", flush=True)
assert sum(batch["a"].sum() for batch in iterate(rows.random_shuffle(seed=1))) == expected
print("shuffle", flush=True)
tenths = rows.map_batches(lambda batch: {"tenth": batch["group"] // 10})  # The result itself must fit in memory.
assert len(tenths.unique("tenth")) == NUM_ROWS // 40
print("unique", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "limit", "printed"),
    [
        (IN_A_SMALL_GROUP, 500 << 20, ["100000"] * 2),
        (TEN_TIMES_THE_LIMIT, 450 << 20, ["sort", "group", "join", "shuffle", "unique"]),
    ],
    ids=["more than there is", "ten times the limit"],
)
def test_every_exchange_stays_within_the_memory_of_the_control_group(run_script, tmp_path, script, limit, printed):
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(small_memory(limit))
        except OSError as problem:
            pytest.skip(f"no control group can be made here ({problem}): a small memory was not tried")
        ended = run_script(script, str(group / "cgroup.procs"), env={"TMPDIR": str(tmp_path)}, timeout=300)
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        assert (ended.returncode, ended.stdout.split()) == (0, printed), ended.stderr


def test_pieces_that_cannot_be_written_or_read_are_named(tmp_path):
    stores, held = spill.open_spill(1, 0, str(tmp_path))
    with stores.open_writer(0) as writer:
        piece = writer.write(Block({"x": np.arange(1000)}))
        os.close(writer._file)
        writer._file = os.open(stores.path(0), os.O_RDONLY)
        with pytest.raises(OSError, match=rf"cannot write the rows .* in {tmp_path}: .*\n\nhint: .*spill_path"):
            writer.write(Block({"x": np.arange(10)}))
    os.truncate(piece.path, 500)
    with pytest.raises(EOFError, match="end after 500 of"):
        piece.load()
    held.close()


@pytest.mark.parametrize("num_rows", [0, 3, 100_000])
def test_a_block_lies_aligned_and_is_not_copied(tmp_path, num_rows):
    columns = {f"column {number}": np.arange(num_rows, dtype=kind) for number, kind in enumerate("bhilfdQ")}
    with (tmp_path / "rows").open("w+b") as file:
        packed = packed_blocks.PackedWriter(Block(columns))
        packed.write(file.fileno(), 0)
        assert packed.length % packed_blocks.ALIGNMENT == 0
        back = packed_blocks.read_packed(file.fileno(), 0, packed.length)
    assert back.num_rows == num_rows
    for name, values in columns.items():
        assert np.array_equal(back.column(name), values)
        assert back.column(name).dtype == values.dtype
        if num_rows == 100_000:
            assert back.column(name).ctypes.data % packed_blocks.ALIGNMENT == 0
            assert not back.column(name).flags.owndata
