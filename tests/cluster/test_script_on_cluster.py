"""A script for torchrun on two nodes: its ranks meet, with nothing told but the environment."""

import json

from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train.script import Script, ScriptConfig

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


def test_the_ranks_of_a_script_meet_over_two_nodes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    DataParallelTrainer(
        Script(str(script), (str(tmp_path),)),
        backend_config=ScriptConfig(run_name="a"),
        scaling_config=ScalingConfig(2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(storage_path=tmp_path / "runs", name="a"),
    ).fit()
    said = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert said == [[3.0, "0", "1", "0", "2"], [3.0, "0", "1", "1", "2"]]
