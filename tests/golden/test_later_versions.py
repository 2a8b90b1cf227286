"""What a later release wrote is refused in one sentence, with both versions, and left as it is."""

import json

import golden_runs
import msgspec
import pytest

from paceline._core.codec import seal_line, unseal_line
from paceline._core.errors import PacelineError, StorageError
from paceline._storage.commit import MANIFEST_VERSION, decode_manifest, encode_manifest
from paceline.train import Checkpoint, Result
from paceline.tune import ResultGrid, Tuner

NEWER = 99


def rewritten(path, change):
    """A journal with its first lines of drivers changed."""
    lines = [json.loads(unseal_line(line)) for line in path.read_bytes().splitlines(keepends=True)]
    for line in lines:
        if line["type"] in ("driver_started", "search_started"):
            change(line)
    path.write_bytes(b"".join(seal_line(msgspec.json.encode(line)) for line in lines))


def refusals(golden, paceline, run):
    """What everybody says who is to open it."""
    if run == "search":
        opened = [
            lambda: ResultGrid.from_path(golden / run),
            lambda: Tuner.restore(golden / run, golden_runs.trial),
            lambda: golden_runs.tuner(golden).fit(),
        ]
    else:
        opened = [
            lambda: Result.from_path(golden / run),
            lambda: golden_runs.trainer(golden, run, golden / "rows").fit(),
        ]
    for each in opened:
        with pytest.raises(StorageError) as refusal:
            each()
        yield str(refusal.value)
    command = ["show", golden / run] if run == "search" else ["checkpoints", golden / run, "--verify"]
    code, _, message = paceline(*command)
    assert code == 2
    yield message


@pytest.mark.parametrize("otherwise", [False, True], ids=["of-the-same-form", "of-another-form"])
@pytest.mark.parametrize("run", ["interrupted", "search"])
def test_a_journal_of_a_later_version_is_refused_with_both_versions(golden, paceline, run, otherwise):
    def change(line):
        line["version"] = NEWER
        if otherwise:
            for name in [name for name in line if name not in ("type", "version")]:
                line[f"new {name}"] = line.pop(name)

    path = golden / run / "journal.jsonl"
    rewritten(path, change)
    before = path.read_bytes()
    for refusal in refusals(golden, paceline, run):
        assert str(golden / run) in refusal
        assert f"version {NEWER}, supported up to 1" in refusal
        assert "hint: " in refusal
    assert path.read_bytes() == before
    listed = {one["id"]: one for one in json.loads(paceline("ls", golden, "--json")[1])}
    assert f"version {NEWER}, supported up to 1" in listed[run]["failure"]
    assert listed["complete"]["state"] == "finished", "others are listed nevertheless"
    if run != "search":
        assert f"version {NEWER}" in json.loads(paceline("show", golden / run, "--json")[1])["summary"]["failure"]
        code, out, err = paceline("metrics", golden / run, "--csv", "-")
        assert (code, out) == (2, ""), "no table of some rows"
        assert f"version {NEWER}" in err


@pytest.mark.parametrize("otherwise", [False, True], ids=["of-the-same-form", "of-another-form"])
def test_a_manifest_of_a_later_version_is_refused_and_its_checkpoint_stays(golden, paceline, otherwise):
    path = golden / "interrupted" / "checkpoint_000002" / ".manifest.json"
    newer = msgspec.structs.replace(decode_manifest(path.read_bytes(), "it"), version=NEWER)
    path.write_bytes(encode_manifest(newer) if not otherwise else json.dumps({"version": NEWER, "all": []}).encode())
    before = sorted((golden / "interrupted" / "checkpoint_000002").rglob("*"))
    for refusal in refusals(golden, paceline, "interrupted"):
        assert str(path) in refusal
        assert f"has manifest version {NEWER}" in refusal
        assert f"reads versions up to {MANIFEST_VERSION}" in refusal
    with pytest.raises(PacelineError, match=f"has manifest version {NEWER}"):
        Checkpoint(path.parent).verify()
    assert sorted(path.parent.rglob("*")) == before
    assert not (golden / "interrupted" / ".broken").exists()


def test_a_report_of_another_form_is_refused_with_its_file(golden):
    """Files of reports have no version of their own: they are read only after the journal, whose first line has one."""
    path = golden / "interrupted" / "reports" / "attempt_1" / "rank_1.jsonl"
    path.write_bytes(path.read_bytes() + seal_line(b'{"type":"ReportedOtherwise","attempt":1}'))
    with pytest.raises(StorageError, match=r"rank_1\.jsonl: a line cannot be read by this version"):
        Result.from_path(golden / "interrupted")
