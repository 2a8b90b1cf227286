"""`paceline resume`: a lost or failed run is continued by its own script; what cannot be continued is refused."""

import json
import shutil
import sys

import msgspec
import pytest
from real_runs import SCRIPT, Runs, kill_at_step_4

from paceline._control import events
from paceline._core.codec import seal_line, valid_lines
from paceline._core.system import SystemClock
from paceline._storage.lease import acquire_lease
from paceline._storage.run_location import RunLocation
from paceline.train import Result

pytestmark = pytest.mark.usefixtures("runs")


def test_a_run_is_continued_by_its_script_with_the_exit_code_of_the_script(start_command, tmp_path):
    source = SCRIPT.replace("step == 4 and rank == 0", "step == 4 and rank == 0 and first == 0")
    own = Runs.in_directory(tmp_path, source)
    kill_at_step_4(own, "again")
    process = start_command("resume", str(own.root / "again"))
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "continues again from checkpoint_000003" in err
    assert "step 4" in out
    result = Result.from_path(own.root / "again")
    assert result.checkpoint.to_dict()["step"] == 5
    assert start_command("resume", str(own.root / "again")).wait() == 2


def test_a_run_with_a_driver_is_refused_and_so_is_a_copy(paceline, copy_run, runs):
    run = copy_run("vit")
    lease = acquire_lease(RunLocation.from_path(str(run)).open_lease_store(), ttl_s=600, clock=SystemClock(), say=print)
    try:
        result = paceline("resume", str(run), "--dry-run")
    finally:
        lease.close()
    result.assert_refused("a driver holds it")
    paceline("resume", str(run), "--dry-run").assert_refused(f"the script would continue {runs.root / 'vit'}")
    assert paceline("resume", str(run), "--dry-run", "--force").code == 0


def test_a_script_that_has_changed_is_named_and_can_be_forced(paceline, runs):
    before = runs.script.read_text()
    runs.script.write_text(before + "\n# Better now.\n")
    try:
        changed = f"{runs.script} has changed since run vit started"
        paceline("resume", "vit", "--dry-run").assert_refused(changed, "--force")
        assert json.loads(paceline("resume", "vit", "--dry-run", "--json").out)["refused"] is True
        assert paceline("resume", "vit", "--dry-run", "--force").code == 0
        runs.script.rename(runs.script.with_suffix(".gone"))
        assert "no longer exists" in paceline("resume", "vit", "--dry-run", "--force").err
        shutil.move(runs.script.with_suffix(".gone"), runs.script)
    finally:
        runs.script.write_text(before)


def copy_with_environment(copy_run, script=None, **environment):
    """A copy of `vit` whose driver described its environment as this."""
    run = copy_run("vit")
    journal = run / "journal.jsonl"
    lines = []
    with journal.open("rb") as file:
        for payload in valid_lines(file):
            event = events.decode_event(payload)
            if isinstance(event, events.RunDescribed):
                about = msgspec.json.decode(event.about)
                about["environment"] |= environment
                about["code"]["script"] = about["code"]["script"] if script is None else script
                payload = events.encode_event(events.RunDescribed(msgspec.Raw(msgspec.json.encode(about))))
            lines.append(seal_line(payload))
    journal.write_bytes(b"".join(lines))
    return str(run)


@pytest.mark.parametrize(
    ("argv", "script", "says"),
    [
        (["/usr/lib/ipykernel_launcher.py", "-f", "x.json"], "", "was started in a notebook"),
        (["-c"], "", "was started without a script"),
        ([], "", "does not record its command"),
        (["train.py", "--token", "***"], "train.py", "an argument that looks like a secret"),
        (["train.py", "--api-key=***"], "train.py", "an argument that looks like a secret"),
    ],
)
def test_a_run_that_no_script_can_continue_is_refused(argv, script, says, paceline, copy_run):
    run = copy_with_environment(copy_run, script, argv=argv)
    paceline("resume", run, "--dry-run", "--force").assert_refused(says)


def test_a_directory_that_is_gone_is_named(paceline, copy_run):
    run = copy_with_environment(copy_run, working_directory="/nowhere/at/all")
    result = paceline("resume", run, "--dry-run", "--force")
    assert "was started in /nowhere/at/all, which does not exist here" in result.err


def test_a_run_of_the_command_run_gets_the_name_that_was_made_up(paceline, copy_run):
    run = copy_with_environment(copy_run, argv=["/usr/bin/paceline", "run", "-n", "2", "train.py", "--lr", "1"])
    plan = json.loads(paceline("resume", run, "--dry-run", "--force", "--json").out)["plan"]
    place = run.rpartition("/")[0]
    command = f"-m paceline run --name vit --storage-path {place} -n 2 train.py --lr 1"
    assert plan["command"][1:] == command.split()


def test_a_trial_is_resumed_with_its_search(paceline, copy_run, runs):
    search = copy_run("sweep")
    assert "is a trial of the search sweep" in paceline("resume", str(search / "trial_00000")).err
    journal = search / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    result = paceline("resume", str(search), "--dry-run", "--force", "--json")
    assert result.code == 0, result.err
    plan = json.loads(result.out)["plan"]
    assert plan["command"] == [sys.executable, str(runs.script.with_name("search.py")), str(runs.root)]
    assert plan["working_directory"] == str(runs.script.parent)
