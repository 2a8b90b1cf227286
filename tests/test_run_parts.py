"""The runner of the suite: nothing hides, what fails and then passes is named, and CI refuses unexpected skips."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mutation
import run_parts

HERE = Path(__file__).parent
TOOLS = HERE.parent / "tools"


def test_every_test_file_belongs_to_a_part_and_every_part_to_files():
    files = [path.relative_to(HERE).as_posix() for path in HERE.rglob("test_*.py") if "golden/0" not in str(path)]
    assert {run_parts.find_part(f"tests/{file}::test") for file in files} == set(run_parts.PARTS)
    assert run_parts.find_part("tests/train/test_fit.py") == "train"
    assert run_parts.find_part("tests/train/torch/test_model.py") == "frameworks"
    assert run_parts.find_part("tests/surface/test_snippets.py::test[a]") == "docs"
    with pytest.raises(KeyError, match="add its folder to PARTS"):
        run_parts.find_part("tests/elsewhere/test_a.py")
    assert "--ignore=tests/train/torch" in run_parts.list_paths(["train"])
    assert run_parts.list_paths(["data"]) == ("tests/data",)


def test_paths_of_make_mutation_exist():
    for sources, tests in mutation.TARGETS.values():
        assert all((HERE.parent / "src" / "paceline" / source).exists() for source in sources), sources
        assert all((HERE / test).exists() for test in tests), tests


SUITE = {
    "data/test_fine.py": "def test_fine(): pass",
    "data/test_broken.py": "import does_not_exist",
    "tune/test_wrong.py": "def test_wrong(): assert False",
    "tune/test_lucky.py": """
import pathlib
def test_passes_the_second_time():
    ran = pathlib.Path(__file__).with_suffix(".ran")
    first = not ran.exists()
    ran.touch()
    assert not first
""",
    "cluster/test_exits.py": "import os\ndef test_exits(): os._exit(3)",
    "view/test_skipped.py": "import pytest\ndef test_skipped(): pytest.skip('no browser')",
    "view/test_gpu.py": "import pytest\ndef test_gpu(): pytest.skip('needs a GPU')",
}
UNSTABLE_ID = """
import pytest
@pytest.mark.parametrize("value", [object()], ids=str)
def test_fine(value): pass
"""


@pytest.fixture
def suite(tmp_path):
    tests = tmp_path / "tests"
    for part_paths in run_parts.PARTS.values():
        for path in part_paths:
            folder, _, file = path.rpartition("/") if path.endswith(".py") else (path, "", "")
            (tests / folder).mkdir(parents=True, exist_ok=True)
            if file:
                (tests / path).touch()
    shutil.copytree(TOOLS, tmp_path / "tools")
    (tests / "conftest.py").write_text("pytest_plugins = ('outcome_log',)")
    markers = "\n".join(f"  {name}: -" for name in ("slow", "chaos", "fresh", "ray"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = tests tools\nmarkers =\n{markers}\n")

    def run(files, *arguments, **environ):
        for name in files:
            (tests / name).write_text(files[name])
        base = {name: value for name, value in os.environ.items() if name != "CI"}
        return subprocess.run(
            [sys.executable, str(tmp_path / "tools" / "run_parts.py"), *arguments],
            env={**base, "PYTHONPATH": str(tests), **environ},
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.slow
def test_all_parts_run_whatever_fails_and_the_table_names_each_failure(suite):
    ended = suite(SUITE, CI="true")
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    assert "failed: tests/data/test_broken.py" in lines
    assert "failed: tests/tune/test_wrong.py::test_wrong" in lines
    assert "flaky: tests/tune/test_lucky.py::test_passes_the_second_time" in lines
    assert "session cluster: pytest ended with status 3" in lines
    rows = {line.split()[0]: line.split()[1:5] for line in lines if line.startswith(("data ", "tune ", "views "))}
    assert rows == {"data": ["1", "1", "0", "0"], "tune": ["0", "1", "1", "0"], "views": ["0", "0", "0", "2"]}
    assert "skipped    1: no browser" in lines
    assert "must not be skipped in CI: tests/view/test_skipped.py::test_skipped (no browser)" in lines
    assert "must not be skipped in CI: tests/view/test_gpu.py::test_gpu (needs a GPU)" not in lines
    assert lines[-1] == "2 passed, 2 failed, 2 skipped"


def test_only_without_root_may_ci_skip_what_needs_root():
    reasons = ("no GPU", "a tmpfs cannot be mounted here (denied)", "no control group can be made here (denied)", "odd")
    skipped = [run_parts.Outcome(f"tests/data/test_x.py::test_{n}", "skipped", r, 0.0) for n, r in enumerate(reasons)]
    assert [each.reason for each in run_parts.find_forbidden_skips(skipped, is_root=True)] == list(reasons[1:])
    assert [each.reason for each in run_parts.find_forbidden_skips(skipped, is_root=False)] == ["odd"]


@pytest.mark.slow
def test_a_run_without_tests_fails(suite):
    ended = suite({}, "--part", "cluster", "--slow")
    assert ended.returncode == 1
    assert "no test ran" in ended.stdout


@pytest.mark.slow
def test_processes_that_collect_different_tests_fail_their_session_and_the_table_has_the_others(suite):
    ended = suite({"view/test_address.py": UNSTABLE_ID, "cluster/test_fine.py": "def test_fine(): pass"})
    assert ended.returncode == 1
    assert "session local: pytest ended with status 1" in ended.stdout.splitlines()
    assert ended.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
