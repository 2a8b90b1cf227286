"""However a model is shared, in whatever precision, compiled or not: two workers train what one process would.

All trainings are made in one run of two real workers, and each test looks at some of them.
"""

import contextlib
import itertools

import pytest
import torch
from torch import nn

from paceline.train import RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, accumulate_gradients, backward, prepare_model, prepare_optimizer

NUM_STEPS = 6

SAME = {"rtol": 1e-5, "atol": 1e-6}
"""How far weights may be from those of one process: sums are taken in another order."""
HALF = {"rtol": 0.05, "atol": 0.01}
"""The same where the forward pass was computed in half precision."""


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return x + self.norm(torch.tanh(self.inner(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.blocks = nn.ModuleList([Block(8) for _ in range(2)])
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def rows():
    x = torch.linspace(-1, 1, 8 * 3).reshape(8, 3)
    return x, x.sum(1, keepdim=True).sin()


def made(*, seed=0, meta=False):
    torch.manual_seed(seed)
    with torch.device("meta") if meta else contextlib.nullcontext():
        return Net()


def train_net(model, part, *, num_parts=1, micro_batches=1):
    """Trains on this part of rows; returns the loss of each step, and gradients after the first micro-batch."""
    x, y = (rows[part::num_parts] for rows in rows())
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
        optimizer.step()
        losses.append(total)
    return losses, early


def weights_of(model):
    bare = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    whole = {name: getattr(value, "full_tensor", value.clone)() for name, value in bare.state_dict().items()}
    return {name: value.tolist() for name, value in whole.items()}


STRATEGIES = ("ddp", "fsdp", None)
VARIANTS = {
    "plain": {},
    "compiled": {"compile": True},
    "bf16": {"mixed_precision": "bf16"},
    "fp16": {"mixed_precision": "fp16"},
    "compiled bf16": {"compile": True, "mixed_precision": "bf16"},
    "accumulated": {"micro_batches": 2},
    "compiled accumulated": {"compile": True, "micro_batches": 2},
    "meta": {"meta": True},
    "seeded apart": {"apart": True},
}
CASES = [*itertools.product(STRATEGIES, VARIANTS)]
# Where nothing is shared, each worker has the model it made.
CASES.remove((None, "seeded apart"))


def one_training(strategy, *, compile=False, micro_batches=1, meta=False, apart=False, mixed_precision=None):
    """In a worker: everything that tests ask about one training."""
    import torch.distributed as dist

    graphs, seen = [], []

    def counting(graph, _inputs):
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    rank = dist.get_rank()
    net = made(seed=rank if apart else 0, meta=meta)
    # Under a compiler hooks of modules in it would be compiled too: the types are asked for without one.
    if not compile:
        net.blocks[1].inner.register_forward_hook(lambda module, args, output: seen.append(str(output.dtype)))
    model = prepare_model(
        net,
        parallel_strategy=strategy,
        mixed_precision=mixed_precision,
        compile={"backend": counting} if compile else False,
    )
    parts = 1 if strategy is None else 2
    losses, early = train_net(model, rank % parts, num_parts=parts, micro_batches=micro_batches)
    with torch.no_grad():
        output = model(rows()[0])
    return {
        "class": type(model).__name__,
        "losses": losses,
        "weights": weights_of(model),
        "graphs": graphs,
        "seen": sorted(set(seen)),
        "output": str(output.dtype),
        "kept": str(next(model.parameters()).dtype),
        "early": early,
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What each rank found, for each case."""

    def function():
        import torch.distributed as dist

        found = {case: one_training(case[0], **VARIANTS[case[1]]) for case in CASES}
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, found)
        return gathered

    trainer = TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path_factory.mktemp("runs")), name="run"),
    )
    return trainer.fit().return_value


@pytest.fixture(scope="module")
def alone():
    """The same training in this process, without anything of ours."""
    model, losses = made(), []
    x, y = rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "weights": weights_of(model)}


def close(found, wanted, tolerance):
    torch.testing.assert_close(
        {name: torch.tensor(value) for name, value in found.items()},
        {name: torch.tensor(value) for name, value in wanted.items()},
        **tolerance,
    )


@pytest.mark.parametrize(("strategy", "variant"), CASES)
def test_two_workers_train_what_one_process_would(trained, alone, strategy, variant):
    tolerance = HALF if "16" in variant else SAME
    both = [found[strategy, variant] for found in trained]
    mean = [sum(losses) / 2 for losses in zip(*(found["losses"] for found in both), strict=True)]
    torch.testing.assert_close(torch.tensor(mean), torch.tensor(alone["losses"]), **tolerance)
    for found in both:
        close(found["weights"], alone["weights"], tolerance)
    assert both[0]["weights"] == both[1]["weights"]
    assert alone["losses"][-1] < alone["losses"][0] / 2, "this training reaches something"


def of(trained, variant):
    return {strategy: [found[strategy, variant] for found in trained] for strategy in STRATEGIES}


def test_a_model_is_wrapped_as_it_was_asked_for(trained):
    names = {strategy: both[0]["class"] for strategy, both in of(trained, "compiled").items()}
    assert names == {"ddp": "DistributedDataParallel", "fsdp": "FSDPNet", None: "Net"}


@pytest.mark.parametrize(("variant", "dtype"), [("plain", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")])
def test_the_forward_pass_is_computed_in_the_precision_asked_for_and_all_else_is_full(trained, variant, dtype):
    for both in of(trained, variant).values():
        for found in both:
            assert found["seen"] == [f"torch.{dtype}"]
            assert found["output"] == found["kept"] == "torch.float32"


def test_what_is_to_be_compiled_is_and_once(trained):
    for strategy, both in of(trained, "compiled").items():
        for found in both:
            # Of a sharded model the blocks are compiled: two that are alike are one graph. The second graph is that
            # of the last call, which wants no gradients.
            assert len(found["graphs"]) == 2, strategy
    for both in of(trained, "plain").values():
        assert [found["graphs"] for found in both] == [[], []]


@pytest.mark.parametrize("variant", ["accumulated", "compiled accumulated"])
def test_gradients_stay_with_their_worker_until_the_last_micro_batch(trained, variant):
    early = {strategy: [found["early"] for found in both] for strategy, both in of(trained, variant).items()}
    assert early["ddp"][0] != early["ddp"][1]
    assert not any(early["fsdp"][0]), "those of a sharded model come with the last"
    assert early[None][0] == early[None][1], "each worker trains on all rows, alone"
