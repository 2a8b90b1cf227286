"""Log metrics to Comet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline._core.arguments import flatten_dict
from paceline.train.backend import require
from paceline.train.callbacks import LoggerCallback
from paceline.train.loggers.tracker_record import TrackerRecord
from paceline.train.loggers.trial_hooks import LoggedTrial, TrialHooksMixin

_RECORD_NAME = ".comet-run"


class CometLoggerCallback(TrialHooksMixin, LoggerCallback):
    """Logs every report to an experiment of Comet, and the config as parameters.

    `online=False` writes an archive that `comet upload` sends later. `save_checkpoints` uploads the checkpoints of a
    run on this machine as models. Further arguments are attributes of Comet's `ExperimentConfig`, such as
    `disabled=True`; `workspace`, `project_name` and `api_key` go to `comet_ml.start`. A resumed run continues its
    experiment.
    """

    def __init__(
        self,
        online: bool = True,
        tags: Sequence[str] | None = None,
        save_checkpoints: bool = False,
        **experiment_kwargs: Any,
    ) -> None:
        require("CometLoggerCallback", ("comet_ml",), "")
        self._online = online
        self._tags = tuple(tags or ())
        self._saves_checkpoints = save_checkpoints
        self._options = experiment_kwargs
        self._experiment: Any = None
        self._record: TrackerRecord | None = None

    def log_trial_start(self, trial: LoggedTrial) -> None:
        import comet_ml

        run = trial.run
        record = self._record = TrackerRecord(run.directory / _RECORD_NAME, run.continues)
        names = ("workspace", "project_name", "project", "api_key")
        options = dict(self._options)
        connection = {name: options.pop(name) for name in names if name in options}
        settings = comet_ml.ExperimentConfig(name=trial.trial_name, tags=list(self._tags), **options)
        experiment = self._experiment = comet_ml.start(
            online=self._online,
            # Comet's keys have at least 32 letters and digits.
            experiment_key=record.run_id * 2,
            mode="get_or_create",
            experiment_config=settings,
            **connection,
        )
        if isinstance(trial.config, Mapping) and not run.continues:
            experiment.log_parameters(flatten_dict(trial.config))
        for report in run.past:
            if record.is_new(report):
                self.log_report(report)

    def log_trial_result(self, iteration: int, trial: LoggedTrial, result: dict[str, Any]) -> None:
        assert self._record is not None
        assert trial.report is not None
        for name, value in flatten_dict(result).items():
            if isinstance(value, int | float):
                self._experiment.log_metric(name, value, step=iteration)
            else:
                self._experiment.log_other(name, value)
        self._record.mark_logged(trial.report)

    def log_trial_save(self, trial: LoggedTrial) -> None:
        assert trial.checkpoint is not None
        directory = Path(trial.checkpoint.uri.removeprefix("file://"))
        if self._saves_checkpoints and directory.is_dir():
            self._experiment.log_model(trial.checkpoint.name, str(directory))
        else:
            self._experiment.log_other("checkpoint", trial.checkpoint.uri)

    def log_trial_end(self, trial: LoggedTrial, failed: bool = False) -> None:
        if self._experiment is not None:
            self._experiment.log_other("failed", failed)
            self._experiment.end()
        if self._record is not None:
            self._record.mark_all_written()
            self._record.close()
        self._experiment = self._record = None
