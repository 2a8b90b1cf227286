"""`Trainable`: a trial as a class whose `step` is called repeatedly.

The loop around it (reports, checkpoints, the end) is in `trial_functions`.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

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

    def __init__(self, config: Mapping[str, Any] | None = None, *, parameters: Mapping[str, Any] | None = None) -> None:
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
        """Take another configuration. Never called: each trial has its own process and instance."""
        return False

    def log_result(self, result: dict[str, Any]) -> None:
        """Called with the result of each step."""

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> PlacementGroupFactory | Mapping[str, float] | None:
        """What a trial with this configuration needs if `with_resources` does not say; None: one CPU."""
        return None

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
