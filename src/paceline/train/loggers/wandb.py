"""Metrics to Weights & Biases."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from paceline.train.backend import require
from paceline.train.callbacks import LoggedCheckpoint, LoggedReport, LoggedRun, LoggerCallback
from paceline.train.result import flat

_STEP = "training_iteration"
_NOTE = ".wandb-run"
"""Not `.wandb`: W&B takes what has that name for the directory to write to."""
_WRITTEN_AFTER_S = 30.0
"""W&B writes what it was given every 15 s; what it holds is lost where the driver is killed."""


class WandbLoggerCallback(LoggerCallback):
    """Logs every report to a run of Weights & Biases, and the config where `log_config` is set.

    Further arguments are those of `wandb.init`: `mode="offline"` needs no network, and `wandb sync` sends it later. The
    number of a report is the metric `training_iteration`, and the step of all others: so reports that restarted workers
    make again follow those from before, where W&B would drop them at steps of its own. A checkpoint becomes a version
    of the artifact `RUN-checkpoint`, of type `model`, that refers to its files where they are: nothing is uploaded.

    A run of ours that continues goes on under the same id. What W&B was given in the last half minute of a driver that
    was killed is given to it again, since it may not have written that.
    """

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        log_config: bool = False,
        **kwargs: Any,
    ) -> None:
        require("WandbLoggerCallback", ("wandb",), "wandb")
        self._project = project
        self._group = group
        self._api_key_file = api_key_file
        self._api_key = api_key
        self._excludes = frozenset(excludes or ())
        self._log_config = log_config
        self._kwargs = kwargs
        self._run: Any = None
        self._name = ""
        self._note: _Note | None = None

    def for_trial(self, search: str, run: str) -> Self:
        """Trials are runs of one group, which has the name of the search where no other is given."""
        copied = super().for_trial(search, run)
        copied._group = self._group or search
        # Several of its runs at once in one process: otherwise the second would end the first.
        copied._kwargs = {"reinit": "create_new", **self._kwargs}
        return copied

    def log_start(self, run: LoggedRun) -> None:
        import wandb

        key = self._api_key
        if self._api_key_file is not None:
            key = Path(self._api_key_file).expanduser().read_text().strip()
        if key is not None:
            wandb.login(key=key)
        config = run.context.train_loop_config
        self._name = run.context.run_id
        note = self._note = _Note(run.directory / _NOTE, run.continues)
        told = {
            "project": self._project,
            "group": self._group,
            "name": run.context.run_id,
            "id": note.run_id,
            "resume": "allow",
            "dir": str(run.directory),
            "config": dict(config) if self._log_config and isinstance(config, Mapping) else None,
        }
        self._run = wandb.init(**{**told, **self._kwargs})
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)
        for report in run.past:
            if note.is_new(report):
                self.log_report(report)

    def log_report(self, report: LoggedReport) -> None:
        assert self._note is not None
        metrics = {name: value for name, value in flat(report.metrics).items() if name not in self._excludes}
        self._run.log({**metrics, _STEP: report.number})
        self._note.logged(report)

    def log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        import wandb

        about = {"training_iteration": checkpoint.number, "num_bytes": checkpoint.num_bytes, "uri": checkpoint.uri}
        artifact = wandb.Artifact(f"{_plain_name(self._name)}-checkpoint", type="model", metadata=about)
        # Without checksums: W&B would read every file to make its own, and ours are in the manifest.
        artifact.add_reference(checkpoint.uri, checksum=False)
        self._run.log_artifact(artifact, aliases=["latest", _plain_name(checkpoint.name)])

    def log_end(self, failed: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1 if failed else 0)
        if self._note is not None:
            self._note.all_written()
            self._note.close()
        self._run = self._note = None


def _plain_name(name: str) -> str:
    """As the name or alias of an artifact may be."""
    return re.sub(r"[^\w\-.]", "_", name, flags=re.ASCII)[:100]


class _Note:
    """The id that the run has there, and the last report that W&B has surely written: it does not tell."""

    def __init__(self, path: Path, continues: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        words = os.read(self._fd, 200).decode("ascii", "replace").split() if continues else []
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            self.run_id, self._written = words[0], (int(words[1]), int(words[2]))
        else:
            self.run_id, self._written = hashlib.sha256(os.urandom(16)).hexdigest()[:16], (0, 0)
            self._write()
        self._given: deque[tuple[float, tuple[int, int]]] = deque()
        """When, and the attempt and number of each report: in steps of a second."""

    def is_new(self, report: LoggedReport) -> bool:
        return (report.attempt, report.number) > self._written

    def logged(self, report: LoggedReport) -> None:
        now = self._now()
        if self._given and now - self._given[-1][0] < 1:
            self._given[-1] = self._given[-1][0], (report.attempt, report.number)
        else:
            self._given.append((now, (report.attempt, report.number)))
        # The first was given up to a second later than it says.
        while self._given and self._given[0][0] + 1 + _WRITTEN_AFTER_S <= now:
            self._written = self._given.popleft()[1]
            self._write()

    def all_written(self) -> None:
        if self._given:
            self._written = self._given.pop()[1]
            self._write()

    def close(self) -> None:
        os.close(self._fd)

    def _write(self) -> None:
        attempt, number = self._written
        os.pwrite(self._fd, f"{self.run_id} {attempt:010d} {number:020d}\n".encode(), 0)
