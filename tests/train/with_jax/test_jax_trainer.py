"""JaxTrainer on two real processes: one JAX program, that learns, is killed, and goes on from its checkpoint."""

import functools
import os
import re
import signal
import socket
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from fits import fit_in

import paceline.data
from paceline import train
from paceline._control.events import WorkerFailed
from paceline.train import Checkpoint, FailureConfig, PreemptionError, ScalingConfig, TrainingFailedError
from paceline.train.jax import JaxConfig, JaxTrainer, OrbaxCheckpoint
from paceline.train.jax.config import _reserve_port
from written_runs import read_events

pytest.importorskip("jax", reason="jax is not installed: nothing of JaxTrainer was checked")
pytest.importorskip("orbax.checkpoint", reason="orbax is not installed: nothing of JaxTrainer was checked")
pytest.importorskip("optax", reason="optax is not installed: nothing of JaxTrainer was checked")

WEIGHTS = np.array([2.0, -3.0, 0.5, 4.0], np.float32)
NUM_EPOCHS, KILLED_IN_EPOCH = 4, 2
NUM_ROWS, BATCH = 256, 32


def rows():
    x = np.random.default_rng(0).normal(size=(NUM_ROWS, len(WEIGHTS))).astype(np.float32)
    return paceline.data.from_items([{"x": row, "y": y} for row, y in zip(x, x @ WEIGHTS, strict=True)])


fit = functools.partial(fit_in, trainer=JaxTrainer)


def learn(config):
    """Linear regression: the rows are spread over the workers, and the gradient is that of all rows."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    spread, everywhere = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("data",), ()))
    optimizer = optax.sgd(0.2, momentum=0.3)

    @jax.jit
    def first():
        # The weights are held in parts, as those of a large model are.
        params = {"w": jax.lax.with_sharding_constraint(jnp.zeros(len(WEIGHTS)), spread), "b": jnp.zeros(())}
        return {"params": params, "optimizer": optimizer.init(params)}

    @jax.jit
    def step(state, batch):
        def loss_of(params):
            return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(state["params"])
        updates, optimizer_state = optimizer.update(gradient, state["optimizer"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": optimizer_state}, loss

    shard = train.get_dataset_shard("train")
    try:
        shard.iter_jax_batches(batch_size=BATCH, sharding=spread)
        refused = ""
    except ValueError as error:
        refused = str(error)
    state, last = first(), train.get_checkpoint()
    restored, done = None, 0
    if last is not None:
        saved = OrbaxCheckpoint.from_checkpoint(last).get_pytree(like={**state, "epoch": 0})
        done = saved.pop("epoch")
        state = saved
        restored = np.asarray(jax.jit(lambda w: w, out_shardings=everywhere)(state["params"]["w"])).tolist()
    num_rows = 0
    for epoch in range(done, NUM_EPOCHS):
        for batch in shard.iter_jax_batches(batch_size=BATCH, sharding=spread, drop_last=True):
            num_rows += len(batch["y"])
            state, loss = step(state, batch)
        # An array that each worker has for itself, among those that are spread over them.
        saved = {**state, "epoch": jnp.asarray(epoch + 1)}
        train.report({"loss": loss, "epoch": saved["epoch"]}, checkpoint=OrbaxCheckpoint.from_pytree(saved))
        if epoch + 1 == KILLED_IN_EPOCH and last is None and jax.process_index() == config["dies"]:
            os.kill(os.getpid(), signal.SIGKILL)
    train.collective.barrier()
    return {
        "processes": jax.process_count(),
        "devices": [device.platform for device in jax.devices()],
        "restored": restored,
        "refused": refused,
        "num_rows": num_rows,
        "threads": os.environ["PJRT_NPROC"],
        "whole_on_each": state["params"]["w"].is_fully_addressable,
    }


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run of two workers, one of which is killed."""
    path = tmp_path_factory.mktemp("learned")
    return fit(path, learn, max_failures=1, config={"dies": 1}, datasets={"train": rows()})


