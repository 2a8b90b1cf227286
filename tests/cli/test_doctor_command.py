"""`paceline doctor`: each check of what is there, and what it says of machines that lack something."""

import json
import os
import resource
import socket
from importlib import metadata

import pytest

from paceline._commands.diagnosis import cluster, machine, packages, storage, variables, workers
from paceline._core import settings
from paceline._core.system import UsableMemory
from paceline._storage.address import open_store_at
from paceline._storage.files import hash_file


def by_name(lines):
    return {line.name: line for line in lines}


def test_a_fine_machine_is_exit_code_0_and_every_line_is_json(start_command, tmp_path):
    process = start_command("doctor", str(tmp_path / "to" / "be" / "made"), "--json")
    out, err = process.communicate()
    lines = json.loads(out)["lines"]
    assert (process.returncode, [line for line in lines if line["status"] == "fail"]) == (0, []), err
    expected = {"Python", "paceline", "cores", "memory", "shared memory", "open files", "processes"}
    assert expected | {"round trip", "clock", "room", "start"} <= {line["name"] for line in lines}
    assert not list(tmp_path.glob("**/.paceline-doctor-*"))
    assert not (tmp_path / "to").exists()


def test_a_check_that_fails_or_breaks_is_a_line_and_exit_code_1(paceline, tmp_path, monkeypatch):
    def break_off():
        raise RuntimeError("never thought of")
        yield

    monkeypatch.setattr(packages, "check_packages", break_off)
    monkeypatch.setattr(workers, "check_workers", lambda: iter(()))
    (tmp_path / "file").write_text("in the way")
    result = paceline("doctor", str(tmp_path / "file" / "runs"))
    assert result.code == 1
    assert "RuntimeError: never thought of" in result.out
    assert "fail round trip" in result.out
    assert "hint:" in result.out
    assert result.out.splitlines()[-1].endswith("warnings")


def test_a_required_package_that_is_missing_fails_an_optional_one_is_listed_and_an_old_one_warns(monkeypatch):
    version_of = packages.installed_version
    missing = ("pyarrow", "ray")
    monkeypatch.setattr(packages, "installed_version", lambda name: None if name in missing else version_of(name))
    found = by_name(packages.check_packages())
    assert found["pyarrow"].status == "fail"
    assert "ray" not in found
    assert "ray" in found["not installed"].text
    assert "paceline[" in found["not installed"].hint
    monkeypatch.setattr(packages, "_minimum_versions", lambda: {"torch": "99.1"})
    monkeypatch.setattr(packages, "installed_version", lambda name: "2.13.0+cpu")
    line = by_name(packages.check_packages())["torch"]
    assert line.status == "warn"
    assert "2.13.0+cpu is older than 99.1" in line.text


def test_no_package_that_can_be_imported_is_listed_as_missing():
    importable = metadata.packages_distributions()
    found = by_name(packages.check_packages())
    missing = found["not installed"].text.split(", ") if "not installed" in found else []
    assert [name for name in missing if name in importable] == []


def test_one_core_of_many_or_more_threads_than_cores_is_a_warning(monkeypatch):
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 64)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    try:
        alone = machine._check_cores()
        monkeypatch.setenv("OMP_NUM_THREADS", "8")
        crowded = machine._check_cores()
    finally:
        os.sched_setaffinity(0, usable)
    assert (alone.status, alone.text) == ("warn", "1 usable of 64; all workers share it")
    assert "--cpus-per-task" in alone.hint
    assert (crowded.status, crowded.text) == ("warn", "1 usable of 64; OMP_NUM_THREADS=8 is more than that")
    assert crowded.hint.startswith("unset it")
    monkeypatch.setattr(machine.system, "num_cores", lambda: 64)
    assert (machine._check_cores().status, machine._check_cores().text) == ("ok", "64 usable")


def test_low_limits_of_open_files_processes_and_shared_memory_are_warnings(monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        line = machine._check_open_files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (line.status, line.hint) == ("warn", "ulimit -n 4096")
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (400, 512))
    line = machine._check_open_files()
    assert (line.status, line.text) == ("warn", "400 for each process")
    assert "limits.conf" in line.hint  # `ulimit` cannot raise it: it is the hard limit, too
    line = machine._check_processes()
    assert line.status == "warn"
    assert line.text.startswith("400 for this user")
    assert "ulimit -u" in line.hint
    monkeypatch.setattr(machine, "LITTLE_SHM", 1 << 60)
    line = machine._check_shared_memory()
    assert line.status == "warn"
    assert "--shm-size" in line.hint


