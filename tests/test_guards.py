"""The guards of `conftest.py` fail a test that leaves something behind, and no other.

An inner pytest runs a file of planted leaks under a copy of the conftest; here we read what it said of each.
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")

PLANTED = '''
import multiprocessing.shared_memory
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

# Ends by itself when the tests around it are over, should nobody end it before.
WAITS = "import select; select.select([], [], [], 60)"
ENDS_WITH_ITS_INPUT = "print('ready', flush=True); input()"
STARTS_AND_LEAVES = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {WAITS!r}], start_new_session=True)
print("started")
"""
ZYGOTE = f"print('ready', flush=True); {WAITS}"
# The worker says that it is ready: by then it leads a session of its own, as workers do.
ZYGOTE_WITH_A_CHILD = f"import os; os.fork() or (os.setsid(), print('ready', flush=True)); {WAITS}"


def test_leaks_a_child_process():
    subprocess.Popen([sys.executable, "-c", WAITS])


def test_leaks_an_orphan(run_script):
    assert run_script(STARTS_AND_LEAVES).stdout == "started\\n"


def test_leaves_the_zygote_alone(tmp_path):
    start_zygote(tmp_path, ZYGOTE)


def test_leaks_a_child_of_the_zygote(tmp_path):
    start_zygote(tmp_path, ZYGOTE_WITH_A_CHILD)


def start_zygote(path, source):
    package = path / "paceline" / "_engine" / "local"
    package.mkdir(parents=True)
    for parent in (package, package.parent, package.parent.parent):
        (parent / "__init__.py").touch()
    (package / "zygote.py").write_text(source)
    zygote = subprocess.Popen(
        [sys.executable, "-m", "paceline._engine.local.zygote"], cwd=path, stdout=subprocess.PIPE
    )
    KEPT.append(zygote)
    assert zygote.stdout.readline() == b"ready\\n"


def test_leaks_a_thread():
    threading.Thread(target=RELEASE.wait, name="forgotten").start()


def test_leaves_a_daemon_thread():
    threading.Thread(target=RELEASE.wait, daemon=True).start()


def test_leaks_shared_memory():
    segment = multiprocessing.shared_memory.SharedMemory(create=True, size=16)
    KEPT.append(segment)


def test_leaks_an_added_variable():
    os.environ["ADDED_BY_A_TEST"] = "1"


def test_leaks_a_removed_variable():
    del os.environ["PLANTED"]


def test_sees_the_removed_variable_again():
    assert os.environ["PLANTED"] == "yes"


def test_leaks_a_signal_handler():
    signal.signal(signal.SIGUSR1, lambda *_: None)


def test_sees_the_default_handler_again():
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_leaks_a_directory(tmp_path):
    os.chdir(tmp_path)


def test_cleans_up(monkeypatch, tmp_path, run_script):
    monkeypatch.setenv("PLANTED", "no")
    monkeypatch.chdir(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", WAITS])
    child.kill()
    child.wait()
    thread = threading.Thread(target=str)
    thread.start()
    segment = multiprocessing.shared_memory.SharedMemory(create=True, size=16)
    segment.close()
    segment.unlink()
    assert run_script("print('done')").stdout == "done\\n"


def test_ends_a_moment_later():
    threading.Thread(target=threading.Event().wait, args=(0.05,)).start()
    child = subprocess.Popen(
        [sys.executable, "-c", ENDS_WITH_ITS_INPUT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    child.stdin.write(b"\\n")
    child.stdin.close()
    child.stdout.close()


def test_keeps_runs_out_of_the_home():
    storage = Path(os.environ["PACELINE_STORAGE_PATH"])
    assert storage.is_dir()
    assert not storage.is_relative_to(Path.home())


KEPT = []
RELEASE = threading.Event()


def teardown_module():
    RELEASE.set()
    for kept in KEPT:
        if isinstance(kept, subprocess.Popen):
            kept.kill()
            kept.communicate()
        else:
            kept.close()
            kept.unlink()
'''

LEAKS = {
    "test_leaks_a_child_process": "process ",
    "test_leaks_an_orphan": "process ",
    "test_leaks_a_child_of_the_zygote": "process ",
    "test_leaks_a_thread": "thread 'forgotten'",
    "test_leaks_shared_memory": "shared memory /dev/shm/",
    "test_leaks_an_added_variable": "environment variable ADDED_BY_A_TEST: None became '1'",
    "test_leaks_a_removed_variable": "environment variable PLANTED: 'yes' became None",
    "test_leaks_a_signal_handler": "handler of signal 10 (User defined signal 1)",
    "test_leaks_a_directory": "working directory: ",
}
CLEAN = {
    "test_leaves_the_zygote_alone",
    "test_leaves_a_daemon_thread",
    "test_sees_the_removed_variable_again",
    "test_sees_the_default_handler_again",
    "test_cleans_up",
    "test_ends_a_moment_later",
    "test_keeps_runs_out_of_the_home",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the inner pytest said of each planted test; nothing where it passed."""
    path = tmp_path_factory.mktemp("guards")
    (path / "conftest.py").write_text(CONFTEST.read_text() + "\n\nGRACE_S = 1.0\n")
    for name in ("fault_table", "faulty_proxy", "servers"):  # what the conftest imports
        shutil.copy(CONFTEST.with_name(f"{name}.py"), path)
    (path / "test_planted.py").write_text(PLANTED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=told.xml"]
    ended = subprocess.run(
        [*command, "-W", "ignore::ResourceWarning", "-c", os.devnull, "--rootdir", str(path), str(path)],
        cwd=path,
        env={**os.environ, "PLANTED": "yes"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    cases = ElementTree.parse(path / "told.xml").iter("testcase")
    return {case.attrib["name"]: "\n".join(child.text or "" for child in case) for case in cases}


def test_the_planted_file_is_wholly_judged(told: dict[str, str]) -> None:
    assert told.keys() == LEAKS.keys() | CLEAN


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_fails_its_test_and_is_named(told: dict[str, str], name: str) -> None:
    assert f"the test left something behind:\n  {LEAKS[name]}" in told[name]
    assert told[name].count("\n  ") == 1, "one leak, one line"


@pytest.mark.parametrize("name", sorted(CLEAN))
def test_a_test_that_leaves_nothing_passes(told: dict[str, str], name: str) -> None:
    assert told[name] == ""
