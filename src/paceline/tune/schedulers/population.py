"""A population of trials as a scheduler was told of it: who stands where, who is among the best, who among the worst.

The ranking is kept in order, so that asking for its ends costs as much as they are long, however many trials there are.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.tune.trial import Saved, Trial

Policy = tuple[tuple[int, Mapping[str, Any]], ...]
"""Configurations, each with the iteration from which it is used."""


@dataclass(eq=False)
class Member:
    trial: Trial
    """As it was told last."""
    order: int
    standing: float | None = None
    """Its score at its last interval, larger is better; None before the first one."""
    score: float | None = None
    """The same as it was reported."""
    time: float = 0.0
    """At its last report."""
    since: float = 0.0
    """When its interval began."""
    saved_time: float = 0.0
    """At the report that brought its last checkpoint."""
    is_live: bool = True
    is_moving: bool = False
    """It was told to go on from another one's checkpoint, and has not been heard of since."""
    moved_to: float = 0.0
    """The time of that checkpoint."""
    gone_on_from: list[Saved] = field(default_factory=list)
    """The checkpoints of others that it was told to go on from."""
    policy: Policy = ()
    donor_policy: Policy = ()
    """Of the one whose checkpoint that is."""

    @property
    def trial_id(self) -> str:
        return self.trial.trial_id

    def heard(self, trial: Trial, time: float, counts_iterations: bool) -> None:
        if self.is_moving:
            self._moved(trial, time, counts_iterations)
        elif trial.checkpoint is not None and trial.checkpoint != self.trial.checkpoint:
            self.saved_time = time
        self.trial, self.time = trial, time

    def _moved(self, trial: Trial, time: float, counts_iterations: bool) -> None:
        """It is heard of for the first time since. What it began from may be newer than what its donor had then."""
        self.is_moving = False
        if len(trial.lineage) > len(self.trial.lineage):
            saved = trial.lineage[-1]
            self.moved_to = saved.iteration if counts_iterations else self.moved_to
            before = tuple(used for used in self.donor_policy if used[0] < saved.iteration or not used[0])
            self.policy = (*before, (saved.iteration, trial.config))
            # A clone has its donor's checkpoint, until it has saved something itself.
            self.saved_time = self.moved_to if trial.checkpoint == saved else time
        elif trial.checkpoint != self.trial.checkpoint:
            self.saved_time = time
        # A clock may go on from the donor's, as the iteration does, or from the trial's own.
        self.since = max((clock for clock in (self.time, self.moved_to) if clock < time), default=time)


@dataclass
class Population:
    members: dict[str, Member] = field(default_factory=dict)
    num_live: int = 0
    _ranking: list[tuple[float, int, str]] = field(default_factory=list)
    """From worst to best; of equals the one that was made first is the better."""
    _num_live_ranked: int = 0

    def of(self, trial: Trial) -> Member:
        """The trial's member; one that was over lives again."""
        member = self.members.get(trial.trial_id)
        if member is None:
            member = self.members[trial.trial_id] = Member(trial, len(self.members), is_live=False)
            member.policy = ((trial.iteration, trial.config),)
        if not member.is_live:
            member.is_live = True
            self.num_live += 1
            self._num_live_ranked += member.standing is not None
        return member

    def rank(self, member: Member, score: float, mode: str) -> None:
        """A score that is not a number is worse than any that is."""
        self._unrank(member)
        member.score = score
        member.standing = -math.inf if math.isnan(score) else score if mode == "max" else -score
        insort(self._ranking, _key(member))
        self._num_live_ranked += member.is_live

    def ends(self, member: Member) -> None:
        if member.is_live:
            member.is_live = False
            self.num_live -= 1
            self._num_live_ranked -= member.standing is not None

    def fails(self, member: Member) -> None:
        """What it has reached is nobody's model any more."""
        self.ends(member)
        self._unrank(member)
        member.standing = None

    def best(self, fraction: float) -> list[Member]:
        """The upper quantile, best first, of those that are not over."""
        return self._first_live(reversed(self._ranking), fraction)

    def worst(self, fraction: float) -> list[Member]:
        """The lower quantile, worst first, of those that are not over; none of it is in the upper one."""
        return self._first_live(self._ranking, fraction)

    def _first_live(self, ranking: Iterable[tuple[float, int, str]], fraction: float) -> list[Member]:
        size = _size(self._num_live_ranked, fraction)
        live = (self.members[trial_id] for *_, trial_id in ranking if self.members[trial_id].is_live)
        return list(itertools.islice(live, size))

    def live(self) -> Iterator[Member]:
        return (member for member in self.members.values() if member.is_live)

    def _unrank(self, member: Member) -> None:
        if member.standing is not None:
            del self._ranking[bisect_left(self._ranking, _key(member))]
            self._num_live_ranked -= member.is_live


def _key(member: Member) -> tuple[float, int, str]:
    assert member.standing is not None
    return member.standing, -member.order, member.trial_id


def _size(number: int, fraction: float) -> int:
    """How many a quantile has: at most half of them, so that no one is in both."""
    return min(math.ceil(number * fraction - 1e-9), number // 2)
