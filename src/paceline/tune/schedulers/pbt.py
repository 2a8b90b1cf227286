"""Population based training: the worst trials continue from the best, with slightly different hyperparameters.

Pure: decisions depend only on the calls it gets; random draws only on the seed, the trial and its iteration.
`PopulationBasedTrainingReplay` trains one trial with the schedule of configurations that such a search found.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline._core.arguments import bad_value, check_callable, check_int, check_number, is_number
from paceline.tune.schedulers import population
from paceline.tune.schedulers.population import MutatedConfig, Policy, Population, PopulationMember
from paceline.tune.schedulers.scheduler import Action, Exploit, MetricScheduler, Pause, Resume, TrialScheduler
from paceline.tune.space.domains import KeyedRandom, seed_global_generators
from paceline.tune.space.tree import is_same_value
from paceline.tune.trial import Trial

log = logging.getLogger("paceline")


@dataclass(eq=False, repr=False)
class PopulationBasedTraining(MetricScheduler):
    """Every `perturbation_interval` of `time_attr`, a trial among the worst continues from one of the best.

        scheduler = PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=5,
            hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1), "batch": [32, 64, 128]},
        )

    It takes the checkpoint and the configuration of one of the best `quantile_fraction`. Each hyperparameter in
    `hyperparam_mutations` is then resampled with `resample_probability`, or else perturbed: a number by one of
    `perturbation_factors`, within its domain, and an option of a list to a neighboring one. Nested dicts are nested
    hyperparameters, and functions without arguments draw any value. `custom_explore_fn` gets the configuration last and
    returns it. Trials must report checkpoints: only committed ones are cloned.

    With `synch`, all trials wait for each other at each interval. `log_config` records which configuration each trial
    had when, for `policy_of`. `require_attrs`: a report without `time_attr` is an error. `seed` defaults to that of the
    search.
    """

    waits_for_checkpoints = True
    unsaved = ("_mutations",)

    time_attr: str = "time_total_s"
    perturbation_interval: float = 60.0
    burn_in_period: float = 0.0
    hyperparam_mutations: Mapping[str, Any] | None = None
    quantile_fraction: float = 0.25
    resample_probability: float = 0.25
    perturbation_factors: tuple[float, float] = (1.2, 0.8)
    custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    log_config: bool = True
    require_attrs: bool = True
    synch: bool = False
    seed: int | None = field(default=None, kw_only=True)
    _population: Population = field(default_factory=Population, init=False)
    _unstarted: set[str] = field(default_factory=set, init=False)
    """Trials known to be waiting for capacity."""
    _arrived: set[str] = field(default_factory=set, init=False)
    _paused: set[str] = field(default_factory=set, init=False)
    _is_complete: bool = field(default=False, init=False)
    """The searcher has no further trial."""
    _has_yielded: bool = field(default=False, init=False)
    _num_perturbations: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.hyperparam_mutations and self.custom_explore_fn is None:
            raise ValueError(
                f"hyperparam_mutations must name at least one hyperparameter, got {self.hyperparam_mutations!r}\n\n"
                "hint: use {'lr': tune.loguniform(1e-4, 1e-1)}, or pass a custom_explore_fn"
            )
        super().__post_init__()
        check_number("perturbation_interval", self.perturbation_interval, above=0)
        check_number("burn_in_period", self.burn_in_period, at_least=0)
        check_number("quantile_fraction", self.quantile_fraction, at_least=0, at_most=0.5)
        check_number("resample_probability", self.resample_probability, at_least=0, at_most=1)
        factors = self.perturbation_factors if isinstance(self.perturbation_factors, tuple | list) else ()
        if not factors or not all(is_number(factor) and factor > 0 for factor in factors):
            raise bad_value("perturbation_factors", "positive numbers such as (1.2, 0.8)", self.perturbation_factors)
        check_callable("custom_explore_fn", self.custom_explore_fn, optional=True)
        check_int("seed", self.seed, optional=True)
        sources = population.parse_sources(self.hyperparam_mutations or {})
        self._mutations = population.Mutations(sources, self.resample_probability, tuple(factors))
        self._next_synchronization = max(self.perturbation_interval, self.burn_in_period)
        """The time at which all wait for each other."""

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        if self.seed is None:
            self.seed = spec.get("seed")
        return super().set_search_properties(metric, mode, **spec)

    def policy_of(self, trial_id: str) -> Policy:
        """Return a trial's configurations so far, its donors' included, each with its first iteration."""
        if not self.log_config:
            raise ValueError("policy_of() needs log_config=True, which records the configurations of each trial")
        return self._population.members[trial_id].policy

    def last_scores(self, trials: Sequence[Trial]) -> list[float]:
        """Return the scores, where more is better, of the given unfinished trials at their last intervals."""
        members = [self._population.members.get(trial.trial_id) for trial in trials if not trial.is_over]
        return [one.interval_score for one in members if one is not None and one.interval_score is not None]

    def reset_stats(self) -> None:
        """Count the perturbations in `debug_string` from zero again."""
        self._num_perturbations = 0

    def debug_string(self) -> str:
        return f"{type(self).__name__}: {self._num_perturbations} perturbs"

    def completed(self, trial_id: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._mutations.fill_missing(config, self._make_random("first", trial_id))

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        self._population.get_member(trial)
        self._unstarted.add(trial.trial_id)
        return ()

    def on_trial_begin(self, trial: Trial) -> None:
        self._unstarted.discard(trial.trial_id)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        member = self._population.get_member(trial)
        self._unstarted.discard(trial.trial_id)
        time = self._get_number(trial, result, self.time_attr)
        value = self._get_number(trial, result, self.require_metric())
        if time is None or value is None:
            return ()
        member.on_report(trial, time, self.time_attr == "training_iteration")
        self._observe_value(member, value)
        if self.synch:
            return self._join_synchronization(member, value)
        if time < self.burn_in_period or time - member.interval_started < self.perturbation_interval:
            return ()
        member.interval_started = time
        self._rank_member(member, value)
        clone = self._clone_if_worst(member, *self._population.find_quantiles(self.quantile_fraction))
        return (clone,) if clone is not None else self._make_room(member)

    def on_trial_complete(
        self, tune_controller: Any, trial: Trial, result: Mapping[str, Any] | None
    ) -> Sequence[Action]:
        member = self._population.get_member(trial)
        time, value = (self.get_number(result or {}, name) for name in (self.time_attr, self.require_metric()))
        # A clone may end without a report of its own: then this is its first event.
        member.on_report(trial, time if time is not None else member.time, self.time_attr == "training_iteration")
        if time is not None and value is not None and time >= self.burn_in_period:
            self._population.rank(member, value, self.to_score(value))
        self._population.remove_ended(member)
        return self._on_member_gone(trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        member = self._population.get_member(trial)
        member.trial = trial
        self._population.remove_failed(member)
        return self._on_member_gone(trial)

    def on_no_more_trials(self) -> Sequence[Action]:
        self._is_complete = True
        return self._synchronize() if self._have_all_arrived() else ()

    def on_idle(self) -> Sequence[Action]:
        """Synchronize anyway: the missing trials can only start after a waiting one has ended."""
        return self._synchronize() if self._arrived else ()

    def choose(self, waiting: Sequence[Trial]) -> Trial | None:
        """Choose the trial with the least progress, so that all get their turn.

        Until the population is complete, a trial that has already run first yields to the creation of a new one: it is
        chosen on the next call, if none was created.
        """
        members = self._population.members
        first = min(waiting, key=lambda t: members[t.trial_id].time if t.trial_id in members else 0.0, default=None)
        has_run = first is not None and first.trial_id in members and members[first.trial_id].time > 0
        self._has_yielded = has_run and not self._is_complete and not self._has_yielded
        return None if self._has_yielded else first

    def _make_room(self, member: PopulationMember) -> Sequence[Action]:
        """Yield to trials that wait to start or to be created, if that loses no progress."""
        trial = member.trial
        is_saved = trial.checkpoint is not None and trial.checkpoint.iteration >= trial.iteration
        if not is_saved or (self._is_complete and not self._unstarted):
            return ()
        why = f"makes room for others at {self.time_attr} {member.time:g}"
        self._unstarted.add(trial.trial_id)
        return Pause(trial.trial_id, why), Resume(trial.trial_id)

    def _join_synchronization(self, member: PopulationMember, value: float) -> Sequence[Action]:
        if member.time < self._next_synchronization:
            return ()
        self._rank_member(member, value)
        self._arrived.add(member.trial_id)
        if self._have_all_arrived():
            return self._synchronize()
        if member.trial.checkpoint is None:
            return ()  # Pausing it would lose all progress.
        self._paused.add(member.trial_id)
        arrived = f"{len(self._arrived)} of {self._population.num_live} have arrived"
        why = f"waits for the others at {self.time_attr} {self._next_synchronization:g}: {arrived}"
        return (Pause(member.trial_id, why),)

    def _synchronize(self) -> Sequence[Action]:
        """All unfinished trials have arrived: clone the worst, and resume all."""
        best, worst = self._population.find_quantiles(self.quantile_fraction)
        actions: list[Action] = []
        arrived = [member for member in self._population.live_members() if member.trial_id in self._arrived]
        for member in arrived:
            clone = self._clone_if_worst(member, best, worst)
            if clone is not None:
                actions.append(clone)
            elif member.trial_id in self._paused:
                actions.append(Resume(member.trial_id))
        self._arrived.clear()
        self._paused.clear()
        slowest = min(member.time for member in arrived)
        self._next_synchronization += self.perturbation_interval * max(
            1, math.floor((slowest - self._next_synchronization) / self.perturbation_interval) + 1
        )
        return actions

    def _on_member_gone(self, trial: Trial) -> Sequence[Action]:
        """A trial has ended: it may have been the last one the others waited for."""
        for trials in (self._unstarted, self._arrived, self._paused):
            trials.discard(trial.trial_id)
        return self._synchronize() if self._have_all_arrived() else ()

    def _have_all_arrived(self) -> bool:
        """Includes trials that are not created yet, as long as there may be any."""
        return self._is_complete and 0 < len(self._arrived) == self._population.num_live

    def _rank_member(self, member: PopulationMember, value: float) -> None:
        """Rank a member by its metric at an interval."""
        self._population.rank(member, value, self.to_score(value))

    def _observe_value(self, member: PopulationMember, value: float) -> None:
        """Hook for subclasses: called with the metric of every report, not only those at intervals."""

    def _clone_if_worst(
        self, member: PopulationMember, best: list[PopulationMember], worst: list[PopulationMember]
    ) -> Exploit | None:
        if member not in worst:
            return None
        better = [one for one in best if one is not member and one.interval_score > member.interval_score]  # type: ignore[operator]
        # A trial continues from a checkpoint only once: if the donor makes no new one, it would repeat forever.
        used = (*member.cloned_checkpoints, *member.trial.lineage)
        donors = [one for one in better if _is_saved(one) and one.trial.checkpoint not in used]
        if not donors:
            if better and not any(map(_is_saved, better)) and not self._has_warned:
                self._has_warned = True
                text = "trial %s is among the worst, but none of the best has a committed checkpoint to continue from"
                log.warning(f"{text}: report one at least every perturbation_interval", member.trial_id)
            return None
        chance = self._make_random("clone", member.trial_id, member.trial.iteration, len(member.cloned_checkpoints))
        return self._exploit(member, donors[chance.draw_below(len(donors))], chance)

    def _exploit(self, member: PopulationMember, donor: PopulationMember, chance: KeyedRandom) -> Exploit:
        mutated = self._explore(member, donor, chance)
        if self.custom_explore_fn is not None:
            mutated = self._explore_custom(mutated, donor.trial.config, chance)
        config, changes = mutated
        self._num_perturbations += 1
        saved = donor.trial.checkpoint
        assert saved is not None
        member.is_being_cloned, member.clone_time = True, donor.saved_time
        member.cloned_checkpoints.append(saved)
        if self.log_config:
            member.donor_policy = donor.policy
        if self._unstarted:
            self._unstarted.add(member.trial_id)
        values = [population.format_value(each.reported_value) for each in (donor, member)]
        why = f"cloned from trial {donor.trial_id} at iteration {saved.iteration} ({' against '.join(values)})"
        if changes:
            why += f"; {', '.join(map(str, changes))}"
        return Exploit(member.trial_id, donor.trial_id, config, why)

    def _explore(self, member: PopulationMember, donor: PopulationMember, chance: KeyedRandom) -> MutatedConfig:
        return self._mutations.mutate_config(donor.trial.config, chance)

    def _explore_custom(self, mutated: MutatedConfig, before: Mapping[str, Any], chance: KeyedRandom) -> MutatedConfig:
        assert self.custom_explore_fn is not None
        config, changes = mutated
        with seed_global_generators(chance):
            after = self.custom_explore_fn(population.copy_config(config))
        if not isinstance(after, dict):
            raise ValueError(
                f"custom_explore_fn must return a dict, got {after!r:.200}\n\n"
                "hint: return the configuration it was given, changed as needed"
            )
        still_there = [change for change in changes if change.path[0] in after]
        described = [replace(change, after=population.get_at_path(after, change.path)) for change in still_there]
        keys = {change.path[0] for change in changes}
        for key, value in after.items():
            if key not in keys and not is_same_value(value, config.get(key)):
                described.append(population.ConfigChange((key,), population.get_at_path(before, (key,)), value))
        return after, described

    def _make_random(self, *key: int | str) -> KeyedRandom:
        return KeyedRandom(self.seed or 0, "pbt", *key)

    def _get_number(self, trial: Trial, result: Mapping[str, Any], attribute: str) -> float | None:
        value = self.get_number(result, attribute)
        if value is None and self.require_attrs:
            raise ValueError(
                f"trial {trial.trial_id} did not report the number {attribute!r}; it reported "
                f"{', '.join(sorted(map(str, result))[:20])}\n\n"
                f"hint: include it in every report, or use {type(self).__name__}(require_attrs=False)"
            )
        return value


def _is_saved(member: PopulationMember) -> bool:
    """Whether its current state is in a checkpoint."""
    return member.trial.checkpoint is not None and not member.is_being_cloned


class PopulationBasedTrainingReplay(TrialScheduler):
    """Trains one trial with the schedule of configurations that another search found.

        replay = PopulationBasedTrainingReplay(pbt.policy_of(results.get_best_result().trial_id))

    `policy_file` is the `pbt_policy_<trial_id>.txt` that a search wrote; or the result of
    `PopulationBasedTraining.policy_of`: pairs of an iteration and the configuration from there on, the first at 0; or
    a JSON file with a list of these. A change takes effect at the first report with a
    checkpoint at or after its iteration: the trial continues from that checkpoint, so nothing is trained twice.
    """

    waits_for_checkpoints = True

    def __init__(self, policy_file: Sequence[tuple[int, Mapping[str, Any]]] | str | os.PathLike[str]) -> None:
        policy = policy_file
        pairs = _read_policy(Path(policy)) if isinstance(policy, str | os.PathLike) else policy
        self.policy = tuple(
            (pair[0], dict(pair[1]))
            for pair in pairs
            if len(pair) == 2 and isinstance(pair[0], int) and isinstance(pair[1], Mapping)
        )
        if len(self.policy) < len(pairs) or not self.policy or self.policy[0][0] != 0:
            expected = "a list of pairs of an iteration and a configuration, starting at 0"
            raise bad_value("policy_file", expected, policy, "use PopulationBasedTraining.policy_of(trial_id)")
        iterations = [iteration for iteration, _ in self.policy]
        if iterations != sorted({*iterations}):
            raise ValueError(f"the iterations of policy_file must increase, got {iterations}")
        self.policy_file = self.policy  # A resumed search does not need the file.
        self._trial_id: str | None = None
        self._num_used = 1

    def completed(self, trial_id: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**config, **self.policy[0][1]}

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> Sequence[Action]:
        if self._trial_id not in (None, trial.trial_id):
            raise ValueError(f"{type(self).__name__} trains a single trial\n\nhint: use num_samples=1")
        self._trial_id = trial.trial_id
        return ()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        saved = trial.checkpoint
        due = [pair for pair in self.policy[self._num_used :] if pair[0] <= trial.iteration]
        if not due or saved is None or saved.iteration < trial.iteration:
            return ()
        self._num_used += len(due)
        at, config = due[-1]
        changed = [
            f"{key} {population.format_value(value)}" for key, value in config.items() if trial.config.get(key) != value
        ]
        why = f"as at iteration {at} of the policy; {', '.join(changed) or 'nothing changes'}"
        return (Exploit(trial.trial_id, trial.trial_id, {**trial.config, **config}, why),)


def _read_policy(path: Path) -> Any:
    """Read pairs of an iteration and a configuration, from a list of these or from the log of a search."""
    text = path.read_text().strip()
    lines = [json.loads(line) for line in text.splitlines()] if "\n" in text or not text.startswith("[[") else []
    if not lines or not all(isinstance(line, list) and len(line) == 6 for line in lines):
        return json.loads(text)
    policy: list[tuple[int, Any]] = []
    donor = lines[-1][0]
    for trial, next_donor, _, iteration, old_config, new_config in reversed(lines):
        if trial != donor:
            break  # What comes before is about other trials.
        donor, first_config = next_donor, old_config
        if not policy or iteration < policy[-1][0]:
            policy.append((iteration, new_config))
    return [(0, first_config), *reversed([pair for pair in policy if pair[0] > 0])]
