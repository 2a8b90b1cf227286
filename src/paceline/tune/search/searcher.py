"""The interface of searchers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from paceline._core.arguments import bad_value, is_number
from paceline._core.plain_values import get_metric
from paceline.tune.saved_state import get_private_state, load_plain, save_plain, set_private_state

log = logging.getLogger("paceline")

Names = str | list[str] | None
"""A metric or a mode; for several objectives, a list of these."""


class Searcher:
    """Base of searchers: subclass it and implement `suggest`.

    It runs in the driver and suggests one trial at a time. It must take its randomness from its own seed: when a search
    is resumed, its state is rebuilt by `rebuild` and the `on_trial_...` methods, called in the original order. Built-in
    searchers keep each constructor argument as an attribute of the same name, from which the journal describes them.
    """

    FINISHED: ClassVar[str] = "FINISHED"
    CKPT_FILE_TMPL: ClassVar[str] = "searcher-state-{}.json"
    """The name of the file that `save_to_dir` writes."""
    unsaved: ClassVar[tuple[str, ...]] = ()
    """Private attributes that `save` leaves out, because they only depend on the arguments and the space."""

    needs_metric: bool = True
    """It learns from results, so a metric is required."""
    counts_samples: bool = False
    """It ends by itself after `num_samples` samples, however many trials these are. Otherwise the search ends it."""

    metric: Names = None
    mode: Names = None

    def __init__(self, metric: Names = None, mode: Names = None) -> None:
        self.metric = metric
        self.mode = mode

    def set_search_properties(self, metric: Names, mode: Names, config: Mapping[str, Any], **spec: Any) -> bool:
        """Take the `Tuner`'s metric and space; False: it has its own already. `spec`: `num_samples` and `seed`."""
        return False

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Take the limit of a `ConcurrencyLimiter`; return False if the searcher has no limit of its own."""
        return False

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        """Return the configuration of the next trial; None: ask again after a result; FINISHED: no more trials."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """A trial made a report that contains the metric."""

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """A trial ended, with its last result; `error` if it failed."""

    def on_trial_stopped(self, trial_id: str, result: Mapping[str, Any] | None = None) -> None:
        """A scheduler stopped a trial early. Called instead of `on_trial_complete`, which it calls by default."""
        self.on_trial_complete(trial_id, result)

    def on_pause(self, trial_id: str) -> None:
        """A scheduler paused a trial."""

    def on_unpause(self, trial_id: str) -> None:
        """A paused trial resumes."""

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: Any,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a configuration that was evaluated elsewhere, and the value of its metric."""
        raise NotImplementedError(f"{type(self).__name__} does not learn from points that were evaluated elsewhere")

    def add_evaluated_trials(self, trials_or_analysis: Any, metric: str) -> None:
        """Learn from the trials of another search: a `ResultGrid`, an `ExperimentAnalysis`, or one or more trials."""
        trials = getattr(trials_or_analysis, "trials", trials_or_analysis)
        for trial in trials if isinstance(trials, Iterable) else [trials]:
            result = getattr(trial, "last_result", None) or getattr(trial, "metrics", None) or {}
            value = get_metric(dict(result), metric)
            config = getattr(trial, "config", None) or {}
            if is_number(value):
                self.add_evaluated_point(config, value, error=value != value)

    def get_state(self) -> dict[str, Any]:
        """Return what it has learned, in plain form."""
        return get_private_state(self)

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over the state of another searcher of this class, created with the same arguments."""
        set_private_state(self, state)

    def save(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """Write its state to a JSON file. A search keeps its own record of it: this is for your own use."""
        save_plain(self, self.get_state(), checkpoint_path)

    def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
        self.set_state(load_plain(self, checkpoint_path))

    def save_to_dir(self, checkpoint_dir: str | os.PathLike[str], session_str: str = "default") -> None:
        self.save(Path(checkpoint_dir) / self.CKPT_FILE_TMPL.format(session_str))

    def restore_from_dir(self, checkpoint_dir: str | os.PathLike[str]) -> None:
        """Restore the newest state in a directory."""
        saved = sorted(
            Path(checkpoint_dir).glob(self.CKPT_FILE_TMPL.format("*")), key=lambda file: file.stat().st_mtime
        )
        if not saved:
            raise FileNotFoundError(f"no {self.CKPT_FILE_TMPL.format('*')} in {os.fspath(checkpoint_dir)}")
        self.restore(saved[-1])

    def has_checkpoint(self, dirpath: str | os.PathLike[str]) -> bool:
        """Whether a directory has a state to restore."""
        return any(Path(dirpath).glob(self.CKPT_FILE_TMPL.format("*")))

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Restore a trial that was suggested with this configuration under an earlier driver."""
        again = self.suggest(trial_id)
        if again != config:
            text = "%s suggests another configuration for trial %s than before, so what it learned is lost. "
            log.warning(f"{text}Give it a seed, or implement rebuild()", type(self).__name__, trial_id)


def check_points(points: Any) -> list[Mapping[str, Any]]:
    if points is None:
        return []
    if not isinstance(points, Sequence) or isinstance(points, str):
        raise bad_value("points_to_evaluate", "a list of configurations", points)
    for index, point in enumerate(points):
        if not isinstance(point, Mapping):
            raise bad_value(f"points_to_evaluate[{index}]", "a dict of values", point)
    return [dict(point) for point in points]
