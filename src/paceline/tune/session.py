"""What a trial calls: `report`, `get_checkpoint`, `get_context`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import PurePosixPath
from typing import Any

from paceline._worker import context as worker_context
from paceline._worker.context import Context
from paceline.train import session as train_session
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import TrainContext

__all__ = ["Checkpoint", "TuneContext", "get_checkpoint", "get_context", "report"]

_TRIAL = re.compile(r"trial_(\d+)(?:-(\d+))?")
"""The name of a trial's run: its number, and which of its lives it is where it has had several."""


class TuneContext(TrainContext):
    """Which trial this is, and of which search."""

    def get_experiment_name(self) -> str:
        """The name of the search."""
        return PurePosixPath(self.get_trial_dir()).parent.name

    def get_trial_id(self) -> str:
        """The trial's number in its search, as `00012`: the same after a failure and when the search is continued."""
        matched = _TRIAL.fullmatch(self._begin.run_name)
        assert matched is not None
        return matched[1]

    def get_trial_name(self) -> str:
        """The name of the trial's run, as `trial_00012`; `trial_00012-1` where it goes on from another trial's."""
        return self._begin.run_name


def report(metrics: dict[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Report metrics of this trial, and optionally a checkpoint, which is committed when this returns.

    A trial that is to stop or to wait does not return from here: its function ends, as by an exception that is not an
    `Exception`.
    """
    trial_context("report")
    train_session.report(metrics, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of the trial, or the one that it goes on from; None where there is none yet."""
    trial_context("get_checkpoint")
    return train_session.get_checkpoint()


def get_context() -> TuneContext:
    """Which trial this is."""
    return TuneContext(trial_context("get_context"))


def num_reports() -> int:
    """How many this trial's run has made, those before its last checkpoint included."""
    return trial_context("num_reports").num_reports


def begin_trial() -> None:
    """In the worker of a trial: it uses the cores that it has, and runs that its function starts are kept with it."""
    context = worker_context.current()
    if context is None:
        return
    if (torch := sys.modules.get("torch")) is not None:
        # Imported before the fork, when the variables that would have told it were not yet those of this trial.
        torch.set_num_threads(context.begin.num_threads)
    if context.begin.store is None:
        os.environ["PACELINE_STORAGE_PATH"] = str(context.layout.root / "runs")


def trial_context(function: str) -> Context:
    """The worker that this process is, which has to be one of a trial."""
    context = worker_context.current()
    if context is None:
        raise RuntimeError(
            f"`tune.{function}` cannot be used outside of a trial: call it in the function or class that you pass to "
            "Tuner"
        )
    if not _TRIAL.fullmatch(context.begin.run_name):
        raise RuntimeError(
            f"`tune.{function}` cannot be used in the run {context.begin.run_name}, which is not a trial of a search"
            f"\n\nhint: use `train.{function}` here; to pass what a run reports on to a trial that started it, give it "
            "RunConfig(callbacks=[TuneReportCallback()]) of paceline.tune.integration.train"
        )
    return context
