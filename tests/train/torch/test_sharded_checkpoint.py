"""ShardedCheckpoint: what two ranks saved together, any number of ranks restores to the last bit."""

import importlib
import pickle
import shutil
import threading
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch_fits import fit

from paceline import train
from paceline.train import Checkpoint, CheckpointCorruptError, CheckpointUploadMode
from paceline.train.torch import ShardedCheckpoint
from paceline.train.torch.shard_writer import SPREAD_FROM, HeldTensor, assign_writers
from servers import BUCKET

ASYNC = CheckpointUploadMode.ASYNC


def net(seed=0):
    """Sizes that two and three ranks cannot divide evenly, and a layer of which some ranks hold nothing."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


def sharded(seed=0, device="cpu"):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = net(seed).to(device)
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def replicated(seed=0):
    return nn.parallel.DistributedDataParallel(net(seed))


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.1)


def steps(model, optimizer, number=2, seed=0, device="cpu"):
    torch.manual_seed(seed)
    for _ in range(number):
        optimizer.zero_grad()
        model(torch.randn(4, 3).to(device)).square().mean().backward()
        optimizer.step()


def whole(model, optimizer):
    """All values, put together by torch's own means."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    weights, state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    found = {name: value.clone() for name, value in weights.items()}
    for name, kept in state["state"].items():
        found |= {f"{name}/{key}": value.clone() for key, value in kept.items()}
    return found | {"lr": torch.tensor(state["param_groups"][0]["lr"])}


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def writing_waits_for(event):
    """In a worker: nothing of a checkpoint is written before the event."""
    from paceline._storage.files import LocalFiles

    write = LocalFiles.write_parts

    def late(self, path, *args):
        assert event.wait(60)
        return write(self, path, *args)

    LocalFiles.write_parts = late


MAKERS = {"sharded": sharded, "replicated": replicated}


@pytest.fixture(scope="module", params=["sharded", pytest.param("replicated", marks=pytest.mark.slow)])
def saved(request, tmp_path_factory):
    """A checkpoint that two ranks saved in the background, and the values at the moment of the call."""
    make = MAKERS[request.param]

    def function():
        changed = threading.Event()
        writing_waits_for(changed)
        model = make()
        optimizer = adam(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        steps(model, optimizer)
        scheduler.step()
        values = whole(model, optimizer)
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": 3, "losses": [0.5, 0.25]}
        state |= {"seed": torch.arange(4), "table": {"rows": [np.arange(3), b"x" * 100]}}
        train.report({}, checkpoint=ShardedCheckpoint.from_state(state), checkpoint_upload_mode=ASYNC)
        for parameter in model.parameters():
            nn.init.zeros_(parameter.to_local() if hasattr(parameter, "to_local") else parameter)
        steps(model, optimizer, 3)
        changed.set()
        return values

    result = fit(tmp_path_factory.mktemp("saved"), function)
    return result.checkpoint, result.return_value


def restored(checkpoint, make):
    """Run on each worker: load into fresh objects and tell all values."""
    model = make(7)
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    seed = torch.zeros(4, dtype=torch.int64)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "seed": seed}
    rest = ShardedCheckpoint(checkpoint).load_into(state)
    assert rest.pop("table")["rows"][0].tolist() == [0, 1, 2]
    assert rest == {"epoch": 3, "losses": [0.5, 0.25], "seed": seed}
    assert scheduler.last_epoch == 1
    assert scheduler.gamma == 0.5
    assert seed.tolist() == [0, 1, 2, 3]
    return whole(model, optimizer)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_any_number_of_ranks_has_the_values_of_the_moment_of_the_call(saved, tmp_path, workers):
    checkpoint, values = saved
    path = checkpoint.path
    found = fit(tmp_path, lambda: [restored(path, make) for make in MAKERS.values()], workers).return_value
    for each in found:
        assert_same(each, values)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: shards that are copied off one while training goes on, not checked"
)
def test_from_a_gpu_come_the_values_of_the_moment_of_the_call(tmp_path):
    def function():
        changed = threading.Event()
        writing_waits_for(changed)
        model = sharded(device="cuda")
        optimizer = adam(model)
        steps(model, optimizer, device="cuda")
        values = {name: value.cpu() for name, value in whole(model, optimizer).items()}
        state = {"model": model, "optimizer": optimizer}
        train.report({}, checkpoint=ShardedCheckpoint.from_state(state), checkpoint_upload_mode=ASYNC)
        steps(model, optimizer, 3, device="cuda")
        changed.set()
        train.get_all_reported_checkpoints()
        ShardedCheckpoint(train.get_checkpoint()).load_into(state)
        assert_same({name: value.cpu() for name, value in whole(model, optimizer).items()}, values)
        return values

    result = fit(tmp_path, function, 1, gpus_per_worker=1)
    model = net(5)
    optimizer = adam(model)
    ShardedCheckpoint(result.checkpoint).load_into({"model": model, "optimizer": optimizer})
    assert_same(whole(model, optimizer), result.return_value)


