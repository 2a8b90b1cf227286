"""`OptunaSearch`: suggests configurations with Optuna's samplers, by ask and tell."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from paceline._core.arguments import bad_value, check_choice, check_int
from paceline._core.plain_values import get_metric
from paceline.tune.search.optuna.samplers import KnownParametersSampler, TrialSamplers, check_sampler, silence_optuna
from paceline.tune.search.optuna.spaces import OptunaSpace, is_same_config, parse_space
from paceline.tune.search.searcher import Names, Searcher, check_points

log = logging.getLogger("paceline")

_DIRECTIONS = {"min": "minimize", "max": "maximize"}


@dataclass(eq=False, repr=False)
class OptunaSearch(Searcher):
    """Suggests configurations with an Optuna sampler; TPE by default.

    `space` defaults to the space of the `Tuner`; else it is a space of paceline's domains, a dict of Optuna
    distributions, or a function that takes an Optuna trial, calls its `suggest_...` methods, and returns further
    constant values or nothing. `metric` and `mode` may be lists, for several objectives.

    `sampler` is a name ("tpe", "gp", "cmaes", "qmc", "nsgaii", "nsgaiii", "random") or an Optuna sampler. With a name
    and a seed, each suggestion depends only on the seed, its number and earlier results: a resumed search suggests what
    it would have suggested without the interruption. A sampler object has its own seed, and `seed` is ignored.

    `points_to_evaluate` are full or partial configurations to start with; if `evaluated_rewards` gives the metric of
    each, they are only learned from and not run. Trials stopped early by a scheduler are reported to Optuna as pruned.
    """

    space: Mapping[str, Any] | Callable[[optuna.Trial], Mapping[str, Any] | None] | None = None
    metric: Names = None
    mode: Names = None
    points_to_evaluate: Sequence[Mapping[str, Any]] | None = None
    sampler: str | BaseSampler | None = None
    seed: int | None = None
    evaluated_rewards: Sequence[Any] | None = None
    _constants: dict[str, Any] = field(default_factory=dict, init=False)
    _study: optuna.Study | None = field(default=None, init=False)
    _samplers: TrialSamplers | None = field(default=None, init=False)
    _trials: dict[str, optuna.Trial] = field(default_factory=dict, init=False)
    _ended_numbers: dict[str, int] = field(default_factory=dict, init=False)
    _num_suggested: int = field(default=0, init=False)
    _farthest: int = field(default=0, init=False)
    """The most iterations any trial has made."""
    _history: list[list[Any]] = field(default_factory=list, init=False)
    """What the study was asked and told, in order."""
    _state_to_restore: dict[str, Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        _check_objectives(self.metric, self.mode)
        check_int("seed", self.seed, optional=True)
        self._sampler = check_sampler(self.sampler)
        if self.seed is not None and isinstance(self._sampler, BaseSampler):
            log.warning("seed=%s is ignored: %s has its own", self.seed, type(self._sampler).__name__)
        self._search_seed = self.seed if self.seed is not None else secrets.randbits(32)
        self._space: OptunaSpace | None = parse_space(self.space, "space") if self.space is not None else None
        self._points = check_points(self.points_to_evaluate)
        rewards = self.evaluated_rewards
        if rewards is not None and (not isinstance(rewards, Sequence) or len(rewards) != len(self._points)):
            expected = f"one reward for each of the {len(self._points)} points_to_evaluate"
            raise bad_value("evaluated_rewards", expected, rewards)

    @property
    def study(self) -> optuna.Study:
        """Optuna's in-memory study, in the order of suggestions; `user_attrs["trial_id"]` has the id of each trial."""
        if self._study is None:
            self._create_study()
        assert self._study is not None
        return self._study

    def set_search_properties(self, metric: Names, mode: Names, config: Mapping[str, Any], **spec: Any) -> bool:
        """Take the metric, mode, space and seed of the `Tuner` where this searcher has none; False: it has started.

        A searcher with its own space accepts constants in the `Tuner`'s.
        """
        if self._study is not None:
            return False
        tuner_space = parse_space(config, "param_space") if config else None
        if tuner_space is not None and self._space is not None and tuner_space.has_parameters:
            raise ValueError(
                f"OptunaSearch has the space {self._space} and Tuner the param_space {tuner_space}: only one of them "
                "can be searched\n\nhint: leave out one of the two"
            )
        is_same_metric = None in (self.metric, metric) or self.metric == metric
        if is_same_metric and None not in (self.mode, mode) and _to_list(self.mode) != _to_list(mode):
            raise ValueError(
                f"OptunaSearch has mode={self.mode!r} and TuneConfig has mode={mode!r}\n\n"
                "hint: set metric and mode only in TuneConfig"
            )
        self.metric = metric if self.metric is None else self.metric
        self.mode = mode if self.mode is None else self.mode
        _check_objectives(self.metric, self.mode)
        if self._space is None:
            self._space = tuner_space
        elif tuner_space is not None:
            self._constants = dict(config)
        if self.seed is None and spec.get("seed") is not None:
            self._search_seed = spec["seed"]
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self._check_new(trial_id)
        assert self.study is not None  # A state to restore says how many points were suggested.
        waiting = [] if self.evaluated_rewards is not None else self._points
        point = waiting[self._num_suggested] if self._num_suggested < len(waiting) else None
        self._num_suggested += 1
        known = self._require_space().parse_point(point) if point is not None else {}
        return self._ask_study(trial_id, known, point=point)

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        self._check_new(trial_id)
        known = self._require_space().find_parameters(config)
        if known is not None:
            self._num_suggested += 1
            self._ask_study(trial_id, known, again=True)
        elif not is_same_config(again := self.suggest(trial_id), config):
            text = (
                "OptunaSearch cannot reproduce the configuration of trial %s, so it learns its reports under the wrong"
            )
            log.warning(f"{text} one. Before: %s; now: %s", trial_id, config, again)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        step = result.get("training_iteration")
        self._farthest = max(self._farthest, step if isinstance(step, int) else 0)
        trial = self._trials.get(trial_id)
        if trial is None or isinstance(self.metric, list):
            return  # Optuna has no intermediate values for several objectives.
        value = _to_number(get_metric(dict(result), self.metric)) if self.metric is not None else None
        if value is not None and isinstance(step, int) and step >= 0:
            self._history.append(["report", trial_id, value, step])
            with silence_optuna():
                trial.report(value, step)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        values = None if error else self._get_objectives(trial_id, result)
        self._tell_study(trial_id, values, TrialState.FAIL if values is None else TrialState.COMPLETE)

    def on_trial_stopped(self, trial_id: str, result: Mapping[str, Any] | None = None) -> None:
        assert self._samplers is not None
        # Schedulers also stop trials that have used all their time: these are complete.
        is_whole = result is not None and result.get("training_iteration", 0) >= self._farthest
        if is_whole or not self._samplers.learns_from_stopped or isinstance(self.metric, list):
            self.on_trial_complete(trial_id, result)
        else:
            self._tell_study(trial_id, None, TrialState.PRUNED)

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: float | Sequence[float],
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a configuration that was evaluated elsewhere. Add the same points again when resuming a search."""
        name = f"evaluated_{len(self.study.get_trials(deepcopy=False))}"
        known = self._require_space().find_parameters(parameters)
        if known is None:
            raise bad_value("an evaluated point", f"a full configuration of the space {self._space}", dict(parameters))
        values = list(value) if isinstance(value, Sequence) else [value]
        objectives = len(_to_list(self.metric))
        if len(values) != objectives:
            raise bad_value("the reward", f"one number for each of the {objectives} metrics", values)
        self._ask_study(name, known)
        for step, intermediate in enumerate(intermediate_values or (), start=1):
            self.on_trial_result(name, {str(self.metric): intermediate, "training_iteration": step})
        numbers = list(map(_to_number, values))
        finite = None if error or None in numbers else [number for number in numbers if number is not None]
        state = TrialState.FAIL if finite is None else TrialState.PRUNED if pruned else TrialState.COMPLETE
        self._tell_study(name, finite if state is TrialState.COMPLETE else None, state)

    def get_state(self) -> dict[str, Any]:
        assert self.study is not None
        return {"seed": self._search_seed, "num_suggested": self._num_suggested, "history": list(self._history)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what another searcher has learned, with the same space, when this one is first used."""
        self._state_to_restore = state

    def _replay_history(self, state: dict[str, Any]) -> None:
        for kind, trial_id, *entry in state["history"]:
            if kind == "ask":
                self._ask_study(trial_id, entry[0], again=True)
            elif kind == "tell":
                self._tell_study(trial_id, entry[0], TrialState[entry[1]])
            else:
                self.on_trial_result(trial_id, {str(self.metric): entry[0], "training_iteration": entry[1]})
        self._num_suggested = state["num_suggested"]

    def _create_study(self) -> None:
        state, self._state_to_restore = self._state_to_restore, None
        self._search_seed = state["seed"] if state is not None else self._search_seed
        metrics, modes = _to_list(self.metric), _to_list(self.mode)
        if not metrics or not modes:
            raise ValueError(
                f"OptunaSearch needs a metric and a mode, got metric={self.metric!r}, mode={self.mode!r}\n\n"
                'hint: use TuneConfig(metric="loss", mode="min")'
            )
        self._samplers = TrialSamplers(self._sampler, len(metrics), self._search_seed)
        with silence_optuna():
            self._study = optuna.create_study(
                directions=[_DIRECTIONS[mode] for mode in modes],  # type: ignore[misc]
                sampler=self._samplers.make_sampler(0),
                pruner=optuna.pruners.NopPruner(),
            )
            self._study.set_metric_names(metrics)
        if state is not None:
            self._replay_history(state)
            return
        for point, reward in zip(self._points, self.evaluated_rewards or (), strict=False):
            self.add_evaluated_point(point, reward)

    def _check_new(self, trial_id: str) -> None:
        if trial_id in self._trials or trial_id in self._ended_numbers:
            raise ValueError(f"trial {trial_id} was already suggested: use a new OptunaSearch for each search")

    def _require_space(self) -> OptunaSpace:
        if self._space is None:
            raise ValueError(
                "OptunaSearch has no search space\n\n"
                'hint: pass Tuner a param_space such as {"lr": tune.loguniform(1e-5, 1e-1)}, or OptunaSearch a space'
            )
        return self._space

    def _ask_study(
        self, trial_id: str, known: Mapping[str, Any], again: bool = False, point: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        study, space = self.study, self._require_space()
        assert self._samplers is not None
        inner = self._samplers.make_sampler(len(study.get_trials(deepcopy=False)))
        study.sampler = KnownParametersSampler(inner, known, again and self._samplers.can_skip) if known else inner
        with silence_optuna():
            trial = study.ask()
            trial.set_user_attr("trial_id", trial_id)
            try:
                config = space.suggest(trial, point or {}, self._search_seed)
            except BaseException:
                study.tell(trial, state=TrialState.FAIL)
                raise
        self._trials[trial_id] = trial
        self._history.append(["ask", trial_id, dict(trial.params)])
        return {**self._constants, **config}

    def _tell_study(self, trial_id: str, values: list[float] | None, state: TrialState) -> None:
        trial = self._trials.pop(trial_id, None)
        if trial is None and trial_id not in self._ended_numbers:
            return
        assert self._samplers is not None
        self._history.append(["tell", trial_id, values, state.name])
        with silence_optuna():
            if trial is None:
                self._tell_again(self._ended_numbers[trial_id], values)
                return
            self.study.sampler = self._samplers.make_sampler(len(self.study.get_trials(deepcopy=False)))
            self._ended_numbers[trial_id] = trial.number
            self.study.tell(trial, values, state)

    def _tell_again(self, number: int, values: list[float] | None) -> None:
        """Report a failed trial that ran again to its end; for Optuna it is a new trial with the same parameters."""
        failed = self.study.get_trials(deepcopy=False)[number]
        if values is not None and failed.state is TrialState.FAIL:
            again = optuna.trial.create_trial(
                params=failed.params, distributions=failed.distributions, user_attrs=failed.user_attrs, values=values
            )
            self.study.add_trial(again)

    def _get_objectives(self, trial_id: str, result: Mapping[str, Any] | None) -> list[float] | None:
        """Return the objectives in a result; None if one is missing or not a number."""
        values = {metric: _to_number(get_metric(dict(result or {}), metric)) for metric in _to_list(self.metric)}
        missing = [metric for metric, value in values.items() if value is None]
        if missing and result:
            reported = ", ".join(f"{key}={value!r}" for key, value in result.items() if key != "config")
            text = "trial %s did not report a number for %s, so the search learns nothing from it"
            log.warning(f"{text}; its last report has %s", trial_id, " and ".join(missing), reported)
        return None if missing else [value for value in values.values() if value is not None]


def _to_number(value: Any) -> float | None:
    try:
        number = float(value) if not isinstance(value, bool | str | None) else math.nan
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _to_list(value: str | Sequence[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else [*(value or ())]


def _check_objectives(metric: Any, mode: Any) -> None:
    for name, value in (("metric", metric), ("mode", mode)):
        names = value if isinstance(value, list | tuple) else [value]
        if value is not None and not (names and all(isinstance(item, str) and item for item in names)):
            raise bad_value(name, "a name or a list of names", value)
    for item in _to_list(mode):
        check_choice("mode", item, _DIRECTIONS)
    metrics, modes = _to_list(metric), _to_list(mode)
    if metrics and modes and len(metrics) != len(modes):
        raise bad_value("mode", f"one mode for each metric of {metric!r}", mode)
    if len({*metrics}) != len(metrics):
        raise bad_value("metric", "different names", metric)