def test_in_a_container_its_limits_count(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine.system, "usable_memory", lambda: UsableMemory(900_000_000, 500_000_000))
    (tmp_path / "pids.max").write_text("64\n")
    memory = machine._check_memory()
    assert memory.status == "warn"
    assert memory.text.startswith("500.0 MB free of the 900.0 MB")
    assert machine._check_processes().status == "warn"
    (tmp_path / "pids.max").write_text("max\n")
    assert machine._check_processes().status == "ok"


def test_gpus_that_torch_does_not_see_are_a_warning(monkeypatch):
    monkeypatch.setattr(machine, "_CUDA", "print('a warning of others'); print('2', '12.8')")
    assert machine._check_cuda(2).status == "ok"
    monkeypatch.setattr(machine, "_CUDA", "raise SystemExit('no driver')")
    assert "cannot detect GPUs: no driver" in machine._check_cuda(2).text
    monkeypatch.setattr(machine, "_CUDA", "print('0', '')")
    line = machine._check_cuda(2)
    assert line.status == "warn"
    assert "sees 0 of the 2 GPUs" in line.text


def test_a_full_disk_and_storage_that_returns_other_bytes_fail(tmp_path, monkeypatch):
    def alter(path, name):
        path.write_bytes(b"other")
        return hash_file(path, name)

    monkeypatch.setattr(storage, "_SPEED_BYTES", 1)
    monkeypatch.setattr(storage, "LITTLE_ROOM", 1 << 60)
    monkeypatch.setattr(storage, "NO_ROOM", 0)
    assert by_name(storage.check_storage(str(tmp_path)))["room"].status == "warn"
    monkeypatch.setattr(storage, "NO_ROOM", 1 << 60)
    assert by_name(storage.check_storage(str(tmp_path)))["room"].status == "fail"
    monkeypatch.setattr(storage, "hash_file", alter)
    line = by_name(storage.check_storage(str(tmp_path)))["round trip"]
    assert line.status == "fail"
    assert "returned different data than was written" in line.text
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_may_not_be_written_to_fails():
    line = by_name(storage.check_storage("/sys/runs"))["round trip"]  # Not even root may make a directory there.
    assert line.status == "fail"
    assert "ermi" in line.text, line.text  # "Permission denied", or to root "Operation not permitted"
    assert "PACELINE_STORAGE_PATH" in line.hint


def test_a_clock_that_was_never_set_fails(monkeypatch):
    monkeypatch.setattr(storage.time, "time", lambda: 60.0)
    line = storage._check_clock(0.0)
    assert (line.status, line.hint) == ("fail", "set the clock, or use NTP")
    assert "is in the past" in line.text


@pytest.mark.parametrize(("ahead_s", "status"), [(0.2, "ok"), (-60.0, "warn"), (400.0, "fail")])
def test_clocks_that_differ_are_a_problem(ahead_s, status):
    assert storage._check_clock(ahead_s).status == status


def test_a_store_takes_conditional_puts_and_nothing_is_left_there(s3_environment):
    found = by_name(storage.check_storage("s3://bucket/doctored"))
    assert found["round trip"].status == "ok", found["round trip"].text
    assert found["lease"].status == "ok"
    assert open_store_at("s3://bucket/doctored").list_entries() == []
    assert by_name(storage.check_storage("s3://no-such-bucket/runs"))["round trip"].status == "fail"


