"""Before workers start: what cannot work is refused, with what to change, and nothing is left behind."""

import contextlib
import errno
import functools
import json
import os
import resource
import socket
import threading

import psutil
import pytest

from paceline import train
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig, RunHeldError, StorageError
from paceline.train.driver import job, preflight
from paceline.train.driver.run_directory import open_run
from paceline.train.driver.run_spec import RunEnvironment


class Model:
    def __init__(self):
        self.layers = [{"guard": threading.Lock()}]


def trainer_in(place, function=lambda: None, *, name="run", environment=None, config=None, scaling=1, **run_config):
    run = RunConfig(name=name, storage_path=place, **run_config)
    trainer = DataParallelTrainer(
        function, train_loop_config=config, scaling_config=train.ScalingConfig(scaling), run_config=run
    )
    if environment is not None:
        trainer = trainer.replace_arguments(environment=environment)
    return trainer


def tree(place):
    return {str(p.relative_to(place)): p.read_bytes() if p.is_file() else None for p in sorted(place.rglob("*"))}


class Full(LocalFiles):
    def write(self, path, data):
        path.write_bytes(b"")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Forgetful(LocalFiles):
    def write(self, path, data):
        super().write(path, bytes(len(data)))


def a_closure_over_a_lock(place, _):
    model = Model()
    return trainer_in(place, lambda: model)


def a_bound_method_of_an_object_with_a_generator(place, _):
    class Script:
        def __init__(self):
            self.rows = (i for i in range(3))

        def train(self):
            return None

    return trainer_in(place, Script().train)


def an_object_that_refuses_to_be_pickled(place, _):
    class Session:
        def __getstate__(self):
            raise RuntimeError("sessions stay here")

    return trainer_in(place, functools.partial(print, Session()))


def a_storage_path_that_is_a_file(place, _):
    (place / "file").write_text("")
    return trainer_in(place / "file" / "deeper")


def a_file_in_the_place_of_the_run(place, _):
    (place / "run").write_text("mine")
    return trainer_in(place)


def a_link_to_nowhere(place, _):
    (place / "link").symlink_to(place / "unmounted")
    return trainer_in(place / "link")


def a_run_that_is_held(place, stack):
    trainer = trainer_in(place)
    stack.enter_context(open_run(trainer.run_config.location, RunEnvironment(), print))
    return trainer


def too_few_open_files(place, stack):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    return trainer_in(place, scaling=200)


def a_checkpoint_that_is_not_there(place, _):
    run = RunConfig(name="run", storage_path=place)
    missing = Checkpoint.from_directory(place / "checkpoint_000003")
    return DataParallelTrainer(lambda: None, run_config=run, resume_from_checkpoint=missing)


def an_environment_variable_that_says_nothing(place, stack):
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    patch.setenv("PACELINE_VERBOSITY", "loud")
    return trainer_in(place)


def no_room_for_another_checkpoint(place, _):
    train_one_checkpoint(place)
    pretend_size(place / "run", 1 << 60)
    return trainer_in(place)


def train_one_checkpoint(place):
    def function():
        train.report({}, checkpoint=Checkpoint.from_dict({"x": 1}))
        raise ValueError("stop here")

    with pytest.raises(train.WorkerGroupError):
        trainer_in(place, function).fit()


def pretend_size(run, num_bytes):
    """As if the last checkpoint had been that large: the run is known from its manifests alone."""
    (run / "journal.jsonl").unlink()
    manifest = run / "checkpoint_000001" / ".manifest.json"
    content = json.loads(manifest.read_text())
    content["record"]["num_bytes"] = num_bytes
    manifest.write_text(json.dumps(content))


PLANTED = [
    (
        a_closure_over_a_lock,
        TypeError,
        r"train_loop_per_worker -> closure variable 'model' -> \.layers -> \[0\] -> \['guard'\] \(_thread\.lock\)"
        r" cannot be sent to the workers: TypeError: cannot pickle '_thread\.lock' object",
    ),
    (
        lambda place, stack: trainer_in(place, print, config={"db": [stack.enter_context(socket.socket())]}),
        TypeError,
        r"train_loop_config -> \['db'\] -> \[0\] \(socket\.socket\) cannot be sent",
    ),
    (
        a_bound_method_of_an_object_with_a_generator,
        TypeError,
        r"train_loop_per_worker -> the object of \.train -> \.rows \(generator\) cannot be sent",
    ),
    (
        an_object_that_refuses_to_be_pickled,
        TypeError,
        r"train_loop_per_worker -> argument 0 \(.*Session\) cannot be sent .*RuntimeError: sessions stay here",
    ),
    (a_storage_path_that_is_a_file, StorageError, r"/deeper/run: .*/file: not a directory\n\nhint: .*\(storage_path="),
    (a_file_in_the_place_of_the_run, StorageError, r"/run: not a directory\n\nhint: set RunConfig\(name="),
    (
        lambda place, _: trainer_in("/proc/paceline"),
        StorageError,
        r"in /proc/paceline/run: /proc/paceline: No such file or directory\n\nhint: set RunConfig\(storage_path=",
    ),
    (a_link_to_nowhere, StorageError, r"/link: broken link to .*/unmounted\n\nhint: set Run"),
    (lambda place, _: trainer_in(place, name="ö" * 150), StorageError, r"name too long\n\nhint: .*\(name=.* 255 bytes"),
    (
        lambda place, _: trainer_in(place, name="r\ud800un"),
        StorageError,
        r"ud800un: .* not valid text\n\nhint: .*name=",
    ),
    (a_run_that_is_held, RunHeldError, rf"is being written by process {os.getpid()}"),
    (
        lambda place, _: trainer_in(place / "new", environment=RunEnvironment(files=Full())),
        StorageError,
        r"/new/run: No space left on device\n\nhint: set RunConfig\(storage_path=\.\.\.\) to a filesystem",
    ),
    (
        lambda place, _: trainer_in(place / "new", environment=RunEnvironment(files=Forgetful())),
        StorageError,
        r"/new/run does not return the data written to it.*\n\nhint: .*storage_path",
    ),
    (too_few_open_files, ValueError, r"num_workers=200 needs about 4\d\d open files, .* 256\n\nhint: .*ulimit -n"),
    (a_checkpoint_that_is_not_there, StorageError, r"resume_from_checkpoint: .*/checkpoint_000003 is not a directory"),
    (an_environment_variable_that_says_nothing, ValueError, r"PACELINE_VERBOSITY must be 0, 1 or 2, got 'loud'"),
    (
        no_room_for_another_checkpoint,
        StorageError,
        r"/run has .*B free, but a checkpoint of this run takes 1\.2 EB \(checkpoint_000001\)\n\nhint: free at",
    ),
]


