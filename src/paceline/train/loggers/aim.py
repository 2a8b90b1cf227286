"""Log metrics to Aim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline._core.arguments import flatten_dict
from paceline.train.backend import require
from paceline.train.callbacks import LoggerCallback
from paceline.train.loggers.trial_hooks import LoggedTrial, TrialHooksMixin

_RECORD_NAME = ".aim-run"


class AimLoggerCallback(TrialHooksMixin, LoggerCallback):
    """Logs every number of a report, or those named in `metrics`, to a run of Aim, and the config as `hparams`.

    `repo` is Aim's repository (by default the run's directory), `experiment_name` by default the name of the run.
    Further arguments go to `aim.Run`. A resumed run continues its Aim run; Aim replaces what it has at the same step.
    """

    def __init__(
        self,
        repo: str | None = None,
        experiment_name: str | None = None,
        metrics: Sequence[str] | None = None,
        **aim_run_kwargs: Any,
    ) -> None:
        require("AimLoggerCallback", ("aim",), "")
        self._repo = repo
        self._experiment_name = experiment_name
        self._metrics = frozenset(metrics) if metrics is not None else None
        self._options = aim_run_kwargs
        self._aim_run: Any = None

    def log_trial_start(self, trial: LoggedTrial) -> None:
        import aim

        run, record = trial.run, trial.run.directory / _RECORD_NAME
        known = record.read_text() if run.continues and record.exists() else None
        self._aim_run = aim.Run(
            run_hash=known,
            repo=self._repo if self._repo is not None else str(run.directory),
            experiment=self._experiment_name or trial.trial_name,
            **self._options,
        )
        record.write_text(self._aim_run.hash)
        if isinstance(trial.config, Mapping):
            self._aim_run["hparams"] = {name: str(value) for name, value in flatten_dict(trial.config).items()}
        for report in run.past:
            self.log_report(report)

    def log_trial_result(self, iteration: int, trial: LoggedTrial, result: dict[str, Any]) -> None:
        for name, value in flatten_dict(result).items():
            if isinstance(value, int | float) and (self._metrics is None or name in self._metrics):
                self._aim_run.track(value, name=name, step=iteration)

    def log_trial_save(self, trial: LoggedTrial) -> None:
        assert trial.checkpoint is not None
        self._aim_run["checkpoint"] = trial.checkpoint.uri

    def log_trial_end(self, trial: LoggedTrial, failed: bool = False) -> None:
        if self._aim_run is not None:
            self._aim_run["failed"] = failed
            self._aim_run.close()
        self._aim_run = None
