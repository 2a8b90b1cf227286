"""Features that could differ on a cluster: torchrun scripts, persistent workers, usage, shared objects."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import paceline.data
from paceline import train
from paceline._control import usage_collector
from paceline._control.events import RunDescribed, UsageMeasured
from paceline._core.engine_choice import choose_engine
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig, Trainer
from paceline.train.driver.script import Script, ScriptConfig
from paceline.tune import session as tune
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.trainable_plans import make_trainable_plan
from paceline.tune.trainables.wrapping import with_parameters
from written_runs import read_events

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
names = ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"]
with open(f"{sys.argv[1]}/rank_{dist.get_rank()}.json", "w") as file:
    json.dump([total.item(), *(os.environ[name] for name in names)], file)
dist.destroy_process_group()
"""


def test_the_ranks_of_a_torchrun_script_meet_over_two_nodes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    DataParallelTrainer(
        Script(str(script), (str(tmp_path),)),
        backend_config=ScriptConfig(run_name="a"),
        scaling_config=ScalingConfig(2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(storage_path=tmp_path / "runs", name="a"),
    ).fit()
    written = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert written == [[3.0, "0", "1", "0", "2"], [3.0, "0", "1", "1", "2"]]


def test_the_same_processes_on_several_nodes_serve_every_run_of_a_standing_trainer(tmp_path):
    def steps():
        state = train.load_checkpoint() or {"step": 0}
        for step in range(state["step"], 3):
            train.save_checkpoint(step=step + 1)
            if step == 1 and state["step"] == 0 and train.world_rank() == 1:
                os.kill(os.getpid(), 9)
        return state["step"]

    def rows():
        return [row["id"] for row in train.get_dataset_shard().iter_rows()]

    with Trainer(num_workers=2, resources_per_worker={"CPU": 2}, logdir=tmp_path / "run", max_retries=1) as trainer:
        assert sorted(trainer.run(lambda: train.get_context().get_node_rank())) == [0, 1]
        assert trainer.run(os.getpid) == trainer.run(os.getpid)
        rows_of_ranks = trainer.run(rows, dataset=paceline.data.range(6))
        assert sorted([*rows_of_ranks[0], *rows_of_ranks[1]]) == list(range(6))
        assert trainer.run(steps) == [2, 2]
        assert trainer.latest_checkpoint == {"step": 3}


def test_ranks_on_other_machines_are_measured_and_stages_of_datasets_are_reported(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(usage_collector, "EVERY_S", 0.1)
    monkeypatch.setattr(usage_collector, "PER_RANK_S", 0.0)

    def usage_lines(path):
        complete_lines = path.read_text().rpartition("\n")[0]
        return [line.partition(" ")[2] for line in complete_lines.splitlines() if '"usage_measured"' in line]

    def slow(row):
        time.sleep(0.02)
        return row

    def function():
        for _ in train.get_dataset_shard("train").iter_batches(batch_size=5):
            pass
        train.report({"loss": 1.0})
        path = Path(train.get_context().get_trial_dir()) / "journal.jsonl"
        while not any(stage[2] == 20 for line in usage_lines(path) for stage in json.loads(line).get("stages", ())):
            time.sleep(0.02)

    rows = paceline.data.range(20, override_num_blocks=2).map(slow)
    fit(function, 2, strategy="SPREAD", more={"datasets": {"train": rows}})
    notes = read_events(tmp_path / "run", UsageMeasured)
    uses = {use.rank: use for each in notes for use in each.ranks}
    assert sorted(uses) == [0, 1]
    assert uses[0].pid != uses[1].pid
    for use in uses.values():
        assert use.num_reports == 1
        assert use.rss_bytes > 0
        assert use.data_s > 0
        assert use.setup_s + use.data_s + use.report_s + use.checkpoint_s <= use.wall_s
    stages = notes[-1].stages
    assert {stage.dataset for stage in stages} == {"train"}
    assert max(stage.num_rows for stage in stages) == 20
    (described,) = read_events(tmp_path / "run", RunDescribed)
    sources = json.loads(bytes(described.about))["code"]["sources"]
    assert any(Path(__file__).read_text() == text for text in sources.values())


def test_trials_share_objects_of_the_store_and_a_class_is_a_trial(tmp_path):
    def trial(config, data):
        return {"sum": float(data.sum()), "writable": data.flags.writeable, "id": tune.get_context().get_trial_id()}

    class Counts(Trainable):
        def setup(self, config, data):
            self.count = int(data[0])

        def step(self):
            self.count += 1
            return {"count": self.count, "done": self.count == 3}

    def fit(plan, number):
        return plan.make_trainer({}, RunConfig(name=f"trial_{number:05d}", storage_path=tmp_path), None).fit().metrics

    plan = make_trainable_plan(with_parameters(trial, data=np.ones(1_000_000)))
    for number in range(2):
        assert fit(plan, number) == {"sum": 1e6, "writable": False, "id": f"{number:05d}"}
    assert len({plan._shared.make_handle(choose_engine()).reference for _ in range(2)}) == 1
    assert fit(make_trainable_plan(with_parameters(Counts, data=np.ones(10))), 2) == {"count": 3, "done": True}