@pytest.mark.parametrize(("plant", "error", "message"), PLANTED, ids=range(len(PLANTED)))
def test_what_cannot_work_is_refused_within_a_second_and_leaves_nothing(plant, error, message, tmp_path):
    with contextlib.ExitStack() as stack:
        trainer = plant(tmp_path, stack)
        before, children = tree(tmp_path), psutil.Process().children(recursive=True)
        with pytest.raises(error, match="(?s)" + message):
            trainer.fit()
        assert psutil.Process().children(recursive=True) == children, "no process was started"
        after = tree(tmp_path)
        if plant is no_room_for_another_checkpoint:
            after.pop("run/journal.jsonl")  # Rebuilt from the manifests, as opening a run does.
            before, after = ({k: v for k, v in one.items() if "/.lease/" not in k} for one in (before, after))
        assert after == before


def test_a_refusal_keeps_what_somebody_else_put_there(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match="No space left"):
        trainer_in(tmp_path, environment=RunEnvironment(files=Full())).fit()
    assert tree(tmp_path) == {"run": None, "run/notes.txt": b"mine"}


def test_little_room_is_said_and_the_run_goes_on(tmp_path, capfd):
    train_one_checkpoint(tmp_path)
    free = os.statvfs(tmp_path)
    size = free.f_bavail * free.f_frsize // 3
    pretend_size(tmp_path / "run", size)
    trainer_in(tmp_path, checkpoint_config=CheckpointConfig(num_to_keep=10)).fit()
    output = capfd.readouterr().err
    assert "but 10 more checkpoints of" in output
    assert "lower CheckpointConfig(num_to_keep=...)" in output
    assert "run run finished" in output


def test_a_complete_run_needs_no_room(tmp_path):
    def function():
        train.report({}, checkpoint=Checkpoint.from_dict({"x": 1}))

    trainer_in(tmp_path, function).fit()
    assert trainer_in(tmp_path, function, checkpoint_config=CheckpointConfig(num_to_keep=1000)).fit().checkpoint


@pytest.mark.parametrize(("num_to_keep", "num_kept", "number"), [(None, 9, 2), (3, 0, 4), (3, 1, 3), (3, 7, 1)])
def test_a_new_checkpoint_needs_room_beside_the_old_ones(num_to_keep, num_kept, number):
    assert preflight.num_coming_checkpoints(num_to_keep, num_kept) == number


def test_a_run_in_any_language_passes(tmp_path):
    place = tmp_path / "実験 🚂" / "läufe"
    assert trainer_in(place, name="пробег").fit().path == str(place / "пробег")


def test_the_storage_is_tried_and_no_trace_of_that_is_left(tmp_path):
    tried = []

    class Watching(LocalFiles):
        def write(self, path, data):
            tried.append(path.name)
            super().write(path, data)

    trainer_in(tmp_path, environment=RunEnvironment(files=Watching())).fit()
    assert tried == [".preflight"]
    assert not (tmp_path / "run" / ".preflight").exists()


def test_what_lies_too_deep_is_told_short():
    value = threading.Lock()
    for _ in range(50):
        value = [value]
    found = job.find_unpicklable({"value": value})
    assert found is not None
    assert found.path.count("->") == 13
    assert "... 38 more ... -> [0] (_thread.lock)" in found.path


def test_the_search_gives_up_on_a_large_heap(monkeypatch):
    class Tricky:
        def __reduce__(self):
            return list, ((object() for _ in ()),)  # A generator that no attribute leads to.

    monkeypatch.setattr(job, "_MAX_VISITED", 1000)
    assert job.find_unpicklable({"value": [Tricky(), *([i] for i in range(2000))]}).path == (
        "value -> something in it (generator)"
    )
    found = job.find_unpicklable({"value": [*([i] for i in range(2000)), threading.Lock()]})
    assert found.path == "value -> something in it (_thread.lock)", "the limit is reached before it is found"
    assert job.find_unpicklable({"function": print, "config": {"x": [1, Model]}, "backend": None}) is None


def test_a_driver_that_comes_second_by_a_hair_does_not_remove_the_lease_of_the_first(tmp_path):
    layout = RunLayout(tmp_path / "run")

    def lose():
        with preflight.clean_up_on_refusal(layout):
            layout.lease.mkdir(parents=True)
            (layout.lease / "000001.json").write_text("the first driver's, taken since we looked")
            raise RunHeldError

    with pytest.raises(RunHeldError):
        lose()
    assert (layout.lease / "000001.json").exists()
