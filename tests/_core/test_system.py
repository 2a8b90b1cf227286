"""What the system says of a process, against processes that do what is to be said."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from paceline._core import system

ECHO = "import sys\nfor line in sys.stdin: exec(line); print('done', flush=True)"
BUSY = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        yield it
        it.kill()


def ask(process, line):
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_a_waiting_process_differs_from_a_stopped_one(process):
    ask(process, "pass")
    assert system.read_process_status(process.pid).state in ("S", "R")
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert system.read_process_status(process.pid).state == "T"
    assert not system.read_process_status(process.pid).is_traced
    os.kill(process.pid, signal.SIGCONT)


def test_the_time_that_a_process_and_its_children_take_is_counted(process):
    ask(process, "import subprocess, sys, time")
    before = system.read_process_status(process.pid).cpu_s
    ask(process, "end = time.process_time() + 0.3")
    ask(process, "while time.process_time() < end: pass")
    mine = system.read_process_status(process.pid).cpu_s
    assert mine - before >= 0.2
    pipes = "stdin=subprocess.PIPE, stdout=subprocess.PIPE"
    ask(process, f"child = subprocess.Popen([sys.executable, '-c', {BUSY!r}], {pipes}); child.stdout.readline()")
    assert system.read_process_status(process.pid).cpu_s - mine >= 0.3, "of one that still runs"
    ask(process, "child.communicate(b'1')")
    assert system.read_process_status(process.pid).cpu_s - mine >= 0.3, "and of one that has ended"


def test_written_bytes_are_counted_and_a_process_that_is_gone_has_no_status(process):
    before = system.read_process_status(process.pid).num_bytes
    ask(process, "open('/dev/null', 'wb').write(bytes(3 << 20))")
    assert system.read_process_status(process.pid).num_bytes - before >= 3 << 20
    process.kill()
    process.wait()
    assert system.read_process_status(process.pid) is None


V2 = "30 23 0:26 {root} /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
UNLIMITED = str(2**63 - 4096)
MB = 10**6


@pytest.mark.parametrize(
    ("group", "mount", "files", "expected"),
    [
        ("0::/", V2.format(root="/"), {}, None),
        (
            "0::/jobs/one",  # The limit of an ancestor, and what all its groups use.
            V2.format(root="/"),
            {
                "jobs": {"max": 900, "current": 500, "stat": "inactive_file 50000000\nactive_file 50000000"},
                "jobs/one": {"max": "max", "current": 100},
            },
            (900, 500),
        ),
        ("0::/a/b", V2.format(root="/"), {"a": {"max": 900, "current": 10}, "a/b": {"max": 300}}, (300, 300)),
        ("0::/a/b", V2.format(root="/"), {"a": {"max": 900, "current": 850}, "a/b": {"max": 300}}, (300, 50)),
        ("0::/a", V2.format(root="/"), {"a": {"max": "max", "high": 700, "current": 800}}, (700, 0)),
        ("0::/", V2.format(root="/"), {"": {"max": 800, "current": 300}}, (800, 500)),  # a container's own namespace
        ("0::/../other", V2.format(root="/"), {"": {"max": 800}}, (800, 800)),
        ("0::/docker/c1", V2.format(root="/docker/c1"), {"": {"max": 800}}, (800, 800)),
        (
            "0::/\n4:memory:/jobs/one\n1:cpu,cpuacct:/elsewhere",
            V1.format(root="/"),
            {
                "memory/jobs": {"limit_in_bytes": 900, "usage_in_bytes": 300, "stat": "total_inactive_file 100000000"},
                "memory/jobs/one": {"limit_in_bytes": UNLIMITED, "usage_in_bytes": 200},
            },
            (900, 700),
        ),
        (
            "4:memory:/docker/c1",  # The limit of an ancestor that the container does not see.
            V1.format(root="/docker/c1"),
            {"memory": {"limit_in_bytes": UNLIMITED, "stat": "hierarchical_memory_limit 600000000"}},
            (600, 600),
        ),
    ],
)
def test_usable_memory_is_the_smallest_limit_of_all_control_groups(tmp_path, group, mount, files, expected):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    (tmp_path / "proc/self/mountinfo").write_text(f"22 1 8:1 / / rw - ext4 /dev/vda rw\n{mount}\n")
    for directory, contents in files.items():
        path = tmp_path / "sys/fs/cgroup" / directory
        path.mkdir(parents=True, exist_ok=True)
        if "memory" in directory:
            (path / "memory.usage_in_bytes").write_text("0")
        for name, value in contents.items():
            (path / f"memory.{name}").write_text(str(value * MB if isinstance(value, int) else value) + "\n")
    machine = psutil.virtual_memory().total
    usable = system.usable_memory(tmp_path)
    if expected is None:
        assert usable.total_bytes == machine
        assert usable.free_bytes <= machine
    else:
        assert (usable.total_bytes, usable.free_bytes) == (expected[0] * MB, expected[1] * MB)


@pytest.mark.parametrize(
    ("group", "mount", "file", "expected"),
    [
        ("0::/jobs/one", V2.format(root="/"), "jobs/one/memory.events", 2),
        ("0::/\n4:memory:/one", V1.format(root="/"), "memory/one/memory.oom_control", 2),
        ("0::/", V2.format(root="/"), "other/memory.events", 7),
    ],
)
def test_oom_kills_are_those_of_the_control_group_or_else_of_the_machine(tmp_path, group, mount, file, expected):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    (tmp_path / "proc/self/mountinfo").write_text(f"{mount}\n")
    (tmp_path / "proc/vmstat").write_text("oom_kill 7\n")
    path = tmp_path / "sys/fs/cgroup" / file
    path.parent.mkdir(parents=True)
    path.write_text("oom 5\noom_kill 2\n")
    assert system.num_oom_kills(tmp_path) == expected
