"""A population of trials as a scheduler sees it: the best and the worst, and how clones differ from their donors.

The ranking is kept sorted, so the cost of reading its ends depends on their length, not on the number of trials. A
clone's hyperparameters are resampled or perturbed: a number by a factor, an option to a neighboring one. All randomness
comes from the given `KeyedRandom`.
"""

from __future__ import annotations

import copy
import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._core.arguments import bad_value, is_finite_number
from paceline.tune.space import domains
from paceline.tune.space.domains import Categorical, Domain, Function, Grid, Integer, KeyedRandom
from paceline.tune.trial import Trial, TrialCheckpoint

Policy = tuple[tuple[int, Mapping[str, Any]], ...]
"""Configurations, each with the iteration from which it is used."""


@dataclass(eq=False)
class PopulationMember:
    trial: Trial
    order: int
    interval_score: float | None = None
    """Its score at its last interval; larger is better. None before the first one."""
    reported_value: float | None = None
    """The value of the metric that the score is of."""
    time: float = 0.0
    """At its last report."""
    interval_started: float = 0.0
    saved_time: float = 0.0
    """At the report that brought its last checkpoint."""
    is_live: bool = True
    is_being_cloned: bool = False
    """It is to continue from another trial's checkpoint, and has not reported since."""
    clone_time: float = 0.0
    """The time of that checkpoint."""
    cloned_checkpoints: list[TrialCheckpoint] = field(default_factory=list)
    """The checkpoints of others it was to continue from."""
    policy: Policy = ()
    donor_policy: Policy = ()
    """Policy of the trial that checkpoint belongs to."""

    @property
    def trial_id(self) -> str:
        return self.trial.trial_id

    @property
    def ranking_key(self) -> tuple[float, int, str]:
        assert self.interval_score is not None
        return self.interval_score, -self.order, self.trial_id

    def on_report(self, trial: Trial, time: float, counts_iterations: bool) -> None:
        if self.is_being_cloned:
            self._on_first_report_as_clone(trial, time, counts_iterations)
        elif trial.checkpoint is not None and trial.checkpoint != self.trial.checkpoint:
            self.saved_time = time
        self.trial, self.time = trial, time

    def _on_first_report_as_clone(self, trial: Trial, time: float, counts_iterations: bool) -> None:
        """Handle its first event since cloning. The checkpoint may be newer than the donor's state at the decision."""
        self.is_being_cloned = False
        if len(trial.lineage) > len(self.trial.lineage):
            saved = trial.lineage[-1]
            self.clone_time = saved.iteration if counts_iterations else self.clone_time
            before = tuple(used for used in self.donor_policy if used[0] < saved.iteration or not used[0])
            self.policy = (*before, (saved.iteration, trial.config))
            # A clone has its donor's checkpoint until it saves its own.
            self.saved_time = self.clone_time if trial.checkpoint == saved else time
        elif trial.checkpoint != self.trial.checkpoint:
            self.saved_time = time
        # A clock may continue from the donor's, as the iteration does, or from the trial's own.
        self.interval_started = max((clock for clock in (self.time, self.clone_time) if clock < time), default=time)


