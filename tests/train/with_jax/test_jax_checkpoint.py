"""Checkpoints of trees of JAX arrays: written in parts by two processes, read by any number of them."""

import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from paceline import train
from paceline.train import Checkpoint, CheckpointUploadMode
from paceline.train.jax import JaxTrainer, OrbaxCheckpoint
from paceline.train.jax.checkpoint import _share_directory

jax = pytest.importorskip("jax", reason="jax is not installed: its checkpoints were not checked")
pytest.importorskip("orbax.checkpoint", reason="orbax is not installed: its checkpoints were not checked")
optax = pytest.importorskip("optax", reason="optax is not installed: its states were not checked")


def saves_and_loads():
    import threading

    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rank = jax.process_index()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spread, everywhere = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("data",), ()))
    found = {}

    # Made by one process, read by two.
    like = {"w": jax.ShapeDtypeStruct((4,), jnp.float32, sharding=spread), "step": 0}
    before = OrbaxCheckpoint.from_checkpoint(train.get_checkpoint()).get_pytree(like=like)
    found["before"] = [np.asarray(part.data).tolist() for part in before["w"].addressable_shards], before["step"]

    # Each worker holds a part of one array and all of another; the counter is each worker's own.
    tree = {
        "w": before["w"] + 1,
        "b": jax.device_put(np.arange(3.0), everywhere),
        "mine": jnp.asarray(rank + 7),
        "half": jax.device_put(jnp.ones(2, jnp.bfloat16)),
        "changing": np.arange(2.0),
    }
    try:
        Checkpoint.from_dict({"weights": tree["w"]}).path  # noqa: B018  writes it
    except TypeError as error:
        found["refused"] = str(error)
    held = threading.Event()
    checkpoint = OrbaxCheckpoint.from_pytree(tree)
    tree["changing"][:] = -1
    complete = checkpoint._wait_until_complete
    checkpoint._wait_until_complete = lambda: (held.wait(), complete())
    train.report({"n": 1}, checkpoint, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
    found["while it is written"] = len(committed())
    held.set()
    found["once it is written"] = len(committed(wait=True))

    # Whole on each worker: rank 0 alone is enough.
    replicated = {"b": tree["b"], "mine": tree["mine"]}
    train.report({"n": 2}, OrbaxCheckpoint.from_pytree(replicated) if rank == 0 else None)
    train.report({"n": 3}, OrbaxCheckpoint.from_pytree(replicated))
    return found


def committed(wait=False):
    timeout = None if wait else 0.0
    return train.get_all_reported_checkpoints(train.CheckpointConsistencyMode.COMMITTED, timeout)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, fit_in):
    before = OrbaxCheckpoint.from_pytree({"w": np.arange(4, dtype=np.float32), "step": 5})
    path = tmp_path_factory.mktemp("saved")
    return fit_in(path, saves_and_loads, trainer=JaxTrainer, resume_from_checkpoint=before)


def checkpoint_of(saved, n):
    (found,) = [checkpoint for checkpoint, metrics in saved.best_checkpoints if metrics["n"] == n]
    return OrbaxCheckpoint.from_checkpoint(found)


def test_what_one_process_saved_is_read_in_parts_by_two_and_the_other_way_round(saved):
    assert saved.return_value["before"] == [[[0.0, 1.0]], 5]
    checkpoint = checkpoint_of(saved, 1)
    tree = checkpoint.get_pytree()
    assert {name: array.tolist() for name, array in tree.items()} == {
        "w": [1.0, 2.0, 3.0, 4.0],
        "b": [0.0, 1.0, 2.0],
        "mine": 7,
        "half": [1.0, 1.0],
        "changing": [0.0, 1.0],
    }, "of what each worker has, the value of rank 0"
    assert str(tree["half"].dtype) == "bfloat16"
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=here) for name, array in tree.items()}
    placed = checkpoint.get_pytree(like=like)
    assert {array.sharding for array in placed.values()} == {here}
    assert placed["w"].tolist() == [1.0, 2.0, 3.0, 4.0]
    for n in (2, 3):  # What is whole on each worker may be saved by rank 0 alone or by all.
        tree = checkpoint_of(saved, n).get_pytree()
        assert (tree["b"].tolist(), int(tree["mine"])) == ([0.0, 1.0, 2.0], 7)


def test_async_is_committed_once_all_is_written_and_not_before(saved):
    assert saved.return_value["while it is written"] == 0
    assert saved.return_value["once it is written"] == 1
    checkpoint_of(saved, 1).verify()


