"""The functions a trial calls: `report`, `get_checkpoint`, `get_context`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import PurePosixPath
from typing import Any

from paceline._worker import context as worker_context
from paceline._worker.context import WorkerContext
from paceline.train import session as train_session
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import TrainContext

__all__ = ["Checkpoint", "TuneContext", "get_checkpoint", "get_context", "report"]

_TRIAL = re.compile(r"trial_(\d+)(?:-(\d+))?")
"""The name of a trial's run: the trial's number, and the run's number if there are several."""


class TuneContext(TrainContext):
    """Identifies the current trial and its search."""

    def get_experiment_name(self) -> str:
        """The name of the search."""
        return PurePosixPath(self.get_trial_dir()).parent.name

    def get_trial_id(self) -> str:
        """The trial's id, such as `a1b2c_00012`: stable across failures and when the search resumes.

        The first part is that of the search, so no other search has a trial with this id.
        """
        if self._begin.trial_id:
            return self._begin.trial_id
        matched = _TRIAL.fullmatch(self._begin.run_name)
        assert matched is not None
        return matched[1]

    def get_trial_name(self) -> str:
        """The name from `TuneConfig(trial_name_creator)`, else one such as `train_fn_a1b2c_00012`.

        That is `train_fn_a1b2c_00012-1` if it continues from another trial.
        """
        return self._begin.trial_name or self._begin.run_name


def report(metrics: dict[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Report metrics of this trial, and optionally a checkpoint, which is committed when this returns.

    If the trial is to stop or pause, this does not return: the function ends through an exception that is not an
    `Exception`.
    """
    require_trial_context("report")
    train_session.report(metrics, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of the trial, or the one it continues from; None if there is none yet."""
    require_trial_context("get_checkpoint")
    return train_session.get_checkpoint()


def get_context() -> TuneContext:
    """The context of the current trial."""
    return TuneContext(require_trial_context("get_context"))


def num_reports() -> int:
    """The number of reports of this trial's run, including those before its last checkpoint."""
    return require_trial_context("num_reports").num_reports


def begin_trial() -> None:
    """Set up a trial's worker: use only its own cores, and store the runs that its function starts inside the trial."""
    context = worker_context.current()
    if context is None:
        return
    if (torch := sys.modules.get("torch")) is not None:
        # torch was imported before the fork, when the thread variables were not yet those of this trial.
        torch.set_num_threads(context.begin.num_threads)
    if context.begin.store is None:
        os.environ["PACELINE_STORAGE_PATH"] = str(context.layout.root / "runs")


def require_trial_context(function: str) -> WorkerContext:
    """Return this process's worker context; raise if it is not a trial's."""
    context = worker_context.current()
    if context is None:
        raise RuntimeError(
            f"`tune.{function}` cannot be used outside of a trial\n\n"
            "hint: call it in the function or class that you pass to Tuner"
        )
    if not context.begin.trial_id and not _TRIAL.fullmatch(context.begin.run_name):
        raise RuntimeError(
            f"`tune.{function}` cannot be used in the run {context.begin.run_name}, which is not a trial of a search"
            f"\n\nhint: use `train.{function}` here; to forward the reports of a run to the trial that started it, use "
            "RunConfig(callbacks=[TuneReportCallback()]) of paceline.tune.integration.train"
        )
    return context
