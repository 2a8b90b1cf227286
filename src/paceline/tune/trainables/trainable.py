"""`Trainable`: a trial as a class whose `step` is called repeatedly.

The loop around it (reports, checkpoints, the end) is in `trial_functions`.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.placement_group import PlacementGroupFactory
from paceline.train.session import TrialResources
from paceline.tune import session

_NOTE = ".trainable.json"
"""Stored in a checkpoint beside the user's own files: the progress of the trainable."""


class Trainable:
    """Subclass this, and implement `setup`, `step`, `save_checkpoint` and `load_checkpoint`.

    A trial has one instance in a process of its own, and calls `step` repeatedly: each result is a report. It ends when
    a result has a true `done`, or when it is stopped. A result with a true `should_checkpoint` makes a checkpoint;
    `CheckpointConfig(checkpoint_frequency=..., checkpoint_at_end=...)` adds others.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        storage: Any = None,
        *,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """`storage` is Ray's, and has no effect: a trial is stored where the search is."""
        self.config: dict[str, Any] = dict(config or {})
        self._iteration = 0
        self._time_total_s = 0.0
        self._is_done = False
        self.setup(self.config, **(parameters or {}))

    def setup(self, config: dict[str, Any]) -> None:
        """Initialize; objects of `with_parameters` are passed as further arguments."""

    def step(self) -> dict[str, Any]:
        """Train for a while, and return the metrics to report."""
        raise NotImplementedError(f"{type(self).__name__} must implement step()")

    def save_checkpoint(self, checkpoint_dir: str) -> str | dict[str, Any] | None:
        """Write everything needed to resume to a directory; or return it, as a dict of numbers, strings and arrays."""
        raise NotImplementedError(f"{type(self).__name__} must implement save_checkpoint()")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Resume from a checkpoint: the directory, or the dict if `save_checkpoint` returned one."""
        raise NotImplementedError(f"{type(self).__name__} must implement load_checkpoint()")

    def cleanup(self) -> None:
        """Called when the trial ends or pauses."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another configuration, and return True if that was possible.

        A search never calls it: each trial has its own process and instance. `reset` does.
        """
        return False

    def reset(self, new_config: dict[str, Any], storage: Any = None) -> bool:
        """Begin anew with another configuration, if `reset_config` can."""
        if not self.reset_config(new_config):
            return False
        self.config = dict(new_config)
        self._iteration, self._time_total_s, self._is_done = 0, 0.0, False
        return True

    def export_model(self, export_formats: str | Sequence[str], export_dir: str | None = None) -> dict[str, Any]:
        """Export the model by `_export_model`, to the trial's directory by default.

        `tune.run(export_formats=[...])` calls it when a trial ends.
        """
        formats = [export_formats] if isinstance(export_formats, str) else list(export_formats)
        return self._export_model(formats, export_dir if export_dir is not None else self.logdir)

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, Any]:
        """Override this to write the model in each format; return the paths by format."""
        return {}

    def log_result(self, result: dict[str, Any]) -> None:
        """Called with the result of each step."""

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> PlacementGroupFactory | Mapping[str, float] | None:
        """What a trial with this configuration needs if `with_resources` does not say; None: one CPU."""
        return None

    @classmethod
    def resource_help(cls, config: Mapping[str, Any]) -> str:
        """What to say to someone whose cluster lacks the resources for this configuration."""
        return ""

    def train_buffered(self, buffer_time_s: float, max_buffer_length: int = 1000) -> list[dict[str, Any]]:
        """Run iterations for some time, until one is `done` or asks for a checkpoint, and return all results."""
        results: list[dict[str, Any]] = []
        ends_at = time.monotonic() + buffer_time_s
        while len(results) < max_buffer_length:
            results.append(self.train())
            if self._is_done or results[-1].get("should_checkpoint") or time.monotonic() >= ends_at:
                break
        return results

    def train(self) -> dict[str, Any]:
        """Run one iteration."""
        began = time.monotonic()
        result = self.step()
        if not isinstance(result, dict):
            raise TypeError(f"{type(self).__name__}.step() must return a dict of metrics, got {result!r:.200}")
        self._iteration += 1
        self._time_total_s += time.monotonic() - began
        self._is_done = bool(result.get("done"))
        self.log_result(result)
        return result

    def save(self, checkpoint_dir: str | os.PathLike[str] | None = None) -> Checkpoint:
        """Save to a directory; a new temporary one by default."""
        directory = Path(checkpoint_dir) if checkpoint_dir is not None else Path(tempfile.mkdtemp(prefix="trainable-"))
        directory.mkdir(parents=True, exist_ok=True)
        returned = self.save_checkpoint(str(directory))
        note: dict[str, Any] = {
            "iteration": self._iteration,
            "time_total_s": self._time_total_s,
            "done": self._is_done,
            "holds": _write_returned(returned, directory, type(self).__name__),
        }
        if note["holds"] == "path":
            note["path"] = str(Path(str(returned)).absolute().relative_to(directory.absolute()))
        (directory / _NOTE).write_text(json.dumps(note))
        return Checkpoint(str(directory))

    def restore(self, checkpoint: Checkpoint | str | os.PathLike[str]) -> None:
        """Resume from the result of `save`."""
        saved = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(os.fspath(checkpoint))
        with saved.as_directory() as directory:
            try:
                note = json.loads((Path(directory) / _NOTE).read_text())
            except FileNotFoundError:
                note = {}  # Not saved by a Trainable: only the user's code knows what is in it.
            self._iteration = note.get("iteration", 0)
            self._time_total_s = note.get("time_total_s", 0.0)
            self._is_done = note.get("done", False)
            if note.get("holds") == "dict":
                self.load_checkpoint(saved.to_dict())
            else:
                self.load_checkpoint(str(Path(directory) / note.get("path", "")))

    def stop(self) -> None:
        self.cleanup()

    def get_config(self) -> dict[str, Any]:
        return self.config

    def get_state(self) -> dict[str, Any]:
        """Its progress, without what `save_checkpoint` saves."""
        return {"iteration": self._iteration, "time_total_s": self._time_total_s, "done": self._is_done}

    def get_auto_filled_metrics(
        self,
        now: datetime | None = None,
        time_this_iter: float | None = None,
        timestamp: int | None = None,
        debug_metrics_only: bool = False,
    ) -> dict[str, Any]:
        """Return Ray's metrics of this process and the progress; `debug_metrics_only`: those of the process alone."""
        now = now if now is not None else datetime.now()
        address, pid = self.get_current_ip_pid()
        metrics: dict[str, Any] = {
            "trial_id": self.trial_id if worker_context.current() is not None else "default",
            "date": now.strftime("%Y-%m-%d_%H-%M-%S"),
            "timestamp": timestamp if timestamp is not None else int(now.timestamp()),
            "pid": pid,
            "hostname": socket.gethostname(),
            "node_ip": address,
            "config": self.config,
        }
        if not debug_metrics_only:
            metrics["training_iteration"] = self._iteration
            metrics["time_total_s"] = self._time_total_s
            metrics["time_this_iter_s"] = time_this_iter if time_this_iter is not None else 0.0
        return metrics

    def get_current_ip_pid(self) -> tuple[str, int]:
        """The address of this machine and the id of this process."""
        return _find_own_address(), os.getpid()

    def is_actor(self) -> bool:
        """Whether it runs in the process of a trial, as opposed to the script's own."""
        return worker_context.current() is not None

    @property
    def iteration(self) -> int:
        """How many steps were made, including those before the checkpoint this resumed from."""
        return self._iteration

    training_iteration = iteration

    @property
    def time_total_s(self) -> float:
        """The total time of all steps."""
        return self._time_total_s

    @property
    def is_done(self) -> bool:
        """Whether the last step reported `done`."""
        return self._is_done

    @property
    def logdir(self) -> str:
        """The trial's directory."""
        return session.get_context().get_trial_dir()

    @property
    def trial_id(self) -> str:
        return session.get_context().get_trial_id()

    @property
    def trial_name(self) -> str:
        return session.get_context().get_trial_name()

    @property
    def trial_resources(self) -> TrialResources:
        return session.get_context().get_trial_resources()


def _write_returned(returned: Any, directory: Path, name: str) -> Literal["dict", "path", "directory"]:
    if returned is None:
        return "directory"
    if isinstance(returned, dict):
        Checkpoint.from_dict(returned).to_directory(directory)
        return "dict"
    if not isinstance(returned, str | os.PathLike):
        raise TypeError(f"{name}.save_checkpoint() must return a dict, a path or None, got {returned!r:.200}")
    path = Path(returned).absolute()
    if not path.is_relative_to(directory.absolute()) or not path.exists():
        raise ValueError(
            f"{name}.save_checkpoint() must return a path inside {directory}, the directory it was given, got "
            f"{str(returned)!r}"
        )
    return "path"


def _find_own_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:  # The machine does not know its own name.
        return "127.0.0.1"