def test_a_cluster_is_looked_for_only_where_one_is_configured(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert list(cluster.check_cluster()) == []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    (line,) = cluster.check_cluster()
    assert line.status == "fail"
    assert "does not answer" in line.text


def test_workers_that_fail_or_do_not_end_are_a_failure(monkeypatch):
    monkeypatch.setattr(workers, "_SCRIPT", "raise SystemExit('no memory for it')")
    (line,) = workers.check_workers()
    assert line.status == "fail"
    assert "no memory for it" in line.text
    monkeypatch.setattr(workers, "PATIENCE_S", 0.2)
    monkeypatch.setattr(workers, "_SCRIPT", "import time; time.sleep(1000)")
    (line,) = workers.check_workers()
    assert "did not finish within" in line.text


def test_leftovers_of_a_launcher_and_unknown_settings_are_warnings(monkeypatch):
    for name in (*settings.paceline_variables(), *settings.launcher_variables()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PACELINE_VERBOSITY", "2")
    assert [line.status for line in variables.check_variables()] == ["ok"]
    for name in ("RANK", "MASTER_ADDR", "PACELINE_STORAGEPATH", "PACELINE_XYZ"):
        monkeypatch.setenv(name, "0")
    found = by_name(variables.check_variables())
    assert {line.status for line in found.values()} == {"warn"}
    assert found["launcher"].hint.startswith("unset RANK MASTER_ADDR;")
    assert found["PACELINE_STORAGEPATH"].hint == "did you mean PACELINE_STORAGE_PATH?"
    assert "environment.md" in found["PACELINE_XYZ"].hint


def test_a_host_name_that_does_not_resolve_or_is_of_another_machine_is_a_warning(monkeypatch):
    monkeypatch.setattr(machine.socket, "gethostname", lambda: "no-such-host.invalid")
    line = machine._check_host_name()
    assert line.status == "warn"
    assert "does not resolve" in line.text
    assert "/etc/hosts" in line.hint
    monkeypatch.setattr(machine.socket, "gethostname", lambda: "192.0.2.77")  # an address for documentation
    assert "no address of this machine" in machine._check_host_name().text
    monkeypatch.setattr(machine.socket, "gethostname", lambda: "localhost")
    assert machine._check_host_name().status == "ok"
    monkeypatch.setattr(machine, "SLOW_LOOKUP_S", 0.0)
    assert "found after" in machine._check_host_name().text


def test_a_driver_that_fails_where_no_gpu_is_found_is_a_warning(tmp_path, monkeypatch):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because it found no driver'\nexit 9\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    monkeypatch.setattr("paceline._engine.local.devices.count_gpus", lambda: 0)
    (line,) = machine._check_gpus()
    assert line.status == "warn"
    assert "it found no driver" in line.text
    assert "modprobe nvidia" in line.hint
    command.write_text("#!/bin/sh\nexit 0\n")
    (line,) = machine._check_gpus()
    assert (line.status, line.text) == ("ok", "none available to workers")


def test_gpus_that_are_hidden_and_a_driver_that_fails_are_problems(tmp_path, monkeypatch):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    monkeypatch.setattr(machine, "count_gpus", lambda: 2)
    monkeypatch.setattr("paceline._engine.local.devices.count_gpus", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (line,) = machine._check_gpus()
    assert (line.status, line.text) == ("warn", "CUDA_VISIBLE_DEVICES hides all 2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (line,) = machine._check_gpus()
    assert line.status == "fail"
    assert "Driver/library version mismatch" in line.text
    command.write_text("#!/bin/sh\necho 'H200, 1 MiB, 570'\n")
    (line,) = machine._check_gpus()
    assert (line.status, line.text) == ("ok", "2 (H200, 1 MiB, 570); available to workers: 0, 1")


def test_a_slow_disk_is_a_warning_with_the_time_of_a_checkpoint(tmp_path):
    assert by_name(storage.check_storage(str(tmp_path)))["disk speed"].text.endswith("MB/s, written and synced")
    assert storage._describe_speed(64_000_000, 0.5).status == "ok"
    line = storage._describe_speed(64_000_000, 16.0)
    assert (line.status, line.text) == ("warn", "4 MB/s, written and synced: 250 s for a checkpoint of 1 GB")
    assert storage._check_speed(tmp_path).status == "fail"  # a directory cannot be written to


def test_versions_of_ray_that_differ_are_named(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    versions = "started with:\\n    Ray: {}\\n    Python: {}\\n"
    message = "Version mismatch: The cluster was " + versions.format("2.50.1", "3.12.1")
    message += "This process on node 192.0.2.2 was " + versions.format("2.58.0", "3.11.7")
    monkeypatch.setattr(cluster, "_ASK", f"raise RuntimeError('{message}')")
    (line,) = cluster.check_cluster()
    assert "has Ray 2.50.1 with Python 3.12.1, here are Ray 2.58.0 and Python 3.11.7" in line.text
    assert line.hint == 'use an environment with Python 3.12.1, and there: pip install "ray==2.50.1"'
