"""`OptunaSearch`: suggests by Optuna's samplers, asked for one trial at a time and told what became of it."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from paceline._core.plain import looked_up
from paceline.tune.search.optuna.quiet import quiet
from paceline.tune.search.optuna.samplers import Known, Samplers, checked_sampler
from paceline.tune.search.optuna.spaces import Space, same, understood
from paceline.tune.search.searcher import Searcher

log = logging.getLogger("paceline")

_DIRECTIONS = {"min": "minimize", "max": "maximize"}


class OptunaSearch(Searcher):
    """Suggests by a sampler of Optuna's: TPE unless another is asked for.

    `space` is the space of the `Tuner` if it is left out; else a space of paceline's domains, a dict of Optuna's
    distributions, or a function that takes an Optuna trial, suggests by its `suggest_...` methods, and returns further
    constant values or nothing. `metric` and `mode` may be lists, for several objectives.

    `sampler` is a name ("tpe", "gp", "cmaes", "qmc", "nsgaii", "nsgaiii", "random") or a sampler of Optuna's. With a
    name and a seed, each suggestion depends only on the seed, its number and what was told before: a search that is
    continued suggests what it would have suggested had it not been interrupted. A sampler that you made has its own
    seed, and `seed` is not used.

    `points_to_evaluate` are configurations, or parts of them, to begin with; with `evaluated_rewards`, the metric of
    each of them, they are only learned from. Trials that a scheduler has stopped early are told as pruned.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | Callable[[optuna.Trial], Mapping[str, Any] | None] | None = None,
        metric: str | list[str] | None = None,
        mode: str | list[str] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        sampler: str | BaseSampler | None = None,
        seed: int | None = None,
        evaluated_rewards: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(metric, mode)
        _check_objectives(metric, mode)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"seed={seed!r} is not a whole number, or None")
        self._sampler = checked_sampler(sampler)
        if seed is not None and isinstance(self._sampler, BaseSampler):
            log.warning("seed=%s is not used: %s was made with its own", seed, type(self._sampler).__name__)
        self._seed = seed
        self._chance = seed if seed is not None else secrets.randbits(32)
        self._space: Space | None = understood(space, "space") if space is not None else None
        self._constants: dict[str, Any] = {}
        self._points = _checked_points(points_to_evaluate, evaluated_rewards)
        self._rewards = evaluated_rewards
        self._study: optuna.Study | None = None
        self._samplers: Samplers | None = None
        self._trials: dict[str, optuna.Trial] = {}
        """Those that run."""
        self._over: dict[str, int] = {}
        """The numbers of those that do not."""
        self._num_suggested = 0
        self._farthest = 0
        """The most iterations that a trial has made."""

    @property
    def study(self) -> optuna.Study:
        """Optuna's study, in memory: its trials are numbered as they were suggested, and `user_attrs["trial_id"]` has
        the name of each."""
        if self._study is None:
            self._begin()
        assert self._study is not None
        return self._study

    def set_search_properties(
        self, metric: str | list[str] | None, mode: str | list[str] | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take the metric, the mode, the space and the seed of the `Tuner`, where this searcher has none of its own.

        A searcher with a space of its own takes constants beside it. Raises `ValueError` where it was given a space
        twice, or one metric with two modes. False once it has begun.
        """
        if self._study is not None:
            return False
        taken = understood(config, "param_space") if config else None
        if taken is not None and self._space is not None and taken.parameters:
            raise ValueError(
                f"OptunaSearch has the space {self._space}, and Tuner has a param_space with {taken}: only one of them "
                "can be searched\n\nhint: leave out one of the two"
            )
        if (self.metric is None or metric is None or self.metric == metric) and _differs(self.mode, mode):
            raise ValueError(
                f"OptunaSearch has mode={self.mode!r} and TuneConfig has mode={mode!r}\n\n"
                "hint: give metric and mode to TuneConfig alone"
            )
        if self.metric is None:
            self.metric = metric
        if self.mode is None:
            self.mode = mode
        _check_objectives(self.metric, self.mode)
        if self._space is None:
            self._space = taken
        elif taken is not None:
            self._constants = dict(config)
        if self._seed is None and spec.get("seed") is not None:
            self._seed = self._chance = spec["seed"]
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self._check_new(trial_id)
        waiting = [] if self._rewards is not None else self._points
        point = waiting[self._num_suggested] if self._num_suggested < len(waiting) else None
        self._num_suggested += 1
        if point is None:
            return self._asked(trial_id, {})
        return self._asked(trial_id, self._space_of_search().given(point), point=point)

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        self._check_new(trial_id)
        known = self._space_of_search().known(config)
        if known is not None:
            self._num_suggested += 1
            self._asked(trial_id, known, again=True)
        elif not same(again := self.suggest(trial_id), config):
            log.warning(
                "OptunaSearch does not recognise the configuration of trial %s, and suggests another one for it than "
                "before: what that trial reports is learned under the wrong configuration. Before: %s; now: %s",
                trial_id,
                config,
                again,
            )

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        step = result.get("training_iteration")
        self._farthest = max(self._farthest, step if isinstance(step, int) else 0)
        trial = self._trials.get(trial_id)
        if trial is None or isinstance(self.metric, list):
            return  # Optuna has no values on the way to several objectives.
        value = self._value(result, self.metric)
        if value is not None and isinstance(step, int) and step >= 0:
            with quiet():
                trial.report(value, step)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        values = None if error else self._values(trial_id, result)
        self._tell(trial_id, values, TrialState.FAIL if values is None else TrialState.COMPLETE)

    def on_trial_stopped(self, trial_id: str, result: Mapping[str, Any] | None = None) -> None:
        assert self._samplers is not None
        # Schedulers also stop trials that have had all the time there is: these are whole.
        is_whole = result is not None and result.get("training_iteration", 0) >= self._farthest
        if is_whole or not self._samplers.learns_from_stopped or isinstance(self.metric, list):
            self.on_trial_complete(trial_id, result)
        else:
            self._tell(trial_id, None, TrialState.PRUNED)

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: float | Sequence[float],
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a configuration that was evaluated elsewhere. Tell it the same when a search is continued."""
        values = list(value) if isinstance(value, Sequence) else [value]
        name = f"evaluated_{len(self.study.trials)}"
        self._evaluated(name, parameters, values, error, pruned, intermediate_values or ())

    def _evaluated(
        self,
        name: str,
        point: Mapping[str, Any],
        values: Sequence[float],
        error: bool = False,
        pruned: bool = False,
        on_the_way: Sequence[float] = (),
    ) -> None:
        known = self._space_of_search().known(point)
        if known is None:
            raise ValueError(
                f"{dict(point)!r} is no configuration of the space: to learn from it, each parameter has to be in it, "
                f"with a value that it can have. The space is {self._space}"
            )
        objectives = len(_listed(self.metric))
        if len(values) != objectives:
            raise ValueError(f"{list(values)!r} is not one number for each of the {objectives} metrics")
        self._asked(name, known)
        for step, value in enumerate(on_the_way, start=1):
            self.on_trial_result(name, {str(self.metric): value, "training_iteration": step})
        numbers = [_number(value) for value in values]
        finite = None if error or None in numbers else [number for number in numbers if number is not None]
        state = TrialState.FAIL if finite is None else TrialState.PRUNED if pruned else TrialState.COMPLETE
        self._tell(name, finite if state is TrialState.COMPLETE else None, state)

    def _begin(self) -> None:
        metrics, modes = _listed(self.metric), _listed(self.mode)
        if not metrics or not modes:
            raise ValueError(
                f"OptunaSearch has metric={self.metric!r} and mode={self.mode!r}: it has to know what to search for\n\n"
                'hint: OptunaSearch(metric="loss", mode="min"), or the same in TuneConfig'
            )
        self._samplers = Samplers(self._sampler, len(metrics), self._chance)
        with quiet():
            self._study = optuna.create_study(
                directions=[_DIRECTIONS[mode] for mode in modes],  # type: ignore[misc]
                sampler=self._samplers.of(0),
                pruner=optuna.pruners.NopPruner(),
            )
            self._study.set_metric_names(metrics)
        for index, reward in enumerate(self._rewards or ()):
            values = list(reward) if isinstance(reward, Sequence) else [reward]
            self._evaluated(f"evaluated_{index}", self._points[index], values)

    def _check_new(self, trial_id: str) -> None:
        if trial_id in self._trials or trial_id in self._over:
            raise ValueError(f"trial {trial_id} was suggested already: an OptunaSearch is of one search only")

    def _space_of_search(self) -> Space:
        if self._space is None:
            raise ValueError(
                "OptunaSearch has no space to search in\n\n"
                'hint: give Tuner a param_space such as {"lr": tune.loguniform(1e-5, 1e-1)}, or OptunaSearch a space'
            )
        return self._space

    def _asked(
        self, trial_id: str, known: Mapping[str, Any], again: bool = False, point: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        study, space = self.study, self._space_of_search()
        assert self._samplers is not None
        inner = self._samplers.of(len(study.get_trials(deepcopy=False)))
        study.sampler = Known(inner, known, again and self._samplers.can_skip) if known else inner
        with quiet():
            trial = study.ask()
            trial.set_user_attr("trial_id", trial_id)
            try:
                config = space.suggest(trial, point or {}, self._chance)
            except BaseException:
                study.tell(trial, state=TrialState.FAIL)
                raise
        self._trials[trial_id] = trial
        return {**self._constants, **config}

    def _tell(self, trial_id: str, values: list[float] | None, state: TrialState) -> None:
        trial = self._trials.pop(trial_id, None)
        if trial is None and trial_id not in self._over:
            return
        assert self._samplers is not None
        with quiet():
            if trial is None:
                self._tell_again(self._over[trial_id], values)
                return
            self.study.sampler = self._samplers.of(len(self.study.get_trials(deepcopy=False)))
            self._over[trial_id] = trial.number
            self.study.tell(trial, values, state)

    def _tell_again(self, number: int, values: list[float] | None) -> None:
        """A trial that had failed has run again, to its end; to Optuna it is another one with the same parameters."""
        failed = self.study.get_trials(deepcopy=False)[number]
        if values is not None and failed.state is TrialState.FAIL:
            again = optuna.trial.create_trial(
                params=failed.params, distributions=failed.distributions, user_attrs=failed.user_attrs, values=values
            )
            self.study.add_trial(again)

    def _values(self, trial_id: str, result: Mapping[str, Any] | None) -> list[float] | None:
        """The objectives in a result; None where one is missing or not a number."""
        values = [self._value(result or {}, metric) for metric in _listed(self.metric)]
        missing = [m for m, value in zip(_listed(self.metric), values, strict=True) if value is None]
        if missing and result:
            log.warning(
                "trial %s ended without a number for %s, so the search learns nothing from it; its last report has %s",
                trial_id,
                " and ".join(missing),
                ", ".join(f"{key}={value!r}" for key, value in result.items() if key != "config"),
            )
        return None if missing else [value for value in values if value is not None]

    def _value(self, result: Mapping[str, Any], metric: str | None) -> float | None:
        return _number(looked_up(dict(result), metric)) if metric is not None else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _listed(value: str | Sequence[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else [*(value or ())]


def _differs(own: Any, other: Any) -> bool:
    return own is not None and other is not None and _listed(own) != _listed(other)


def _check_objectives(metric: Any, mode: Any) -> None:
    for name, value in (("metric", metric), ("mode", mode)):
        names = value if isinstance(value, list | tuple) else [value]
        if value is not None and not (names and all(isinstance(item, str) and item for item in names)):
            raise ValueError(f"{name}={value!r} is neither a name nor a list of names")
    for item in _listed(mode):
        if item not in _DIRECTIONS:
            raise ValueError(f"mode={mode!r} has {item!r}: it has to be 'min' or 'max'")
    metrics, modes = _listed(metric), _listed(mode)
    if metrics and modes and len(metrics) != len(modes):
        raise ValueError(f"metric={metric!r} and mode={mode!r}: there has to be one mode for each metric")
    if len({*metrics}) != len(metrics):
        raise ValueError(f"metric={metric!r} names a metric twice")


def _checked_points(points: Any, rewards: Any) -> list[Mapping[str, Any]]:
    if points is not None and (isinstance(points, Mapping | str) or not isinstance(points, Sequence)):
        raise ValueError(f"points_to_evaluate={points!r} is not a list of configurations")
    for point in points or ():
        if not isinstance(point, Mapping):
            raise ValueError(f"points_to_evaluate has {point!r}, which is not a dict")
    if rewards is not None and (not isinstance(rewards, Sequence) or len(rewards) != len(points or ())):
        raise ValueError(
            f"evaluated_rewards={rewards!r} has to have one reward for each of the {len(points or ())} "
            "points_to_evaluate"
        )
    return [*(points or ())]
