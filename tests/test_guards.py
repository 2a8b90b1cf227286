"""The guards of `conftest.py` fail a test that leaves something behind, and no other.

An inner pytest runs a file of planted leaks under a copy of the conftest.
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

CONFTEST = Path(__file__).with_name("conftest.py")

PLANTED = '''
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

# Ends by itself when the tests around it are over, should nobody end it before.
WAITS = "import select; select.select([], [], [], 100)"
STARTS_AND_LEAVES = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {WAITS!r}], start_new_session=True)
print("started")
"""
# The worker says that it is ready: by then it leads a session of its own, as workers do.
ZYGOTE_WITH_A_CHILD = f"import os; os.fork() or (os.setsid(), print('ready', flush=True)); {WAITS}"
KEPT = []
RELEASE = threading.Event()


def test_leaks_an_orphan(run_script):
    assert run_script(STARTS_AND_LEAVES).stdout == "started\\n"


def test_leaves_the_zygote_alone(tmp_path):
    start_zygote(tmp_path, f"print('ready', flush=True); {WAITS}")


def test_leaks_a_child_of_the_zygote(tmp_path):
    start_zygote(tmp_path, ZYGOTE_WITH_A_CHILD)


def start_zygote(path, source):
    package = path / "paceline" / "_engine" / "local"
    package.mkdir(parents=True)
    for parent in (package, package.parent, package.parent.parent):
        (parent / "__init__.py").touch()
    (package / "zygote.py").write_text(source)
    command = [sys.executable, "-m", "paceline._engine.local.zygote"]
    KEPT.append(subprocess.Popen(command, cwd=path, stdout=subprocess.PIPE))
    assert KEPT[-1].stdout.readline() == b"ready\\n"


def test_leaks_shared_memory():
    (sys.modules["conftest"].SHM / "forgotten").touch()


def test_leaks_what_is_of_its_own_process(tmp_path):
    threading.Thread(target=RELEASE.wait, daemon=True).start()  # which may stay
    threading.Thread(target=RELEASE.wait, name="forgotten").start()
    os.environ["ADDED_BY_A_TEST"] = "1"
    del os.environ["PLANTED"]
    signal.signal(signal.SIGUSR1, lambda *_: None)
    os.chdir(tmp_path)


def test_sees_what_it_should_and_cleans_up(monkeypatch, tmp_path, run_script):
    assert os.environ["PLANTED"] == "yes"
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert not Path(os.environ["PACELINE_STORAGE_PATH"]).is_relative_to(Path.home())
    monkeypatch.setenv("PLANTED", "no")
    monkeypatch.chdir(tmp_path)
    segment = sys.modules["conftest"].SHM / "removed"
    segment.touch()
    segment.unlink()
    sys.modules["conftest"].GRACE_S = 60.0  # These end a moment later, however slow the machine is.
    threading.Thread(target=threading.Event().wait, args=(0.05,)).start()
    subprocess.Popen([sys.executable, "-c", "pass"])


def teardown_module():
    RELEASE.set()
    for kept in KEPT:
        kept.kill()
        kept.communicate()
'''

EXPECTED = {
    "test_leaks_an_orphan": ["process "],
    "test_leaves_the_zygote_alone": [],
    "test_leaks_a_child_of_the_zygote": ["process "],
    "test_leaks_shared_memory": ["shared memory "],
    "test_leaks_what_is_of_its_own_process": [
        "thread 'forgotten'",
        "environment variable ADDED_BY_A_TEST: None became '1'",
        "environment variable PLANTED: 'yes' became None",
        "handler of signal 10 (User defined signal 1)",
        "working directory: ",
    ],
    "test_sees_what_it_should_and_cleans_up": [],
}


def test_each_planted_leak_fails_its_test_and_is_named(tmp_path):
    tools = CONFTEST.parents[1] / "tools"
    for file in [*CONFTEST.parent.glob("*.py"), *tools.glob("*.py")]:  # the conftest imports some of them
        if not file.name.startswith("test_"):
            shutil.copy(file, tmp_path)
    (tmp_path / "conftest.py").write_text(
        CONFTEST.read_text() + "\n\nGRACE_S = 1.0\nSHM = Path(__file__).with_name('shm')\n"
    )
    (tmp_path / "shm").mkdir()  # Tests in other processes would see what is leaked into the machine's own.
    (tmp_path / "test_planted.py").write_text(PLANTED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml"]
    ended = subprocess.run(
        [*command, "-W", "ignore::ResourceWarning", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PLANTED": "yes"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    cases = ElementTree.parse(tmp_path / "report.xml").iter("testcase")
    problems = {case.attrib["name"]: "\n".join(child.text or "" for child in case) for case in cases}
    assert problems.keys() == EXPECTED.keys()
    for name, leaks in EXPECTED.items():
        assert ("the test left something behind:\n  " in problems[name]) == bool(leaks), problems[name]
        assert problems[name].count("\n  ") == len(leaks), "one leak, one line"
        assert [leak for leak in leaks if f"\n  {leak}" not in problems[name]] == []
