"""What a run has to be after any fault: the same as one that nothing happened to.

`small` is the function that the sweeps train: two ranks, a tiny model in float64 with momentum, a checkpoint in every
second report, one kept. It needs numpy only; `paced` and `returning` are the same descent with other checkpoints, and
`batched` has steps of a DDP model on a data loader.
"""

import dataclasses
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import psutil

from paceline import train
from paceline._control.events import Reported, WorkerFailed
from paceline._control.recovery import load_history
from paceline._control.retry_policy import first_failure
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline._worker.context import current
from paceline.train import Checkpoint, CheckpointConfig, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig

STEPS = 8
GONE_WITHIN_S = 60.0
"""How long what a run leaves may take to go: any machine is quicker."""


class Descent:
    """A tiny model on its way down, from the checkpoint if there is one: the same on every rank."""

    def __init__(self, config):
        import numpy

        self._x = numpy.random.default_rng(7).normal(size=(config["steps"], 8, 3))
        self._weights, self._momentum, self.step = numpy.zeros(3), numpy.zeros(3), 0
        last = train.get_checkpoint()
        if last is not None:
            state = last.to_dict()
            self._weights, self._momentum, self.step = state["weights"], state["momentum"], state["step"]

    def advance(self):
        """The loss of one more step."""
        batch = self._x[self.step]
        error = batch @ self._weights - batch.sum(axis=1)
        self._momentum = 0.9 * self._momentum + batch.T @ error / len(batch)
        self._weights = self._weights - 0.1 * self._momentum
        self.step += 1
        return float((error**2).mean())

    @property
    def state(self):
        return {"weights": self._weights, "momentum": self._momentum, "step": self.step}

    @property
    def weights(self):
        return self._weights.tolist()


def small(config):
    model = Descent(config)
    while model.step < config["steps"]:
        loss = model.advance()
        report(model.step, loss, model.state)
    return model.weights


def paced(config):
    """The same at a pace, with a checkpoint in every `every`-th report, in the last, and where the run is stopped.

    Before its last eight steps it waits for the file `gate`, or until the run is stopped: a fault that a test plants
    from outside is never too late. Alone it is slow from step 14 on: a second worker is never too late.
    """
    model = Descent(config)
    alone, gate = train.get_context().get_world_size() == 1, config.get("gate")
    while model.step < config["steps"]:
        loss = model.advance()
        time.sleep(1.0 if alone and model.step > 14 else config["pace_s"])
        if gate and model.step == config["steps"] - 8:
            while not Path(gate).exists() and current()._stop is None:
                time.sleep(0.005)
        state = model.state
        due = model.step % config["every"] == 0 or model.step == config["steps"]
        train.report(
            {"step": model.step, "loss": loss},
            checkpoint=Checkpoint.from_dict(state) if due else None,
            checkpoint_on_stop=lambda state=state: Checkpoint.from_dict(state),
        )
    return model.weights


def returning(config):
    """The same with a checkpoint in every report, which writes down what returned and what it began from."""
    model = Descent(config)
    rank = train.get_context().get_world_rank()
    with open(f"{config['notes']}-{rank}", "ab", buffering=0) as notes:
        notes.write(b"began %d\n" % model.step)
        while model.step < config["steps"]:
            loss = model.advance()
            train.report({"step": model.step, "loss": loss}, checkpoint=Checkpoint.from_dict(model.state))
            notes.write(b"returned %d\n" % model.step)
            if model.step in config.get("driver_dies_after", ()) and rank == 0:
                driver = int(os.environ["DRIVER_PID"])
                threading.Timer(config["delay_s"], os.kill, (driver, signal.SIGKILL)).start()
    return model.weights


