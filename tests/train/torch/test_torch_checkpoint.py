"""TorchCheckpoint: what was saved is what is loaded, from wrapped models and into them, and nothing is left behind."""

import gc
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_fits import fit

from paceline import train
from paceline.data.preprocessors import Concatenator
from paceline.train import CheckpointUploadMode
from paceline.train.torch import TorchCheckpoint, prepare_model


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files of this process go."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def assert_same_weights(one, other):
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()), rtol=0, atol=0)


def test_its_temporary_files_go_with_it_and_what_cannot_be_saved_leaves_none(temporary):
    checkpoint = TorchCheckpoint.from_model(net())
    assert len(list(temporary.iterdir())) == 1
    del checkpoint
    with pytest.raises(AttributeError):
        TorchCheckpoint.from_state_dict({"x": lambda: None})
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_a_model_that_calls_a_part_of_it_module_keeps_its_names(temporary):
    def named(seed):
        return nn.Sequential().append(nn.ModuleDict({"module": net(seed)}))[0]

    assert_same_weights(TorchCheckpoint.from_model(named(0)).get_model(named(1)), named(0))


def test_weights_that_do_not_fit_and_no_model_to_load_into_are_refused(temporary):
    with pytest.raises(RuntimeError, match="Missing key"):
        TorchCheckpoint.from_model(nn.Linear(3, 2)).get_model(net())
    with pytest.raises(ValueError, match=r"get_model\(\) needs a model(.|\n)*hint: "):
        TorchCheckpoint.from_model(net()).get_model()


@pytest.mark.parametrize("mode", [CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC])
def test_a_reported_checkpoint_is_moved_into_the_run(tmp_path, mode):
    def function():
        for step in range(3):
            # Let go of at once: what is uploaded in the background must not go with the object.
            checkpoint = TorchCheckpoint.from_model(net(step)) if train.get_context().get_world_rank() == 0 else None
            train.report({"step": step}, checkpoint=checkpoint, checkpoint_upload_mode=mode)
            del checkpoint

    result = fit(tmp_path, function)
    assert Path(result.checkpoint.path, "model.pt").is_file()
    assert_same_weights(TorchCheckpoint(result.checkpoint.path).get_model(net(7)), net(2))
    assert not (tmp_path / "run" / ".staging").exists()


def test_a_wrapped_or_compiled_model_is_saved_and_loaded_under_its_own_names(on_each):
    """Compiled as a whole, in part, and wrapped on top of that."""

    def function():
        def compiled(module):
            return torch.compile(module, backend="eager")

        plain = net()
        in_part = nn.Sequential(compiled(plain[0]), plain[1])
        wrapped = nn.parallel.DistributedDataParallel(compiled(plain))
        models = (nn.parallel.DistributedDataParallel(plain), compiled(plain), in_part, wrapped, compiled(wrapped))
        for model in models:
            checkpoint = TorchCheckpoint.from_model(model)
            found = torch.load(Path(checkpoint.path, "model.pt"), weights_only=True)
            assert found.keys() == net().state_dict().keys()
            assert_same_weights(checkpoint.get_model(net(1)), net())
        for seed, model in enumerate(models, start=2):
            assert TorchCheckpoint.from_model(net(seed)).get_model(model) is model
            assert_same_weights(plain, net(seed))
        # What was saved without us has its prefixes still.
        saved = {f"_orig_mod.module.{name}": value for name, value in net(9).state_dict().items()}
        assert_same_weights(TorchCheckpoint.from_state_dict(saved).get_model(net(1)), net(9))

    on_each(function, 1)


def test_a_sharded_model_takes_whole_weights_and_gives_them_where_one_worker_has_all(on_each):
    def function():
        import torch.distributed as dist
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        sharded = prepare_model(net(dist.get_rank() + 1), parallel_strategy="fsdp")
        assert TorchCheckpoint.from_model(net()).get_model(sharded) is sharded
        # As the hint of the error below says.
        gathered = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if dist.get_rank() == 0:
            assert_same_weights(TorchCheckpoint.from_state_dict(gathered).get_model(net(1)), net())
        if dist.get_world_size() == 1:
            assert_same_weights(TorchCheckpoint.from_model(sharded).get_model(net(1)), net())
        else:
            refused = r"'0.weight' is only this rank's shard of a tensor(.|\n)*hint: let every rank report Sharded"
            with pytest.raises(ValueError, match=refused):
                TorchCheckpoint.from_model(sharded)

    on_each(function, 2)
    on_each(function, 1)


def test_a_whole_model_is_loaded_only_if_that_is_allowed(tmp_path):
    model = net()
    torch.save(model, tmp_path / TorchCheckpoint.MODEL_FILENAME)
    checkpoint = TorchCheckpoint(tmp_path)
    with pytest.raises(ValueError, match=r"holds more than weights(.|\n)*hint: if you trust it, pass allow_pickle"):
        checkpoint.get_model()
    assert_same_weights(checkpoint.get_model(allow_pickle=True), model)
    assert_same_weights(checkpoint.get_model(net(1), allow_pickle=True), model)


def test_a_preprocessor_is_stored_with_the_weights():
    chain = Concatenator(["x", "y"])
    checkpoint = TorchCheckpoint.from_model(net(), preprocessor=chain)
    assert checkpoint.get_preprocessor().to_dict() == chain.to_dict()
    assert_same_weights(checkpoint.get_model(net(1)), net())
