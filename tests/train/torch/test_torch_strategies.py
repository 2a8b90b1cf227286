"""However a model is shared, in whatever precision, compiled or not: two workers train what one process would.

All trainings are made in one run of two real workers, and each test looks at some of them.
"""

import itertools

import pytest
import torch
from fits import gather
from small_nets import make_net, make_rows, train_alone, train_net
from torch import nn
from torch_fits import fit

from paceline.train.torch import prepare_model

# In `make test`, test_torch_model.py, test_torch_fsdp.py and test_torch_compile.py stand for it.
pytestmark = pytest.mark.slow

SAME = {"rtol": 1e-5, "atol": 1e-6}
"""How far weights may be from those of one process: sums are taken in another order."""
HALF = {"rtol": 0.05, "atol": 0.01}
"""The same where the forward pass was computed in half precision."""


def weights_of(model):
    bare = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    weights = {name: getattr(value, "full_tensor", value.clone)() for name, value in bare.state_dict().items()}
    return {name: value.tolist() for name, value in weights.items()}


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
    net = make_net(seed=rank if apart else 0, meta=meta)
    # Under a compiler hooks of modules in it would be compiled too: the types are asked for without one.
    if not compile:
        net.blocks[1].inner.register_forward_hook(lambda module, args, output: seen.append(str(output.dtype)))
    compiler = {"backend": counting} if compile else False
    model = prepare_model(net, parallel_strategy=strategy, mixed_precision=mixed_precision, compile=compiler)
    parts = 1 if strategy is None else 2
    x, y = (rows[rank % parts :: parts] for rows in make_rows())
    losses, early = train_net(model, x, y, micro_batches=micro_batches)
    with torch.no_grad():
        output = model(make_rows()[0])
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
        return gather({case: one_training(case[0], **VARIANTS[case[1]]) for case in CASES})

    return fit(tmp_path_factory.mktemp("runs"), function).return_value


@pytest.fixture(scope="module")
def alone():
    model, losses = train_alone()
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


def of(trained, variant):
    return {strategy: [found[strategy, variant] for found in trained] for strategy in STRATEGIES}


@pytest.mark.parametrize(("variant", "dtype"), [("plain", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")])
def test_the_forward_pass_is_computed_in_the_precision_asked_for_and_all_else_is_full(trained, variant, dtype):
    for both in of(trained, variant).values():
        for found in both:
            assert found["seen"] == [f"torch.{dtype}"]
            assert found["output"] == found["kept"] == "torch.float32"


def test_a_model_is_wrapped_as_asked_for_and_compiled_once(trained):
    names = {strategy: both[0]["class"] for strategy, both in of(trained, "compiled").items()}
    assert names == {"ddp": "DistributedDataParallel", "fsdp": "FSDPNet", None: "Net"}
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
