"""A small network of blocks, and how it is trained: by workers, and by one process without anything of ours."""

import contextlib

import torch
from torch import nn

from paceline.train.torch import accumulate_gradients, backward, prepare_optimizer, unscale_gradients

NUM_STEPS = 6


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return x + self.norm(torch.tanh(self.inner(x)))


class Net(nn.Module):
    def __init__(self, dim=8, num_blocks=2):
        super().__init__()
        self.first = nn.Linear(3, dim)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(num_blocks)])
        self.last = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def make_net(*, seed=0, meta=False):
    torch.manual_seed(seed)
    with torch.device("meta") if meta else contextlib.nullcontext():
        return Net()


def make_rows(device="cpu"):
    x = torch.linspace(-1, 1, 8 * 3, device=device).reshape(8, 3)
    return x, x.sum(1, keepdim=True).sin()


def train_net(model, x, y, *, micro_batches=1):
    """Return the loss of each step, and the gradients after the first micro-batch."""
    optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5))
    state = optimizer.state_dict()
    if "grad_scaler" in state:
        # It begins with a scale so large that the first steps are left out.
        state["grad_scaler"]["scale"] = 256.0
        optimizer.load_state_dict(state)
    losses, early = [], None
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        total = 0.0
        for number in range(micro_batches):
            mine = slice(number, None, micro_batches)
            last = number == micro_batches - 1
            with accumulate_gradients(model, last=last):
                loss = nn.functional.mse_loss(model(x[mine]), y[mine]) / micro_batches
                backward(loss)
            if not last:
                early = [None if one.grad is None else one.grad.tolist() for one in model.parameters()]
            total += loss.item()
        unscale_gradients(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        losses.append(total)
    return losses, early


def train_alone():
    """The same training in this process, in full precision, without anything of ours: the model and its losses."""
    model, losses = make_net(), []
    x, y = make_rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, "this training reaches something"
    return model, losses
