"""A run inside a trial: the reports of its workers become reports of the trial.

Both number their reports alike: report seven of the run is report seven of the trial. A retried trial starts its run
again, which resumes from its own last checkpoint; the trial first receives the reports it missed. Checkpoints of the
run become checkpoints of the trial by hard links: the files are not copied, and outlive the run's own retention.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from paceline._core.lazy_imports import explain_module
from paceline._storage.commit import list_files
from paceline._storage.run_layout import MANIFEST, METADATA
from paceline._worker.upload import Directory
from paceline.train.callbacks import LoggedReport, LoggedRun, LoggerCallback, TrainRunContext, UserCallback
from paceline.train.checkpoint import Checkpoint
from paceline.tune.session import TuneContext, require_trial_context

CHECKPOINT_PATH_KEY = "checkpoint_path"


class TrialReportError(BaseException):
    """A report of a run could not be forwarded to its trial. Not an `Exception`, because it must end the run."""


class TuneReportCallback(UserCallback, LoggerCallback):
    """Forwards the reports of a run to the trial that started it. Create it inside the trial:

        def trial(config):
            trainer = TorchTrainer(
                train_func,
                train_loop_config=config,
                run_config=RunConfig(name="train", callbacks=[TuneReportCallback()]),
            )
            trainer.fit()

    The metrics are those of rank 0. A checkpoint is forwarded too, and its path is reported as `checkpoint_path`. The
    run waits for the trial at each report, which may be its last.
    """

    is_synchronous = True

    def __init__(self) -> None:
        self._context = require_trial_context("integration.train.TuneReportCallback")
        begin = self._context.begin
        self._run_purpose = f"{TuneContext(self._context).get_experiment_name()}/{begin.run_name} {begin.purpose}"
        self._past: dict[int, LoggedReport] = {}
        """Reports that the run made before this trial restarted it, by number."""

    def log_start(self, run: LoggedRun) -> None:
        for report in run.past:
            last = self._past.get(report.number)
            if last is not None and report.attempt > last.attempt:
                for number in [number for number in self._past if number > report.number]:
                    del self._past[number]
            self._past[report.number] = report

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        number = run_context.report_number
        self._forward_missed_reports(number)
        if number <= self._context.num_reports:
            return  # Repeated by restarted workers: the trial already has it.
        passed = dict(metrics[0])
        if checkpoint is not None:
            passed[CHECKPOINT_PATH_KEY] = checkpoint.path
        self._forward_report(passed, checkpoint)

    def log_end(self, failed: bool) -> None:
        if not failed:
            self._forward_missed_reports(max(self._past, default=0) + 1)

    def _forward_missed_reports(self, number: int) -> None:
        """Send the trial the earlier reports it has not received."""
        for before in range(self._context.num_reports + 1, number):
            if before in self._past:
                self._forward_report(dict(self._past[before].metrics), None)

    def _forward_report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        try:
            files = self._link_checkpoint(checkpoint) if checkpoint is not None else None
            self._context.report(metrics, files)
        except Exception as error:
            raise TrialReportError(f"report {self._context.num_reports}: {error}") from error

    def _link_checkpoint(self, checkpoint: Checkpoint) -> Directory | None:
        """Link the files for the trial. None if they are in a store, or were deleted in favor of a newer checkpoint."""
        if not checkpoint.is_local:
            return None
        source, target = Path(checkpoint.path), self._context.uploader.scratch_directory()
        try:
            for name in list_files(source):
                if name not in (MANIFEST, METADATA):
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    try:
                        os.link(source / name, target / name)
                    except OSError:  # Another disk, or a filesystem without hard links.
                        shutil.copyfile(source / name, target / name)
        except FileNotFoundError:
            shutil.rmtree(target)
            return None
        return Directory(target)


explain_module(__name__)
