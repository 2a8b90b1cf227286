"""A population of trials as a scheduler sees it: the state of each, and which are the best and the worst.

The ranking is kept sorted, so the cost of reading its ends depends on their length, not on the number of trials.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

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

    def best(self, fraction: float) -> list[PopulationMember]:
        """Return the upper quantile of the unfinished members, best first."""
        return self._first_live(reversed(self._ranking), fraction)

    def worst(self, fraction: float) -> list[PopulationMember]:
        """Return the lower quantile of the unfinished members, worst first; it does not overlap the upper one."""
        return self._first_live(self._ranking, fraction)

    def _first_live(self, ranking: Iterable[tuple[float, int, str]], fraction: float) -> list[PopulationMember]:
        # At most half of all members, so that the two quantiles do not overlap.
        size = min(math.ceil(self._num_live_ranked * fraction - 1e-9), self._num_live_ranked // 2)
        live = (self.members[trial_id] for *_, trial_id in ranking if self.members[trial_id].is_live)
        return list(itertools.islice(live, size))

    def live_members(self) -> Iterator[PopulationMember]:
        return (member for member in self.members.values() if member.is_live)

    def _unrank(self, member: PopulationMember) -> None:
        if member.interval_score is not None:
            del self._ranking[bisect_left(self._ranking, member.ranking_key)]
            self._num_live_ranked -= member.is_live
