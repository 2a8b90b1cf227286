"""Ray's older names for mixed precision, and the scaling of losses that fp16 needs."""

import copy

import pytest
import torch
from torch import nn

from paceline.train.torch import accelerate, backward, prepare_model, prepare_optimizer, unscale_gradients


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def sgd(model, lr=0.1):
    return prepare_optimizer(torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9))


def scale_of(optimizer):
    return optimizer.state_dict()["grad_scaler"]["scale"]


def one_step(model, optimizer, factor=1.0):
    optimizer.zero_grad()
    # Below what fp16 can tell from zero, without a scale.
    backward(model(torch.ones(4, 3)).square().mean() * 1e-6 * factor)
    optimizer.step()


@pytest.fixture
def fp16(as_worker):
    """A model in fp16 and its optimizer."""
    as_worker()
    model = prepare_model(linear(), mixed_precision="fp16")
    return model, sgd(model, lr=1e5)


def test_what_cannot_be_meant_is_refused(as_worker):
    as_worker()
    with pytest.raises(ValueError, match="amp must be True or False, got 'fp16'"):
        accelerate(amp="fp16")
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer, got \[\]"):
        prepare_optimizer([])
    accelerate()
    with pytest.raises(RuntimeError, match=r"accelerate\(\) was already called(.|\n)*hint: call it once"):
        accelerate(amp=True)
    # The next run of the same process has said nothing yet.
    as_worker()
    accelerate(amp=True)


@pytest.mark.parametrize("amp", [False, True])
def test_models_that_are_prepared_after_accelerate_compute_in_half_precision_if_so_said(as_worker, amp):
    as_worker()
    accelerate(amp=amp)
    model, seen = nn.Sequential(linear()), []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    model = prepare_model(model)
    optimizer = sgd(model)
    one_step(model, optimizer)
    assert seen == [torch.bfloat16 if amp else torch.float32]
    assert "grad_scaler" not in optimizer.state_dict(), "on the CPU it is bf16, which needs none"


def test_outputs_come_back_in_full_precision_in_whatever_holds_them(as_worker):
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear()

        def forward(self, x, *, ids):
            y = self.inner(x)
            assert y.dtype == torch.bfloat16
            return {"logits": y, "others": (y, [ids])}

    as_worker()
    outputs = prepare_model(Many(), mixed_precision=torch.bfloat16)(torch.ones(4, 3), ids=torch.arange(2))
    assert outputs["logits"].dtype == outputs["others"][0].dtype == torch.float32
    assert outputs["others"][1][0].dtype == torch.int64


def test_a_copy_of_a_model_in_half_precision_has_weights_of_its_own(as_worker):
    as_worker()
    model = prepare_model(linear(), mixed_precision="bf16")
    average = copy.deepcopy(model)
    nn.init.zeros_(average.weight)
    nn.init.zeros_(average.bias)
    assert not average(torch.ones(1, 3)).any()
    assert model(torch.ones(1, 3)).any()


def test_gradients_that_fp16_could_not_hold_arrive(fp16):
    model, optimizer = fp16
    plain = linear()
    (plain(torch.ones(4, 3)).square().mean() * 1e-6).backward()
    backward(model(torch.ones(4, 3)).square().mean() * 1e-6)
    unscale_gradients(optimizer)
    torch.testing.assert_close(model.weight.grad, plain.weight.grad, rtol=0.01, atol=0)
    clipped = nn.utils.clip_grad_norm_(model.parameters(), 1e-9)
    assert 0 < clipped < 1e-5, "of the gradients themselves, not of scaled ones"
    before = model.weight.detach().clone()
    optimizer.step()
    assert (model.weight - before).norm() < 1e-3


def test_a_step_that_is_not_finite_is_left_out_and_the_scale_halved(fp16):
    model, optimizer = fp16
    one_step(model, optimizer)
    before, scale = copy.deepcopy(model.state_dict()), scale_of(optimizer)
    one_step(model, optimizer, factor=float("inf"))
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    assert scale_of(optimizer) == scale / 2
    one_step(model, optimizer)
    assert not torch.equal(model.weight, before["weight"])


