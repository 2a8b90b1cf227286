"""`paceline resume`: a run that was lost or failed is continued by its own script; what cannot be is refused."""

import json
import shutil
import sys

import pytest
from real_runs import Runs, killed_at_step_4

from paceline._core.clock import SystemClock
from paceline._storage.home import Home
from paceline._storage.lease import taken
from paceline.train import Result

pytestmark = pytest.mark.usefixtures("runs")


def test_it_says_what_it_would_run_and_where(paceline, runs):
    ended = paceline("resume", "killed", "--dry-run")
    assert ended.code == 0, ended.err
    assert "continues killed from checkpoint_000003" in ended.err
    assert f"in    {runs.script.parent}" in ended.err
    plan = json.loads(paceline("resume", "killed", "--dry-run", "--json").out)["plan"]
    assert plan["command"] == [
        sys.executable,
        str(runs.script),
        str(runs.root),
        "killed",
        "killed",
        "0.1",
    ]
    assert plan["working_directory"] == str(runs.script.parent)


def test_a_run_is_continued_by_its_script_with_the_code_that_it_ends_with(runs, begun, tmp_path):
    """On a storage path of its own: runs that others look at stay as they are."""
    script = tmp_path / "train.py"
    source = runs.script.read_text()
    script.write_text(source.replace("step == 4 and rank == 0", "step == 4 and rank == 0 and first == 0"))
    own = Runs(tmp_path / "runs", script)
    own.root.mkdir()
    killed_at_step_4(own, "again")
    process = begun("resume", str(own.root / "again"))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "continues again from checkpoint_000003" in err
    assert "step 4" in out
    result = Result.from_path(own.root / "again")
    assert result.checkpoint.to_dict()["step"] == 5
    assert begun("resume", str(own.root / "again")).wait(60) == 2


def test_a_complete_run_and_one_with_a_driver_are_refused(paceline, copied):
    ended = paceline("resume", "complete", "--dry-run")
    assert (ended.code, ended.out) == (2, "")
    assert "complete is complete: there is nothing to resume" in ended.err
    run = copied("killed")
    lease = taken(Home.of_path(str(run)).slot(), ttl_s=30, clock=SystemClock(), say=print)
    try:
        ended = paceline("resume", str(run), "--dry-run")
    finally:
        lease.close()
    assert ended.code == 2
    assert "a driver has it" in ended.err


def test_a_copy_is_refused_for_its_script_would_write_elsewhere(paceline, copied, runs):
    ended = paceline("resume", str(copied("killed")), "--dry-run")
    assert ended.code == 2
    assert f"the script would go on with {runs.root / 'killed'}" in ended.err
    assert paceline("resume", str(copied("failing")), "--dry-run", "--force").code == 0


def test_a_script_that_has_changed_is_said_and_can_be_forced(paceline, runs):
    before = runs.script.read_text()
    runs.script.write_text(before + "\n# Better now.\n")
    try:
        ended = paceline("resume", "killed", "--dry-run")
        assert ended.code == 2
        assert f"{runs.script} is not what it was when run killed was begun" in ended.err
        assert "--force" in ended.err
        assert json.loads(paceline("resume", "killed", "--dry-run", "--json").out)["refused"] is True
        assert paceline("resume", "killed", "--dry-run", "--force").code == 0
        runs.script.rename(runs.script.with_suffix(".gone"))
        assert "is not there any more" in paceline("resume", "killed", "--dry-run", "--force").err
        shutil.move(runs.script.with_suffix(".gone"), runs.script)
    finally:
        runs.script.write_text(before)


def described(copied, name, change):
    """A copy of a run whose driver told something else of itself."""
    import msgspec

    from paceline._control import events
    from paceline._core.codec import sealed, valid_lines

    run = copied(name)
    journal = run / "journal.jsonl"
    lines = []
    with journal.open("rb") as file:
        for payload in valid_lines(file):
            event = events.decode(payload)
            if isinstance(event, events.Described):
                about = msgspec.json.decode(event.about)
                change(about)
                payload = events.encode(events.Described(msgspec.Raw(msgspec.json.encode(about))))
            lines.append(sealed(payload))
    journal.write_bytes(b"".join(lines))
    return str(run)


@pytest.mark.parametrize(
    ("argv", "script", "says"),
    [
        (["/usr/lib/ipykernel_launcher.py", "-f", "x.json"], "", "was begun in a notebook"),
        (["-c"], "", "was begun without a script"),
        ([""], "", "was begun without a script"),
        ([], "", "does not tell what was run"),
        (["train.py", "--token", "***"], "train.py", "an argument that looks like a secret"),
        (["train.py", "--api-key=***"], "train.py", "an argument that looks like a secret"),
    ],
)
def test_what_was_no_script_is_refused(argv, script, says, paceline, copied):
    def change(about):
        about["environment"]["argv"] = argv
        about["code"]["script"] = script

    ended = paceline("resume", described(copied, "killed", change), "--dry-run", "--force")
    assert ended.code == 2
    assert says in ended.err


def test_a_directory_that_is_gone_is_told(paceline, copied):
    def change(about):
        about["environment"]["working_directory"] = "/nowhere/at/all"

    ended = paceline("resume", described(copied, "killed", change), "--dry-run", "--force")
    assert "was begun in /nowhere/at/all, which is not here" in ended.err


def test_a_run_of_the_command_run_gets_the_name_that_was_made_up(paceline, copied, runs):
    def change(about):
        about["environment"]["argv"] = ["/usr/bin/paceline", "run", "-n", "2", "train.py", "--lr", "1"]

    run = described(copied, "killed", change)
    plan = json.loads(paceline("resume", run, "--dry-run", "--force", "--json").out)["plan"]
    place = run.rpartition("/")[0]
    assert plan["command"][1:] == [
        *("-m", "paceline", "run", "--name", "killed", "--storage-path", place),
        *("-n", "2", "train.py", "--lr", "1"),
    ]


def test_a_trial_is_resumed_with_its_search(paceline, copied, runs):
    search = copied("search")
    assert "is a trial of the search search" in paceline("resume", str(search / "trial_00000")).err
    journal = search / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    ended = paceline("resume", str(search), "--dry-run", "--force", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["plan"]["command"][1:] == [
        str(runs.script.with_name("search.py")),
        str(runs.root),
    ]


def test_json_belongs_to_a_dry_run(paceline):
    assert paceline("resume", "killed", "--json").code == 2


def test_without_a_description_it_is_said(paceline, tmp_path):
    from paceline._control.events import DriverStarted, encode
    from paceline._core.codec import sealed

    (tmp_path / "journal.jsonl").write_bytes(sealed(encode(DriverStarted(size=1, max_failures=0, at=1.0))))
    ended = paceline("resume", str(tmp_path))
    assert ended.code == 2
    assert "does not tell what was run" in ended.err
