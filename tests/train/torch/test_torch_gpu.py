"""On a GPU: sharded models, both half precisions, and the real compiler train what one process would."""

import gc
import shutil

import pytest
import torch
from torch import nn

from paceline.train.torch import (
    accelerate,
    accumulate_gradients,
    backward,
    get_device,
    prepare_model,
    prepare_optimizer,
    unscale_gradients,
)

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: FSDP, bf16, fp16 and compiled models on one were not checked"
)

NUM_STEPS = 6


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return x + self.norm(torch.tanh(self.inner(x)))


class Net(nn.Module):
    def __init__(self, dim=16, num_blocks=2):
        super().__init__()
        self.first = nn.Linear(4, dim)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(num_blocks)])
        self.last = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def made():
    torch.manual_seed(0)
    return Net()


def losses_of(model, optimizer, device, *, micro_batches=1):
    x = torch.linspace(-1, 1, 32 * 4, device=device).reshape(32, 4)
    y = x.sum(1, keepdim=True).sin()
    losses = []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        total = 0.0
        for number in range(micro_batches):
            mine = slice(number, None, micro_batches)
            with accumulate_gradients(model, last=number == micro_batches - 1):
                loss = nn.functional.mse_loss(model(x[mine]), y[mine]) / micro_batches
                backward(loss)
            total += loss.item()
        unscale_gradients(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        losses.append(total)
    return losses


@pytest.fixture(scope="module")
def alone():
    """The losses of one process, in full precision, on the CPU."""
    model, losses = made(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    x = torch.linspace(-1, 1, 32 * 4).reshape(32, 4)
    y = x.sum(1, keepdim=True).sin()
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    return losses


def trained(strategy, *, micro_batches=1, **options):
    """In a worker: the losses, and what the model computed in."""
    seen = []
    net = made()
    if not options.get("compile"):
        net.blocks[1].inner.register_forward_hook(lambda module, args, output: seen.append(str(output.dtype)))
    model = prepare_model(net, parallel_strategy=strategy, **options)
    optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.02))
    state = optimizer.state_dict()
    if "grad_scaler" in state:
        # It begins with a scale so large that the first steps may be left out.
        state["grad_scaler"]["scale"] = 256.0
        optimizer.load_state_dict(state)
    losses = losses_of(model, optimizer, get_device(), micro_batches=micro_batches)
    assert all(one.device.type == "cuda" for one in model.parameters())
    return [losses, sorted(set(seen))]


@pytest.mark.parametrize("precision", [None, "bf16", "fp16"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_on_a_gpu_any_precision_trains_what_full_precision_does(on_each, alone, strategy, precision):
    def function():
        return [
            trained(strategy, mixed_precision=precision),
            trained(strategy, mixed_precision=precision, micro_batches=2),
        ]

    [results] = on_each(function, 1, gpus_per_worker=1)
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if precision is None else {"rtol": 0.05, "atol": 0.02}
    for losses, seen in results:
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone), **tolerance)
        assert seen == [{None: "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[precision]]


def test_on_a_gpu_accelerate_means_fp16_and_a_scale(on_each):
    def function():
        accelerate(amp=True)
        model, seen = nn.Sequential(made()), []
        model[0].last.register_forward_hook(lambda module, args, output: seen.append(str(output.dtype)))
        model = prepare_model(model)
        optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.02))
        losses = losses_of(model, optimizer, get_device())
        return [losses[-1] < losses[0], sorted(set(seen)), optimizer.state_dict()["grad_scaler"]["scale"] > 1]

    assert on_each(function, 1, gpus_per_worker=1) == [[True, ["torch.float16"], True]]


@pytest.mark.timeout(300)
@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler: inductor was not checked")
def test_on_a_gpu_models_are_compiled_by_inductor(on_each, alone):
    def function():
        from torch._dynamo.utils import counters
        from torch._inductor import metrics

        results = []
        for strategy, precision in (("ddp", None), ("ddp", "bf16"), ("fsdp", "bf16")):
            counters.clear()
            metrics.reset()
            losses, _ = trained(strategy, mixed_precision=precision, compile={"dynamic": False})
            results.append([losses, counters["stats"]["unique_graphs"], metrics.generated_kernel_count > 0])
        return results

    [results] = on_each(function, 1, gpus_per_worker=1)
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
            model = prepare_model(
                net, parallel_strategy="fsdp", parallel_strategy_kwargs={"offload_policy": CPUOffloadPolicy()}
            )
            peaks.append((torch.cuda.max_memory_allocated() - before) / size)
            assert all(one.device.type == "cpu" for one in model.parameters())
            loss = model(torch.ones(2, 4, device=get_device())).square().mean()
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
        with torch.device("meta"):
            net = Net()
        model = prepare_model(net)
        torch.manual_seed(0)
        return [str(model.first.weight.device), bool(model(torch.ones(2, 4, device=get_device())).isfinite().all())]

    assert on_each(function, 1, gpus_per_worker=1) == [["cuda:0", True]]
