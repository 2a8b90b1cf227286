"""Population based training: the worst go on from the best, with hyperparameters that are a little different.

Pure: what it decides depends on what it was told, and what it draws on the seed, the trial and its iteration.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from paceline._core.plain import looked_up
from paceline.tune.schedulers.mutations import Change, Mutations, at_path, copied, parameters_of, shown
from paceline.tune.schedulers.population import Member, Policy, Population
from paceline.tune.schedulers.scheduler import Action, Exploit, Pause, Resume, TrialScheduler
from paceline.tune.space.chance import Chance, global_generators
from paceline.tune.trial import Trial

log = logging.getLogger("paceline")


class PopulationBasedTraining(TrialScheduler):
    """Every `perturbation_interval` of `time_attr`, a trial among the worst goes on from one of the best.

        scheduler = PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=5,
            hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1), "batch": [32, 64, 128]},
        )

    It takes the checkpoint of one of the best `quantile_fraction` and its configuration. Each hyperparameter of
    `hyperparam_mutations` is then drawn anew with `resample_probability`, or else moved: a number by one of
    `perturbation_factors`, inside its domain, and an option of a list to the one beside it. Nested dicts are nested
    hyperparameters, and functions without arguments draw what they like. `custom_explore_fn` gets the configuration
    last and returns it. Trials have to report checkpoints: only committed ones are cloned.

    With `synch` all trials wait for each other at each interval. `log_config`: remember which configuration each trial
    had when, for `policy_of`. `require_attrs`: a report without `time_attr` is an error. `seed` is that of the search
    unless it is given.
    """

    waits_for_checkpoints = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: tuple[float, float] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        if not hyperparam_mutations and custom_explore_fn is None:
            raise ValueError(
                f"hyperparam_mutations={hyperparam_mutations!r}: there is nothing to mutate\n\n"
                "hint: say what each hyperparameter may become, as {'lr': tune.loguniform(1e-4, 1e-1)}, "
                "or give a custom_explore_fn"
            )
        self._check(time_attr, mode, perturbation_interval, burn_in_period, quantile_fraction)
        _within("resample_probability", resample_probability, 0, 1)
        factors = perturbation_factors if isinstance(perturbation_factors, tuple | list) else ()
        if not factors or not all(_is_number(factor) and factor > 0 for factor in factors):
            raise ValueError(f"perturbation_factors={perturbation_factors!r} has to be numbers above 0, as (1.2, 0.8)")
        if custom_explore_fn is not None and not callable(custom_explore_fn):
            raise ValueError(f"custom_explore_fn={custom_explore_fn!r} is not a function")
        self.time_attr = time_attr
        if not isinstance(metric, str | None):
            raise ValueError(f"metric={metric!r}: {type(self).__name__} compares trials by the name of one metric")
        if not isinstance(seed, int | None):
            raise ValueError(f"seed={seed!r} is not a whole number, or None for that of the search")
        self.metric = metric
        self.mode = mode
        self.perturbation_interval = perturbation_interval
        self.burn_in_period = burn_in_period
        self.quantile_fraction = quantile_fraction
        self.custom_explore_fn = custom_explore_fn
        self.log_config = log_config
        self.require_attrs = require_attrs
        self.synch = synch
        self.seed = seed
        self._mutations = Mutations(
            parameters_of(hyperparam_mutations or {}), resample_probability, tuple(perturbation_factors)
        )
        self._population = Population()
        self._unstarted: set[str] = set()
        """Those that wait for room, as far as was told."""
        self._meet_at = max(perturbation_interval, burn_in_period)
        """Where all wait for each other."""
        self._arrived: set[str] = set()
        self._paused: set[str] = set()
        self._is_whole = False
        """The searcher has no further trial: the population is all there will be."""
        self._held_back = False
        self._has_warned = False

    @staticmethod
    def _check(time_attr: str, mode: str | None, interval: float, burn_in: float, fraction: float) -> None:
        if not isinstance(time_attr, str) or not time_attr:
            raise ValueError(f"time_attr={time_attr!r} is not the name of what is reported")
        if mode not in (None, "min", "max"):
            raise ValueError(f"mode={mode!r} is neither 'min' nor 'max'")
        if not _is_number(interval) or interval <= 0:
            raise ValueError(f"perturbation_interval={interval!r} is not a number above 0")
        _within("burn_in_period", burn_in, 0, math.inf)
        _within("quantile_fraction", fraction, 0, 0.5)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        if self.seed is None:
            self.seed = spec.get("seed")
        return super().set_search_properties(metric, mode, **spec)

    def policy_of(self, trial_id: str) -> Policy:
        """The configurations behind what a trial is now, its donors' included: each from the iteration it was used."""
        if not self.log_config:
            raise ValueError("log_config=False: what configuration a trial had when is not remembered")
        return self._population.members[trial_id].policy

    # What is told.

    def completed(self, trial_id: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._mutations.completed(config, self._chance("first", trial_id))

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        self._population.of(trial)
        self._unstarted.add(trial.trial_id)
        return ()

    def on_trial_begin(self, trial: Trial) -> None:
        self._unstarted.discard(trial.trial_id)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        member = self._population.of(trial)
        self._unstarted.discard(trial.trial_id)
        time, score = self._told(trial, result, self.time_attr), self._told(trial, result, self._metric)
        if time is None or score is None:
            return ()
        member.heard(trial, time, self.time_attr == "training_iteration")
        self._learn(member, score)
        if self.synch:
            return self._meeting(member, score)
        if time < self.burn_in_period or time - member.since < self.perturbation_interval:
            return ()
        member.since = time
        self._rank(member, score)
        clone = self._clone(member)
        if clone is not None:
            return (clone,)
        return self._giving_way(member)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any] | None) -> Sequence[Action]:
        member = self._population.of(trial)
        last = dict(result) if result is not None else {}
        time, score = looked_up(last, self.time_attr), looked_up(last, self._metric)
        # A clone may be over without a report of its own: then this is the first that is heard of it.
        member.heard(trial, time if _is_number(time) else member.time, self.time_attr == "training_iteration")
        if _is_number(time) and _is_number(score) and time >= self.burn_in_period:
            self._population.rank(member, score, self._mode)
        self._population.ends(member)
        return self._without(trial)

    def on_trial_error(self, trial: Trial) -> Sequence[Action]:
        member = self._population.of(trial)
        member.trial = trial
        self._population.fails(member)
        return self._without(trial)

    def on_no_more_trials(self) -> Sequence[Action]:
        self._is_whole = True
        return self._met() if self._all_are_there() else ()

    def on_idle(self) -> Sequence[Action]:
        """Whoever was waited for comes only after one of those who wait is over."""
        return self._met() if self._arrived else ()

    def choose(self, waiting: Sequence[Trial]) -> Trial | None:
        """The one that has come the least far, so that all get their turn.

        Until the population is whole, a trial that ran already lets a new one be made first: it is chosen when it is
        asked about once more, and none was.
        """
        members = self._population.members
        first = min(waiting, key=lambda t: members[t.trial_id].time if t.trial_id in members else 0.0, default=None)
        has_run = first is not None and first.trial_id in members and members[first.trial_id].time > 0
        self._held_back = has_run and not self._is_whole and not self._held_back
        return None if self._held_back else first

    # Whose turn it is.

    def _giving_way(self, member: Member) -> Sequence[Action]:
        """Where others wait for room, or to be made, it lets them in, if that costs nothing that it has reached."""
        trial = member.trial
        is_saved = trial.checkpoint is not None and trial.checkpoint.iteration >= trial.iteration
        if not is_saved or (self._is_whole and not self._unstarted):
            return ()
        why = f"makes room for others at {self.time_attr} {member.time:g}"
        self._unstarted.add(trial.trial_id)
        return Pause(trial.trial_id, why), Resume(trial.trial_id)

    def _meeting(self, member: Member, score: float) -> Sequence[Action]:
        if member.time < self._meet_at:
            return ()
        self._rank(member, score)
        self._arrived.add(member.trial_id)
        if self._all_are_there():
            return self._met()
        if member.trial.checkpoint is None:
            return ()  # To pause it would be to lose all of it.
        self._paused.add(member.trial_id)
        there = f"{len(self._arrived)} of {self._population.num_live} are there"
        return (Pause(member.trial_id, f"waits for the others at {self.time_attr} {self._meet_at:g}: {there}"),)

    def _met(self) -> Sequence[Action]:
        """All that are not over have come: the worst are cloned, and all go on."""
        best, worst = self._population.best(self.quantile_fraction), self._population.worst(self.quantile_fraction)
        actions: list[Action] = []
        met = [member for member in self._population.live() if member.trial_id in self._arrived]
        for member in met:
            clone = self._clone(member, best, worst)
            if clone is not None:
                actions.append(clone)
            elif member.trial_id in self._paused:
                actions.append(Resume(member.trial_id))
        self._arrived.clear()
        self._paused.clear()
        slowest = min(member.time for member in met)
        self._meet_at += self.perturbation_interval * max(
            1, math.floor((slowest - self._meet_at) / self.perturbation_interval) + 1
        )
        return actions

    def _without(self, trial: Trial) -> Sequence[Action]:
        """One is over: perhaps the others waited for nobody else."""
        self._unstarted.discard(trial.trial_id)
        self._arrived.discard(trial.trial_id)
        self._paused.discard(trial.trial_id)
        return self._met() if self._all_are_there() else ()

    def _all_are_there(self) -> bool:
        """Also those that are not made yet, as long as there may be any."""
        return self._is_whole and 0 < len(self._arrived) == self._population.num_live

    # Who is cloned.

    def _rank(self, member: Member, score: float) -> None:
        """Its score at an interval."""
        self._population.rank(member, score, self._mode)

    def _learn(self, member: Member, score: float) -> None:
        """Any of its scores. For those who want to know more than who is better."""

    def _clone(
        self, member: Member, best: list[Member] | None = None, worst: list[Member] | None = None
    ) -> Exploit | None:
        if best is None or worst is None:
            best = self._population.best(self.quantile_fraction)
            worst = self._population.worst(self.quantile_fraction)
        if member not in worst:
            return None
        better = [one for one in best if one is not member and one.standing > member.standing]  # type: ignore[operator]
        # From one checkpoint a trial goes on once: of a donor that has made no other since, it would for ever.
        used = (*member.gone_on_from, *member.trial.lineage)
        donors = [one for one in better if _is_saved(one) and one.trial.checkpoint not in used]
        if not donors:
            if better and not any(map(_is_saved, better)) and not self._has_warned:
                self._has_warned = True
                log.warning(
                    "trial %s is among the worst, but none of the best has a committed checkpoint that it could go on "
                    "from: report one at least every perturbation_interval",
                    member.trial_id,
                )
            return None
        chance = self._chance("clone", member.trial_id, member.trial.iteration, len(member.gone_on_from))
        return self._exploit(member, donors[chance.below(len(donors))], chance)

    def _exploit(self, member: Member, donor: Member, chance: Chance) -> Exploit:
        config, changes = self._explored(member, donor, chance)
        if self.custom_explore_fn is not None:
            config, changes = self._customized(config, changes, donor.trial.config, chance)
        saved = donor.trial.checkpoint
        assert saved is not None
        member.is_moving, member.moved_to = True, donor.saved_time
        member.gone_on_from.append(saved)
        if self.log_config:
            member.donor_policy = donor.policy
        if self._unstarted:
            self._unstarted.add(member.trial_id)
        why = (
            f"cloned from trial {donor.trial_id} at iteration {saved.iteration} "
            f"({shown(donor.score)} against {shown(member.score)})"
        )
        if changes:
            why += f"; {', '.join(map(str, changes))}"
        return Exploit(member.trial_id, donor.trial_id, config, why)

    def _explored(self, member: Member, donor: Member, chance: Chance) -> tuple[dict[str, Any], list[Change]]:
        return self._mutations.mutated(donor.trial.config, chance)

    def _customized(
        self, config: dict[str, Any], changes: list[Change], before: Mapping[str, Any], chance: Chance
    ) -> tuple[dict[str, Any], list[Change]]:
        assert self.custom_explore_fn is not None
        with global_generators(chance):
            after = self.custom_explore_fn(copied(config))
        if not isinstance(after, dict):
            raise ValueError(
                f"custom_explore_fn returned {after!r:.200}, which is not a configuration\n\n"
                "hint: return the dict that it was given, changed as needed"
            )
        told = [Change(c.path, c.before, at_path(after, c.path), c.is_drawn) for c in changes if c.path[0] in after]
        mutated = {change.path[0] for change in changes}
        told += [
            Change((key,), at_path(before, (key,)), value)
            for key, value in after.items()
            if key not in mutated and _differs(value, config.get(key))
        ]
        return after, told

    # What it stands on.

    def _chance(self, *key: int | str) -> Chance:
        return Chance(self.seed or 0, "pbt", *key)

    def _told(self, trial: Trial, result: Mapping[str, Any], attribute: str) -> float | None:
        value = looked_up(dict(result), attribute)
        if _is_number(value):
            return value
        if self.require_attrs:
            raise ValueError(
                f"trial {trial.trial_id} reported no number {attribute!r}, but {sorted(map(str, result))[:20]}\n\n"
                f"hint: report it each time, or give {type(self).__name__}(require_attrs=False)"
            )
        return None

    @property
    def _metric(self) -> str:
        if self.metric is None:
            raise ValueError(
                f"{type(self).__name__} does not know which metric is meant\n\n"
                "hint: give TuneConfig(metric=..., mode=...), or the scheduler itself"
            )
        return self.metric

    @property
    def _mode(self) -> str:
        if self.mode is None:
            raise ValueError(f"{type(self).__name__} does not know whether metric={self.metric!r} is to be max or min")
        return self.mode


def _is_saved(member: Member) -> bool:
    """Whether there is a checkpoint of what it is now."""
    return member.trial.checkpoint is not None and not member.is_moving


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _within(name: str, value: Any, low: float, high: float) -> None:
    if not _is_number(value) or not low <= value <= high:
        limit = f"between {low:g} and {high:g}" if high < math.inf else f"of at least {low:g}"
        raise ValueError(f"{name}={value!r} is not a number {limit}")


def _differs(one: Any, other: Any) -> bool:
    """Of values that a person can read in a sentence; others are the same only if they are one object."""
    plain = (str, int, float, bool, list, tuple, dict, type(None))
    return one is not other and not (isinstance(one, plain) and isinstance(other, plain) and one == other)
