"""Models on many workers: wrapped where that is of use, and with the gradients of the whole batch."""

import pytest
import torch
from torch import nn

from paceline.train.torch import get_device, prepare_model

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: models on a GPU were not checked")
needs_two_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="fewer than two GPUs: that fully_shard shards was not checked"
)


def gradients_of_the_parts(model, num_parts, rank, device="cpu"):
    """Trains one step on this rank's rows of a batch that is the same everywhere."""
    rows = torch.arange(24.0).reshape(8, 3).to(device)
    model(rows[rank::num_parts]).square().mean().backward()
    return [parameter.grad.tolist() for parameter in model.parameters()]


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def test_gradients_are_those_of_one_process_on_the_whole_batch(on_each):
    def function():
        import torch.distributed as dist

        # A setting that is not the default, to see that it arrives.
        model = prepare_model(linear(), parallel_strategy_kwargs={"gradient_as_bucket_view": True})
        assert type(model).__name__ == "DistributedDataParallel"
        assert model.gradient_as_bucket_view
        return gradients_of_the_parts(model, 2, dist.get_rank())

    expected = gradients_of_the_parts(linear(), 1, 0)
    for gradients in on_each(function):
        for found, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))


def test_a_model_is_not_wrapped_where_that_is_of_no_use(as_worker):
    as_worker(world_size=2)
    assert type(prepare_model(linear().requires_grad_(False))) is nn.Linear
    assert type(prepare_model(nn.ReLU())) is nn.ReLU
    assert type(prepare_model(linear(), parallel_strategy=None)) is nn.Linear
    as_worker(world_size=1)
    assert type(prepare_model(linear())) is nn.Linear


def test_a_model_moves_to_the_device_it_is_told(as_worker):
    as_worker()
    assert prepare_model(linear(), torch.device("meta")).weight.device.type == "meta"
    assert prepare_model(linear().to("meta"), move_to_device=False).weight.device.type == "meta"


def test_other_strategies_are_refused(as_worker):
    as_worker()
    with pytest.raises(ValueError, match=r"parallel_strategy='dp' is none of 'ddp', 'fsdp' and None"):
        prepare_model(linear(), parallel_strategy="dp")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"mixed_precision": "fp8"}, "mixed_precision='fp8' is none of 'bf16', 'fp16'"),
        ({"mixed_precision": torch.float32}, r"mixed_precision=torch\.float32 is none of"),
        ({"compile": "inductor"}, "compile='inductor' is neither a bool nor a dict"),
        ({"shard_blocks": [nn.Linear]}, "shard_blocks is for parallel_strategy='fsdp', and that is 'ddp'"),
        ({"parallel_strategy": "fsdp", "move_to_device": torch.device("cuda:3")}, "move_to_device=device"),
        (
            {"parallel_strategy": "fsdp", "mixed_precision": "bf16", "parallel_strategy_kwargs": {"mp_policy": None}},
            "both say how precise to be",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(as_worker, arguments, told):
    as_worker()
    with pytest.raises(ValueError, match=told):
        prepare_model(linear(), **arguments)


def test_without_a_process_group_nothing_is_sharded(as_worker):
    as_worker()
    with pytest.raises(RuntimeError, match=r"needs a process group(.|\n)*hint: train with a TorchTrainer"):
        prepare_model(linear(), parallel_strategy="fsdp")


def test_outside_of_a_worker_no_model_is_prepared():
    with pytest.raises(RuntimeError, match="`prepare_model` cannot be used outside"):
        prepare_model(linear())


@needs_gpu
def test_gradients_on_a_gpu_are_those_of_one_process_on_the_whole_batch(on_each):
    def function():
        import torch.distributed as dist

        model = prepare_model(linear())
        gradients = gradients_of_the_parts(model, 2, dist.get_rank(), get_device())
        return [str(next(model.parameters()).device), model.device_ids, gradients]

    expected = gradients_of_the_parts(linear(), 1, 0)
    # Two workers share a GPU, which NCCL refuses.
    for device, ids, gradients in on_each(function, gpus_per_worker=0.5, backend="gloo"):
        assert (device, ids) == ("cuda:0", [0])
        for found, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))


@needs_two_gpus
def test_a_sharded_model_holds_a_part_on_each_gpu(on_each):
    def function():
        import torch.distributed as dist

        model = prepare_model(linear(), parallel_strategy="fsdp")
        shard = model.weight.to_local()
        loss = model(torch.ones(4, 3, device=get_device())).square().mean()
        loss.backward()
        return [str(shard.device), list(shard.shape), model.weight.grad is not None, dist.get_rank()]

    assert on_each(function, gpus_per_worker=1) == [["cuda:0", [1, 3], True, 0], ["cuda:1", [1, 3], True, 1]]
