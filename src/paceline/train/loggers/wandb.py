"""Log metrics to Weights & Biases."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from paceline._core.arguments import flatten_dict
from paceline._worker import context as worker_context
from paceline.train import session
from paceline.train.backend import require
from paceline.train.callbacks import LoggerCallback
from paceline.train.loggers.tracker_record import TrackerRecord
from paceline.train.loggers.trial_hooks import LoggedTrial, TrialHooksMixin

_STEP_METRIC = "training_iteration"
_RECORD_NAME = ".wandb-run"
"""Not `.wandb`: W&B would use that name as its output directory."""


class WandbLoggerCallback(TrialHooksMixin, LoggerCallback):
    """Logs every report to a run of Weights & Biases, and the config if `log_config` is set.

    Further arguments go to `wandb.init`: `mode="offline"` needs no network, and `wandb sync` uploads later. The number
    of a report is the metric `training_iteration`, which is the step metric of all others. So reports that restarted
    workers repeat follow the earlier ones; at its own steps, W&B would drop them. A checkpoint becomes a version of the
    artifact `RUN-checkpoint`, of type `model`, that references its files where they are; with `upload_checkpoints`, a
    checkpoint on this machine is uploaded. Metrics have no media: `video_kwargs` and `image_kwargs` have no effect, and
    neither has `upload_timeout`.

    A resumed run keeps its W&B id. If a driver was killed, the reports of its last half minute are logged again, since
    W&B may not have written them.
    """

    AUTO_CONFIG_KEYS: ClassVar[tuple[str, ...]] = (
        "trial_id",
        "experiment_tag",
        "node_ip",
        "experiment_id",
        "hostname",
        "pid",
        "date",
    )
    """Automatic metrics of `paceline.air` that describe the run: they become its config."""

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        save_checkpoints: bool = False,
        upload_timeout: int = 1800,
        video_kwargs: Mapping[str, Any] | None = None,
        image_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        require("WandbLoggerCallback", ("wandb",), "wandb")
        self._project = project
        self._group = group
        self._api_key_file = api_key_file
        self._api_key = api_key
        self._excludes = frozenset(excludes or ())
        self._log_config = log_config
        self._uploads_checkpoints = upload_checkpoints or save_checkpoints
        self._auto_config: dict[str, Any] = {}
        self._kwargs = kwargs
        self._run: Any = None
        self._name = ""
        self._record: TrackerRecord | None = None

    def for_trial(self, search: str, run: str) -> Self:
        """Trials are runs of one group, by default named after the search."""
        copied = super().for_trial(search, run)
        copied._group = self._group or search
        # A process may have several W&B runs at once: otherwise the second would end the first.
        copied._kwargs = {"reinit": "create_new", **self._kwargs}
        return copied

    def log_trial_start(self, trial: LoggedTrial) -> None:
        import wandb

        run = trial.run
        _log_in(self._api_key, self._api_key_file)
        config = run.context.train_loop_config
        self._name = run.context.run_id
        record = self._record = TrackerRecord(run.directory / _RECORD_NAME, run.continues)
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

    def log_trial_result(self, iteration: int, trial: LoggedTrial, result: dict[str, Any]) -> None:
        assert self._record is not None
        assert trial.report is not None
        metrics = {name: value for name, value in flatten_dict(result).items() if name not in self._excludes}
        auto = {name: metrics.pop(name) for name in self.AUTO_CONFIG_KEYS if name in metrics}
        if auto != self._auto_config:
            self._auto_config = auto
            self._run.config.update(auto, allow_val_change=True)
        self._run.log({**metrics, _STEP_METRIC: iteration})
        self._record.mark_logged(trial.report)

    def log_trial_save(self, trial: LoggedTrial) -> None:
        import wandb

        checkpoint = trial.checkpoint
        assert checkpoint is not None
        metadata = {"training_iteration": checkpoint.number, "num_bytes": checkpoint.num_bytes, "uri": checkpoint.uri}
        artifact = wandb.Artifact(f"{_sanitize_name(self._name)}-checkpoint", type="model", metadata=metadata)
        local = Path(checkpoint.uri.removeprefix("file://"))
        if self._uploads_checkpoints and local.is_dir():
            artifact.add_dir(str(local))
        else:
            # Skip checksums: W&B would read every file to compute its own, and ours are in the manifest.
            artifact.add_reference(checkpoint.uri, checksum=False)
        self._run.log_artifact(artifact, aliases=["latest", _sanitize_name(checkpoint.name)])

    def log_trial_end(self, trial: LoggedTrial, failed: bool = False) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1 if failed else 0)
        if self._record is not None:
            self._record.mark_all_written()
            self._record.close()
        self._run = self._record = None


def setup_wandb(
    config: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    api_key_file: str | os.PathLike[str] | None = None,
    rank_zero_only: bool = True,
    **kwargs: Any,
) -> Any:
    """Start a run of Weights & Biases in a train function or trial, and return it; `kwargs` go to `wandb.init`.

    By default its name and id are those of the trial, and its group is the run or search. On ranks other than 0 it is
    a run that logs nothing, unless `rank_zero_only=False`.
    """
    require("setup_wandb", ("wandb",), "wandb")
    import wandb

    context = worker_context.current()
    defaults: dict[str, Any] = {}
    if context is not None:
        if rank_zero_only and context.begin.rank > 0:
            return wandb.init(mode="disabled")
        trial = session.TrainContext(context)
        defaults = {"name": trial.get_trial_name(), "group": trial.get_experiment_name(), "resume": "allow"}
        defaults["id"] = trial.get_trial_id() + (f"_{context.begin.rank}" if context.begin.rank else "")
        defaults["dir"] = str(context.layout.root)
    _log_in(api_key, api_key_file)
    return wandb.init(**{**defaults, "config": dict(config) if config is not None else None, **kwargs})


def _log_in(api_key: str | None, api_key_file: str | os.PathLike[str] | None) -> None:
    import wandb

    if api_key_file is not None:
        api_key = Path(api_key_file).expanduser().read_text().strip()
    if api_key is not None:
        wandb.login(key=api_key)


def _sanitize_name(name: str) -> str:
    """Make a name valid for an artifact or its alias."""
    return re.sub(r"[^\w\-.]", "_", name, flags=re.ASCII)[:100]