@dataclass
class Population:
    members: dict[str, PopulationMember] = field(default_factory=dict)
    num_live: int = 0
    _ranking: list[tuple[float, int, str]] = field(default_factory=list)
    """From worst to best; in a tie, the trial created first is better."""
    _num_live_ranked: int = 0

    def get_member(self, trial: Trial) -> PopulationMember:
        """Return the trial's member; one that had ended is revived."""
        member = self.members.get(trial.trial_id)
        if member is None:
            member = self.members[trial.trial_id] = PopulationMember(trial, len(self.members), is_live=False)
            member.policy = ((trial.iteration, trial.config),)
        if not member.is_live:
            member.is_live = True
            self.num_live += 1
            self._num_live_ranked += member.interval_score is not None
        return member

    def rank(self, member: PopulationMember, value: float, score: float) -> None:
        """Rank a member by the score of a reported value."""
        self._unrank(member)
        member.reported_value, member.interval_score = value, score
        insort(self._ranking, member.ranking_key)
        self._num_live_ranked += member.is_live

    def remove_ended(self, member: PopulationMember) -> None:
        if member.is_live:
            member.is_live = False
            self.num_live -= 1
            self._num_live_ranked -= member.interval_score is not None

    def remove_failed(self, member: PopulationMember) -> None:
        """Remove a failed member from the ranking, so that it is no longer a donor."""
        self.remove_ended(member)
        self._unrank(member)
        member.interval_score = None

    def find_quantiles(self, fraction: float) -> tuple[list[PopulationMember], list[PopulationMember]]:
        """Return the upper quantile of the unfinished members, best first, and the lower one, worst first."""
        # At most half of all members, so that the two do not overlap.
        size = min(math.ceil(self._num_live_ranked * fraction - 1e-9), self._num_live_ranked // 2)

        def first_live(ranking: Iterable[tuple[float, int, str]]) -> list[PopulationMember]:
            live = (self.members[trial_id] for *_, trial_id in ranking if self.members[trial_id].is_live)
            return list(itertools.islice(live, size))

        return first_live(reversed(self._ranking)), first_live(self._ranking)

    def live_members(self) -> Iterator[PopulationMember]:
        return (member for member in self.members.values() if member.is_live)

    def _unrank(self, member: PopulationMember) -> None:
        if member.interval_score is not None:
            del self._ranking[bisect_left(self._ranking, member.ranking_key)]
            self._num_live_ranked -= member.is_live


Path = tuple[str, ...]
Source = tuple[Any, ...] | Domain | Callable[[], Any]
"""Where a hyperparameter is drawn from: options, numbers, or a user's function, which knows what is allowed."""
MISSING = object()


@dataclass(frozen=True)
class ConfigChange:
    path: Path
    before: Any
    after: Any
    is_drawn: bool = False

    def __str__(self) -> str:
        drawn = " (drawn anew)" if self.is_drawn else ""
        before = f"{format_value(self.before)} -> " if self.before is not MISSING else ""
        return f"{'/'.join(self.path)} {before}{format_value(self.after)}{drawn}"


MutatedConfig = tuple[dict[str, Any], list[ConfigChange]]
"""Another configuration, and the changes in it."""


@dataclass(frozen=True)
class Mutations:
    sources: tuple[tuple[Path, Source], ...]
    resample_probability: float
    factors: tuple[float, ...]

    def mutate_config(self, config: Mapping[str, Any], chance: KeyedRandom) -> MutatedConfig:
        after = copy_config(config)
        changes = []
        for path, source in self.sources:
            before = get_at_path(after, path)
            is_resampled = chance.draw_unit() < self.resample_probability
            factor = self.factors[chance.draw_below(len(self.factors))]
            value = MISSING if is_resampled or before is MISSING else _perturb(source, before, factor, chance)
            is_drawn = value is MISSING
            if is_drawn:
                value = _draw(source, chance)
            set_at_path(after, path, value)
            changes.append(ConfigChange(path, before, value, is_drawn and before is not MISSING))
        return after, changes

    def fill_missing(self, config: Mapping[str, Any], chance: KeyedRandom) -> dict[str, Any]:
        """Draw the parameters that a configuration lacks."""
        after = copy_config(config)
        for path, source in self.sources:
            if get_at_path(after, path) is MISSING:
                set_at_path(after, path, _draw(source, chance))
        return after


def _draw(source: Source, chance: KeyedRandom) -> Any:
    if isinstance(source, tuple):
        return source[chance.draw_below(len(source))]
    if isinstance(source, Domain):
        return source.pick(chance)
    with domains.seed_global_generators(chance):
        # A numpy scalar becomes a plain number in the journal, so convert it from the start.
        return domains.to_python_number(source())


def _perturb(source: Source, value: Any, factor: float, chance: KeyedRandom) -> Any:
    """Return a value near this one; `MISSING` if there is none."""
    if isinstance(source, tuple):
        at = _find_option(source, value)
        if at is None:
            return MISSING
        beside = [other for other in (at - 1, at + 1) if 0 <= other < len(source)]
        return source[beside[chance.draw_below(len(beside))]] if beside else value
    if not is_finite_number(value):
        return MISSING
    if isinstance(source, Domain):
        moved = source.nearest(value * factor)
        step = source.q if source.q is not None else isinstance(source, Integer)
        if moved == value and step:
            # Less than half a step would never have an effect.
            moved = source.nearest(value + math.copysign(step, value * factor - value))
        return moved
    if isinstance(value, float):
        return value * factor
    moved = round(value * factor)
    if moved == value:
        moved += int(math.copysign(1, value * factor - value))
    # A count must not become 0, where it would stay forever.
    return moved if moved * value > 0 else value


def parse_sources(spec: Mapping[str, Any]) -> tuple[tuple[Path, Source], ...]:
    if not isinstance(spec, Mapping):
        raise bad_value("hyperparam_mutations", "a dict with the options of each hyperparameter", spec)
    leaves = iter_leaves(spec, "hyperparam_mutations")
    return tuple((path, _parse_source(value, argument)) for path, argument, value in leaves)


def iter_leaves(spec: Mapping[str, Any], argument: str, above: Path = ()) -> Iterator[tuple[Path, str, Any]]:
    """Iterate over the hyperparameters in nested dicts: their path, their name for messages, and their value."""
    for key, value in spec.items():
        if not isinstance(key, str):
            raise bad_value(f"the keys of {argument}", "strings", key)
        path = (*above, key)
        if isinstance(value, Mapping):
            yield from iter_leaves(value, argument, path)
        else:
            yield path, f"{argument}[{'/'.join(path)!r}]", value


def _parse_source(value: Any, where: str) -> Source:
    match value:
        case Grid() | Function():
            raise ValueError(
                f"{where} must be something to draw from again, got {value}\n\n"
                "hint: use a list of options, a domain such as tune.uniform(0, 1), or a function without arguments"
            )
        case Categorical(categories=options):
            return _check_options(options, where)
        case list() | tuple():
            return _check_options(value, where)
    if isinstance(value, Domain) or callable(value):
        source: Source = value
        return source
    allowed = "a list of options, a domain such as tune.uniform(0, 1), a function without arguments, or a dict of these"
    raise bad_value(where, allowed, value)


def _check_options(values: Sequence[Any], where: str) -> tuple[Any, ...]:
    if not values:
        raise ValueError(f"{where} must have at least one option")
    for value in values:
        if isinstance(value, Domain):
            raise ValueError(f"the options of {where} must be plain values, got {value}")
    return tuple(values)


def copy_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Copy dicts and lists; share everything else, which may be large or not copyable."""
    return {
        key: copy_config(value) if isinstance(value, dict) else copy.copy(value) if isinstance(value, list) else value
        for key, value in config.items()
    }


def get_at_path(config: Mapping[str, Any], path: Path) -> Any:
    value: Any = config
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return MISSING
        value = value[key]
    return value


def set_at_path(config: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        if not isinstance(config.get(key), dict):
            config[key] = {}
        config = config[key]
    config[path[-1]] = value


def format_value(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _find_option(values: tuple[Any, ...], value: Any) -> int | None:
    for at, option in enumerate(values):
        if option is value:
            return at
    for at, option in enumerate(values):
        # True equals 1 but is not a number here; tuples become lists in the journal.
        if isinstance(option, bool) == isinstance(value, bool) and _tuples_to_lists(option) == _tuples_to_lists(value):
            return at
    return None


def _tuples_to_lists(value: Any) -> Any:
    return [_tuples_to_lists(item) for item in value] if isinstance(value, list | tuple) else value
