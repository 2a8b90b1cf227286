"""The hooks of Ray's loggers for trials, for loggers of one run: a run counts as one trial.

A subclass may override `log_trial_result` and the like; `super()` logs. In a search, each trial has its own copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.train.callbacks import LoggedCheckpoint, LoggedReport, LoggedRun


@dataclass(eq=False)
class LoggedTrial:
    """The run that is logged, as hooks for trials see it."""

    run: LoggedRun
    report: LoggedReport | None = None
    checkpoint: LoggedCheckpoint | None = None
    """The newest report and checkpoint."""
    identity: tuple[str, str] | None = None
    """Its id and its name in a search."""

    @property
    def trial_id(self) -> str:
        return self.identity[0] if self.identity is not None else self.run.context.run_id

    @property
    def trial_name(self) -> str:
        return self.identity[1] if self.identity is not None else self.run.context.run_id

    @property
    def config(self) -> Any:
        return self.run.context.train_loop_config

    @property
    def local_path(self) -> str:
        return str(self.run.directory)

    logdir = path = local_path

    @property
    def last_result(self) -> dict[str, Any]:
        return dict(self.report.metrics) if self.report is not None else {}

    def __str__(self) -> str:
        return self.trial_name


class TrialHooksMixin:
    """Put in front of `LoggerCallback`: turns its calls into those of Ray's hooks."""

    _has_trial_hooks = True
    _trial: LoggedTrial | None = None
    _identity: tuple[str, str] | None = None
    """In a search: the id and the name of the trial whose run is logged."""
    _last_logged: tuple[int, int] = (0, 0)
    """The attempt and number of the last report that was logged."""

    def log_trial_start(self, trial: LoggedTrial) -> None:
        """The run starts or continues."""

    def log_trial_restore(self, trial: LoggedTrial) -> None:
        """The run that just started continues an earlier one."""

    def log_trial_save(self, trial: LoggedTrial) -> None:
        """A checkpoint has been committed: `trial.checkpoint`."""

    def log_trial_result(self, iteration: int, trial: LoggedTrial, result: dict[str, Any]) -> None:
        """The run has reported."""

    def log_trial_end(self, trial: LoggedTrial, failed: bool = False) -> None:
        """The run has ended."""

    def setup(
        self, stop: Any = None, num_samples: int | None = None, total_num_samples: int | None = None, **info: Any
    ) -> None:
        """Called first."""

    def on_step_begin(self, iteration: int, trials: list[LoggedTrial], **info: Any) -> None:
        """Called before a report is logged."""

    def on_step_end(self, iteration: int, trials: list[LoggedTrial], **info: Any) -> None:
        """Called after a report was logged."""

    def on_trial_start(self, iteration: int, trials: list[LoggedTrial], trial: LoggedTrial, **info: Any) -> None:
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: list[LoggedTrial], trial: LoggedTrial, **info: Any) -> None:
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: list[LoggedTrial], trial: LoggedTrial, **info: Any) -> None:
        self.log_trial_save(trial)

    def on_trial_result(
        self, iteration: int, trials: list[LoggedTrial], trial: LoggedTrial, result: dict[str, Any], **info: Any
    ) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_trial_recover(self, iteration: int, trials: list[LoggedTrial], trial: LoggedTrial, **info: Any) -> None:
        """The workers were restarted."""

    def on_trial_complete(self, iteration: int, trials: list[LoggedTrial], trial: LoggedTrial, **info: Any) -> None:
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: list[LoggedTrial], trial: LoggedTrial, **info: Any) -> None:
        self.log_trial_end(trial, failed=True)

    def on_checkpoint(
        self,
        iteration: int,
        trials: list[LoggedTrial],
        trial: LoggedTrial,
        checkpoint: LoggedCheckpoint,
        **info: Any,
    ) -> None:
        """As `on_trial_save`, with the checkpoint."""

    def on_experiment_end(self, trials: list[LoggedTrial], **info: Any) -> None:
        """Called last."""

    def get_state(self) -> dict[str, Any] | None:
        """Never called: a logger that continues a run reads `past`."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Never called, as `get_state`."""

    def _make_result(self, report: LoggedReport) -> dict[str, Any]:
        return dict(report.metrics)

    def log_start(self, run: LoggedRun) -> None:
        trial = self._trial = LoggedTrial(run, identity=self._identity)
        self._last_logged = (0, 0)
        self.setup()
        self.on_trial_start(0, [trial], trial)
        if run.continues:
            self.on_trial_restore(0, [trial], trial)

    def log_report(self, report: LoggedReport) -> None:
        trial = self._trial
        assert trial is not None
        # While a tracker starts, the run goes on: what it reports meanwhile is in `past` too.
        if (report.attempt, report.number) <= self._last_logged:
            return
        self._last_logged = (report.attempt, report.number)
        if trial.report is not None and report.attempt > trial.report.attempt:
            self.on_trial_recover(report.number, [trial], trial)
        trial.report = report
        self.on_step_begin(report.number, [trial])
        self.on_trial_result(report.number, [trial], trial, self._make_result(report))
        self.on_step_end(report.number, [trial])

    def log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        trial = self._trial
        assert trial is not None
        trial.checkpoint = checkpoint
        self.on_trial_save(checkpoint.number, [trial], trial)
        self.on_checkpoint(checkpoint.number, [trial], trial, checkpoint)

    def log_end(self, failed: bool) -> None:
        trial, self._trial = self._trial, None
        if trial is None:
            return
        number = trial.report.number if trial.report is not None else 0
        (self.on_trial_error if failed else self.on_trial_complete)(number, [trial], trial)
        self.on_experiment_end([trial])
