"""What a worker computes on, and models on many: wrapped where of use, with the gradients of the whole batch."""

import pytest
import torch
from torch import nn

import paceline.train.torch
from paceline.train.torch import get_device, get_devices, prepare_model

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: models on a GPU were not checked")


def gradients_of_the_parts(model, num_parts, rank, device="cpu"):
    """Trains one step on this rank's rows of a batch that is the same everywhere."""
    rows = torch.arange(24.0).reshape(8, 3).to(device)
    model(rows[rank::num_parts]).square().mean().backward()
    return [parameter.grad.tolist() for parameter in model.parameters()]


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def test_a_model_moves_to_the_device_asked_for_and_is_not_wrapped_where_that_is_of_no_use(as_worker):
    as_worker(world_size=2)
    assert type(prepare_model(linear().requires_grad_(False))) is nn.Linear
    assert type(prepare_model(nn.ReLU())) is nn.ReLU
    assert type(prepare_model(linear(), parallel_strategy=None)) is nn.Linear
    as_worker(world_size=1)
    assert type(prepare_model(linear())) is nn.Linear
    assert prepare_model(linear(), torch.device("meta")).weight.device.type == "meta"
    assert prepare_model(linear().to("meta"), move_to_device=False).weight.device.type == "meta"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parallel_strategy": "dp"}, "parallel_strategy must be 'ddp', 'fsdp' or None, got 'dp'"),
        ({"mixed_precision": "fp8"}, "mixed_precision must be 'bf16', 'fp16', .*, got 'fp8'"),
        ({"compile": "inductor"}, "compile must be a bool or a dict of torch.compile options, got 'inductor'"),
        ({"shard_blocks": [nn.Linear]}, "shard_blocks needs parallel_strategy='fsdp', got 'ddp'"),
        ({"parallel_strategy": "fsdp", "move_to_device": torch.device("cuda:3")}, "must be the CPU or this worker's"),
        (
            {"parallel_strategy": "fsdp", "mixed_precision": "bf16", "parallel_strategy_kwargs": {"mp_policy": None}},
            "exclude each other",
        ),
        ({"parallel_strategy": "fsdp"}, r"needs a process group(.|\n)*hint: train with a TorchTrainer"),
    ],
)
def test_what_cannot_be_meant_is_refused(as_worker, arguments, message):
    as_worker()
    with pytest.raises((ValueError, RuntimeError), match=message):
        prepare_model(linear(), **arguments)


@pytest.mark.parametrize("gpus_per_worker", [0, pytest.param(0.5, marks=needs_gpu)])
def test_gradients_are_those_of_one_process_on_the_whole_batch(on_each, gpus_per_worker):
    def function():
        import torch.distributed as dist

        # A setting that is not the default, to see that it arrives.
        model = prepare_model(linear(), parallel_strategy_kwargs={"gradient_as_bucket_view": True})
        assert model.gradient_as_bucket_view
        return [str(get_device()), model.device_ids, gradients_of_the_parts(model, 2, dist.get_rank(), get_device())]

    expected = gradients_of_the_parts(linear(), 1, 0)
    # Two workers share a GPU, which NCCL refuses.
    for device, ids, gradients in on_each(function, gpus_per_worker=gpus_per_worker, backend="gloo"):
        assert (device, ids) == (("cuda:0", [0]) if gpus_per_worker else ("cpu", None))
        for found, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))


def test_a_worker_without_gpus_computes_on_the_cpu(on_each):
    assert on_each(lambda: [str(get_device()), *map(str, get_devices())]) == [["cpu", "cpu"]] * 2


def test_a_worker_with_gpus_computes_on_those_it_was_given(as_worker):
    as_worker(devices=(2, 3))
    assert get_device() == torch.device("cuda:2")
    assert get_devices() == [torch.device("cuda:2"), torch.device("cuda:3")]


OF_WORKERS = {
    get_device: (),
    get_devices: (),
    prepare_model: (torch.nn.Linear(1, 1),),
    paceline.train.torch.prepare_data_loader: (torch.utils.data.DataLoader(range(4)),),
    paceline.train.torch.accelerate: (),
    paceline.train.torch.prepare_optimizer: (None,),
    paceline.train.torch.backward: (None,),
}


@pytest.mark.parametrize("function", OF_WORKERS)
def test_outside_of_a_worker_it_is_refused_by_name(function):
    with pytest.raises(RuntimeError, match=f"`{function.__name__}` cannot be used outside"):
        function(*OF_WORKERS[function])
