"""`paceline prune`: what it shows, what it removes, and what it never touches."""

import json
import os
import shutil
import time

import pytest

from paceline._storage.run_location import RunLocation
from paceline.train.driver.run_directory import open_run
from paceline.train.driver.run_spec import RunEnvironment
from servers import BUCKET


@pytest.fixture
def copies(runs, tmp_path, monkeypatch):
    root = tmp_path / "runs"
    shutil.copytree(runs.root, root)
    monkeypatch.setenv("PACELINE_STORAGE_PATH", str(root))
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    return root


@pytest.fixture
def prune(paceline, copies):
    def prune(*arguments, root=copies):
        os.environ["PACELINE_STORAGE_PATH"] = str(root)
        result = paceline("prune", *arguments, "--json")
        return result.code, {each["name"]: each for each in json.loads(result.out)["found"]}

    return prune


def listed(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_nothing_is_removed_without_yes_nor_anything_that_is_young_in_use_or_not_selected(prune, copies):
    before = listed(copies)
    code, found = prune("--runs", "--older-than", "0s")
    assert code == 0
    assert {name for name, each in found.items() if each["removes"] == "all"} == set(found), "it only shows"
    assert set(found) == {"resnet", "resnet-2", "bert", "vit", "sweep"}, "trials stay with their search"
    assert found["bert"]["num_bytes"] > 0
    assert not any(each["removes"] for each in prune("--runs", "--yes")[1].values()), "none is thirty days old"
    assert listed(copies) == before
    with open_run(RunLocation.from_path(str(copies / "bert")), RunEnvironment(), print):
        _, found = prune("--runs", "--older-than", "0s", "--state", "failed", "--state", "lost", "--yes")
    assert found["bert"]["problem"] == "in use"
    assert {path.name for path in copies.iterdir() if path.is_dir()} == {"resnet", "resnet-2", "bert", "sweep"}


def test_leftovers_of_a_lost_run_go_and_the_run_stays(prune, copies):
    for name in (".staging/attempt_1/checkpoint_000009/rank_0", ".trash/deleted-1-1-1"):
        (copies / "vit" / name).mkdir(parents=True)
        (copies / "vit" / name / "weights").write_bytes(b"x" * 10_000)
    assert prune(root=copies / "vit")[1]["vit"]["leftover_bytes"] >= 20_000, "a run may be given itself"
    code, found = prune("--older-than", "0s", "--yes")
    assert code == 0
    assert [name for name, each in found.items() if each["removes"]] == ["vit"]
    assert found["vit"]["leftover_bytes"] >= 20_000
    assert not (copies / "vit" / ".staging").exists()
    assert not (copies / "vit" / ".trash").exists()
    assert prune()[1]["vit"]["state"] == "lost"


def test_spools_that_nobody_has_written_to_for_long_go(prune, tmp_path):
    old, young = tmp_path / "spool" / "abc" / "old", tmp_path / "spool" / "abc" / "young"
    for spool in (old, young):
        spool.mkdir(parents=True)
        (spool / "journal.jsonl").write_bytes(b"x" * 5000)
    two_days_ago = time.time() - 2 * 86400
    os.utime(old / "journal.jsonl", (two_days_ago, two_days_ago))
    _, found = prune("--older-than", "1d", "--yes")
    assert (found["old"]["removes"], found["young"]["removes"]) == ("all", "")
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.parametrize("age", ["", "30", "d", "1w"])
def test_an_age_has_a_unit(paceline, age):
    paceline("prune", "--older-than", age).assert_refused("must be a number with a unit")


@pytest.mark.slow
def test_a_run_in_a_store_is_removed_with_all_of_its_objects(prune, s3_environment):
    from paceline._storage.address import open_store_at
    from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, report

    root = f"s3://{BUCKET}/prune"
    DataParallelTrainer(
        lambda: report({}, checkpoint=Checkpoint.from_dict({})),
        scaling_config=ScalingConfig(1),
        run_config=RunConfig(name="run", storage_path=root),
    ).fit()
    store = open_store_at(f"{root}/run")
    assert store.list_entries()
    _, found = prune("--runs", "--older-than", "0s", "--yes", root=root)
    assert found["run"]["removes"] == "all"
    assert store.list_entries() == []