def test_a_state_refuses_an_array_that_is_spread_over_workers(saved):
    assert "state['weights'] is an array that other workers hold a part of" in saved.return_value["refused"]
    assert "OrbaxCheckpoint.from_pytree" in saved.return_value["refused"]


def test_machines_without_a_common_directory_are_refused(tmp_path):
    elsewhere = SimpleNamespace(begin=SimpleNamespace(rank=1), join=lambda data: bytes(tmp_path / "of-rank-0"))
    with pytest.raises(RuntimeError, match=r"rank 1 on \S+ cannot access .*of-rank-0[\s\S]*hint: use a storage_path"):
        _share_directory(elsewhere, tmp_path)


def test_a_tree_comes_back_as_it_was_numbers_and_named_tuples_included():
    state = optax.adam(0.1).init({"w": jax.numpy.ones(3)})
    tree = {"state": state, "step": 3, "rate": 0.5, "name": "a", "done": True, "none": None, "pair": (1, [2.0])}
    checkpoint = OrbaxCheckpoint.from_pytree(tree)
    same = checkpoint.get_pytree(like=tree)
    assert jax.tree.structure(same) == jax.tree.structure(tree)
    assert all(jax.tree.leaves(jax.tree.map(lambda mine, its: np.array_equal(mine, its), same, tree)))
    plain = checkpoint.get_pytree()
    assert {name: plain[name] for name in ("step", "rate", "name", "done", "none", "pair")} == {
        **{name: tree[name] for name in ("step", "rate", "name", "done", "none")},
        "pair": [1, [2.0]],
    }
    assert type(plain["state"][0]["mu"]["w"]) is np.ndarray


def test_one_that_was_made_in_this_process_is_read_in_another_as_the_type_asked_for():
    checkpoint = OrbaxCheckpoint.from_pytree({"w": jax.numpy.ones(2, jax.numpy.bfloat16)})
    copy = pickle.loads(pickle.dumps(checkpoint))
    assert copy.path == checkpoint.path
    found = copy.get_pytree(like={"w": jax.ShapeDtypeStruct((2,), np.float32)})["w"]
    assert (found.dtype, found.tolist()) == (np.float32, [1.0, 1.0])


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"w": np.ones(3)}, r"w has shape \(3,\), but \(2,\) in the checkpoint"),
        ({"v": np.ones(2)}, "like lacks w; the checkpoint lacks v"),
    ],
)
def test_a_tree_of_another_form_is_refused_by_name(like, message):
    with pytest.raises(ValueError, match=message):
        OrbaxCheckpoint.from_pytree({"w": np.ones(2)}).get_pytree(like=like)


def test_a_random_key_and_a_checkpoint_of_another_kind_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"tree\['keys'\]\[0\]: only JAX has the dtype key<\w+>[\s\S]*hint: .*key_data"):
        OrbaxCheckpoint.from_pytree({"keys": [jax.random.key(0)]})
    (tmp_path / "model.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match=r"is not an OrbaxCheckpoint[\s\S]*hint"):
        OrbaxCheckpoint.from_checkpoint(Checkpoint.from_directory(tmp_path)).get_pytree()
    with pytest.raises(TypeError, match=r"checkpoint must be a paceline.train.Checkpoint.*, got 3"):
        OrbaxCheckpoint.from_checkpoint(3)


def test_a_state_may_hold_arrays_of_jax_which_come_back_as_those_of_numpy(tmp_path):
    state = {"w": jax.numpy.arange(6.0).reshape(2, 3), "half": jax.numpy.ones(2, jax.numpy.bfloat16)}
    Checkpoint.from_dict({**state, "steps": [jax.numpy.int32(3)]}).to_directory(tmp_path)
    loaded = Checkpoint.from_directory(tmp_path).to_dict()
    assert type(loaded["w"]) is np.ndarray
    assert loaded["w"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert (str(loaded["half"].dtype), loaded["half"].tolist()) == ("bfloat16", [1.0, 1.0])
    assert loaded["steps"][0] == 3


def test_an_array_that_has_no_values_is_refused_by_path(tmp_path):
    def store(x):
        Checkpoint.from_dict({"x": x}).to_directory(tmp_path)
        return x

    donated = jax.numpy.ones(3)
    jax.jit(lambda y: y + 1, donate_argnums=0)(donated)
    with pytest.raises(TypeError, match=r"state\['x'\] is an array whose memory was donated"):
        store(donated)
    with pytest.raises(TypeError, match=r"state\['x'\] has dtype key<\w+>, which only JAX has"):
        store(jax.random.key(0))
    with pytest.raises(TypeError, match=r"state\['x'\] is a traced value"):
        jax.jit(store)(1.0)