def test_a_script_without_ranks_has_them_too(saved):
    checkpoint, values = saved
    assert_same(restored(checkpoint, net), values)
    state = ShardedCheckpoint(checkpoint).to_dict()
    assert state["epoch"] == 3
    assert_same(state["model"], {name: value for name, value in values.items() if name in state["model"]})
    # Each rank wrote its part, and nobody the same.
    assert sorted(path.name for path in Path(checkpoint.path).glob("*.bin")) == ["shards-00000.bin", "shards-00001.bin"]
    stored = ShardedCheckpoint(checkpoint).storage_reader().read_metadata().state_dict_metadata
    assert sum(chunk.sizes.numel() for chunk in stored["model.0.weight"].chunks) == 15


def test_torchs_own_load_reads_it_and_ours_unpickles_nothing(saved, monkeypatch):
    import torch.distributed.checkpoint as dcp

    checkpoint, values = saved
    model = net(5)
    with pytest.warns(UserWarning, match="assuming the intent is to load in a single process"):
        dcp.load({"model": model}, storage_reader=ShardedCheckpoint(checkpoint).storage_reader())
    assert_same(dict(model.state_dict()), {name: values[name] for name in model.state_dict()})

    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    # Modules of torch's that are imported late, some of which derive from what is replaced here.
    importlib.import_module("torch._dynamo")
    for module, names in ((pickle, ("load", "loads", "Unpickler")), (torch, ("load",))):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    assert ShardedCheckpoint(checkpoint).load_into({"model": net(5)})["epoch"] == 3


def test_files_that_are_not_all_there_are_no_checkpoint(saved, tmp_path):
    directory = saved[0].to_directory(tmp_path / "copy")
    Path(directory, "shards-00001.json").unlink()
    with pytest.raises(CheckpointCorruptError, match="by 2 ranks but has the files of 1; missing: shards-00001"):
        ShardedCheckpoint(directory).to_dict(verify=False)
    shutil.rmtree(directory)
    with pytest.raises(ValueError, match="is not a ShardedCheckpoint"):
        ShardedCheckpoint(tmp_path).load_into({})


@pytest.mark.slow
def test_in_a_store_each_rank_fetches_what_it_needs_and_so_does_a_run_without_workers(
    s3_environment, tmp_path, monkeypatch
):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))

    def function():
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = fully_shard(nn.Linear(3, 5), mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, lr=0.1)
        state = {"model": model, "optimizer": optimizer}
        if first is None:
            steps(model, optimizer)
            train.report({}, checkpoint=ShardedCheckpoint.from_state(state), checkpoint_upload_mode=ASYNC)
            return whole(model, optimizer)
        fetched, download = [], Checkpoint._download

        def noted(self, target, wanted):
            download(self, target, wanted)
            fetched.extend(name for name in ("shards-00000.bin", "shards-00001.bin") if wanted(name))

        Checkpoint._download = noted
        ShardedCheckpoint(first.checkpoint).load_into(state)
        Checkpoint._download = download
        needed = range(2) if dist.get_world_size() == 1 else [dist.get_rank()]
        assert sorted(fetched) == [f"shards-{rank:05d}.bin" for rank in needed]
        return whole(model, optimizer)

    path = f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"
    first = None
    first = fit(path, function)
    assert_same(ShardedCheckpoint(first.checkpoint).to_dict()["model"]["weight"], first.return_value["weight"])
    for workers in (0, 2):
        assert_same(fit(path, function, workers, name=f"on {workers}").return_value, first.return_value)


def test_ranks_that_hold_different_things_make_one_checkpoint(on_each):
    """As with pipelines: a stage each; and of replicas, one writes."""

    def function():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        rank = train.get_context().get_world_rank()
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        model = fully_shard(net(), mesh=mesh)
        state = {"model": model, f"stage_{rank}": nn.Linear(2, rank + 1), "who": rank, "stages": {rank: "mine"}}
        train.report({}, checkpoint=ShardedCheckpoint.from_state(state))
        reader = ShardedCheckpoint(train.get_checkpoint()).storage_reader()
        assert len(reader.read_metadata().state_dict_metadata["model.0.weight"].chunks) == 1
        found = ShardedCheckpoint(train.get_checkpoint()).to_dict()
        assert_same(found["model"], {**net().state_dict()})
        assert found["stage_0"]["weight"].shape == (1, 2)
        assert found["stage_1"]["weight"].shape == (2, 2)
        assert (found["who"], found["stages"]) == (0, {0: "mine", 1: "mine"})
        differing = ShardedCheckpoint.from_state({"x": torch.ones(rank + 1)})
        with pytest.raises(ValueError, match=r"'x' has shape \[1\] on rank 0 but \[2\] on rank 1"):
            train.report({}, checkpoint=differing)

    on_each(function)


