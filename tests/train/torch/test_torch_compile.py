"""What is compiled when a model is to be: all of it, wherever its class comes from, and in place."""

import copy

import pytest
import torch
from torch import nn

from paceline.train.torch import prepare_model


def test_models_of_torchs_own_classes_are_compiled_whole(on_each):
    def function():
        found = {}
        x = torch.ones(2, 3, 8)
        models = {
            "sequence": nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)),
            "layer": nn.Linear(8, 8),
            "attention": nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        }
        for name, model in models.items():
            for strategy, precision in ((None, None), ("ddp", "bf16"), ("fsdp", None)):
                graphs = []

                def noted(graph, _inputs, graphs=graphs):
                    graphs.append(sum(node.op != "placeholder" for node in graph.graph.nodes))
                    return graph.forward

                torch._dynamo.reset()
                plain = copy.deepcopy(model)
                options = {"parallel_strategy": strategy, "mixed_precision": precision}
                prepared = prepare_model(copy.deepcopy(model), compile={"backend": noted}, **options)
                output = prepared(x)
                output.sum().backward()
                tolerance = {"rtol": 0.05, "atol": 0.05} if precision else {}
                torch.testing.assert_close(output, plain(x), **tolerance)
                if strategy is None:
                    assert type(prepared) is type(plain)
                    assert prepared.state_dict().keys() == plain.state_dict().keys()
                    # A copy, such as an average of weights, has weights of its own.
                    average = copy.deepcopy(prepared)
                    for parameter in average.parameters():
                        nn.init.zeros_(parameter)
                    assert not torch.equal(average(x), prepared(x))
                found[name, strategy] = graphs[0] if len(set(graphs)) == 1 else graphs
        return found

    [found] = on_each(function, 1)
    for name, at_least in {"sequence": 4, "layer": 2, "attention": 8}.items():
        for strategy in (None, "ddp", "fsdp"):
            num_nodes = found[name, strategy]
            assert isinstance(num_nodes, int), f"{name}, {strategy}: in graphs of {num_nodes}"
            assert num_nodes >= at_least


SCRIPT = """
import torch
from torch import nn

from paceline.train import RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, prepare_model

factor = 1.0


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return factor * torch.tanh(self.inner(x))


def train_func():
    global factor
    graphs = []

    def noted(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    found = []
    for options in ({"compile": {"backend": noted}}, {"compile": {"backend": noted}, "mixed_precision": "bf16"}, {}):
        factor = 1.0
        model = prepare_model(nn.Sequential(Block(), nn.Linear(4, 4)), **options)
        if not options:
            model = torch.compile(model, backend=noted)
        before = model(torch.ones(1, 4)).sum().item()
        factor = 0.0
        after = model(torch.ones(1, 4)).sum().item()
        found.append([len(graphs) > 0, before != after])
        graphs.clear()
    return found


if __name__ == "__main__":
    trainer = TorchTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path="runs", name="run"),
    )
    print(trainer.fit().return_value)
"""


@pytest.mark.slow
def test_classes_of_the_script_are_found_by_the_compiler(run_script):
    process = run_script(SCRIPT, timeout=110)
    assert process.returncode == 0, process.stderr
    # Compiled each time, and seen each time that a variable of the script has changed.
    assert process.stdout.splitlines()[-1] == "[[True, True], [True, True], [True, True]]", process.stderr
