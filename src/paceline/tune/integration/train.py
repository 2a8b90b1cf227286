"""A run inside a trial: what its workers report becomes what the trial reports.

The reports of the two are counted alike: number seven of the run is number seven of the trial. A trial that is tried
again starts its run again, which goes on from its own last checkpoint; what the trial has not heard before it then
hears first. Checkpoints of the run become checkpoints of the trial by links to the same files, which are not copied
and outlive the run's own retention.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from paceline._storage.commit import files_below
from paceline._storage.layout import MANIFEST, METADATA
from paceline._worker.upload import Directory
from paceline.train.callbacks import LoggedReport, LoggedRun, LoggerCallback, TrainRunContext, UserCallback
from paceline.train.checkpoint import Checkpoint
from paceline.tune.session import TuneContext, trial_context

CHECKPOINT_PATH_KEY = "checkpoint_path"


class TrialReportError(BaseException):
    """A report of a run could not be passed on to its trial. It ends the run, so it is not an `Exception`."""


class TuneReportCallback(UserCallback, LoggerCallback):
    """Passes the reports of a run on to the trial that started it. To be made inside the trial:

        def trial(config):
            trainer = TorchTrainer(
                train_func,
                train_loop_config=config,
                run_config=RunConfig(name="train", callbacks=[TuneReportCallback()]),
            )
            trainer.fit()

    The metrics are those of rank 0. With a checkpoint comes its path, as `checkpoint_path`, and the trial has that
    checkpoint, too.
    """

    def __init__(self) -> None:
        self._context = trial_context("integration.train.TuneReportCallback")
        begin = self._context.begin
        self._made_for = f"{TuneContext(self._context).get_experiment_name()}/{begin.run_name} {begin.purpose}"
        self._past: dict[int, LoggedReport] = {}
        """What the run had reported before this trial started it again, by number."""

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
        self._catch_up(number)
        if number <= self._context.num_reports:
            return  # Made again by workers that were started again: the trial has had it.
        passed = dict(metrics[0])
        if checkpoint is not None:
            passed[CHECKPOINT_PATH_KEY] = checkpoint.path
        self._pass_on(passed, checkpoint)

    def log_end(self, failed: bool) -> None:
        if not failed:
            self._catch_up(max(self._past, default=0) + 1)

    def _catch_up(self, number: int) -> None:
        """Tell the trial what it has not heard of the reports before this one."""
        for before in range(self._context.num_reports + 1, number):
            if before in self._past:
                self._pass_on(dict(self._past[before].metrics), None)

    def _pass_on(self, metrics: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        try:
            files = self._linked(checkpoint) if checkpoint is not None else None
            self._context.report(metrics, files)
        except Exception as error:
            raise TrialReportError(f"report {self._context.num_reports}: {error}") from error

    def _linked(self, checkpoint: Checkpoint) -> Directory | None:
        """The same files for the trial. None where they lie in a store, or are gone because a newer one is kept."""
        if not checkpoint.is_local:
            return None
        source, target = Path(checkpoint.path), self._context.uploader.scratch_directory()
        try:
            for name in files_below(source):
                if name not in (MANIFEST, METADATA):
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    _link(source / name, target / name)
        except FileNotFoundError:
            shutil.rmtree(target)
            return None
        return Directory(target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # Of another disk, or of one that has no links.
        shutil.copyfile(source, target)
