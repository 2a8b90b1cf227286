"""What people ask of a run whose workers, and whose driver, are on a cluster: as of any other run."""

import threading
import time
from pathlib import Path

from paceline import train
from paceline._control.requests import Profile, Stacks, Stop, asked
from paceline._storage.home import Home
from paceline.train import Checkpoint, DataParallelTrainer, Result, RunConfig, ScalingConfig


def test_a_detached_run_is_looked_at_profiled_and_stopped(cluster, tmp_path):
    stands = str(tmp_path / "stands")

    def function():
        i = 0
        while True:
            i += 1
            train.report({"i": i}, checkpoint_on_stop=lambda i=i: Checkpoint.from_dict({"i": i}))
            Path(f"{stands}_{train.get_context().get_world_rank()}").touch()
            time.sleep(0.02)

    trainer = DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(2),
        run_config=RunConfig(name="run", storage_path=tmp_path / "runs", detached=True),
    )
    outcome: list[Result] = []
    following = threading.Thread(target=lambda: outcome.append(trainer.fit()))
    following.start()
    home = Home.of_path(str(tmp_path / "runs" / "run"))
    try:
        deadline = time.monotonic() + 60.0
        while not all(Path(f"{stands}_{rank}").exists() for rank in range(2)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        stacks = asked(home, Stacks(), 30.0)
        assert [each.answers for each in stacks.stacks] == [True, True], stacks
        assert all(any(line.function == "function" for line in each.threads[0].lines) for each in stacks.stacks)
        profile = asked(home, Profile(seconds=0.5), 60.0)
        assert {(made.rank, made.kind) for made in profile.files} >= {(0, "flame"), (1, "flame")}, profile
        assert all((home.layout.root / made.path).stat().st_size == made.num_bytes for made in profile.files)
    finally:
        answer = asked(home, Stop(), 60.0)
        following.join(60.0)
    assert answer.state == "done", answer
    assert outcome[0].checkpoint.to_dict() == {"i": answer.num_reports}
