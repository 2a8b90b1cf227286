"""The process group around a function, and its store, which is rank 0's."""

import time

from paceline.train import RunConfig, ScalingConfig
from paceline.train.torch import TorchConfig, TorchTrainer


class SlowToSetUp(TorchConfig):
    """The last rank is not done with the store when the group is there."""

    def _rendezvous(self, context):
        import torch.distributed as dist

        host, port, store = super()._rendezvous(context)
        init = dist.init_process_group

        def slowly(*args, **kwargs):
            init(*args, **kwargs)
            dist.init_process_group = init
            if context.begin.rank == context.begin.world_size - 1:
                time.sleep(0.5)
                store.set("late", b"1")
                assert store.get("late") == b"1"

        dist.init_process_group = slowly
        return host, port, store


def test_a_function_that_does_nothing_leaves_the_store_to_ranks_that_still_set_up(tmp_path):
    result = TorchTrainer(
        lambda: "done",
        torch_config=SlowToSetUp(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path), name="run"),
    ).fit()
    assert result.return_value == "done"
