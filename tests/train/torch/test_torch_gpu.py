"""On a GPU: sharded models, half precisions and the real compiler train what one process would; notices, resizing."""

import gc
import os
import shutil
import signal

import pytest
import torch
from small_nets import Net, make_net, make_rows, train_alone, train_net
from torch_fits import fit

from paceline import train
from paceline.train import Checkpoint, PreemptionError
from paceline.train.torch import TorchConfig, accelerate, get_device, prepare_model, prepare_optimizer

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: FSDP, bf16, fp16 and compiled models on one were not checked"
)


def train_on_gpu(strategy, *, micro_batches=1, **options):
    """In a worker: the losses, and the type that the model computed in."""
    net, seen = make_net(), []
    if not options.get("compile"):
        net.blocks[1].inner.register_forward_hook(lambda module, args, output: seen.append(str(output.dtype)))
    model = prepare_model(net, parallel_strategy=strategy, **options)
    losses, _ = train_net(model, *make_rows(get_device()), micro_batches=micro_batches)
    assert all(one.device.type == "cuda" for one in model.parameters())
    return [losses, sorted(set(seen))]


@pytest.mark.parametrize("precision", [None, "bf16", "fp16"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_on_a_gpu_any_precision_trains_what_full_precision_does(on_each, strategy, precision):
    def function():
        return [train_on_gpu(strategy, mixed_precision=precision, micro_batches=number) for number in (1, 2)]

    [results] = on_each(function, 1, gpus_per_worker=1)
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if precision is None else {"rtol": 0.05, "atol": 0.02}
    _, alone = train_alone()
    for losses, seen in results:
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone), **tolerance)
        assert seen == [{None: "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[precision]]


def test_on_a_gpu_accelerate_means_fp16_and_a_scale(on_each):
    def function():
        accelerate(amp=True)
        losses, seen = train_on_gpu("ddp")
        scaled = prepare_optimizer(torch.optim.SGD([torch.ones(1)], lr=0.1)).state_dict()["grad_scaler"]["scale"]
        return [losses[-1] < losses[0], seen, scaled > 1]

    assert on_each(function, 1, gpus_per_worker=1) == [[True, ["torch.float16"], True]]


@pytest.mark.timeout(900)
@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler: inductor was not checked")
def test_on_a_gpu_models_are_compiled_by_inductor(on_each):
    def function():
        from torch._dynamo.utils import counters
        from torch._inductor import metrics

        results = []
        for strategy, precision in (("ddp", None), ("ddp", "bf16"), ("fsdp", "bf16")):
            counters.clear()
            metrics.reset()
            losses, _ = train_on_gpu(strategy, mixed_precision=precision, compile={"dynamic": False})
            results.append([losses, counters["stats"]["unique_graphs"], metrics.generated_kernel_count > 0])
        return results

    [results] = on_each(function, 1, gpus_per_worker=1)
    _, alone = train_alone()
    for losses, num_graphs, has_kernels in results:
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone), rtol=0.05, atol=0.02)
        assert num_graphs == 1, "the whole model, or its blocks, which are alike"
        assert has_kernels


def test_on_a_gpu_no_more_than_a_block_is_there_at_a_time_when_a_model_is_sharded(on_each):
    """One worker keeps all shards; with those on the CPU it can be seen what else was on the GPU."""

    def function():
        from torch.distributed.fsdp import CPUOffloadPolicy

        peaks = []
        for meta in (False, True):
            gc.collect()  # What is sharded refers to itself.
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with torch.device("meta" if meta else "cpu"):
                net = Net(dim=1024, num_blocks=16)
            size = sum(one.numel() * one.element_size() for one in net.parameters())
            options = {"offload_policy": CPUOffloadPolicy()}
            model = prepare_model(net, parallel_strategy="fsdp", parallel_strategy_kwargs=options)
            peaks.append((torch.cuda.max_memory_allocated() - before) / size)
            assert all(one.device.type == "cpu" for one in model.parameters())
            loss = model(torch.ones(2, 3, device=get_device())).square().mean()
            loss.backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            assert loss.isfinite()
            del model, net, loss
            torch.cuda.synchronize()
        return peaks

    [peaks] = on_each(function, 1, gpus_per_worker=1)
    assert all(0 < peak < 0.4 for peak in peaks), peaks


def test_on_a_gpu_a_model_in_name_only_is_made_there(on_each):
    def function():
        model = prepare_model(make_net(meta=True))
        return [str(model.first.weight.device), bool(model(torch.ones(2, 3, device=get_device())).isfinite().all())]

    assert on_each(function, 1, gpus_per_worker=1) == [["cuda:0", True]]


def counted(until, at, act):
    """Counts in the GPU's memory, from the last checkpoint on."""

    def function():
        last = train.get_checkpoint()
        count = last.to_dict(map_location=get_device())["count"] if last else torch.zeros(1, device=get_device())
        while count.item() < until:
            count += 1
            if last is None and count.item() == at and train.get_context().get_world_rank() == 0:
                act()
            train.collective.barrier()
            state = {"count": count}
            train.report({"count": count.item()}, checkpoint_on_stop=lambda state=state: Checkpoint.from_dict(state))
        return count.item()

    return function


def test_a_notice_stops_workers_that_share_a_gpu_and_the_next_run_goes_on(tmp_path):
    function = counted(300, 20, lambda: os.kill(os.getpid(), signal.SIGTERM))
    options = {"gpus_per_worker": 0.5, "torch_config": TorchConfig(backend="gloo")}
    with pytest.raises(PreemptionError) as caught:
        fit(tmp_path, function, **options)
    result = caught.value.result
    assert result.checkpoint.to_dict()["count"].item() == result.metrics["count"] >= 20
    assert fit(tmp_path, function, **options).return_value == 300


def test_a_range_of_workers_starts_with_as_many_as_there_are_gpus(tmp_path):
    def function():
        return train.get_context().get_world_size()

    assert fit(tmp_path, function, (1, 64), gpus_per_worker=1).return_value == torch.cuda.device_count()
