"""The command `paceline`: what it prints and how it exits."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig

CALLED = "a global of the script"

def function(config):
    checkpoint = train.get_checkpoint()
    first = checkpoint.to_dict()["i"] if checkpoint else 0
    total = checkpoint.to_dict()["total"] if checkpoint and config["restores"] else 0
    for i in range(first + 1, 5):
        total += i
        print(CALLED)
        train.report({"total": total}, checkpoint=Checkpoint.from_dict({"i": i, "total": total}))

print("the script's own words")
if __name__ == "__main__":
    trainer = DataParallelTrainer(
        function,
        train_loop_config={"restores": sys.argv[1] == "all"},
        run_config=RunConfig(name="run", storage_path="runs"),
    )
    try:
        trainer.fit()
    except Exception:
        print("not caught")
    print("after fit")
"""


@pytest.fixture
def paceline(tmp_path):
    def paceline(*arguments):
        command = [sys.executable, "-m", "paceline", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)

    (tmp_path / "script.py").write_text(SCRIPT)
    return paceline


def test_a_script_that_resumes_exactly_is_0_and_finds_the_modules_beside_it(paceline, tmp_path):
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "beside.py").write_text("def called(): return 'from beside'")
    source = SCRIPT.replace("import sys\n", "import sys\nimport beside\n").replace("print(CALLED)", "beside.called()")
    (place / "script.py").write_text(source)
    ended = paceline("verify-resume", "elsewhere/script.py", "all")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("resumes exactly: 1 report and 1 checkpoint compared\n  run: a new one, from")
    assert "the script's own words" in ended.stderr
    assert "after fit" not in ended.stderr
    assert "training a new run to compare with" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_a_script_that_does_not_is_1_and_the_whole_proof_is_json(paceline, tmp_path):
    subprocess.run([sys.executable, "script.py", "some"], cwd=tmp_path, check=True, capture_output=True)
    before = sorted((tmp_path / "runs").rglob("*"))
    ended = paceline("verify-resume", "--json", "script.py", "some")
    assert ended.returncode == 1, ended.stderr
    proof = json.loads(ended.stdout)
    assert proof["verdict"] == "differs"
    assert proof["run"] == str(tmp_path / "runs" / "run")
    difference = {"kind": "metric", "name": "total", "report": 4, "rank": 0}
    assert proof["differences"][0] == {**difference, "original": 10, "resumed": 4, "amount": 6.0}
    assert sorted((tmp_path / "runs").rglob("*")) == before


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "is not a file"),
        ("x = 1", "ended without calling fit() of a trainer"),
        ("raise SystemExit(3)", "exited with 3 before it called fit()"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_checked_is_2(source, reason, paceline, tmp_path):
    if source is not None:
        (tmp_path / "other.py").write_text(source)
    ended = paceline("verify-resume", *(["--json"] if source is None else []), "other.py")
    assert ended.returncode == 2
    assert reason in ended.stdout
    if source is None:
        assert json.loads(ended.stdout)["verdict"] == "unchecked"


def test_a_wrong_command_lists_those_that_exist(paceline):
    ended = paceline("verify-resumee")
    assert ended.returncode == 2
    assert "invalid choice: 'verify-resumee' (choose from" in ended.stderr
    assert "Exit code: 0" in paceline("verify-resume", "--help").stdout


@pytest.mark.parametrize(
    ("source", "heavy"),
    [
        (
            "from paceline.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass",
            "cloudpickle msgspec numpy pyarrow torch",
        ),
        (
            "from paceline._commands.diagnosis import packages, machine\n"
            "list(packages.check_packages()), list(machine.check_machine())",
            "numpy pyarrow ray torch",
        ),
        (
            "import paceline.tune.display.terminal, paceline.tune.driver.callbacks\n"
            "from paceline import tune\nassert tune.ResultGrid and tune.Callback and tune.Result",
            "matplotlib numpy optuna pandas pyarrow rich torch",
        ),
    ],
    ids=["the command", "doctor", "results of a search"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(source, heavy, run_script):
    ended = run_script(f"import sys\n{source}\nprint([name for name in {heavy.split()} if name in sys.modules])")
    assert ended.stdout.splitlines()[-1:] == ["[]"], ended.stdout + ended.stderr
