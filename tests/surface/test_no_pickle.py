"""Nothing that can run code is read in this package, but for the places listed here, each with its reason."""

import ast
from collections.abc import Iterator

import pytest

from source_trees import PACKAGE, parse_source

ALLOWED = {
    "_storage/state.py": {"pickle.loads": "the caller said allow_pickle=True"},
    "train/torch/checkpoint.py": {"torch.load": "the caller said allow_pickle=True"},
    "train/driver/failures.py": {"pickle.loads": "what a worker of this very run sent over its private socket"},
    "train/driver/datasets.py": {
        "cloudpickle.loads": "iterators of the user's own DataConfig, from the driver's memory"
    },
    "train/session.py": {"cloudpickle.loads": "the filesystem of the user's own checkpoint, from the driver's memory"},
    "_worker/context.py": {"cloudpickle.loads": "the user's own storage_filesystem, from the driver's memory"},
    "_worker/main.py": {"cloudpickle.loads": "the job, from the driver's memory; an exception of its own, as a trial"},
    "train/older/task_loop.py": {"cloudpickle.loads": "an order, from the driver's memory, as the job is"},
    "train/older/persistent_workers.py": {"pickle.loads": "what workers of this run returned, over private sockets"},
    "train/driver/validation.py": {"pickle.loads": "the function that validates, from the driver's memory"},
    "train/driver/detached.py": {"pickle.loads": "what a script sent to its controller, and its answer, through Ray"},
    "_engine/ray/detached.py": {"pickle.loads": "the work of an actor, from its class, as Ray itself has it"},
    "train/collective.py": {"cloudpickle.loads": "what rank 0 of this very run sent, by way of the driver"},
    "train/worker_group.py": {"cloudpickle.loads": "what workers of this very run sent, by way of the driver"},
    "tune/trainables/shared_objects.py": {
        "cloudpickle.loads": "the trainable, from the driver's memory, as the job is",
        "pickle.loads": "objects of with_parameters, from memory that the driver holds",
    },
    "data/datasource/datasink.py": {"pickle.loads": "what a user's sink returned, in a process of this very dataset"},
    "data/planning/group_aggregation.py": {"pickle.loads": "a user's aggregate, from a process of this very dataset"},
    "data/exec/packed_blocks.py": {"pickle.loads": "objects in rows that a process of this very dataset has set aside"},
    "data/sources/shared_object.py": {
        "cloudpickle.load": "a user's own dataset, from a memory file that the driver holds",
        "cloudpickle.loads": "the same, where it is small: from the message that brought it",
    },
    "data/sources/numpy.py": {"numpy.load": "the caller said allow_pickle=True"},
    "data/exec/failure.py": {
        "pickle.loads": "an exception of a data process, over a private socket",
        "cloudpickle.loads": "an exception of its own, as a trial",
    },
    "data/exec/process.py": {"cloudpickle.loads": "units and transforms, from the driver's memory"},
    "data/exec/ray/shipping.py": {
        "cloudpickle.loads": "plans and units, from the driver's memory through Ray's own",
        "pickle.Unpickler": "the same, with what they point to as objects of Ray",
    },
    "data/exec/ray/serving/feeds.py": {"cloudpickle.loads": "what the service of this very run answered, through Ray"},
    "data/exec/ray/serving/row_files.py": {
        "pickle.loads": "rows of this very run, from files without a name that this process wrote and has open"
    },
    "_engine/ray/storage_probe.py": {"cloudpickle.loads": "the user's own storage_filesystem, from the driver"},
    "data/exec/service_client.py": {"cloudpickle.loads": "what the service of this run said, over a private socket"},
}
"""Where, what, and why it is not read from storage unasked."""

LOADERS = {"load", "loads", "Unpickler", "open", "DbfilenameShelf", "Shelf"}
MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
BUILTINS = {"eval", "exec", "compile", "__import__"}


def find_dangers(source: str) -> Iterator[str]:
    """The calls in a source that can run what they read."""
    tree = parse_source(source)
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name in LOADERS)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in BUILTINS:
                yield name
            case ast.Attribute(value=ast.Name(id=module), attr=name) if aliases.get(module, module) in MODULES:
                if name in LOADERS:
                    yield f"{aliases.get(module, module)}.{name}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load"), keywords=keywords):
                if not any(k.arg == "weights_only" and _is(k.value, True) for k in keywords):
                    yield "torch.load"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="load"), keywords=keywords):
                if any(k.arg == "allow_pickle" and not _is(k.value, False) for k in keywords):
                    yield "numpy.load"


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_nothing_that_can_run_code_is_read_but_where_it_is_allowed() -> None:
    dangerous = {
        (path.relative_to(PACKAGE).as_posix(), danger)
        for path in sorted(PACKAGE.rglob("*.py"))
        if any(word in path.read_text() for word in (*MODULES, *BUILTINS, ".load"))  # To parse all takes long.
        for danger in find_dangers(path.read_text())
    }
    allowed = {(path, danger) for path, dangers in ALLOWED.items() for danger in dangers}
    assert dangerous == allowed, "a new reader of code, or an allowance that nobody needs any more"


@pytest.mark.parametrize(
    ("source", "is_dangerous"),
    [
        ("import pickle as p\np.load(file)", True),
        ("from pickle import loads", True),
        ("import pickle\nread = pickle.Unpickler", True),
        ("eval(text)", True),
        ("import torch\ntorch.load(path, weights_only=False)", True),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", True),
        ("import torch\ntorch.load(path, weights_only=True)", False),
        ("import pickle, json\njson.loads(pickle.dumps(data))", False),
    ],
)
def test_a_planted_reader_of_code_is_found(source: str, is_dangerous: bool) -> None:
    assert bool(list(find_dangers(source))) is is_dangerous