def batched(config):
    """A checkpoint in every report. With a global batch the steps are the same whatever the number of workers."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from paceline.train.torch import prepare_data_loader, prepare_model

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    data = TensorDataset(torch.randn(52, 5), torch.randn(52, 1))
    loader = prepare_data_loader(DataLoader(data, shuffle=True))
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    inner = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    parts = {"model": inner, "optimizer": optimizer, "loader": loader}
    step, last = 0, train.get_checkpoint()
    if last is not None:
        state = last.to_dict()
        step = state["step"]
        for name, part in parts.items():
            part.load_state_dict(state[name])
    size = train.get_context().get_world_size()
    while step < config["steps"]:
        for x, y in loader:
            config.get("before_step", lambda step, size: None)(step, size)
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            torch.distributed.all_reduce(total)
            step += 1
            state = {"step": step, **{name: part.state_dict() for name, part in parts.items()}}
            metrics = {"step": step, "loss": total.item() / size, "size": size}
            train.report(metrics, checkpoint=Checkpoint.from_dict(state))
            if step == config["steps"]:
                break
    return [parameter.flatten().tolist() for parameter in inner.parameters()]


def report(step, loss, state):
    checkpoint = Checkpoint.from_dict(state) if step % 2 == 0 else None
    mode = CheckpointUploadMode.ASYNC if step % 4 == 0 else CheckpointUploadMode.SYNC
    train.report({"step": step, "loss": loss}, checkpoint=checkpoint, checkpoint_upload_mode=mode)


def trainer_of(
    kind,
    function,
    path,
    steps=STEPS,
    max_failures=20,
    *,
    scaling=None,
    num_to_keep=1,
    config=None,
    callbacks=None,
    **failure_config,
):
    return kind(
        function,
        train_loop_config={"steps": steps, **(config or {})},
        scaling_config=scaling or ScalingConfig(2),
        run_config=RunConfig(
            name="run",
            storage_path=path,
            failure_config=FailureConfig(max_failures=max_failures, **failure_config),
            checkpoint_config=CheckpointConfig(num_to_keep=num_to_keep),
            callbacks=callbacks,
        ),
    )


def history(path, *kinds):
    """The events of the run in that directory, all or of these kinds, with those that only the workers have written."""
    events = load_history(DiskRunStore(LocalFiles(), RunLayout(Path(path))))[1]
    return [event for event in events if isinstance(event, kinds or object)]


def reports(path, rank):
    """The metrics of a rank, by the number of the report: those that count, each attempt taking over from the last."""
    rows, attempt = [], 0
    for event in history(path, Reported):
        if event.rank == rank:
            if event.attempt > attempt:
                attempt = event.attempt
                rows = [row for row in rows if row[0] < event.seq]
            rows.append((event.seq, msgspec.json.decode(event.metrics)))
    return rows


@dataclasses.dataclass(frozen=True)
class Expected:
    reports: dict
    weights: list


def expected(result, steps=STEPS):
    """What a run that nothing happened to has come to."""
    rows = {rank: reports(result.path, rank) for rank in (0, 1)}
    assert [seq for seq, _ in rows[0]] == list(range(1, steps + 1))
    return Expected(rows, result.return_value)


def assert_same(path, expected, weights=None, ranks=(0, 1), broken=False):
    """The run in `path` has the reports of these ranks, the parameters and the checkpoint of an undisturbed one.

    `broken`: whether there was a checkpoint to set aside.
    """
    result = train.Result.from_path(path)
    for rank in ranks:
        assert reports(path, rank) == expected.reports[rank], f"rank {rank}: contiguous, each once, the same values"
    assert (weights if weights is not None else result.return_value) == expected.weights, "bit for bit"
    result.checkpoint.verify()
    assert result.checkpoint.to_dict()["step"] == len(expected.reports[0])
    left = sorted(entry.name for entry in Path(path).iterdir() if entry.name in (".staging", ".trash", ".broken"))
    assert left == [".broken"] * broken, "nothing half done is left"


def weights_of(path):
    """The parameters in the newest checkpoint: for a run whose function may have nothing left to return."""
    return train.Result.from_path(path).checkpoint.to_dict()["weights"].tolist()


def causes(path):
    """The first failure of each attempt that failed: its rank and kind."""
    by_attempt = {}
    for event in history(path, WorkerFailed):
        by_attempt.setdefault(event.attempt, []).append(event.failure)
    firsts = [first_failure(failures) for failures in by_attempt.values()]
    return [(first.rank, first.kind) for first in firsts]


def worst_stand(path, faults):
    """The longest time from a strike to the first report of an attempt after it."""
    stood = [seconds_to_next_report(path, strike.at) for _, strike in faults.fired(path)]
    return max((seconds for seconds in stood if seconds is not None), default=None)


def seconds_to_next_report(path, at):
    """From a moment to the first report of a later attempt; None where there was nothing left to report."""
    events = history(path, Reported)
    before = max((event.attempt for event in events if event.at <= at), default=0)
    after = [event.at for event in events if event.at > at and event.attempt > before]
    return min(after) - at if after else None


class Surroundings:
    """G5: what was there before a run, to be compared with what is there after its end."""

    def __init__(self):
        self.shared_memory = set(os.listdir("/dev/shm"))
        self.temporary = set(os.listdir(tempfile.gettempdir()))
        self.workers = set(_workers())

    def assert_nothing_is_left(self):
        from processes import still_running  # not at the top: scripts that import this module lack it

        alive = still_running(set(_workers()) - self.workers, within_s=GONE_WITHIN_S)
        assert alive == [], "processes are left"
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := set(os.listdir(tempfile.gettempdir())) - self.temporary) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left == set(), "temporary files are left"
        ours = {name for name in set(os.listdir("/dev/shm")) - self.shared_memory if "paceline" in name}
        assert ours == set(), "shared memory is left"


def _workers():
    """Processes below this one that lead a session: workers do, the zygote and its heir do not."""
    for process in psutil.Process().children(recursive=True):
        try:
            if os.getsid(process.pid) == process.pid and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (ProcessLookupError, psutil.Error):
            continue