def test_two_workers_are_one_program_that_learns_from_the_rows_of_both(learned):
    found = learned.return_value
    assert (found["processes"], found["devices"]) == (2, ["cpu", "cpu"])
    assert found["threads"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert found["num_rows"] == (NUM_EPOCHS - KILLED_IN_EPOCH) * NUM_ROWS
    assert re.search(r"drop_last must be True[\s\S]*hint: pass drop_last=True", found["refused"])
    assert learned.metrics["loss"] < 1e-4
    assert type(learned.metrics["loss"]) is float, "metrics may be arrays of one number"
    params = OrbaxCheckpoint.from_checkpoint(learned.checkpoint).get_pytree()["params"]
    np.testing.assert_allclose(params["w"], WEIGHTS, atol=0.01)


def test_after_a_kill_it_goes_on_from_the_arrays_that_were_saved_in_parts(learned):
    assert not learned.return_value["whole_on_each"]
    checkpoints = [one for one, metrics in learned.best_checkpoints if metrics["epoch"] == KILLED_IN_EPOCH]
    saved = OrbaxCheckpoint.from_checkpoint(checkpoints[0]).get_pytree()
    assert learned.return_value["restored"] == saved["params"]["w"].tolist()
    assert saved["epoch"] == KILLED_IN_EPOCH
    epochs = [int(epoch) for epoch in learned.metrics_dataframe["epoch"]]
    assert epochs == list(range(1, NUM_EPOCHS + 1)), "no epoch was lost or done twice"


def ones_over_both():
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    spread = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    return jax.make_array_from_process_local_data(spread, np.ones(4, np.float32))


def computing():
    """Both workers compute together until one is gone."""
    import jax
    import jax.numpy as jnp

    x = ones_over_both()
    train.report({"sum": jnp.sum(x)})
    while True:
        if jax.process_index() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        jnp.sum(x).block_until_ready()


@pytest.mark.slow
def test_the_first_failure_is_told_and_not_that_jax_ends_the_others(tmp_path):
    """With rank 0 goes JAX's coordination service, and every other process aborts."""
    with pytest.raises(TrainingFailedError, match=r"rank 0, host .*: killed by SIGKILL") as caught:
        fit(tmp_path, computing)
    assert caught.value.result.metrics == {"sum": 8.0}
    assert {failure.rank for failure in failures_in(tmp_path / "run") if not failure.collateral} == {0}


def failures_in(root):
    return [event.failure for event in read_events(root, WorkerFailed)]


def test_an_abort_may_be_the_echo_of_another_end(tmp_path):
    """The cause is told in its stead where there is one; here there is none."""
    with pytest.raises(TrainingFailedError, match="killed by SIGABRT"):
        fit_in(tmp_path, lambda: os.abort(), 1)
    assert [failure.collateral for failure in failures_in(tmp_path / "run")] == [True]


def until_told():
    import jax

    if jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    for step in range(100_000):
        told = train.get_preemption_info()
        train.report({"step": step, "ranks": told.preempted_ranks if told else []})


@pytest.mark.slow
def test_a_sigterm_is_a_notice_to_the_run_though_jax_would_take_it(tmp_path):
    with pytest.raises(PreemptionError) as caught:
        fit(tmp_path, until_told)
    assert caught.value.result.metrics["ranks"] == [1]


@pytest.mark.slow
def test_jax_out_of_memory_is_told_as_that(tmp_path):
    def function():
        import jax.numpy as jnp

        jnp.zeros(1 << 46).block_until_ready()

    with pytest.raises(TrainingFailedError, match="RESOURCE_EXHAUSTED"):
        fit(tmp_path, function, 1)
    assert [failure.kind for failure in failures_in(tmp_path / "run")] == ["memory"]


def one_sleeps():
    import jax
    import jax.numpy as jnp

    x = ones_over_both()
    train.report({"i": 1})
    if jax.process_index() == 1:
        time.sleep(1000)
    jnp.sum(x).block_until_ready()


@pytest.mark.slow
def test_of_workers_that_wait_for_each_other_the_one_that_does_not_compute_is_told(tmp_path):
    with pytest.raises(TrainingFailedError) as caught:
        fit(tmp_path, one_sleeps, failure_config=FailureConfig(hang_timeout_s=1.0, hang_action="fail"))
    told = r"rank 1 has been stuck at \S+ in one_sleeps \(time\.sleep\) for \d+ s; rank 0 waits for it in a collective"
    assert re.search(told, str(caught.value))


def one_reports_more():
    import jax

    if jax.process_index() == 0:
        train.report({"a": 1}, checkpoint=Checkpoint.from_dict({"a": 1}))


@pytest.mark.slow
def test_a_worker_that_returns_while_another_waits_for_it_is_told_at_once(tmp_path):
    """JAX's own end would have it wait for the other one."""
    with pytest.raises(TrainingFailedError) as caught:
        fit(tmp_path, one_reports_more, jax_config=JaxConfig(shutdown_timeout_s=600))
    assert isinstance(caught.value.worker_failures[0], train.ReportMismatchError)


def test_without_processes_the_function_finds_jax_as_the_script_has_it(tmp_path):
    import jax

    def function():
        return jax.process_count(), os.getpid()

    before = jax.config.jax_platforms
    assert list(fit(tmp_path, function, 0).return_value) == [1, os.getpid()]
    assert jax.config.jax_platforms == before


def test_gpu_workers_see_the_gpus_they_were_given(tmp_path):
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("no GPU: which of them JAX sees in a worker was not checked")

    def function():
        import jax

        x = jax.numpy.ones((8, 8))
        return [device.platform for device in jax.local_devices()], float((x @ x).sum())

    assert list(fit(tmp_path, function, ScalingConfig(1, use_gpu=True)).return_value) == [["gpu"], 512.0]


def test_nobody_else_gets_the_port_that_is_held_for_jax():
    with _reserve_port("127.0.0.1") as port, socket.socket() as other, socket.socket() as like_jax:
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", port))
        like_jax.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        like_jax.bind(("127.0.0.1", port))
        like_jax.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            like_jax.accept()[0].close()


def test_a_platform_that_has_no_use_for_the_gpus_is_refused():
    with pytest.raises(ValueError, match=r"platform='cpu' cannot use the GPUs of ScalingConfig\(use_gpu=True\)"):
        JaxTrainer(computing, jax_config=JaxConfig(platform="cpu"), scaling_config=ScalingConfig(1, use_gpu=True))


def test_nothing_of_a_jax_program_listens_beyond_this_machine(tmp_path):
    def list_addresses():
        connections = psutil.Process().net_connections(kind="inet")
        return [connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN]

    addresses = fit(tmp_path, list_addresses).return_value
    assert addresses, "rank 0 serves no coordinator"
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