@pytest.fixture
def alone(tmp_path):
    """Stores a state without ranks and returns the checkpoint."""
    return lambda state: ShardedCheckpoint(ShardedCheckpoint.from_state(state).to_directory(tmp_path / "alone"))


def test_an_optimizer_that_took_no_step_takes_none_when_it_is_saved_or_loaded(alone):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    checkpoint = alone({"model": model, "optimizer": optimizer})
    assert not optimizer.state
    other = torch.optim.AdamW(model.parameters(), lr=0.1)
    assert checkpoint.load_into({"model": model, "optimizer": other}) == {}
    assert not other.state
    assert other.param_groups[0]["lr"] == 0.5


def test_parameters_without_state_and_groups_in_another_order_come_back(alone):
    def optimizer(model, *order):
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.2}]
        return torch.optim.SGD([groups[number] for number in order], momentum=0.9)

    model = net()
    model[2].requires_grad_(False)
    saved = optimizer(model, 0, 1)
    steps(model, saved)
    checkpoint = alone({"model": model, "optimizer": saved})
    fresh = net(1)
    loaded = optimizer(fresh, 1, 0)
    checkpoint.load_into({"model": fresh, "optimizer": loaded})
    assert [group["lr"] for group in loaded.param_groups] == [0.2, 0.1]
    assert list(loaded.state) == list(fresh[0].parameters())
    assert_same(
        [loaded.state[parameter]["momentum_buffer"] for parameter in fresh[0].parameters()],
        [saved.state[parameter]["momentum_buffer"] for parameter in model[0].parameters()],
    )
    with pytest.raises(ValueError, match=r"no group with exactly the parameters '0\.weight'"):
        checkpoint.load_into({"model": fresh, "optimizer": torch.optim.SGD(fresh.parameters(), lr=1)})


def test_a_compiled_model_has_the_names_of_the_plain_one(alone):
    model = net()
    compiled = torch.compile(model, backend="eager")
    optimizer = adam(compiled)
    steps(model, optimizer, 1)
    checkpoint = alone({"model": compiled, "optimizer": optimizer})
    plain = net(1)
    other = adam(plain)
    checkpoint.load_into({"model": plain, "optimizer": other})
    assert_same(whole(plain, other), whole(model, optimizer))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: {"optimizer": adam(net())}, "no model of the state has all 6 parameters of the optimizer 'optimizer'"),
        (lambda: {"config": {"hook": print}}, r"state\['config'\]\['hook'\] is a builtin_function_or_method"),
        (lambda: {"a": {"b.c": torch.ones(1)}, "a.b": {"c": torch.ones(1)}}, "two tensors .* 'a.b.c'"),
        (lambda: {1: 2}, "the keys of state must be strings, got 1"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(alone, state, message):
    with pytest.raises((TypeError, ValueError), match=message):
        alone(state())


@pytest.mark.parametrize(
    ("into", "message"),
    [
        (lambda: {"other": net()}, "has no 'other'; the keys are 'model', 'x'"),
        (lambda: {"model": net()[:2]}, "'model' does not match the checkpoint: the model has no 'model.2.bias'"),
        (lambda: {"model": net().append(nn.Linear(1, 1))}, "the checkpoint lacks 'model.3.bias', 'model.3.weight'"),
        (lambda: {"x": torch.zeros(3)}, r"'x' has shape \[3\], but \[2\] in"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(alone, into, message):
    checkpoint = alone({"model": net(), "x": torch.ones(2)})
    with pytest.raises(ValueError, match=message):
        checkpoint.load_into(into())


def test_a_state_in_memory_is_not_read_and_not_strictly_a_model_takes_what_both_have(alone):
    with pytest.raises(ValueError, match="cannot read a ShardedCheckpoint in memory"):
        ShardedCheckpoint.from_state({"x": 1}).to_dict()
    checkpoint = alone({"model": net()})
    smaller, larger = net(1)[:2], net(1).append(nn.Linear(1, 1))
    for model in (smaller, larger):
        checkpoint.load_into({"model": model}, strict=False)
        assert_same(model[0].weight, net()[0].weight)


def test_what_all_ranks_have_alike_is_spread_by_bytes_and_the_rest_is_the_lowest_ranks():
    def kept(name, size, *, sharded=False, anywhere=True):
        return HeldTensor(name, (size,), size * SPREAD_FROM, sharded, anywhere)

    held = [kept("a", 8), kept("b", 4), kept("c", 4), kept("d", 100, anywhere=False), kept("e", 9, sharded=True)]
    assert assign_writers([held, held]) == {"d": 0, "a": 1, "b": 1, "c": 1}
    assert assign_writers([held[:3], held[:3]]) == {"a": 0, "b": 1, "c": 1}
    assert assign_writers([held[:1], held[1:4]]) == {"a": 0, "b": 1, "c": 1, "d": 1}
    small = [kept("f", 0.5), kept("g", 0.5)]
    assert assign_writers([small, small]) == {"f": 0, "g": 0}
