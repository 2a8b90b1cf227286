"""Which parts of a model are sharded on their own, and what becomes of models that exist in name only."""

import pytest
import torch
from torch import nn

from paceline.train.torch import prepare_model
from paceline.train.torch.model import _modules_to_shard, iterate_children_first, materialize
from paceline.train.torch.trace import trace_training

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self, *inside):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inside = nn.ModuleList(inside)

    def forward(self, x):
        return x + self.inner(x)


class Other(Block):
    pass


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"embed": nn.Embedding(5, 4), "layers": nn.ModuleList([Block(), Block()])})


def stack(*blocks):
    return nn.ModuleList(blocks)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), []),
        (Decoder(), ["parts.layers.0", "parts.layers.1"]),
        # Experts are within a block, and not every worker calls the same ones.
        (stack(Block(Block(), Block())), ["0"]),
        # A row of the same is a stack; a body and its head are not, and the stack is within the body.
        (nn.Sequential(Block(), Block(), nn.Linear(4, 4)), ["0", "1"]),
        (nn.Sequential(Decoder(), nn.Linear(4, 4)), ["0.parts.layers.0", "0.parts.layers.1"]),
        # Weights may be read without a call, and what has none is not worth gathering.
        (stack(nn.Linear(4, 4), nn.Embedding(5, 4)), []),
        (stack(nn.Sequential(nn.ReLU(), nn.Tanh())), []),
        (stack(stack(Block()), nn.ModuleDict({"a": nn.ModuleList([Block()])})), ["0.0", "1.a.0"]),
    ],
)
def test_blocks_are_what_stands_in_a_row(model, names):
    by_id = {id(module): name for name, module in model.named_modules()}
    assert [by_id[id(unit)] for unit in _modules_to_shard(model, None)] == names


def test_blocks_that_are_named_are_those_of_their_class_the_innermost_first():
    inner, model = Other(), nn.Module()
    model.body = Block(inner)
    assert _modules_to_shard(model, [Block, "Other"]) == [inner, model.body]
    assert _modules_to_shard(model, ["Other"]) == [inner]
    assert _modules_to_shard(model, []) == []
    with pytest.raises(ValueError, match="shard_blocks: Module has no module of class 'Blok'"):
        _modules_to_shard(model, [Block, "Blok"])


def in_full(model):
    for module in iterate_children_first(model):
        materialize(module, CPU)
    return model


def several():
    return nn.Sequential(nn.Embedding(4, 4), nn.MultiheadAttention(4, 2), nn.BatchNorm1d(4), nn.Linear(4, 4))


def test_a_model_in_name_only_gets_the_values_it_would_have_been_made_with_and_keeps_all_else():
    torch.manual_seed(3)
    expected = several()
    with torch.device("meta"):
        model = several()
    torch.manual_seed(3)
    in_full(model)
    torch.testing.assert_close(dict(model.state_dict()), dict(expected.state_dict()), rtol=0, atol=0)
    with torch.device("meta"):
        model = several()
    model[3].weight = model[0].weight
    model[0].weight.tag = "mine"
    model[2].weight.requires_grad_(False)
    parameters = list(model.parameters())
    in_full(model)
    assert model[0].weight is model[3].weight
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True)), "also in optimizers"
    assert model[0].weight.tag == "mine"
    assert not model[2].weight.requires_grad


class Silent(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class Forgetful(Silent):
    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.arange(3.0))

    def reset_parameters(self):
        nn.init.ones_(self.scale)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Silent, r"'scale', which is on the meta device: Silent has no reset_parameters\(\)(.|\n)*hint: "),
        (Forgetful, r"reset_parameters\(\) of Forgetful did not set 'angles'(.|\n)*hint: "),
    ],
)
def test_weights_that_nobody_gives_a_value_are_refused(as_worker, module, message):
    as_worker()
    with torch.device("meta"):
        model = nn.Sequential(module())
    with pytest.raises(ValueError, match=message):
        prepare_model(model)


def test_each_worker_holds_a_part_of_each_block(on_each):
    def function():
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        def make_model():
            torch.manual_seed(0)
            return nn.Sequential(Block(), Other(), nn.Linear(4, 4))

        def shards(model):
            assert {tuple(one.to_local().shape) for one in model.parameters()} == {(2, 4), (2,)}
            return [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]

        def prepared(model, **options):
            again = prepare_model(model, parallel_strategy="fsdp", **options)
            assert again is model, "in place"
            return model

        own_mesh = {"mesh": init_device_mesh("cpu", (2,))}
        found = {
            "root": shards(prepared(make_model())),
            "named": shards(prepared(make_model(), shard_blocks=[Block])),
            "own mesh": shards(prepared(make_model(), parallel_strategy_kwargs=own_mesh, move_to_device=CPU)),
        }
        # What somebody has sharded is left so, be it a part or the whole.
        model = make_model()
        fully_shard(model[1], **own_mesh)
        found["in part"] = shards(prepared(model))
        found["again"] = shards(prepared(model))
        with pytest.raises(ValueError, match=r"FSDPSequential is already sharded(.|\n)*hint: "):
            prepared(model, mixed_precision="bf16")
        with torch.device("meta"):
            nameless = make_model()
        fully_shard(nameless[1], **own_mesh)
        with pytest.raises(ValueError, match=r"Linear was sharded on the meta device(.|\n)*hint: "):
            prepared(nameless)
        # Settings arrive: one that is not the default, and can be seen.
        for name, settings in {"by default": {}, "as caught": {"reshard_after_forward": False}}.items():
            model = prepared(make_model(), shard_blocks=[Block], parallel_strategy_kwargs=settings)
            model(torch.ones(2, 4))
            found[name] = "sharded" if hasattr(model[0].inner.weight, "to_local") else "whole"
        # There may be nothing to shard.
        prepared(nn.Tanh())(torch.ones(2))
        # What `verify-resume` notes down of a step, it notes of a sharded model too.
        notes = []
        with trace_training(notes.append, lambda: True):
            model = prepared(make_model())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
        found["noted"] = [note["kind"] for note in notes]
        assert notes[0]["parameters"] != notes[2]["parameters"]
        # Weights of rank 0, buffers too, and also of what is frozen.
        torch.manual_seed(dist.get_rank())
        norm = nn.BatchNorm1d(2)
        norm.running_mean.normal_()
        norm.weight.data.normal_()
        norm.requires_grad_(False)
        norm = prepared(norm)
        found["frozen"] = [norm.running_mean.tolist(), norm.weight.full_tensor().tolist()]
        return found

    first, second = on_each(function)
    assert first == second
    assert first == {
        "root": [""],
        "named": ["", "0", "1"],
        "own mesh": [""],
        "in part": ["", "1"],
        "again": ["", "1"],
        "by default": "sharded",
        "as caught": "whole",
        "noted": ["forward", "step"] * 2,
        "frozen": first["frozen"],
    }


def test_one_worker_has_a_sharded_model_too(on_each):
    """So that what works on one works on many: the same types, the same settings, the same checkpoints."""

    def function():
        from torch.distributed.tensor import DTensor

        model = prepare_model(nn.Linear(4, 4), parallel_strategy="fsdp", mixed_precision="bf16")
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return [isinstance(model.weight, DTensor), model.weight.grad.full_tensor().norm().item() > 0, str(loss.dtype)]

    assert on_each(function, 1) == [[True, True, "torch.float32"]]
