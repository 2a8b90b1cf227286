"""Log metrics to Weights & Biases."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from paceline._core.arguments import flatten_dict
from paceline.train.backend import require
from paceline.train.callbacks import LoggedCheckpoint, LoggedReport, LoggedRun, LoggerCallback

_STEP_METRIC = "training_iteration"
_RECORD_NAME = ".wandb-run"
"""Not `.wandb`: W&B would use that name as its output directory."""
_FLUSH_DELAY_S = 30.0
"""W&B writes its data every 15 s; unwritten data is lost if the driver is killed."""


class WandbLoggerCallback(LoggerCallback):
    """Logs every report to a run of Weights & Biases, and the config if `log_config` is set.

    Further arguments go to `wandb.init`: `mode="offline"` needs no network, and `wandb sync` uploads later. The number
    of a report is the metric `training_iteration`, which is the step metric of all others. So reports that restarted
    workers repeat follow the earlier ones; at its own steps, W&B would drop them. A checkpoint becomes a version of the
    artifact `RUN-checkpoint`, of type `model`, that references its files where they are: nothing is uploaded.

    A resumed run keeps its W&B id. If a driver was killed, the reports of its last half minute are logged again, since
    W&B may not have written them.
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
        self._record: _WandbRunRecord | None = None

    def for_trial(self, search: str, run: str) -> Self:
        """Trials are runs of one group, by default named after the search."""
        copied = super().for_trial(search, run)
        copied._group = self._group or search
        # A process may have several W&B runs at once: otherwise the second would end the first.
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
        record = self._record = _WandbRunRecord(run.directory / _RECORD_NAME, run.continues)
        options = {
            "project": self._project,
            "group": self._group,
            "name": run.context.run_id,
            "id": record.run_id,
            "resume": "allow",
            "dir": str(run.directory),
            "config": dict(config) if self._log_config and isinstance(config, Mapping) else None,
        }
        self._run = wandb.init(**{**options, **self._kwargs})
        self._run.define_metric(_STEP_METRIC)
        self._run.define_metric("*", step_metric=_STEP_METRIC)
        for report in run.past:
            if record.is_new(report):
                self.log_report(report)

    def log_report(self, report: LoggedReport) -> None:
        assert self._record is not None
        metrics = {name: value for name, value in flatten_dict(report.metrics).items() if name not in self._excludes}
        self._run.log({**metrics, _STEP_METRIC: report.number})
        self._record.mark_logged(report)

    def log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        import wandb

        metadata = {"training_iteration": checkpoint.number, "num_bytes": checkpoint.num_bytes, "uri": checkpoint.uri}
        artifact = wandb.Artifact(f"{_sanitize_name(self._name)}-checkpoint", type="model", metadata=metadata)
        # Skip checksums: W&B would read every file to compute its own, and ours are in the manifest.
        artifact.add_reference(checkpoint.uri, checksum=False)
        self._run.log_artifact(artifact, aliases=["latest", _sanitize_name(checkpoint.name)])

    def log_end(self, failed: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1 if failed else 0)
        if self._record is not None:
            self._record.mark_all_written()
            self._record.close()
        self._run = self._record = None


def _sanitize_name(name: str) -> str:
    """Make a name valid for an artifact or its alias."""
    return re.sub(r"[^\w\-.]", "_", name, flags=re.ASCII)[:100]


class _WandbRunRecord:
    """Stores the W&B run id and the last report that W&B has certainly written, which W&B itself does not say."""

    def __init__(self, path: Path, continues: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        words = os.read(self._fd, 200).decode("ascii", "replace").split() if continues else []
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            self.run_id, self._written = words[0], (int(words[1]), int(words[2]))
        else:
            self.run_id, self._written = hashlib.sha256(os.urandom(16)).hexdigest()[:16], (0, 0)
            self._write()
        self._unconfirmed: deque[tuple[float, tuple[int, int]]] = deque()
        """Time, attempt and number of the logged reports: at most one entry per second."""

    def is_new(self, report: LoggedReport) -> bool:
        return (report.attempt, report.number) > self._written

    def mark_logged(self, report: LoggedReport) -> None:
        now = self._now()
        is_same_second = bool(self._unconfirmed) and now - self._unconfirmed[-1][0] < 1
        at = self._unconfirmed.pop()[0] if is_same_second else now
        self._unconfirmed.append((at, (report.attempt, report.number)))
        # The last report of an entry may be up to a second later than the entry's time.
        while self._unconfirmed and self._unconfirmed[0][0] + 1 + _FLUSH_DELAY_S <= now:
            self._written = self._unconfirmed.popleft()[1]
            self._write()

    def mark_all_written(self) -> None:
        if self._unconfirmed:
            self._written = self._unconfirmed.pop()[1]
            self._write()

    def close(self) -> None:
        os.close(self._fd)

    def _write(self) -> None:
        attempt, number = self._written
        os.pwrite(self._fd, f"{self.run_id} {attempt:010d} {number:020d}\n".encode(), 0)