def test_what_is_resumed_goes_on_with_the_scale(as_worker, fp16):
    model, optimizer = fp16
    one_step(model, optimizer, factor=float("inf"))
    one_step(model, optimizer)
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    one_step(model, optimizer)
    for loads_first in (True, False):
        as_worker()
        again = linear(1)
        if not loads_first:
            again = prepare_model(again, mixed_precision="fp16")
        other = sgd(again, lr=1e5)
        again.load_state_dict(saved["model"])
        other.load_state_dict(copy.deepcopy(saved["optimizer"]))
        if loads_first:
            again = prepare_model(again, mixed_precision="fp16")
        assert scale_of(other) == saved["optimizer"]["grad_scaler"]["scale"]
        one_step(again, other)
        torch.testing.assert_close(dict(again.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    # An optimizer that knows nothing of scales takes the state too.
    torch.optim.SGD(linear().parameters(), lr=0.1).load_state_dict(saved["optimizer"])


def test_two_optimizers_share_a_backward_pass_though_one_of_them_changes_the_scale(as_worker):
    as_worker()
    first = prepare_model(linear(), mixed_precision="fp16")
    second = prepare_model(linear(), mixed_precision="fp16")
    optimizers = [sgd(first), sgd(second)]
    x = torch.ones(4, 3)
    # Not finite for the first model alone, so its step is left out.
    backward(first(x).mean() * float("inf") + second(x).mean())
    for optimizer in optimizers:
        optimizer.step()
    plain = linear()
    plain(x).mean().backward()
    assert torch.equal(first.weight, plain.weight)
    torch.testing.assert_close(second.weight, plain.weight - 0.1 * plain.weight.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scheduled", ["before", "after"])
def test_a_scheduler_of_the_learning_rate_is_at_home(as_worker, scheduled, recwarn):
    as_worker()
    model = prepare_model(linear(), mixed_precision="fp16")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if scheduled == "before":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    assert prepare_optimizer(optimizer) is optimizer
    assert prepare_optimizer(optimizer) is optimizer
    if scheduled == "after":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    before = model.weight.detach().clone()
    backward(model(torch.ones(4, 3)).sum() * 0.01)
    unscaled = model.weight.grad / optimizer.state_dict()["grad_scaler"]["scale"]
    optimizer.step()
    scheduler.step()
    torch.testing.assert_close(model.weight.detach(), before - unscaled)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert not recwarn.list, "torch says so where it thinks that the optimizer has not stepped"


def test_all_ranks_leave_out_a_step_that_is_not_finite_on_one(on_each):
    def function():
        import torch.distributed as dist
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        found = []
        for strategy in ("ddp", "fsdp"):
            model = prepare_model(linear(), parallel_strategy=strategy, mixed_precision="fp16")
            optimizer = sgd(model)
            for weight in (1.0, float("inf"), 1.0):
                optimizer.zero_grad()
                output = model(torch.ones(4, 3))
                # Of the two rows of weights, which are those of rank 0 and rank 1, the gradients of the second.
                backward(0.01 * (output[:, 0] + (weight if dist.get_rank() == 1 else 1.0) * output[:, 1]).mean())
                if strategy == "fsdp" and weight != 1.0:
                    shard = model.weight.grad.to_local()
                    assert bool(shard.isfinite().all()) == (dist.get_rank() == 0)
                before = [getattr(one, "full_tensor", one.clone)().tolist() for one in model.parameters()]
                optimizer.step()
                after = [getattr(one, "full_tensor", one.clone)().tolist() for one in model.parameters()]
                found.append([before == after, scale_of(optimizer)])
            # For a checkpoint of shards torch asks for the state by parameters.
            bare = getattr(model, "module", model)
            assert set(get_optimizer_state_dict(bare, optimizer)["state"]) == {"weight", "bias"}
        return found

    first, second = on_each(function)
    assert first == second
    assert [left_out for left_out, _ in first] == [False, True, False] * 2
    scales = [scale for _, scale in first]
    assert [scale / scales[0] for scale in scales] == [1, 0.5, 0.5, 0.5, 0.25, 0.25]
