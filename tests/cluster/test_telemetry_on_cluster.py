"""On a cluster, too, every rank says what it uses, and a run is described as the script that asked for it."""

import json
import time
from pathlib import Path

import paceline.data
from paceline import train
from paceline._control import journal, vitals
from paceline._control.events import Described, Measured
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig


def test_ranks_on_other_machines_are_measured_and_stages_of_datasets_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(vitals, "EVERY_S", 0.1)
    monkeypatch.setattr(vitals, "PER_RANK_S", 0.0)

    def lines_of(book):
        whole = book.read_text().rpartition("\n")[0]
        return [line.partition(" ")[2] for line in whole.splitlines() if '"Measured"' in line]

    def slow(row):
        time.sleep(0.02)
        return row

    def function():
        for _ in train.get_dataset_shard("train").iter_batches(batch_size=5):
            pass
        train.report({"loss": 1.0})
        book = Path(train.get_context().get_trial_dir()) / "journal.jsonl"
        while not any(stage[2] == 20 for line in lines_of(book) for stage in json.loads(line).get("stages", ())):
            time.sleep(0.02)

    DataParallelTrainer(
        function,
        train_loop_config=None,
        datasets={"train": paceline.data.range(20, override_num_blocks=2).map(slow)},
        scaling_config=ScalingConfig(2, placement_strategy="SPREAD"),
        run_config=RunConfig(name="run", storage_path=tmp_path),
    ).fit()
    events = list(journal.read(tmp_path / "run" / "journal.jsonl"))
    found = [event for event in events if isinstance(event, Measured)]
    uses = {use.rank: use for each in found for use in each.ranks}
    assert sorted(uses) == [0, 1]
    assert uses[0].pid != uses[1].pid
    for use in uses.values():
        assert use.num_reports == 1
        assert use.rss_bytes > 0
        assert use.data_s > 0
        assert use.setup_s + use.data_s + use.report_s + use.checkpoint_s <= use.wall_s
    stages = found[-1].stages
    assert {stage.dataset for stage in stages} == {"train"}
    assert max(stage.num_rows for stage in stages) == 20
    (described,) = [json.loads(bytes(event.about)) for event in events if isinstance(event, Described)]
    assert any(Path(__file__).read_text() == text for text in described["code"]["sources"].values())
